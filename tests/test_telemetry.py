"""OpenTelemetry: every call is a span and a duration, below the caller's span, and without content unless allowed."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

import mnemic
from mnemic import telemetry
from mnemic.telemetry import calls
from mnemic.telemetry.otel import BUCKETS, SpanListener
from servers.stores import empty_store

SECRET = "xyzzy-the-secret-of-Alice"
PERSON = "alice-under-wraps"
REMOTE = ["sqlite", "valkey", "postgresql"]


class Traces:
    """The spans and the metric of the calls of a test."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.listener = SpanListener(self.provider, MeterProvider([self.reader]))
        self.tracer = self.provider.get_tracer("the application")

    def spans(self) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if "mnemic.call" in (span.attributes or {})]

    def attributes(self) -> list[dict[str, Any]]:
        return [dict(span.attributes or {}) for span in self.spans()]


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Traces:
    made = Traces()
    monkeypatch.setattr(calls, "_found", [made.listener])
    monkeypatch.delenv(calls.CONTENT_VARIABLE, raising=False)
    return made


def coroutines() -> set[str]:
    """Return the names of all calls of the API."""
    classes = [getattr(mnemic, name) for name in mnemic.api.__all__ if name.startswith("Async")]
    return {
        f"{cls.__name__.removeprefix('Async').lower()}.{name}"
        for cls in classes
        for name, method in vars(cls).items()
        if inspect.iscoroutinefunction(method) and not name.startswith("_")
    }


def test_the_table_names_the_operation_of_every_call() -> None:
    assert set(calls._NAMES) | calls.UNOBSERVED == coroutines()
    assert len(coroutines()) > 60


def test_every_call_of_the_api_is_observed() -> None:
    for name in coroutines() - calls.UNOBSERVED:
        group, _, method = name.partition(".")
        (cls,) = (getattr(mnemic, one) for one in dir(mnemic) if one.lower() == f"async{group}")
        assert hasattr(getattr(cls, method), "__wrapped__"), name


@pytest.mark.parametrize("store", REMOTE)
def test_a_sync_call_is_a_child_of_the_callers_span(store: str, traces: Traces, tmp_path: Path) -> None:
    with empty_store(store, tmp_path) as url, mnemic.open(url) as memory:
        alice = memory.scope("acme", "alice")
        with traces.tracer.start_as_current_span("the request") as request:
            alice.session("monday").add("user", "My sister visits in June.")
            hits = alice.recall("Who visits?")
        added, recalled = traces.spans()
    assert [added.name, recalled.name] == ["create_memory", "search_memory"]
    for span in (added, recalled):
        assert span.parent is not None
        assert span.parent.span_id == request.get_span_context().span_id
        assert span.kind == (SpanKind.INTERNAL if store == "sqlite" else SpanKind.CLIENT)
    attributes = dict(recalled.attributes or {})
    assert attributes["gen_ai.operation.name"] == "search_memory"
    assert attributes["mnemic.call"] == "scope.recall"
    assert attributes["gen_ai.memory.record.count"] == len(hits) == 1
    assert str(attributes["gen_ai.memory.store.id"]).startswith(url.partition("?")[0].partition("@")[0][:8])
    assert ("server.address" in attributes) == ("server.port" in attributes) == (store != "sqlite")


def test_async_calls_at_once_are_children_of_their_own_spans(traces: Traces) -> None:
    async def ask(memory: mnemic.AsyncMemory, name: str) -> int:
        with traces.tracer.start_as_current_span(name) as span:
            await memory.scope(name).remember("a text")
            await memory.scope(name).context("text")
            return span.get_span_context().span_id

    async def main() -> list[int]:
        async with mnemic.open_async("memory://") as memory:
            return list(await asyncio.gather(*(ask(memory, f"user-{n}") for n in range(5))))

    parents = asyncio.run(main())
    found = [span.parent.span_id for span in traces.spans() if span.parent is not None]
    assert sorted(found) == sorted(2 * parents)


def test_a_call_within_a_call_is_part_of_it(traces: Traces) -> None:
    with mnemic.open("memory://") as memory:
        item = memory.scope("acme").remember("a text")
        memory.scope("acme").context("text")
    assert [one["mnemic.call"] for one in traces.attributes()] == ["scope.remember", "scope.context"]
    assert traces.attributes()[0]["gen_ai.memory.record.id"] == item.id


@pytest.mark.parametrize("store", REMOTE)
def test_what_runs_within_a_call_sees_its_span(store: str, traces: Traces, tmp_path: Path) -> None:
    seen: list[int] = []
    with empty_store(store, tmp_path) as url, mnemic.open(url) as memory:
        chat = memory.scope("acme").session(
            "monday", max_messages=1, overflow=lambda _: seen.append(get_current_span().get_span_context().span_id)
        )
        chat.add("user", "one")
        chat.add("user", "two")
    span = traces.spans()[-1]
    assert span.context is not None
    assert seen == [span.context.span_id]


def test_a_cancelled_call_ends_its_span(traces: Traces) -> None:
    async def main() -> None:
        waiting = asyncio.Event()

        async def wait(_: object) -> None:
            waiting.set()
            await asyncio.Event().wait()

        async with mnemic.open_async("memory://") as memory:
            chat = memory.scope("acme").session("monday", max_messages=1, overflow=wait)
            await chat.add("user", "one")
            task = asyncio.create_task(chat.add("user", "two"))
            await waiting.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not get_current_span().get_span_context().is_valid

    asyncio.run(main())
    assert [one.get("error.type") for one in traces.attributes()] == [None, "CancelledError"]


def test_an_error_is_named_but_not_quoted(traces: Traces) -> None:
    with mnemic.open("memory://") as memory, pytest.raises(mnemic.NotFoundError):
        memory.scope("acme").memories.get(SECRET)
    (span,) = traces.spans()
    assert dict(span.attributes or {})["error.type"] == "NotFoundError"
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description is None
    assert SECRET not in span.to_json()


def everything(memory: mnemic.Memory) -> None:
    """Store a secret in every way, and ask for it."""
    alice = memory.scope("acme", PERSON)
    alice.session("monday").add("user", SECRET, metadata={"topic": SECRET})
    alice.session("monday").messages()
    alice.remember(SECRET, source=SECRET)
    alice.notes.write("plan", {"secret": SECRET}, description=SECRET)
    alice.notes.get("plan")
    alice.notes.write(PERSON, 1)
    alice.facts.add("Alice", "told", SECRET)
    alice.facts.ask("Alice")
    alice.recall(SECRET)
    alice.context(SECRET)
    alice.forget(metadata={"topic": SECRET})
    alice.erase()


def test_a_span_holds_no_content_and_no_scope(traces: Traces) -> None:
    with mnemic.open("memory://") as memory:
        everything(memory)
    spans = "".join(span.to_json() for span in traces.spans())
    assert len(traces.spans()) == 12
    assert SECRET not in spans
    assert PERSON not in spans


@pytest.mark.parametrize("way", ["variable", "function"])
def test_content_is_recorded_on_request(way: str, traces: Traces, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_content", None)
    if way == "variable":
        monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    else:
        telemetry.capture_content()
    with mnemic.open("memory://") as memory:
        item = memory.scope("acme").remember(SECRET, metadata={"topic": "tea"})
        memory.scope("acme").recall(query=SECRET)
    added, recalled = traces.attributes()
    (record,) = json.loads(added["gen_ai.memory.records"])
    assert record == {"content": SECRET, "id": item.id, "metadata": {"topic": "tea"}}
    assert recalled["gen_ai.memory.query.text"] == SECRET
    (found,) = json.loads(recalled["gen_ai.memory.records"])
    assert found["content"] == SECRET
    assert 0 < found["score"] <= 1


def test_the_key_and_the_value_of_a_note_are_content(traces: Traces, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_content", True)
    with mnemic.open("memory://") as memory:
        memory.scope("acme").notes.write(PERSON, {"secret": SECRET}, description="d")
        memory.scope("acme").notes.get(PERSON)
        monkeypatch.setattr(calls, "_content", False)
        memory.scope("acme").notes.get(PERSON)
    written, read, hidden = traces.attributes()
    for span in (written, read):
        assert span["gen_ai.memory.record.id"] == PERSON
        assert json.loads(span["gen_ai.memory.records"]) == [{"content": {"secret": SECRET}, "id": PERSON}]
    assert "gen_ai.memory.record.id" not in hidden
    assert hidden["gen_ai.memory.record.count"] == 1


def test_a_recall_is_an_event_of_its_span_and_a_ping_is_no_span(traces: Traces) -> None:
    with mnemic.open("memory://") as memory:
        memory.ping()
        memory.scope("acme").recall("tea")
    (span,) = traces.spans()
    assert [(event.name, dict(event.attributes or {})) for event in span.events] == [
        ("mnemic.recalls", {"label": "miss"})
    ]


def test_the_function_forbids_content_over_the_variable(traces: Traces, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    monkeypatch.setattr(calls, "_content", None)
    telemetry.capture_content(False)
    with mnemic.open("memory://") as memory:
        everything(memory)
    assert SECRET not in "".join(span.to_json() for span in traces.spans())


def test_the_metric_is_that_of_the_conventions(traces: Traces) -> None:
    with mnemic.open("memory://") as memory:
        memory.scope("acme").remember("a text")
        with pytest.raises(mnemic.NotFoundError):
            memory.scope("acme").memories.get("nothing")
    data = traces.reader.get_metrics_data()
    assert data is not None
    (metric,) = data.resource_metrics[0].scope_metrics[0].metrics
    assert (metric.name, metric.unit) == ("gen_ai.client.operation.duration", "s")
    points: list[Any] = list(metric.data.data_points)
    found = [(dict(point.attributes), point.count) for point in points]
    assert found == [
        ({"gen_ai.operation.name": "create_memory", "mnemic.call": "scope.remember"}, 1),
        ({"gen_ai.operation.name": "search_memory", "mnemic.call": "memories.get", "error.type": "NotFoundError"}, 1),
    ]
    assert list(points[0].explicit_bounds) == BUCKETS


def run_program(text: str, **environment: str) -> str:
    environment = {**os.environ, **environment}
    program = [sys.executable, "-c", textwrap.dedent(text)]
    return subprocess.run(program, capture_output=True, text=True, check=True, env=environment).stdout.strip()


def test_a_provider_that_is_set_later_gets_spans_also_of_an_open_memory() -> None:
    printed = run_program("""
        import mnemic
        memory = mnemic.open("memory://")
        memory.scope("acme").remember("before")
        from opentelemetry import trace
        memory.scope("acme").remember("without a provider")
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=lambda span: span.name + "\\n")))
        trace.set_tracer_provider(provider)
        memory.scope("acme").recall("before")
    """)
    assert printed.splitlines() == ["search_memory"]


def test_threads_that_begin_at_once_make_one_span_each() -> None:
    printed = run_program("""
        import threading
        import mnemic
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(provider)
        start = threading.Barrier(8)

        def work(number):
            start.wait()
            for n in range(10):
                memory.scope("acme", str(number)).notes.write(str(n), n)

        with mnemic.open("memory://") as memory:
            threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        spans = exporter.get_finished_spans()
        print(len(spans), {span.name for span in spans}, {span.parent for span in spans})
    """)
    assert printed == "80 {'upsert_memory'} {None}"


def test_nothing_is_imported_for_it_and_nothing_needed() -> None:
    printed = run_program("""
        import sys
        sys.modules["opentelemetry"] = sys.modules["prometheus_client"] = None
        import mnemic
        from mnemic import telemetry
        with mnemic.open("memory://") as memory:
            memory.scope("acme").remember("a text")
            print(len(memory.scope("acme").recall("text")))
        try:
            telemetry.register_prometheus()
        except mnemic.MissingExtraError as error:
            print(error)
    """)
    assert printed.splitlines() == [
        "1",
        "Prometheus figures need the package prometheus_client; install it with: pip install 'mnemic[prometheus]'",
    ]


def test_an_unused_package_is_not_imported() -> None:
    printed = run_program("""
        import sys, mnemic
        with mnemic.open("memory://") as memory:
            memory.scope("acme").remember("a text")
        print([name for name in ("opentelemetry", "prometheus_client") if name in sys.modules])
    """)
    assert printed == "[]"
