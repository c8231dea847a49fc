"""mem0's configuration: where memories are stored, and the model that finds facts; and mem0's errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from ..agents.model_requests import Asked
from ..checks import shown
from ..errors import InvalidValueError
from ..event_loop import call
from ..memory import OpenOptions
from ..messages import Message
from ..store.registry import sqlite_url
from .foreign import require


def value_of(config: Any, *names: str) -> Any:
    """Return a value of a configuration; None if it is not there."""
    for name in names:
        config = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
    return config


def default_url(config: Any) -> str:
    """Return the store if none is named: a file beside mem0's own history of memories."""
    history = Path(value_of(config, "history_db_path") or Path(os.environ.get("MEM0_DIR") or "~/.mem0", "history.db"))
    folder = history.expanduser().absolute().parent
    folder.mkdir(parents=True, exist_ok=True)
    return sqlite_url(folder / "mnemic.db")


def store_of(config: Any, options: OpenOptions) -> tuple[str, OpenOptions]:
    """Return the URL and options of a `vector_store` with the provider "mnemic"; raises InvalidValueError."""
    given = dict(config or {})
    given.pop("collection_name", None)
    url = given.pop("url", None)
    if not isinstance(url, str):
        raise InvalidValueError(f'the provider "mnemic" needs a url, such as "sqlite:///memory.db": {shown(url)}')
    if unknown := given.keys() - OpenOptions.__annotations__.keys():
        raise InvalidValueError(f'the provider "mnemic" takes a url, and options of mnemic.open, not {sorted(unknown)}')
    return url, cast("OpenOptions", {**given, **options})


def configured_model(config: Any) -> Callable[[list[Message]], str] | None:
    """Return the LLM of a configuration as a function, made by mem0."""
    if (provider := value_of(config, "llm", "provider")) is None:
        return None
    try:
        from mem0.utils.factory import LlmFactory
    except ImportError:
        message = f"llm with the provider {shown(provider)} needs mem0ai: install it, or give a model as `model`"
        raise ImportError(message, name="mem0") from None
    require("mem0ai", "2.2", "3")
    llm = LlmFactory.create(provider, value_of(config, "llm", "config") or {})

    def ask(messages: list[Message]) -> str:
        return str(llm.generate_response([{"role": one.role, "content": one.text} for one in messages]))

    return ask


def chat_model(llm: Any) -> Callable[[list[Message]], str]:
    """Return a chat model of LangChain as a function."""

    def ask(messages: list[Message]) -> str:
        return str(llm.invoke([(one.role, one.text or "") for one in messages]).text)

    return ask


async def ask_model(model: Asked, messages: list[Message]) -> str:
    """Return the answer of a model; raises mem0's LLMError."""
    try:
        return str(await call(model, messages))
    except Exception as error:
        raise mem0_error("LLMError", f"the model failed: {error}", cause=error) from error


def mem0_error(name: str, message: str, code: str = "LLM_001", cause: Exception | None = None) -> Exception:
    """Return an error of mem0's, if the program has loaded those; else the cause, or InvalidValueError."""
    if (loaded := sys.modules.get("mem0.exceptions")) is None:
        return InvalidValueError(message) if cause is None else cause
    error: Exception = getattr(loaded, name)(message=message, error_code=code)
    return error
