"""Structured logs: one JSON object per line, with ids and never content; and a line for each call at DEBUG."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

from . import calls
from .calls import Call

__all__ = ["JSONFormatter"]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"asctime", "message", "taskName"}


class JSONFormatter(logging.Formatter):
    """Formats a log record as one line of JSON: time, level, logger, message, and the fields of its `extra`.

    Within a call of Mnemic that is observed, it adds `operation_id`, and within a span of OpenTelemetry `trace_id` and
    `span_id`. Of an exception it adds the class alone.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        from msgspec import json

        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[0] is not None:
            fields["error"] = record.exc_info[0].__qualname__
        if (call := calls.current()) is not None:
            fields["operation_id"] = call.id
        if (trace := sys.modules.get("opentelemetry.trace")) is not None:
            span = trace.get_current_span().get_span_context()
            if span.is_valid:
                fields |= {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
        fields |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        return json.encode(fields, enc_hook=str).decode()


class LogListener:
    """Logs each call when it has ended, at DEBUG on `mnemic.calls`."""

    def begin(self, call: Call) -> None:
        """Do nothing: a call is logged when it has ended."""

    def end(self, call: Call, begun: Any) -> None:
        """Log the call."""
        fields = {
            "operation_id": call.id,
            "operation": call.operation,
            "call": call.name,
            "store": call.origin.id,
            "scope": None if call.scope is None else blake2b(call.scope.encode(), digest_size=8).hexdigest(),
            "outcome": call.error or "ok",
            "ms": round(1000 * call.seconds, 3),
            "records": call.count(),
        }
        known = {name: value for name, value in fields.items() if value is not None}
        calls.log.debug("%s: %s in %.1f ms", call.name, fields["outcome"], 1000 * call.seconds, extra=known)

    def count(self, event: str, label: str) -> None:
        """Do nothing: events have log messages of their own."""
