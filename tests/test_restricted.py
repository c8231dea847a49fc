"""A restricted memory: nothing outside its scope can be seen, touched or told apart, by any call."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

import mnemic
from attack import ROUNDS
from mnemic.backends.memory import MemoryStore
from mnemic.errors import AccessDeniedError, ClosedError, InvalidValueError, MnemicError, NotFoundError
from mnemic.event_loop import step
from mnemic.layers.restricted import HIDDEN, RIGHTS, RestrictedLayer
from mnemic.records import ERASURE_KIND, MEMORY, VERSION, Record, Ref, ScopePath
from mnemic.store.query import (
    CountUse,
    Delete,
    Derive,
    Expect,
    Limit,
    Op,
    Purge,
    Put,
    Scan,
    Search,
    StreamScan,
    Touch,
    Write,
)
from mnemic.testing import test_machine as machine

NOW = datetime(2026, 5, 1, tzinfo=UTC)
MINE, THEIRS = ScopePath("acme/alice"), ScopePath("acme/alicé")
NEIGHBORS = ["", "acme", "acme/alic", "acme/alice2", "acme/alic%", "acme/a*", "Acme/alice", THEIRS.path, "other"]
"""Scopes above and beside, whose names a careless comparison takes for the scope itself."""
REF = Ref(MINE, MEMORY, "k")


async def fill(memory: mnemic.AsyncMemory, scope: ScopePath, text: str) -> None:
    """Write something of each kind."""
    here = memory.scope(scope)
    await here.remember(f"{text} likes tea", id="k", created=NOW)
    await here.notes.write("a/b", {"text": text})
    await here.facts.add(text, "lives in", "Rome", valid_from=NOW)
    chat = here.session("monday", max_messages=2)
    for n in range(4):
        await chat.add("user", f"{text} says {n}", id=f"m{n}", timestamp=NOW)


# ------------------------------------------------------------ nothing outside


async def ask_for(memory: mnemic.AsyncMemory, scope: ScopePath) -> dict[str, Any]:
    """Call everything that reads, on a scope; return the answers and errors."""
    here, chat = memory.scope(scope), memory.scope(scope).session("monday")
    there = Ref(scope, MEMORY, "k")
    exported = io.BytesIO()
    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "recall": lambda: here.recall("who likes tea", 20, uses=False),
        "get": lambda: here.get("k"),
        "get by ref": lambda: here.get(there),
        "context": lambda: text_of(here.context("who likes tea", session="monday")),
        "stats": here.stats,
        "scopes": here.scopes,
        "export": lambda: here.export_to(exported),
        "sessions": here.sessions.list,
        "session": lambda: here.sessions.get("monday"),
        "messages": chat.messages,
        "archived": chat.archived,
        "window": lambda: chat.window(100),
        "settings": chat.settings,
        "note": lambda: here.notes.get("a/b"),
        "notes": here.notes.list,
        "memories": here.memories.list,
        "fading": here.memories.fading,
        "facts": lambda: here.facts.ask("theirs"),
        "neighbors": lambda: here.facts.neighbors("theirs"),
        "path": lambda: here.facts.path("theirs", "Rome"),
        "erase": lambda: here.erase(dry_run=True),
        "forget": lambda: here.forget(since=NOW - timedelta(days=1), dry_run=True),
        "forget one": lambda: here.forget("k", dry_run=True),
        "warm": lambda: memory.warm(scope),
        "all scopes": memory.scopes,
        "all stats": memory.stats,
    }
    answers = {name: await answer_of(call()) for name, call in calls.items()}
    return answers | {"exported": exported.getvalue().splitlines()[1:]}


async def text_of(context: Awaitable[mnemic.Context]) -> str:
    return (await context).text


async def answer_of(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except MnemicError as error:
        return type(error), str(error)


@pytest.mark.parametrize("scope", NEIGHBORS)
def test_outside_its_scope_everything_looks_as_if_it_did_not_exist(scope: str) -> None:
    async def main() -> None:
        answers = []
        for neighbors in (NEIGHBORS, []):
            async with mnemic.open_async("memory://", audit=True, clock=lambda: NOW) as memory:
                await fill(memory, MINE, "mine")
                for other in neighbors:
                    await fill(memory, ScopePath(other), "theirs")
                mine = memory.restricted(MINE, RIGHTS)
                answers.append(await ask_for(mine, ScopePath(scope)))
                answers[-1]["audit"] = len(await mine.audit_trail(scope)), len((await mine.audit_page(scope)).entries)
        assert answers[0] == answers[1]
        assert "theirs likes" not in str(answers[0])

    asyncio.run(main())


def test_writes_outside_are_refused_whether_or_not_something_is_there() -> None:
    async def main(scope: ScopePath) -> None:
        async with mnemic.open_async("memory://", clock=lambda: NOW) as memory:
            await fill(memory, THEIRS, "theirs")
            reader = memory.restricted(ScopePath(), "read")  # which counts no uses
            before = await ask_for(reader, THEIRS)
            mine = memory.restricted(MINE)
            here, chat = mine.scope(scope), mine.scope(scope).session("monday")
            there = Ref(scope, MEMORY, "k")
            calls: list[Callable[[], Awaitable[Any]]] = [
                lambda: here.remember("x", id="k"),
                lambda: here.forget(there),
                lambda: chat.add("user", "x"),
                lambda: chat.clear(),
                lambda: here.notes.write("a/b", 1),
                lambda: here.notes.delete("a/b"),
                lambda: here.notes.clear(),
                lambda: here.facts.add("a", "b", "c"),
            ]
            for call in calls:
                with pytest.raises(AccessDeniedError, match="is not within 'acme/alice'"):
                    await call()
            with pytest.raises(NotFoundError):
                await here.update(there, importance=3)
            assert not await here.sessions.delete("monday")
            assert await here.used(there) == 0
            assert (await here.erase()).records == 0
            assert await ask_for(reader, THEIRS) == before

    for path in (THEIRS.path, "nothing"):
        asyncio.run(main(ScopePath(path)))


def test_a_scope_above_shows_the_part_that_is_visible() -> None:
    async def main() -> None:
        async with mnemic.open_async("memory://") as memory:
            for scope, text in ((MINE, "mine"), (THEIRS, "theirs"), (ScopePath("acme"), "above")):
                await fill(memory, scope, text)
            mine = memory.restricted(MINE)
            for above in (mine.scope(), mine.scope("acme")):
                assert {hit.scope for hit in await above.recall("mine says", 50)} <= {MINE, MINE / "monday"}
                assert [one.scope for one in await above.sessions.list()] == [MINE / "monday"]
                assert (await above.erase(dry_run=True)).records == (
                    await memory.scope(MINE).erase(dry_run=True)
                ).records
                assert (await above.erase()).records > 0
                await fill(memory, MINE, "mine")
            assert await memory.scope(THEIRS).recall("who likes tea")
            assert [one.scope for one in await mine.scopes()] == [MINE]

    asyncio.run(main())


class Tenants(RuleBasedStateMachine):
    """Two tenants of one store, each of whom must see what it would see if it were alone there."""

    scopes = ("a/b", "a/bc")

    @initialize()
    def open(self) -> None:
        shared = MemoryStore()
        shared.clock = lambda: NOW
        self.pairs = []
        for path in self.scopes:
            alone = MemoryStore()
            alone.clock = lambda: NOW
            self.pairs.append([RestrictedLayer(store, ScopePath(path)) for store in (shared, alone)])

    tenants = st.sampled_from([0, 1])

    @rule(tenant=tenants, ops=machine.scopes.flatmap(machine.operations), id=st.none() | st.sampled_from(["x", "y"]))
    def write(self, tenant: int, ops: list[Op], id: str | None) -> None:
        self.same(tenant, lambda store: store.write(Write(tuple(ops), id)))
        for other in (0, 1):
            self.same(other, lambda store: store.scan(Scan(scope=ScopePath(), below=True, derived=("x", "y"))))
            self.same(other, lambda store: store.streams(StreamScan(scope=ScopePath(), empty=True)))

    @rule(tenant=tenants, refs=st.lists(machine.refs, max_size=4))
    def read(self, tenant: int, refs: list[Ref]) -> None:
        self.same(tenant, lambda store: store.read(refs))

    @rule(
        tenant=tenants,
        scope=machine.scopes | st.just(ScopePath()),
        kinds=st.lists(machine.kinds | st.sampled_from(sorted(HIDDEN)), max_size=2).map(tuple),
        below=st.booleans(),
        reverse=st.booleans(),
        limit=st.integers(0, 3),
        where=st.lists(machine.conditions, max_size=1).map(tuple),
        cursor=st.none() | st.sampled_from(["?", "WyJhIiwibWVzc2FnZSIsMV0=", "WyJhL2IiLCJtZXNzYWdlIiwxXQ=="]),
    )
    def scan(self, tenant: int, **asked: Any) -> None:
        self.same(tenant, lambda store: store.scan(Scan(**asked)))
        of_streams = {name: asked[name] for name in ("scope", "kinds", "below", "limit", "cursor")}
        self.same(tenant, lambda store: store.streams(StreamScan(**of_streams)))

    def same(self, tenant: int, call: Callable[[RestrictedLayer], Awaitable[Any]]) -> None:
        first, second = (step(answer_of(call(store))) for store in self.pairs[tenant])
        assert first == second


def test_two_tenants_of_a_store_do_not_notice_one_another() -> None:
    run_state_machine_as_test(
        Tenants,
        settings=settings(
            max_examples=12 * ROUNDS, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


# ------------------------------------------------------------ rights

OPERATIONS: list[tuple[Op, str]] = [
    (Put(Record(MINE, MEMORY, "k")), "write"),
    (Delete(REF), "write"),
    (Derive(REF, "x", b"1"), "write"),
    (CountUse(REF), "write"),
    (Limit(MINE, MEMORY, max_count=0, evict=(("k",),)), "write"),
    (Touch(MINE, MEMORY), "write"),
    (Expect(MINE, MEMORY, 0), "write"),
    (Purge(MINE, MEMORY, expired_only=True), "write"),
    (Purge(MINE, MEMORY), "erase"),
    (Purge(MINE, MEMORY, keep=("k",)), "erase"),
    (Purge(MINE, MEMORY, expired_only=True, drop=True), "erase"),
]


def test_each_operation_needs_its_right() -> None:
    async def main() -> None:
        store = MemoryStore()
        for op, needed in OPERATIONS:
            without = RestrictedLayer(store, MINE, set(RIGHTS) - {needed})
            with pytest.raises(AccessDeniedError, match=f"needs the right '{needed}'"):
                await without.write(Write((op,)))
        assert (await store.streams(StreamScan(scope=ScopePath(), empty=True))).items == ()

    asyncio.run(main())


def test_every_operation_is_known_to_these_tests() -> None:
    assert {type(op) for op, _ in OPERATIONS} == set(Op.__args__)


def test_reading_needs_its_right() -> None:
    async def main() -> None:
        layer = RestrictedLayer(MemoryStore(), MINE, ("write", "erase", "admin"))
        for call in (
            layer.read([REF]),
            layer.scan(Scan(scope=MINE)),
            layer.streams(StreamScan(scope=MINE)),
            layer.search(Search(scope=MINE, query="x")),
        ):
            with pytest.raises(AccessDeniedError, match="needs the right 'read'"):
                await call

    asyncio.run(main())


def test_internal_records_are_hidden_and_refused() -> None:
    async def main() -> None:
        store = MemoryStore()
        root = RestrictedLayer(store, ScopePath())
        for kind in HIDDEN:
            record = Record(ScopePath(), kind, "k", data={"a": 1})
            await store.write(Write((Put(record),)))
            assert await root.read([record.ref]) == [None]
            for op in (Put(record), Delete(record.ref), Purge(ScopePath(), kind, drop=True), Expect(ScopePath(), kind)):
                with pytest.raises(AccessDeniedError, match="is reserved"):
                    await root.write(Write((op,)))
            assert (await root.scan(Scan(scope=ScopePath(), kinds=(kind,)))).items == ()
            assert (await root.streams(StreamScan(scope=ScopePath(), kinds=(kind,)))).items == ()
        assert (await root.scan(Scan(scope=ScopePath(), below=True))).items == ()
        assert (await root.streams(StreamScan(scope=ScopePath(), empty=True))).items == ()

    asyncio.run(main())


def test_versions_and_marks_of_erasures_are_not_written_by_callers() -> None:
    async def main() -> None:
        memory = mnemic.AsyncMemory(MemoryStore(), history=timedelta(days=1))
        item = await memory.scope(MINE).remember("tea")
        await memory.scope(MINE).memories.update(item.id, text="coffee")
        store = memory._backend  # as a memory without a history sees it
        (version,) = (await store.scan(Scan(scope=MINE, kinds=(VERSION,)))).items
        layer = RestrictedLayer(store, MINE, ["read", "write", "erase"])
        writer = RestrictedLayer(store, MINE, ["write"])
        assert await layer.read([version.ref]) == [version]
        for op in (Put(version), Delete(version.ref), Touch(MINE, VERSION, timedelta(days=1))):
            with pytest.raises(AccessDeniedError, match="'version' is reserved"):
                await layer.write(Write((op,)))
        with pytest.raises(AccessDeniedError, match="'erase'"):
            await writer.write(Write((Purge(MINE, VERSION, drop=True),)))
        with pytest.raises(AccessDeniedError, match="'erase'"):
            await writer.write(Write((Put(Record(MINE, ERASURE_KIND, "mark")),)))
        await layer.write(Write((Purge(MINE, VERSION, drop=True),)))

    asyncio.run(main())


def test_rights_of_calls(memory: mnemic.Memory) -> None:
    memory.scope(MINE).remember("tea", id="k")
    reader, writer = memory.restricted(MINE, "read").scope(MINE), memory.restricted(MINE, ["read", "write"]).scope(MINE)
    assert reader.recall("tea")[0].id == "k"
    for call in (
        lambda: reader.remember("x"),
        lambda: reader.forget("k"),
        lambda: reader.used("k"),
        lambda: writer.forget(older_than=timedelta(days=1)),
        lambda: writer.forget(metadata={"a": 1}, archive=True),
        lambda: writer.erase(),
        lambda: writer.notes.clear(),
        lambda: writer.session("monday").clear(),
    ):
        with pytest.raises(AccessDeniedError, match="needs the right"):
            call()
    assert writer.forget("k").deleted == 1


def test_a_reader_does_not_count_uses(memory: mnemic.Memory) -> None:
    memory.scope(MINE).remember("tea", id="k")
    before = memory.scope(MINE).memories.get("k")
    reader = memory.restricted(MINE, "read").scope(MINE)
    assert len(reader.recall("tea")) == len(reader.context("tea").hits) == 1
    assert memory.scope(MINE).memories.get("k") == before


def test_what_concerns_the_whole_store_is_refused(memory: mnemic.Memory) -> None:
    whole = memory.restricted(ScopePath(), RIGHTS)
    for call in (
        lambda: whole.reembed("static"),
        lambda: whole.reindex(),
        lambda: whole.rotate(),
        lambda: memory.restricted("acme", RIGHTS).metrics(),
        lambda: whole.scope("acme").forget(older_than=timedelta(days=1), archive="memory://archive"),
    ):
        with pytest.raises(AccessDeniedError, match="concerns the whole store"):
            call()
    assert whole.metrics().recalls == 0
    with pytest.raises(AccessDeniedError, match="'admin'"):
        memory.restricted(ScopePath()).metrics()
    with pytest.raises(AccessDeniedError, match="'admin'"):
        memory.restricted(ScopePath()).audit_trail()


def test_a_file_with_records_elsewhere_is_refused_before_anything_is_written(memory: mnemic.Memory) -> None:
    for scope in (MINE, THEIRS):
        memory.scope(scope).remember("tea", id="k")
    file = io.BytesIO()
    memory.scope("acme").export_to(file)
    for scope in (MINE, THEIRS):
        memory.scope(scope).erase()
    mine = memory.restricted(MINE)
    for dry_run in (True, False):
        file.seek(0)
        with pytest.raises(AccessDeniedError, match="is not within"):
            mine.import_from(file, dry_run=dry_run)
        assert memory.stats().items == 0
    file.seek(0)
    assert mine.scope(MINE, "copy").import_from(file).written == 2


def test_an_export_holds_no_internal_records_and_none_are_imported(memory: mnemic.Memory) -> None:
    memory.scope().remember("tea", id="k")
    file = io.BytesIO()
    memory.export_to(file)
    assert b'"embedder"' not in file.getvalue()
    for kind in ("api-key", "embedder"):
        planted = io.BytesIO(file.getvalue().replace(b'"kind":"memory"', b'"kind":"%s"' % kind.encode()))
        with pytest.raises(InvalidValueError, match=f"line 2: records of the kind '{kind}'"):
            memory.import_from(planted)


# ------------------------------------------------------------ the memory itself


def test_closing_it_leaves_the_store_open(memory: mnemic.Memory) -> None:
    with memory.restricted(MINE) as mine:
        mine.scope(MINE).remember("tea", id="k")
    with pytest.raises(ClosedError):
        mine.scope(MINE).get("k")
    assert memory.scope(MINE).get("k")
    memory.restricted(MINE).close()


def test_it_can_only_be_restricted_further(memory: mnemic.Memory) -> None:
    mine = memory.restricted(MINE, ["read", "write"])
    inner = mine.restricted(MINE / "monday", "read")
    with pytest.raises(AccessDeniedError, match="'write'"):
        inner.scope(MINE, "monday").remember("x")
    for scope, rights in ((THEIRS, "read"), (MINE, "erase"), (ScopePath("acme"), "read")):
        with pytest.raises(AccessDeniedError, match="restricted further"):
            mine.restricted(scope, rights)  # type: ignore[arg-type]


def test_an_unknown_right_or_scope_is_refused(memory: mnemic.Memory) -> None:
    with pytest.raises(InvalidValueError, match="right"):
        memory.restricted(MINE, "reed")  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="segment"):
        memory.restricted("acme//alice")


def test_an_empty_tenant_is_not_the_whole_store(memory: mnemic.Memory) -> None:
    with pytest.raises(InvalidValueError, match="not an empty text"):
        memory.restricted("")
