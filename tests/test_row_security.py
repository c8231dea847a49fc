"""PostgreSQL's row-level security: the database itself confines a restricted memory to its scope."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import mnemic
from layered import KEY
from mnemic.backends.postgres.row_security import OPEN_TABLES
from mnemic.backends.postgres.store import COPY_FROM
from mnemic.cli import main
from mnemic.doctor import examine
from mnemic.errors import AccessDeniedError, InvalidValueError, MnemicError, StorePermissionError
from mnemic.layers.restricted import RIGHTS, RestrictedLayer
from mnemic.records import Record, Ref, ScopePath
from mnemic.store.query import Delete, Put, Scan, StreamScan, Write
from servers import postgres

ALICE, BOB = ScopePath("acme/alice"), ScopePath("acme/alice b")
TABLES = ("mnemic_streams", "mnemic_records", "mnemic_labels", "mnemic_derived", "mnemic_index", "mnemic_marks")


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database with row-level security, for a role that is subject to it."""
    with postgres.confined_database(tmp_path) as lent:
        yield lent


def fill(memory: mnemic.Memory) -> None:
    """Write something of each kind for two tenants, and in scopes whose names are alike."""
    for path in (ALICE, BOB, ScopePath("acme"), ScopePath("acme/alic%"), ScopePath("acme/alic_")):
        here = memory.scope(path)
        here.remember(f"{path.path} likes tea", id="k", source="chat")
        here.facts.add(path.path, "likes", "tea")
        here.session("s").add("user", f"{path.path} says hello", id="m")


def rows(url: str, scope: str | None, statement: str) -> list[Any]:
    """Run a statement in a transaction that names a scope, on a connection of its own."""
    with closing(psycopg.connect(url.partition("?")[0])) as raw:
        if scope is not None:
            raw.execute("SELECT set_config('mnemic.scope', %s, true)", [scope])
        return list(raw.execute(statement).fetchall())


def counts(url: str, scope: str | None, tables: Sequence[str] = TABLES) -> list[int]:
    """Return how many rows of each table a transaction sees."""
    return [rows(url, scope, f"SELECT count(*) FROM {table}")[0][0] for table in tables]


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_connection_sees_what_it_names(url: str, partitions: int) -> None:
    with mnemic.open(f"{url}&recall=server&partitions={partitions}") as memory:
        fill(memory)
        assert memory.scope().recall("who likes tea")
        for unknown in (None, "", "acme/alice/", "acme/alic", "acme/ALICE", "%", "acme/alice%"):
            assert counts(url, unknown) == [0] * len(TABLES), unknown
        whole, mine = counts(url, "/"), counts(url, ALICE.path)
        assert all(0 < some < every for some, every in zip(mine, whole, strict=True))
        seen = rows(url, ALICE.path, "SELECT text FROM mnemic_records WHERE text IS NOT NULL")
        assert {text for (text,) in seen} == {"acme/alice likes tea", "acme/alice says hello"}
        assert {scope for (scope,) in rows(url, ALICE.path, "SELECT scope FROM mnemic_streams")} == {
            "acme/alice", "acme/alice/s",
        }  # fmt: skip
        for part in range(partitions):  # which can be named directly
            assert rows(url, None, f"SELECT count(*) FROM mnemic_records_{part}") == [(0,)]
        assert rows(url, "/", OPEN_TABLES) == []


def test_policies_look_up_one_stream_and_do_not_read_all(url: str) -> None:
    with mnemic.open(url) as memory:
        memory.scope(ALICE).remember("tea", id="k")
    for n, table in enumerate(TABLES[1:4]):
        plan = "\n".join(
            line for (line,) in rows(url, ALICE.path, f"EXPLAIN SELECT * FROM {table} WHERE stream_id = {n}")
        )
        assert "SubPlan" in plan
        assert "hashed" not in plan
        assert "Seq Scan on mnemic_streams" not in plan


def test_a_setting_ends_with_its_transaction(url: str) -> None:
    with mnemic.open(url) as memory:
        fill(memory)
    with closing(psycopg.connect(url.partition("?")[0])) as raw:
        with raw.transaction():
            raw.execute("SELECT set_config('mnemic.scope', '/', true)")
            assert raw.execute("SELECT count(*) FROM mnemic_streams").fetchone() != (0,)
        assert raw.execute("SELECT count(*) FROM mnemic_streams").fetchone() == (0,)


# ------------------------------------------------------------ a layer that lets everything pass


class NoLayer(RestrictedLayer):
    """A restricted layer whose checks are gone."""

    def require(self, right: Any) -> None:
        pass

    def check(self, ops: Any) -> None:
        pass

    def reach(self, scope: ScopePath, *, below: bool = True) -> ScopePath:
        return scope

    def _held(self, items: Any) -> Any:
        return items

    async def read(self, refs: Any) -> Any:
        return await self._below.read(refs)

    async def search(self, search: Any) -> Any:
        return await self._below.search(search)  # type: ignore[attr-defined]


@pytest.mark.parametrize("recall", ["memory", "server"])
@pytest.mark.parametrize("layers", [{}, {"encryption_key": KEY, "audit": True}])
def test_the_database_holds_if_the_layer_does_not(url: str, recall: str, layers: dict[str, Any]) -> None:
    async def main() -> None:
        async with mnemic.open_async(f"{url}&recall={recall}", **layers) as memory:
            for path in (ALICE, BOB):
                await memory.scope(path).remember(f"{path.path} likes tea", id="k")
                await memory.scope(path).session("s").add("user", "hello", id="m")
            await memory.scope(BOB).recall("likes tea")  # so that its index is in memory
            await memory.scope().recall("likes tea")
            alice = memory.restricted(ALICE, RIGHTS)
            alice._store.__class__ = NoLayer
            there = alice.scope(BOB)
            assert await there.recall("likes tea") == []
            assert {hit.scope for hit in await alice.scope().recall("likes tea", 20)} <= {ALICE, ALICE / "s"}
            assert await there.memories.list() == []
            assert await there.session("s").messages() == []
            assert await alice._store.read([Ref(BOB, "memory", "k")]) == [None]
            assert (await alice._store.scan(Scan(scope=BOB, below=True))).items == ()
            assert (await alice._store.streams(StreamScan(scope=BOB))).items == ()
            assert {one.scope for one in (await alice._store.streams(StreamScan(scope=ScopePath()))).items} == {
                ALICE, ALICE / "s",
            }  # fmt: skip
            for call in (
                there.remember("Bob likes nothing", id="k"),
                there.remember("Bob likes nothing"),
                there.session("s").add("user", "injected"),
                there.session("new").add("user", "injected"),
                there.notes.write("n", 1),
            ):
                with pytest.raises(StorePermissionError):
                    await call
            assert (await there.erase(dry_run=True)).records == 0
            assert (await memory.scope(BOB).memories.get("k")).text == f"{BOB.path} likes tea"
            assert [one.content for one in await memory.scope(BOB).session("s").messages()] == ["hello"]
            assert {hit.scope for hit in await memory.scope().recall("likes tea", 20, diverse=False)} >= {ALICE, BOB}

    asyncio.run(main())


# ------------------------------------------------------------ one pool for all


def test_a_pool_of_one_connection_serves_tenants_in_turn(url: str) -> None:
    async def main() -> None:
        async with mnemic.open_async(f"{url}&pool_max=1") as memory:
            tenants = {path: memory.restricted(path) for path in map(ScopePath, ("a", "ab", "a b", "a_"))}

            async def work(path: ScopePath, n: int) -> None:
                mine = tenants[path].scope(path)
                await mine.remember(f"{path.path} {n}", id=f"k{n}")
                with pytest.raises(AccessDeniedError):
                    await tenants[path].scope("other").remember("x")
                with pytest.raises(MnemicError):
                    await mine.notes.write("n", n, if_version=99)
                task = asyncio.create_task(mine.memories.list())
                await asyncio.sleep(0)
                if n % 3 == 0:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                else:
                    assert {item.scope for item in await task} == {path}

            await asyncio.gather(*(work(path, n) for path in tenants for n in range(12)))
            for path, tenant in tenants.items():
                assert {item.text for item in await tenant.scope(path).memories.list()} == {
                    f"{path.path} {n}" for n in range(12)
                }
            (row,) = await memory._backend._client.use(  # type: ignore[attr-defined]
                lambda connection: connection.all(_setting, {})
            )
            assert row[0] == "/"  # of this transaction, which is not confined

    from mnemic.backends.postgres.statements import prepared

    _setting = prepared("SELECT current_setting('mnemic.scope', true)")
    asyncio.run(main())


def test_large_writes_work(url: str) -> None:
    with mnemic.open(url) as memory:
        mine = memory.restricted(ALICE).scope(ALICE)
        mine.remember_many([f"text {n}" for n in range(2 * COPY_FROM)])
        assert mine.stats().memories == 2 * COPY_FROM
        assert mine.erase().records == 2 * COPY_FROM


def test_all_layers_work_for_a_restricted_memory(url: str) -> None:
    from datetime import timedelta

    with mnemic.open(url, encryption_key=KEY, audit=True, history=timedelta(days=1), redact=True) as memory:
        mine = memory.restricted(ALICE, RIGHTS)
        here = mine.scope(ALICE)
        here.remember("write to alice@example.com", id="k")
        here.remember("write to bob@example.com", id="k")
        here.facts.add("Alice", "likes", "tea")
        assert "example.com" not in here.recall("write to")[0].text
        assert here.facts.ask("Alice")
        assert mine.audit_trail()
        done = here.erase()
        assert [one.records for one in done.verified] == [0] * len(done.verified)


# ------------------------------------------------------------ roles, migrate, doctor


def test_a_role_that_bypasses_policies_is_refused_only_if_they_were_asked_for(url: str) -> None:
    with mnemic.open(url) as memory:
        fill(memory)
    superuser = postgres.as_role(url.partition("?")[0], "postgres")
    with pytest.raises(StorePermissionError, match="row-level security does not apply to the role 'postgres'"):
        mnemic.open(f"{superuser}?row_security=on")
    with mnemic.open(superuser) as memory:
        assert memory.scope(ALICE).memories.get("k")


def test_the_database_says_whether_it_confines(url: str) -> None:
    plain = url.partition("?")[0]
    with mnemic.open(plain) as memory:
        fill(memory)
    assert counts(url, None, TABLES[:1]) > [0]
    for _ in range(2):
        assert main(["migrate", "--store", url], standalone_mode=False) is None
    assert counts(url, None, TABLES[:1]) == [0]
    with mnemic.open(plain) as memory:  # which needs no option
        assert memory.scope(ALICE).memories.get("k")
        assert memory.restricted(ALICE).scope(ALICE).stats().memories == 1


def test_only_on_is_a_value() -> None:
    with pytest.raises(InvalidValueError, match="row_security"):
        mnemic.open("postgresql://localhost/x?row_security=true")


def test_doctor_says_whether_policies_are_in_force(url: str) -> None:
    def codes(url: str) -> tuple[Any, list[str]]:
        found = asyncio.run(examine(url))
        return found.facts["row_security"], [one.code for one in found.problems if "row_security" in one.code]

    plain = url.partition("?")[0]
    superuser = postgres.as_role(plain, "postgres")
    with mnemic.open(plain) as memory:
        fill(memory)
    assert codes(plain) == ("off", [])
    with mnemic.open(url):
        pass
    assert codes(plain) == ("on", [])
    assert codes(superuser) == ("bypassed", ["row_security_bypassed"])
    postgres.execute(superuser, "ALTER TABLE mnemic_labels DISABLE ROW LEVEL SECURITY")
    assert codes(plain) == ("on", ["row_security_incomplete"])
    assert asyncio.run(examine(plain)).records


def test_raw_writes_outside_are_refused(url: str) -> None:
    async def main() -> None:
        async with mnemic.open_async(url) as memory:
            await memory.scope(BOB).remember("Bob", id="k")
            confined = NoLayer(memory._store, ALICE)
            with pytest.raises(StorePermissionError):
                await confined.write(Write((Put(Record(BOB, "memory", "k", text="x")),)))
            (did,) = await confined.write(Write((Delete(Ref(BOB, "memory", "k")),)))
            assert did.removed == ()
            assert await memory.scope(BOB).memories.get("k")

    asyncio.run(main())


def test_a_hold_above_is_told_without_its_reason(url: str) -> None:
    with mnemic.open(url) as memory:
        memory.scope(ALICE).remember("tea", id="k")
        memory.scope("acme").hold("the lawsuit of Bob")
        mine = memory.restricted(ALICE, RIGHTS).scope(ALICE)
        for call in (lambda: mine.forget("k"), mine.erase):
            with pytest.raises(mnemic.HeldError, match="is under the legal hold") as caught:
                call()
            assert "Bob" not in str(caught.value)
        (hold,) = mine.holds()
        assert (hold.scope, hold.actor) == (ALICE, None)
        assert "Bob" not in str(hold.to_dict())
        own = mine.hold("an inquiry")
        assert mine.release(own.id).reason == "an inquiry"
