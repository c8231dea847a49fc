"""A model that says what a test tells it to, and remembers what it was asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

Step: TypeAlias = str | ToolCallPart | list[Any] | Exception | Callable[[list[ModelMessage]], Any]


def call(tool: str, id: str = "c1", **arguments: Any) -> ToolCallPart:
    """Return a model's request to run a tool."""
    return ToolCallPart(tool, arguments, id)


class Script(FunctionModel):
    """Answers with one step after the other: a text, calls, a function of the messages, or an error."""

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)
        self.seen: list[list[ModelMessage]] = []
        self.told: list[AgentInfo] = []

        async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            return ModelResponse(await self._next(messages, info))

        async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
            for n, part in enumerate(await self._next(messages, info)):
                if isinstance(part, TextPart):
                    for word in part.content.split(" "):
                        yield f"{word} "
                else:
                    yield {n: DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)}

        super().__init__(answer, stream_function=stream, model_name="script")

    async def _next(self, messages: list[ModelMessage], info: AgentInfo) -> list[Any]:
        self.seen.append(list(messages))
        self.told.append(info)
        step: Any = self.steps.pop(0) if self.steps else "…"
        if callable(step):
            step = step(messages)
            if hasattr(step, "__await__"):
                step = await step
        if isinstance(step, Exception):
            raise step
        parts = step if isinstance(step, list) else [step]
        return [TextPart(part) if isinstance(part, str) else part for part in parts]

    def prompts(self, n: int = -1) -> list[str]:
        """Return the texts of the user's side that the model saw when it was asked the nth time."""
        return [
            part.content if isinstance(part.content, str) else str(part.content)
            for message in self.seen[n]
            if isinstance(message, ModelRequest)
            for part in message.parts
            if isinstance(part, UserPromptPart)
        ]

    def memory(self, n: int = -1) -> str:
        """Return what was shown between the memory tags when the model was asked the nth time."""
        return next((text for text in self.prompts(n) if text.startswith("<memory>")), "")
