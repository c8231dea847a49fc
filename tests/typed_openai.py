"""A chat loop with the openai package, which `make types` checks strictly and nobody runs."""

# pyright: strict

from __future__ import annotations

from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam

import mnemic


def answer(client: OpenAI, memory: mnemic.Memory, user: str, said: str) -> str:
    alice = memory.scope("acme", user)
    chat = alice.session("main", max_tokens=4_000)
    chat.add("user", said)
    context = alice.context(session="main", max_tokens=2_000)
    completion = client.chat.completions.create(model="m", messages=mnemic.to_openai(context.messages))
    answered = completion.choices[0].message
    chat.add_many(mnemic.from_openai([answered.model_dump()]))
    return answered.content or ""


async def stream(client: AsyncOpenAI, session: mnemic.AsyncSession) -> None:
    messages = mnemic.to_openai(await session.window(2_000))
    said = ""
    async for chunk in await client.chat.completions.create(model="m", messages=messages, stream=True):
        said += chunk.choices[0].delta.content or ""
    await session.add({"role": "assistant", "content": said})


def bring(session: mnemic.Session, history: list[ChatCompletionMessageParam]) -> list[mnemic.Message]:
    return session.add_many(mnemic.from_openai(history))
