"""History under random operations, concurrent writers, large purges, and clocks that go back."""

from __future__ import annotations

import asyncio
import functools
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mnemic
from clock import START, Steps
from mnemic.backends.memory import MemoryStore
from mnemic.layers.history import COPIED_AT_ONCE, HistoryLayer
from mnemic.layers.layer import Layer
from mnemic.layers.version_records import read_versions
from mnemic.records import MESSAGE, NOTE, VERSION, Record, Ref, ScopePath
from mnemic.store.query import Delete, Limit, Op, Outcome, Purge, Put, Scan, Write

MONTH = timedelta(days=30)
SCOPE = ScopePath("acme/alice")


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Return a test that runs an async one."""

    @functools.wraps(test)
    def run(*args: Any, **named: Any) -> None:
        asyncio.run(test(*args, **named))

    return run


# ---------------------------------------------------------------- as_of equals what was there

NAMES = st.sampled_from(["a", "b", "c"])
TEXTS = st.sampled_from(["tea", "coffee", "milk"])


def edit(chat: mnemic.Session, text: str) -> None:
    for message in chat.messages()[:1]:
        chat.edit({"id": message.id, "role": message.role, "content": text})


def delete_one(chat: mnemic.Session) -> None:
    chat.delete(*chat.messages()[-1:])


def archive(alice: mnemic.Scope, text: str) -> None:
    alice.forget(metadata={"about": text}, archive=True)


CHANGES: list[Callable[[mnemic.Scope, str, str], Any]] = [
    lambda alice, name, text: alice.session(name).add("user", text),
    lambda alice, name, text: alice.session(name).add_many([{"role": "user", "content": text}] * 3),
    lambda alice, name, text: edit(alice.session(name), text),
    lambda alice, name, text: delete_one(alice.session(name)),
    lambda alice, name, text: alice.session(name).clear(keep_system=text == "tea"),
    lambda alice, name, text: alice.session(name).set_system(text),
    lambda alice, name, text: alice.session(name).replace(lambda messages: messages[::-1]),
    lambda alice, name, text: alice.session(name, max_messages=3, overflow="drop").add("user", text),
    lambda alice, name, text: alice.session(name, max_messages=4, overflow="archive").add("user", text),
    lambda alice, name, text: alice.sessions.delete(name),
    lambda alice, name, text: alice.notes.write(name, text),
    lambda alice, name, text: alice.notes.delete(name),
    lambda alice, name, text: alice.notes.clear(),
    lambda alice, name, text: alice.remember(text, id=f"memory {name}", metadata={"about": text}),
    lambda alice, name, text: alice.remember(text, duplicates="merge"),
    lambda alice, name, text: alice.memories.delete(f"memory {name}"),
    lambda alice, name, text: archive(alice, text),
    lambda alice, name, text: alice.facts.add(name, "likes", text, single=True),
    lambda alice, name, text: alice.facts.delete(name, "likes"),
    lambda alice, name, text: alice.scope("below").notes.write(name, text),
    lambda alice, name, text: alice.scope("below").notes.delete(name),
]


def seen(alice: mnemic.Scope) -> dict[str, Any]:
    """Return everything that a caller can read of a scope."""
    return {
        "notes": [alice.notes.get(info.key) for info in alice.notes.list()],
        "memories": alice.memories.list(),
        "archived": alice.memories.archived(),
        "facts": alice.facts.graph(),
        "below": [alice.scope("below").notes.get(info.key) for info in alice.scope("below").notes.list()],
        "sessions": alice.sessions.list(),
        "messages": {name: alice.session(name).messages() for name in "abc"},
        "removed": {name: alice.session(name).archived() for name in "abc"},
        "system": {name: alice.session(name).system() for name in "abc"},
        "windows": {name: alice.session(name).window(100, partial=True) for name in "abc"},
        "stats": alice.stats(),
        # Hits with equal scores have no order.
        "recalled": {(hit.ref, hit.text) for hit in alice.recall("tea or coffee", 50, diverse=False, uses=False)},
    }


STEPS = st.lists(st.tuples(st.sampled_from(CHANGES), NAMES, TEXTS, st.booleans()), min_size=5, max_size=25)


@pytest.mark.parametrize("url", ["memory://", "sqlite"])
@given(steps=STEPS)
@settings(max_examples=20, deadline=None)
def test_as_of_a_moment_everything_is_as_it_was(url: str, steps: list[tuple[Any, str, str, bool]]) -> None:
    clock = Steps()
    with tempfile.TemporaryDirectory() as folder:
        place = f"sqlite:///{folder}/machine.db?synchronous=normal" if url == "sqlite" else url
        with mnemic.open(place, history=MONTH, clock=clock, embedder=None) as memory:
            alice = memory.scope("acme", "alice")
            alice.notes.write("first", 1)
            snapshots: list[tuple[datetime, dict[str, Any]]] = []
            for change, name, text, remembered in steps:
                change(alice, name, text)
                if remembered:  # otherwise the next change has the same time
                    snapshots.append((clock.time, seen(alice)))
                    clock.time += timedelta(microseconds=1)
            for moment, was in snapshots:
                assert seen(alice.as_of(moment)) == was


# ---------------------------------------------------------------- the order of changes


def test_versions_keep_their_order_whatever_the_clock_does() -> None:
    clock = Steps()
    with mnemic.open("memory://", history=MONTH, clock=clock, embedder=None) as memory:
        alice = memory.scope("alice")
        for n, hour in enumerate([0, 2, 1, 1, 3]):
            clock.time = START + timedelta(hours=hour)
            alice.notes.write("note", n)
        values = [version.item.value for version in alice.history("note") if isinstance(version.item, mnemic.Note)]
        assert values == [4, 3, 2, 1, 0]
        # The last change that is not later counts, with all changes before it.
        read = {hour: alice.as_of(START + timedelta(hours=hour)).notes.read("note") for hour in range(4)}
        assert read == {0: 0, 1: 3, 2: 3, 3: 4}


# ---------------------------------------------------------------- concurrent writers


class Interrupted(Layer):
    """Lets another writer write just before one of the writes."""

    def __init__(self, below: MemoryStore) -> None:
        super().__init__(below)
        self.others: list[Callable[[], Any]] = []

    async def write(self, write: Write) -> list[Outcome]:
        if self.others and any(place.kind != VERSION for place in map(_place, write.ops)):
            await self.others.pop(0)()
        return await super().write(write)


def _place(op: Op) -> Any:
    return op.record if isinstance(op, Put) else op.ref if isinstance(op, Delete) else op


def _note(key: str, text: str) -> Put:
    return Put(Record(SCOPE, NOTE, key, text=text, weight=1))


FIRST = [_note(key, f"{key}1") for key in "abc"]
MINE: dict[str, tuple[Op, ...]] = {
    "put": (_note("a", "mine"),),
    "delete": (Delete(Ref(SCOPE, NOTE, "a")),),
    "limit": (_note("d", "mine"), Limit(SCOPE, NOTE, 3, evict=(("a",), ("b",), ("c",)))),
    "purge": (Purge(SCOPE, NOTE),),
    "drop": (Purge(SCOPE, NOTE, drop=True), _note("a", "mine")),
    "purges": (Purge(SCOPE, NOTE, keep=("a", "b")), Purge(SCOPE, NOTE, keep=("a",))),
}
OTHERS: dict[str, tuple[Op, ...]] = {
    "puts it": (_note("a", "other"),),
    "puts another": (_note("e", "other"),),
    "deletes it": (Delete(Ref(SCOPE, NOTE, "a")),),
    "deletes another": (Delete(Ref(SCOPE, NOTE, "c")),),
    "purges": (Purge(SCOPE, NOTE),),
    "replaces it": (Delete(Ref(SCOPE, NOTE, "a")), _note("e", "other")),
}


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("mine", MINE.values(), ids=MINE)
@on_loop
async def test_no_version_is_lost_or_doubled_between_two_writers(mine: tuple[Op, ...], others: tuple[Op, ...]) -> None:
    await _interrupted(mine, others, 0)


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
@on_loop
async def test_a_limit_ends_though_others_change_what_it_has_chosen(others: tuple[Op, ...]) -> None:
    await _interrupted(MINE["limit"], others, 1)


async def _interrupted(mine: tuple[Op, ...], others: tuple[Op, ...], attempt: int) -> None:
    """Write `mine`, and `others` just before the given attempt; check that each text is there or a version."""
    store = MemoryStore()
    between = Interrupted(store)
    layer, other = HistoryLayer(between, MONTH), HistoryLayer(store, MONTH)
    await layer.write(Write(tuple(FIRST)))
    between.others += [functools.partial(asyncio.sleep, 0)] * attempt
    between.others.append(lambda: other.write(Write(others)))
    await layer.write(Write(mine))
    assert not between.others

    written = Counter(put.record.text for put in FIRST)
    written += Counter(op.record.text for op in (*others, *mine) if isinstance(op, Put))
    there = Counter(record.text for record in (await store.scan(Scan(scope=SCOPE, kinds=(NOTE,)))).items)
    versions, _ = await read_versions(store, SCOPE)
    assert there + Counter(version.record.text for version in versions) == written


def test_threads_that_change_the_same_items_lose_no_version(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/threads.db?synchronous=normal"
    written: list[str] = []

    def work(name: int) -> None:
        with mnemic.open(url, history=MONTH, embedder=None) as memory:
            notes, chat = (
                memory.scope("alice").notes,
                memory.scope("alice").session("chat", max_messages=2, overflow="drop"),
            )
            for n in range(12):
                written.append(f"{name}-{n}")
                notes.write(f"note {n % 2}", f"{name}-{n}")
                chat.add("user", f"{name}-{n}")
                if n % 5 == 4:
                    notes.clear()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with mnemic.open(url, embedder=None) as memory:
        alice = memory.scope("alice")
        found = [v.item.value for n in (0, 1) for v in alice.history(f"note {n}") if isinstance(v.item, mnemic.Note)]
        assert Counter(found) == Counter(written)
        chat = alice.session("chat")
        said = [version.item.text for version in chat.history() if isinstance(version.item, mnemic.Message)]
        assert Counter(said) + Counter(message.text for message in chat.messages()) == Counter(written)


# ---------------------------------------------------------------- large purges


class Measured(Layer):
    """Notes the largest number of operations of one write."""

    largest = 0

    async def write(self, write: Write) -> list[Outcome]:
        self.largest = max(self.largest, len(write.ops))
        return await super().write(write)


async def _filled(layer: HistoryLayer, count: int, text: str) -> None:
    for start in range(0, count, 500):
        puts = [Put(Record(SCOPE, MESSAGE, f"{n:06}", text=text), 0) for n in range(start, start + 500)]
        await layer.write(Write(tuple(puts)))


@on_loop
async def test_a_large_purge_is_copied_in_parts() -> None:
    measured = Measured(MemoryStore())
    layer = HistoryLayer(measured, MONTH)
    await _filled(layer, 10_000, "x" * 1000)
    measured.largest = 0
    (did,) = await layer.write(Write((Purge(SCOPE, MESSAGE, drop=True),)))
    assert did.count == 10_000
    assert measured.largest <= COPIED_AT_ONCE
    versions, purges = await read_versions(layer, SCOPE)
    assert [version.record.key for version in versions] == [f"{n:06}" for n in range(10_000)]
    assert len(purges) == 1


@on_loop
async def test_a_purge_that_did_not_happen_leaves_no_versions() -> None:
    class Failing(Layer):
        async def write(self, write: Write) -> list[Outcome]:
            if any(isinstance(op, Purge) for op in write.ops):
                raise mnemic.StoreError("killed")
            return await super().write(write)

    store = MemoryStore()
    layer = HistoryLayer(store, MONTH)
    await _filled(layer, 1000, "x")
    with pytest.raises(mnemic.StoreError):
        await HistoryLayer(Failing(store), MONTH).write(Write((Purge(SCOPE, MESSAGE),)))
    assert (await read_versions(store, SCOPE))[0] == []
    await layer.write(Write((Purge(SCOPE, MESSAGE),)))
    assert len((await read_versions(store, SCOPE))[0]) == 1000


@on_loop
async def test_messages_that_come_while_a_session_is_copied_are_kept_too() -> None:
    store = MemoryStore()
    between = Interrupted(store)
    layer = HistoryLayer(between, MONTH)
    await _filled(layer, 1000, "x")
    late = Put(Record(SCOPE, MESSAGE, "late", text="y"), 0)
    edited = Put(Record(SCOPE, MESSAGE, "000000", text="z"))
    other = HistoryLayer(store, MONTH)
    between.others = [lambda: other.write(Write((late,))), lambda: other.write(Write((edited,)))]
    await layer.write(Write((Purge(SCOPE, MESSAGE),)))
    texts = Counter(version.record.text for version in (await read_versions(store, SCOPE))[0])
    assert texts == {"x": 1000, "y": 1, "z": 1}
