"""Agents that call one another by name, and share a memory.

Offline they follow a script. With MNEMIC_MODEL set to a name that pydantic-ai knows, or with a key of OpenAI
or Anthropic in the environment and `pip install "pydantic-ai-slim[openai,anthropic]"`, a real model answers.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import mnemic
from mnemic.agents import Runtime

KEYS = {"OPENAI_API_KEY": "openai:gpt-5-mini", "ANTHROPIC_API_KEY": "anthropic:claude-haiku-4-5"}


def model() -> Any:
    """Return the model that the environment asks for, or the script."""
    named = os.environ.get("MNEMIC_MODEL")
    return named or next((name for key, name in KEYS.items() if os.environ.get(key)), FunctionModel(script))


async def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Answer as each of the agents would."""
    told = info.instructions or ""
    last = messages[-1].parts[-1]
    answered = [p for m in messages for p in m.parts if isinstance(p, ToolReturnPart)]
    if told.startswith("You research"):
        if isinstance(last, ToolReturnPart):
            return ModelResponse([TextPart("Lisbon has seven hills, and trams since 1873.")])
        fact = {"subject": "Lisbon", "predicate": "has", "object": "seven hills"}
        return ModelResponse([ToolCallPart("assert_fact", fact)])
    if told.startswith("You write"):
        return ModelResponse([TextPart("Seven hills, and a tram up each of them: that is Lisbon.")])
    if not isinstance(last, ToolReturnPart):
        return _asks("Researcher", "What is special about Lisbon?")
    if len(answered) < 2:
        return _asks("Writer", f"Write one sentence from this: {last.content}")
    return ModelResponse([TextPart(f"Here it is: {last.content}")])


def _asks(name: str, request: str) -> ModelResponse:
    return ModelResponse([ToolCallPart("call_agent", {"name": name, "request": request})])


async def main() -> int:
    """Let an editor have a sentence researched and written; then show who asked whom."""
    async with mnemic.open_async("memory://") as memory:
        magazine = memory.scope("acme", "magazine")
        async with Runtime(memory=magazine, model=model(), session="issue-7", private=True) as team:
            team.agent("Editor", "You edit a magazine. Have things researched, then written, then answer.")
            team.agent("Researcher", "You research, and state what you find as facts.")
            team.agent("Writer", "You write one good sentence.", memory_tools=False)
            print("  user       A sentence about Lisbon, please.")
            print(f"  Editor     {await team.call('Editor', 'A sentence about Lisbon, please.')}")
        print("Who asked whom")
        for info in await magazine.sessions.list():
            for message in await memory.scope(info.scope.parent).session(info.name).messages():
                for call in message.agent_calls if message.role == "assistant" else []:
                    print(f"  {message.name:<10} {call.agent_name}: {call.request}")
        for fact in await magazine.scope("Researcher").facts.ask():
            print(f"  a fact     {fact.subject} {fact.predicate} {fact.object}")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
