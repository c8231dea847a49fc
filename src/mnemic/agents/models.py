"""Models that an agent accepts: pydantic-ai's, or any function from messages to text."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel

from ..checks import shown
from ..errors import InvalidValueError
from ..event_loop import call
from ..messages import Message
from .conversion import from_pydantic_ai
from .model_requests import as_prompt, wants_text

TextModel: TypeAlias = Callable[..., str | ModelResponse | Awaitable[str | ModelResponse]]
"""A function, sync or async, from messages, or from a prompt, to text."""
AnyModel: TypeAlias = Model[Any] | str | TextModel
"""Accepted as a model: a pydantic-ai model, its name, or a function."""


def model_of(model: AnyModel) -> Model[Any] | str:
    """Return a model for pydantic-ai; raises InvalidValueError for anything else."""
    if isinstance(model, Model | str):
        return model
    if callable(model):
        return _Function(model)
    raise InvalidValueError(f"a model is one of pydantic-ai's, its name, or a function: {shown(model)}")


class _Function(FunctionModel):
    """A plain function as a model; it returns text, or a response that calls tools."""

    def __init__(self, function: TextModel) -> None:
        async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            given = _given(function, messages, info)
            answered = await call(function, given)
            if isinstance(answered, ModelResponse):
                return answered
            if not isinstance(answered, str):
                raise InvalidValueError(f"a model returns text, not {shown(answered)}")
            return ModelResponse([TextPart(answered)])

        async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
            response = await answer(messages, info)
            yield response.text or ""

        name = getattr(function, "__name__", type(function).__name__)
        super().__init__(answer, stream_function=stream, model_name=name)


def _given(function: TextModel, messages: list[ModelMessage], info: AgentInfo) -> Any:
    """Return the function's argument: messages, with instructions and system prompts first, or one text."""
    told = [Message("system", info.instructions)] if info.instructions else []
    given = [*told, *from_pydantic_ai(messages, system=True)]
    return as_prompt(given) if wants_text(function) else given
