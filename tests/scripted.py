"""Models that follow a script, for agents that are tested offline."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel


def everything(messages: list[ModelMessage], info: AgentInfo | None = None) -> str:
    """Return all that a model is shown, as one text."""
    parts = [str(getattr(part, "content", "")) for message in messages for part in message.parts]
    return "\n".join([(info.instructions or "") if info else "", *parts])


def asked(messages: list[ModelMessage]) -> str:
    """Return what the user said last."""
    return next(
        str(part.content)
        for message in reversed(messages)
        if isinstance(message, ModelRequest)
        for part in reversed(message.parts)
        if part.part_kind == "user-prompt"
    )


def lately(messages: list[ModelMessage]) -> list[ModelMessage]:
    """Return what came after the user spoke last."""
    spoke = [n for n, m in enumerate(messages) if any(p.part_kind == "user-prompt" for p in m.parts)]
    return messages[spoke[-1] + 1 :]


def says(answer: Callable[..., str | list[ToolCallPart]]) -> FunctionModel:
    """Return a model that answers from what was asked, all that it is shown, and what has come since."""

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        given = (asked(messages), everything(messages, info), everything(lately(messages)))
        found = answer(*given[: answer.__code__.co_argcount])
        return ModelResponse([TextPart(found)] if isinstance(found, str) else list(found))

    return FunctionModel(respond)


def finding(*patterns: str) -> FunctionModel:
    """Return a model that answers a question with what it finds by these patterns in all that it is shown."""

    def answer(question: str, shown: str) -> str:
        if not question.rstrip().endswith("?"):
            return "Noted."
        found = [match.group(1) for pattern in patterns if (match := re.search(pattern, shown))]
        return ", ".join(found) or "I do not know."

    return says(answer)


def tool(name: str, **arguments: Any) -> ToolCallPart:
    """Return a call of a tool."""
    return ToolCallPart(name, arguments)
