"""Differences between the supported versions of pydantic-ai."""

from __future__ import annotations

from inspect import signature
from typing import Any, cast, get_args, get_type_hints

import pydantic_ai
from pydantic_ai import messages
from pydantic_ai.messages import ToolReturnPart

_FAILED: type[Exception] | None = getattr(pydantic_ai, "ToolFailed", None)
_OUTCOMES = get_args(get_type_hints(ToolReturnPart, vars(messages))["outcome"])
_WRAPS = "wrap_if_error" in ToolReturnPart.model_response_str.__code__.co_varnames
_TAKES_RUN_ID = "run_id" in signature(pydantic_ai.Agent.run).parameters


def run_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the run options that this version accepts: without `run_id` where there is none."""
    return options if _TAKES_RUN_ID else {name: value for name, value in options.items() if name != "run_id"}


def refuse(reason: str) -> str:
    """Report a failed call to the model: raises ToolFailed, or returns the reason where there is none."""
    if _FAILED is not None:
        raise _FAILED(reason)
    return reason


def answer_text(part: ToolReturnPart) -> str:
    """Return a tool result as text, also if it is an error."""
    return part.model_response_str(wrap_if_error=False) if _WRAPS else part.model_response_str()


def known_outcome(outcome: str) -> Any:
    """Return a tool outcome that this version knows; an unknown one counts as failed."""
    return outcome if outcome in _OUTCOMES else "failed"


def answers_call(part: Any) -> bool:
    """Return whether a request part asks the model to repeat a tool call, as in versions before 2.52."""
    return part.part_kind == "retry-prompt" and part.tool_name is not None


def as_tool_return(part: Any) -> ToolReturnPart:
    """Return such a part as the result of the call."""
    return ToolReturnPart(
        part.tool_name,
        part.model_response(),
        part.tool_call_id,
        timestamp=part.timestamp,
        outcome=cast("Any", "retried"),
    )


def is_feedback(part: Any) -> bool:
    """Return whether a request part tells the model why its output was rejected."""
    return part.part_kind in ("retry-feedback", "retry-prompt")
