"""Spans and the duration metric of OpenTelemetry's GenAI conventions for memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from msgspec import json
from opentelemetry import context, metrics, trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from .calls import Call, content_allowed

BUCKETS = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
"""Bucket boundaries of `gen_ai.client.operation.duration`, as the conventions define them."""
IN_PROCESS = ("memory", "sqlite")
PROVIDERS = {"agentcore": "aws.bedrock"}
"""Services of a GenAI provider among the stores, by scheme."""
TEXTS = ("text", "content", "value")
"""Fields of a result that hold its content."""

_UNKNOWN = object()
_metrics = sys.modules.get("opentelemetry.metrics._internal")
_FROM_ENVIRONMENT = any(f"OTEL_PYTHON_{kind}_PROVIDER" in os.environ for kind in ("TRACER", "METER"))


def has_provider() -> bool:
    """Return whether the program has set a provider of spans or metrics."""
    # The functions that return the providers take ten times as long; without these names, the answer is yes.
    spans = getattr(trace, "_TRACER_PROVIDER", _UNKNOWN)
    return spans is not None or getattr(_metrics, "_METER_PROVIDER", _UNKNOWN) is not None or _FROM_ENVIRONMENT


class SpanListener:
    """Makes a span of each call, current while it runs, and records its duration."""

    def __init__(
        self, tracers: trace.TracerProvider | None = None, meters: metrics.MeterProvider | None = None
    ) -> None:
        """Take the providers, by default the global ones."""
        version = metadata.version("mnemic")
        self._tracer = trace.get_tracer("mnemic", version, tracers)
        self._durations = metrics.get_meter("mnemic", version, meters).create_histogram(
            "gen_ai.client.operation.duration",
            "s",
            "GenAI operation duration.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )

    def begin(self, call: Call) -> Any:
        """Start a span, and make it current."""
        attributes: dict[str, Any] = {"gen_ai.operation.name": call.operation, "mnemic.call": call.name}
        if call.origin.address is not None:
            attributes |= {"server.address": call.origin.address, "server.port": call.origin.port}
        if provider := PROVIDERS.get(call.origin.scheme):
            attributes["gen_ai.provider.name"] = provider
        kind = SpanKind.INTERNAL if call.origin.scheme in IN_PROCESS else SpanKind.CLIENT
        span = self._tracer.start_span(
            call.operation, kind=kind, attributes=attributes, record_exception=False, set_status_on_exception=False
        )
        token = context.attach(trace.set_span_in_context(span)) if span.get_span_context().is_valid else None
        return span, token, attributes

    def end(self, call: Call, begun: Any) -> None:
        """End the span, and record the duration."""
        span, token, attributes = begun
        if token is not None:
            context.detach(token)
        if call.error is not None:
            attributes["error.type"] = call.error
        self._durations.record(call.seconds, attributes)
        if span.is_recording():
            if call.error is not None:
                span.set_attribute("error.type", call.error)
                span.set_status(Status(StatusCode.ERROR))
            if call.origin.id:
                span.set_attribute("gen_ai.memory.store.id", call.origin.id)
            if (id := call.record_id(keys=content_allowed())) is not None:
                span.set_attribute("gen_ai.memory.record.id", id)
            if (number := call.count()) is not None:
                span.set_attribute("gen_ai.memory.record.count", number)
            if content_allowed():
                _add_content(span, call)
        span.end()

    def count(self, event: str, label: str) -> None:
        """Add an event to the current span."""
        trace.get_current_span().add_event(f"mnemic.{event}", {"label": label})


def _add_content(span: trace.Span, call: Call) -> None:
    arguments = call.arguments()
    if isinstance(query := arguments.get("query"), str):
        span.set_attribute("gen_ai.memory.query.text", query)
    if records := _records(call.result, arguments):
        span.set_attribute("gen_ai.memory.records", json.encode(records).decode())


def _records(result: Any, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the records that a call stored or found, in the form of the conventions' schema.

    The content of one whose result does not repeat it is the argument `value`.
    """
    several = getattr(result, "hits", result)
    found = []
    for one in several if isinstance(several, list) else [several]:
        if not hasattr(one, "to_dict"):
            continue
        fields = one.to_dict()
        content = next((fields[name] for name in TEXTS if fields.get(name) is not None), arguments.get("value", fields))
        known = {"id": fields.get("id") or fields.get("key"), "score": fields.get("score")}
        known["metadata"] = fields.get("metadata") or None
        found.append({"content": content, **{name: value for name, value in known.items() if value is not None}})
    return found
