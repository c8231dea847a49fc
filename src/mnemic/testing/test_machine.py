"""Random operations on a back-end and the in-memory store must give the same results."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from msgspec.structs import replace

from ..errors import MnemicError
from ..records import Record, Ref, ScopePath
from ..store.protocol import Capability
from ..store.query import Condition, Delete, Derive, Expect, Limit, Op, Purge, Put, Touch
from .harness import KIND, OTHER_KIND, Case, Harness, needs, without_times

EXAMPLES = "MNEMIC_TEST_EXAMPLES"
"""Number of examples per back-end; the default is lower for remote ones."""

scopes: st.SearchStrategy[ScopePath] = st.sampled_from([ScopePath(path) for path in ("a", "a/b", "a/b/c", "a/bc", "d")])
kinds: st.SearchStrategy[str] = st.sampled_from([KIND, OTHER_KIND])
keys: st.SearchStrategy[str] = st.sampled_from(["k", "l", "m", "K", "é", "a/b"])
names: st.SearchStrategy[str] = st.sampled_from(["x", "y", 'q"', "a.b"])
scalars: st.SearchStrategy[bool | int | float | str | None] = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.5, 1.0, -2.0]), st.sampled_from(["", "a", "é"])
)
long_ago: datetime = datetime(2001, 1, 1, tzinfo=UTC)
far_off: datetime = datetime(2901, 1, 1, tzinfo=UTC)
times: st.SearchStrategy[datetime | None] = st.sampled_from([None, None, long_ago, far_off])
moments: st.SearchStrategy[datetime] = st.integers(0, 3).map(lambda n: long_ago + n * timedelta(days=1))
values: st.SearchStrategy[bytes] = st.sampled_from([b"", b"1", b"\0\xff"])
records: st.SearchStrategy[Record] = st.builds(
    Record,
    scope=scopes,
    kind=kinds,
    key=keys,
    text=st.none() | st.sampled_from(["", "hello", "it's %_*"]),
    data=scalars | st.dictionaries(names, scalars, max_size=2) | st.lists(scalars, max_size=2),
    meta=st.dictionaries(names, scalars, max_size=2),
    labels=st.dictionaries(names, st.sampled_from(["1", "2"]), max_size=2),
    importance=st.none() | st.sampled_from([0.0, 1.0, 2.5]),
    weight=st.integers(0, 5),
    pinned=st.booleans(),
    created=moments,
    expires=times,
    valid_from=st.none() | moments,
    valid_to=st.none() | moments,
    derived=st.dictionaries(st.sampled_from(["x", "y"]), values, max_size=2),
)
versions: st.SearchStrategy[int | None] = st.sampled_from([None, None, None, 0, 1, 2, 5])
refs: st.SearchStrategy[Ref] = st.builds(Ref, scopes, kinds, keys)
groups: st.SearchStrategy[tuple[tuple[str, ...], ...]] = st.lists(
    st.lists(keys, min_size=1, max_size=2).map(tuple), max_size=4
).map(tuple)
counts: st.SearchStrategy[int | None] = st.none() | st.integers(0, 4)
rarely: st.SearchStrategy[bool] = st.sampled_from([False, False, False, True])
stream_settings: st.SearchStrategy[str | None] = st.sampled_from([None, None, "", "{}"])


def operations(scope: ScopePath) -> st.SearchStrategy[list[Any]]:
    """Operations of a write, which concerns one scope."""
    here = st.just(scope)
    puts = st.builds(Put, records.map(lambda record: replace(record, scope=scope)), versions)
    refs = st.builds(Ref, here, kinds, keys)
    operation = st.one_of(
        puts,
        puts,
        st.builds(Delete, refs, versions),
        st.builds(Derive, refs, st.sampled_from(["x", "y"]), st.none() | values, versions),
        st.builds(Limit, here, kinds, counts, counts, groups, st.booleans()),
        st.builds(Purge, here, kinds, st.lists(keys, max_size=2).map(tuple), st.booleans(), rarely),
        st.builds(Touch, here, kinds, st.sampled_from([None, timedelta(days=1), timedelta(days=2)]), stream_settings),
        st.builds(Expect, here, kinds, st.integers(0, 6)),
        st.builds(Expect, here, kinds, st.none() | st.integers(0, 6), keys),
        st.builds(Expect, here, kinds, settings=stream_settings),
    )
    return st.lists(operation, min_size=1, max_size=5)


fields: st.SearchStrategy[str] = st.one_of(
    st.builds("{}.{}".format, st.sampled_from(["meta", "data", "labels"]), names),
    st.sampled_from(["key", "importance", "weight", "pinned", "created", "valid_from", "valid_to"]),
)
conditions: st.SearchStrategy[Condition] = st.one_of(
    st.builds(
        Condition, fields, st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"]), scalars | moments | st.just("1")
    ),
    st.builds(Condition, fields, st.just("in"), st.lists(scalars | st.just("1"), max_size=3).map(tuple)),
)


class StoreMachine(RuleBasedStateMachine):
    """Applies the same operations to both stores, and compares results and contents."""

    case: Case

    @initialize()
    def open(self) -> None:
        self.stack: ExitStack[bool | None] = ExitStack()
        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.harness: Harness = self.stack.enter_context(self.case.open(folder))
        self.model: Harness = self.stack.enter_context(Harness("memory://", on_loop=False))
        self.ids: int = 0

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.stack.close()

    @rule(ops=scopes.flatmap(operations), repeat=st.booleans())
    def write(self, ops: list[Op], repeat: bool) -> None:
        self.ids += 1
        if Capability.RECORDS not in self.harness.store.capabilities:
            ops = [_without_derived(op) for op in ops if not isinstance(op, Derive)]
        for _ in range(2 if repeat else 1):
            answers = [_answer(harness, ops, f"w{self.ids}" if repeat else None) for harness in self.both]
            assert answers[0] == answers[1]
        self.compare()

    @rule(asked=st.lists(refs, max_size=4))
    def read(self, asked: list[Ref]) -> None:
        found = [[without_times(item) for item in harness.run(harness.store.read(asked))] for harness in self.both]
        assert found[0] == found[1]

    @rule(
        scope=scopes | st.just(ScopePath()),
        kinds=st.lists(kinds, max_size=2, unique=True).map(tuple),
        below=st.booleans(),
        where=st.lists(conditions, max_size=3).map(tuple),
        reverse=st.booleans(),
        skip=st.integers(0, 3),
        limit=st.integers(1, 4),
        as_of=st.none() | moments,
        after_version=st.none() | st.integers(0, 5),
        bodies=st.booleans(),
        derived=st.sampled_from([(), ("x",), ("y", "x")]),
        lacking=st.sampled_from([None, None, "x"]),
    )
    def scan(self, **asked: Any) -> None:
        found = [[without_times(item) for item in harness.scan(**asked)] for harness in self.both]
        assert found[0] == found[1]

    def compare(self) -> None:
        asked: dict[str, Any] = {"scope": ScopePath(), "kinds": (), "below": True, "derived": ("x", "y")}
        everything = [harness.scan(**asked, limit=7) for harness in self.both]
        assert [without_times(item) for item in everything[0]] == [without_times(i) for i in everything[1]]
        totals = [
            [
                (s.scope, s.kind, s.count, s.weight, s.last_seq, s.version, s.ttl, s.expires is None, s.settings)
                for s in harness.streams(empty=True)
            ]
            for harness in self.both
        ]
        assert totals[0] == totals[1]

    @property
    def both(self) -> tuple[Harness, Harness]:
        return (self.harness, self.model)


def _without_derived(op: Op) -> Op:
    return Put(replace(op.record, derived={}), op.if_version) if isinstance(op, Put) else op


def _answer(harness: Harness, ops: list[Op], id: str | None) -> Any:
    """Return the result of a write, without store-assigned times."""
    try:
        outcomes = harness.write(*ops, id=id)
    except MnemicError as error:
        return type(error), str(error)
    return [(did.seq, did.version, did.removed, did.count, did.weight) for did in outcomes]


@needs(model=True)
def test_it_agrees_with_the_model(case: Case) -> None:
    machine = type("Machine", (StoreMachine,), {"case": case})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=int(os.environ.get(EXAMPLES, 10 if case.on_loop else 25)),
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
