"""LangGraph's checkpointer on Mnemic: its conformance suite, and its own `InMemorySaver` as the oracle."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver, ChannelVersions, CheckpointTuple
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Interrupt, Send

import mnemic
from checkpoints import checkpoint, config, put_one
from mnemic.adapters import langgraph_saver
from mnemic.adapters.langgraph import MnemicSaver


@pytest.fixture
def saver(file_url: str) -> Iterator[MnemicSaver]:
    with MnemicSaver(file_url) as saver:
        yield saver


@pytest.mark.parametrize("place", ["file", "memory", "async"])
def test_the_conformance_suite_of_langgraph_passes(file_url: str, place: str) -> None:
    async def new() -> AsyncGenerator[BaseCheckpointSaver[str], None]:
        if place == "async":
            async with mnemic.open_async(file_url) as memory:
                yield MnemicSaver(memory)
        else:
            async with MnemicSaver(file_url if place == "file" else "memory://") as saver:
                yield saver

    report = asyncio.run(validate(checkpointer_test(name=f"MnemicSaver {place}")(new)))
    assert {name: result.failures for name, result in report.results.items()} == {name.value: [] for name in Capability}
    assert all(result.passed for result in report.results.values())
    assert sum(result.tests_passed for result in report.results.values()) == 81


NAMESPACES = st.sampled_from(["", "", "child:1|grand/child:2"])
CHANNELS = ("messages", "n", "branch:to:node", "50% / é")
VALUES = (
    st.none()
    | st.integers(-(2**63), 2**63)
    | st.text(max_size=5)
    | st.lists(st.integers(0, 9), max_size=3)
    | st.binary(max_size=3)
)
IDS = st.integers(0, 4).map(lambda n: f"1f0c/{n:04}")
SPECIAL = st.sampled_from([*WRITES_IDX_MAP, "messages", "n"])
THREADS = st.sampled_from(["t/1", "t/1", "t/10"])
RUNS = ("run 0", "run 1")
STEPS = st.one_of(
    st.tuples(
        st.just("put"),
        THREADS,
        NAMESPACES,
        IDS,
        st.none() | IDS,
        st.dictionaries(st.sampled_from(CHANNELS), VALUES),
        st.sets(st.sampled_from(CHANNELS)),
        st.sets(st.sampled_from(CHANNELS[:2])),
    ),
    st.tuples(
        st.just("write"),
        THREADS,
        NAMESPACES,
        IDS,
        st.lists(st.tuples(SPECIAL, VALUES), max_size=3),
        st.sampled_from(["task 1", "task/2"]),
        st.sampled_from(["", "~__pregel_pull, b", "~__pregel_pull, a"]),
    ),
    st.tuples(st.just("delete_thread"), st.just("t/10")),
    st.tuples(st.just("copy_thread"), THREADS, THREADS),
    st.tuples(
        st.just("prune"), st.lists(THREADS, max_size=2), st.sampled_from(["keep_latest", "keep_latest", "delete"])
    ),
    st.tuples(st.just("delete_for_runs"), st.lists(st.sampled_from(RUNS), max_size=1)),
)


class Reference(InMemorySaver):
    """LangGraph's own saver, with the operations that it does not have, as `BaseCheckpointSaver` describes them."""

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        for namespace, rows in self.storage[source_thread_id].items() if source_thread_id != target_thread_id else ():
            self.storage[target_thread_id][namespace].update(rows)
        for thread, namespace, id in [*self.writes]:
            if thread == source_thread_id:
                self.writes[target_thread_id, namespace, id].update(self.writes[thread, namespace, id])
        for thread, namespace, channel, version in [*self.blobs]:
            if thread == source_thread_id:
                found = self.blobs[thread, namespace, channel, version]
                self.blobs[target_thread_id, namespace, channel, version] = found

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        for thread in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread)
                continue
            for namespace, rows in self.storage[thread].items():
                kept = self._chain(thread, namespace, max(rows, default=""))
                written = {id for one, place, id in self.writes if (one, place) == (thread, namespace)}
                for id in (rows.keys() | written) - kept:
                    if id <= max(kept, default=""):  # a later one is not stored yet
                        self._delete(thread, namespace, id)
            self._sweep(thread)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        for thread, namespaces in self.storage.items():
            for namespace, rows in namespaces.items():
                for id, (_, metadata, _) in [*rows.items()]:
                    if self.serde.loads_typed(metadata).get("run_id") in run_ids:
                        self._delete(thread, namespace, id)
            self._sweep(thread)

    def _chain(self, thread: str, namespace: str, id: str | None) -> set[str]:
        """The newest checkpoint, and as many before it as its delta channels are made of."""
        rows, kept = self.storage[thread][namespace], set[str]()
        deltas = set[str]()
        while id in rows:
            values, described = self.serde.loads_typed(rows[id][0]), self.serde.loads_typed(rows[id][1])
            deltas = deltas if kept else set(described["counters_since_delta_snapshot"])
            kept.add(id)
            deltas -= self._load_blobs(thread, namespace, values["channel_versions"]).keys()
            id = rows[id][2] if deltas else None
        return kept

    def _delete(self, thread: str, namespace: str, id: str) -> None:
        self.storage[thread][namespace].pop(id, None)
        self.writes.pop((thread, namespace, id), None)

    def _sweep(self, thread: str) -> None:
        """Delete the versions of channels that no checkpoint has."""
        used = {
            (thread, namespace, *version)
            for namespace, rows in self.storage[thread].items()
            for row in rows.values()
            for version in self.serde.loads_typed(row[0])["channel_versions"].items()
        }
        for place in [place for place in self.blobs if place[0] == thread and place not in used]:
            del self.blobs[place]


@settings(max_examples=200)
@given(st.lists(STEPS, max_size=16), st.lists(NAMESPACES, max_size=2), IDS, st.none() | st.integers(0, 3))
def test_it_does_what_the_own_saver_of_langgraph_does(
    steps: Sequence[tuple[Any, ...]], namespaces: Sequence[str], id: str, limit: int | None
) -> None:
    oracle, ours = Reference(), MnemicSaver()
    both: tuple[BaseCheckpointSaver[str], ...] = (oracle, ours)
    versions: ChannelVersions = {}
    for n, (what, *step) in enumerate(steps):
        if what == "put":
            thread, namespace, new, parent, values, changed, deltas = step
            versions = versions | {channel: f"{n:032}.{channel}" for channel in changed | values.keys()}
            parent = parent if parent is not None and parent < new else None
            for saver in both:
                stored = saver.put(
                    config(namespace, parent, thread),
                    checkpoint(new, values, versions),
                    {
                        "source": "loop",
                        "step": n,
                        "run_id": RUNS[n % 2],
                        "counters_since_delta_snapshot": dict.fromkeys(deltas, (1, 1)),
                    },
                    {channel: versions[channel] for channel in changed | values.keys()},
                )
                assert stored == config(namespace, new, thread)
        elif what == "write":
            thread, namespace, new, writes, task, path = step
            for saver in both:
                saver.put_writes(config(namespace, new, thread), writes, task, path)
        elif what == "prune":
            for saver in both:
                saver.prune(step[0], strategy=step[1])
        else:
            for saver in both:
                getattr(saver, what)(*step)
        assert _sorted(ours.list(None)) == _sorted(oracle.list(None)), what
    for thread in ("t/1", "t/10"):
        for namespace in ["", *namespaces]:
            for asked in (config(namespace, thread=thread), config(namespace, id, thread)):
                assert ours.get_tuple(asked) == oracle.get_tuple(asked)
                histories = [saver.get_delta_channel_history(config=asked, channels=CHANNELS) for saver in both]
                assert histories[0] == histories[1]
            named = config(namespace, id, thread)
            assert list(ours.list(named)) == list(oracle.list(named))
            for options in ({}, {"filter": {"run_id": "run 1"}}, {"before": config("", id)}, {"limit": limit}):
                found, expected = (saver.list(config(namespace, thread=thread), **options) for saver in both)
                assert list(found) == list(expected)
        assert _sorted(ours.list(config(thread=thread))) == _sorted(oracle.list(config(thread=thread)))
    assert list(ours.list(config(thread="other"))) == []
    assert ours.get_tuple(config(thread="other")) is None
    ours.close()


def _sorted(found: Iterator[CheckpointTuple]) -> list[CheckpointTuple]:
    return sorted(found, key=lambda one: sorted(one.config["configurable"].items()))


def test_every_type_of_a_state_comes_back_unchanged(saver: MnemicSaver) -> None:
    call = {"name": "find", "args": {"q": "tea"}, "id": "c1", "type": "tool_call"}
    values = {
        "messages": [
            SystemMessage("Be brief.", id="0"),
            HumanMessage([{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "x"}}], id="1"),
            AIMessage(
                "", id="2", tool_calls=[call], usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
            ),
            ToolMessage("found", tool_call_id="c1", artifact={"n": 1}, id="3", status="error"),
            RemoveMessage(id="1"),
        ],
        "numbers": [1, -(2**63), 1.5, float("inf"), True, None],
        "times": [datetime(2026, 11, 16, 12, tzinfo=UTC), timedelta(days=1)],
        "others": [UUID(int=7), Decimal("1.10"), Path("/tmp/x"), {1, 2}, b"\0\xff", {"a": {"b": [None]}}],
        "text": "NUL \0, a lone \u202e, 日本",
        "sends": [Send("node", {"x": 1}), Interrupt(value={"question": "ok?"}, id="i")],
    }
    versions: ChannelVersions = {name: saver.get_next_version(None, None) for name in values}
    expected = InMemorySaver()
    for one in (saver, expected):
        stored = one.put(config(""), checkpoint("1", values, versions), {"step": 1}, versions)
        one.put_writes(stored, list(values.items()), "task")
    found, wanted = saver.get_tuple(config()), expected.get_tuple(config())
    assert found is not None
    assert found == wanted
    assert found.checkpoint["channel_values"] == values
    assert found.pending_writes == [("task", name, value) for name, value in values.items()]


def test_a_channel_version_is_stored_once_and_a_long_one_in_parts(
    saver: MnemicSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(langgraph_saver, "PART", 1_000)
    long = "0123456789" * 300
    versions: ChannelVersions = {"long": "1", "n": "1"}
    saver.put(config(""), checkpoint("001", {"long": long, "n": 0}, versions), {}, versions)
    for n in range(2, 12):
        versions["n"] = f"{n}"
        stored = saver.put(
            config("", f"{n - 1:03}"), checkpoint(f"{n:03}", {"long": long, "n": n}, versions), {}, {"n": f"{n}"}
        )
    saver.put_writes(stored, [("long", long)], "task")
    found = saver.get_tuple(config())
    assert found is not None
    assert found.checkpoint["channel_values"] == {"long": long, "n": 11}
    assert found.pending_writes == [("task", "long", long)]
    saver.copy_thread("t/1", "copy")
    saver.prune(["t/1"])
    assert saver.get_tuple(config()) == found
    copied = saver.get_tuple(config(thread="copy"))
    assert copied is not None
    assert copied.checkpoint == found.checkpoint
    assert len(list(saver.list(config(thread="copy")))) == 11


def test_a_state_may_be_larger_than_a_record(saver: MnemicSaver) -> None:
    data = bytes(range(256)) * 40_000
    stored = saver.put(config(""), checkpoint("1", {"file": data}, {"file": "1"}), {}, {"file": "1"})
    saver.put_writes(stored, [("file", data)], "task")
    found = saver.get_tuple(config())
    assert found is not None
    assert found.checkpoint["channel_values"]["file"] == data
    assert found.pending_writes == [("task", "file", data)]


def test_names_may_be_long(saver: MnemicSaver) -> None:
    namespace = "|".join(f"subgraph {n}:{UUID(int=n)}" for n in range(20))
    for number in ("1", "2"):
        stored = saver.put(
            config(namespace + number), checkpoint("1", {"c" * 900: number}, {"c" * 900: "1"}), {}, {"c" * 900: "1"}
        )
        saver.put_writes(stored, [("c" * 900, number)], "t" * 900)
    for number in ("1", "2"):
        found = saver.get_tuple(config(namespace + number))
        assert found is not None
        assert found.config == config(namespace + number, "1")
        assert found.checkpoint["channel_values"] == {"c" * 900: number}
        assert found.pending_writes == [("t" * 900, "c" * 900, number)]


def test_threads_are_those_of_one_scope(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        alice, bob = (MnemicSaver(memory.scope(user)) for user in ("alice", "bob"))
        alice.put(config(""), checkpoint("1", {"secret": "tea and biscuits"}, {"secret": "1"}), {}, {"secret": "1"})
        assert bob.get_tuple(config()) is None
        assert list(bob.list(None)) == []
        bob.delete_thread("t/1")
        bob.delete_for_runs(["1"])
        assert alice.get_tuple(config()) is not None
        assert [one.config for one in alice.list(None)] == [config("", "1")]
        above = MnemicSaver(memory)
        put_one(above, "1")
        assert [one.metadata.get("run_id") for one in above.list(None)] == ["run 1"]
        assert memory.scope("alice").recall("tea and biscuits") == []
        memory.scope("alice").erase()
        assert alice.get_tuple(config()) is None


def test_writers_at_once_lose_nothing(saver: MnemicSaver) -> None:
    def write(worker: int) -> None:
        for n in range(10):
            id = f"{n:03}-{worker}"
            stored = saver.put(config(f"{worker}"), checkpoint(id, {"n": n}, {"n": id}), {"step": n}, {"n": id})
            saver.put_writes(stored, [("n", n), ("m", worker)], f"task {worker}")

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = list(saver.list(config()))
    assert len(found) == 40
    assert all(len(one.pending_writes or ()) == 2 for one in found)
    assert all(one.checkpoint["channel_values"]["n"] == one.metadata["step"] for one in found)


def test_a_serializer_can_encrypt_and_so_can_the_memory(tmp_path: Path) -> None:
    class Cipher:
        def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
            return "reverse", plaintext[::-1]

        def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
            return ciphertext[::-1]

    for options in ({"serde": EncryptedSerializer(Cipher(), JsonPlusSerializer())}, {"encryption_key": b"e" * 32}):
        path = tmp_path / f"{next(iter(options))}.db"
        saver = MnemicSaver(f"sqlite:///{path}", **options)
        saver.put(config(""), checkpoint("1", {"x": "a secret"}, {"x": "1"}), {}, {"x": "1"})
        found = saver.get_tuple(config())
        assert found is not None
        assert found.checkpoint["channel_values"] == {"x": "a secret"}
        saver.close()
        assert b"a secret" not in path.read_bytes()


@pytest.mark.asyncio
async def test_async_calls_are_the_same(saver: MnemicSaver) -> None:
    stored = await saver.aput(config(""), checkpoint("1", {"n": 1}, {"n": "1"}), {"step": 1}, {"n": "1"})
    await saver.aput_writes(stored, [("n", 2)], "task")
    found = await saver.aget_tuple(config())
    assert found == saver.get_tuple(config())
    assert [one async for one in saver.alist(config(), filter={"step": 1}, limit=1)] == [found]
    assert [one async for one in saver.alist(config(), limit=0)] == []
    await saver.acopy_thread("t/1", "copy")
    await saver.aprune(["t/1"], strategy="delete")
    assert await saver.aget_tuple(config()) is None
    await saver.adelete_thread("copy")
    assert [one async for one in saver.alist(None)] == []


def test_bad_input_is_named(saver: MnemicSaver) -> None:
    with pytest.raises(mnemic.InvalidValueError, match=r"needs configurable\.thread_id"):
        saver.get_tuple({"configurable": {}})
    with pytest.raises(mnemic.InvalidValueError, match="needs a checkpoint_id"):
        saver.put_writes(config(""), [("n", 1)], "task")
    with pytest.raises(ValueError, match="strategy must be one of keep_latest, delete: 'all'"):
        saver.prune(["t/1"], strategy="all")
    with pytest.raises(mnemic.InvalidValueError, match="thread_id has 300 characters, more than 200"):
        saver.get_tuple(config(thread="t" * 300))
    saver.put({"configurable": {"thread_id": 7, "checkpoint_ns": ""}}, checkpoint("1", {}, {}), {}, {})
    assert saver.get_tuple(config(thread="7")) is not None


def test_versions_ascend_and_those_of_two_branches_differ(saver: MnemicSaver) -> None:
    versions: list[str | None] = [None]
    for _ in range(11):
        versions.append(saver.get_next_version(versions[-1], None))
    assert versions[1:] == sorted(versions[1:])  # type: ignore[type-var]
    assert len({str(version).partition(".")[0] for version in versions[1:]}) == 11
    assert saver.get_next_version("7.a", None) != saver.get_next_version("7.a", None)


def test_a_task_that_runs_again_does_not_replace_what_it_wrote(saver: MnemicSaver) -> None:
    put_one(saver, "1")
    saver.put_writes(config("", "1"), [("n", "first"), ("__error__", "first"), ("m", "first")], "task")
    saver.put_writes(config("", "1"), [("n", "again"), ("__error__", "again"), ("m", "again"), ("k", "new")], "task")
    found = saver.get_tuple(config())
    assert found is not None
    written = {channel: value for _, channel, value in found.pending_writes or ()}
    assert written == {"n": "first", "m": "first", "k": "new", "__error__": "again"}


def test_methods_look_like_those_of_langgraph() -> None:
    for name in ("get_tuple", "put", "put_writes", "delete_thread", "copy_thread", "prune", "delete_for_runs"):
        for method in (name, f"a{name}"):
            ours, theirs = (inspect.signature(getattr(one, method)) for one in (MnemicSaver, BaseCheckpointSaver))
            assert [*ours.parameters.values()] == [*theirs.parameters.values()]
        assert inspect.iscoroutinefunction(getattr(MnemicSaver, f"a{name}"))
        assert not inspect.iscoroutinefunction(getattr(MnemicSaver, name))
