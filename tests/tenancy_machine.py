"""What tenants do in the machine: every call of the API, where they may and where they may not."""

from __future__ import annotations

import io
import logging
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from msgspec import json

import mnemic
from mnemic.layers.restricted import RIGHTS
from mnemic.records import RECALLED, Ref, ScopePath
from mnemic.store.matching import to_cursor
from mnemic.store.query import Delete, Expect, Op, Scan, StreamScan, Touch, Write
from tenancy import CHATS, FAMILIES, KEYS, NAMES, PREDICATES, STEP, TENANTS, TOPICS, Stores, Tenant, run

who = st.integers(0, TENANTS - 1)
keys = st.sampled_from(KEYS)
chats = st.sampled_from(CHATS)
topics = st.sampled_from(TOPICS)
names = st.sampled_from(NAMES)
predicates = st.sampled_from(PREDICATES)
places = st.sampled_from(
    ("home", "home", "home", "below", "other", "other", "its session", "above", "root", "nobody", "beside")
)
"""Where a tenant turns: to its own scope, to those of others, above them, or to one that is nobody's."""
versions = st.none() | st.integers(0, 3)


class Tenants(Stores):
    """Tenants with names that are alike, who do everything that the API offers."""

    @initialize(family=st.sampled_from(FAMILIES), seed=st.integers(0, 10), deep=st.booleans())
    def open(self, family: list[str], seed: int, deep: bool) -> None:
        self.stage.examples += 1
        parent = ScopePath(f"e{self.stage.examples}")
        if deep:
            parent = parent / family[seed % len(family)]
        for n in range(TENANTS):
            path = parent / family[(seed + n) % len(family)]
            secret = f"zq{self.stage.examples}x{n}zq"
            shared = self.stage.tenant(path)
            alone = mnemic.open("memory://", **self.stage.options)
            self.opened += [shared, alone]
            tenant = Tenant(path, secret, shared.__enter__(), alone.restricted(path, RIGHTS))
            tenant.stolen, tenant.notes = [], {}
            self.tenants.append(tenant)
        # Those above have something to hide as well.
        above = self.stage.memory.scope(parent)
        above.remember(f"zq{self.stage.examples}xAzq likes tea in Rome", id="k")
        above.session("s").add("user", f"zq{self.stage.examples}xAzq says tea", id="k")
        for n in range(TENANTS):
            self.fill(n)

    def fill(self, n: int) -> None:
        """Write one of each kind, under keys that all tenants use."""
        for id, topic in zip(KEYS[:2], TOPICS, strict=False):
            self.remember(n, "home", id, topic, 1.0, None)
            self.add_message(n, "home", "s", id, topic, id)
        if self.stage.all_kinds:
            self.add_message(n, "below", "s", "k", TOPICS[n], None)
            self.write_note(n, "home", "k", TOPICS[n], 0)
            self.add_fact(n, "home", NAMES[n], "likes", "tea", False)

    def teardown(self) -> None:
        logger = logging.getLogger("mnemic")
        logger.removeHandler(self.log)
        logger.setLevel(self.level)
        try:
            if self.stage.all_kinds:
                for n, tenant in enumerate(self.tenants):
                    for call in ("stats", "memories.list", "facts.ask", "sessions.list", "scopes"):
                        self.ask(n, tenant.path, call)
                    assert self.ask(n, tenant.path, "notes.read_all") == tenant.notes
        finally:
            for one in self.opened:
                if isinstance(one, mnemic.Memory):
                    one.close()
                else:
                    one.__exit__(None, None, None)

    # ------------------------------------------------------------ memories

    @rule(n=who, at=places, id=keys, topic=topics, importance=st.sampled_from([0.2, 1.0, 3.0]), once=st.none() | keys)
    def remember(self, n: int, at: str, id: str, topic: str, importance: float, once: str | None) -> None:
        scope, text = self.place(n, at), self.text(n, topic)
        added = self.ask(
            n, scope, "remember", text, id=id, importance=importance, metadata={"by": topic}, source=topic, once=once
        )
        if added is not None:
            self.tenants[n].stolen.append(added)

    @rule(n=who, at=places, some=st.lists(topics, min_size=1, max_size=3), how=st.sampled_from(["skip", "merge"]))
    def remember_without_duplicates(self, n: int, at: str, some: list[str], how: Any) -> None:
        scope = self.place(n, at)
        items = [mnemic.MemoryItem(text=self.text(n, topic), id=f"m{i}") for i, topic in enumerate(some)]
        self.ask(n, scope, "remember_many", items, duplicates=how)

    @rule(n=who, at=places, id=keys, topic=topics, version=versions)
    def change(self, n: int, at: str, id: str, topic: str, version: int | None) -> None:
        scope, text = self.place(n, at), self.text(n, topic)
        self.ask(n, scope, "memories.update", id, text=text, if_version=version)
        self.ask(n, scope, "update", id, importance=2.0, metadata={"by": topic})

    @rule(n=who, at=places, id=keys, version=versions)
    def get_and_delete(self, n: int, at: str, id: str, version: int | None) -> None:
        scope = self.place(n, at)
        self.ask(n, scope, "get", id)
        self.ask(n, scope, "memories.get", id)
        if version is not None:
            self.ask(n, scope, "memories.delete", id, if_version=version)

    @rule(n=who, at=places, topic=topics)
    def list_memories(self, n: int, at: str, topic: str) -> None:
        scope = self.place(n, at)
        self.ask(n, scope, "memories.list")
        self.ask(n, scope, "memories.similar", f"likes {topic}", min_score=0.1)

    @precondition(lambda self: self.stage.all_kinds)
    @rule(n=who, at=places, id=keys)
    def fade(self, n: int, at: str, id: str) -> None:
        scope = self.place(n, at)
        self.ask(n, scope, "memories.fading", below=9.0)
        self.ask(n, scope, "forget", faded_below=0.1, archive=True)
        self.ask(n, scope, "memories.archived")
        self.ask(n, scope, "memories.restore", id)

    # ------------------------------------------------------------ recall

    @rule(
        n=who, at=places, topic=topics, k=st.integers(1, 8), kinds=st.none() | st.sampled_from(RECALLED),
        metadata=st.none() | topics.map(lambda topic: {"by": topic}), neighbors=st.integers(0, 1),
        diverse=st.booleans(), importance=st.none() | st.sampled_from([0.5, 2.0]), role=st.none() | st.just("user"),
        since=st.none() | st.integers(0, 20), until=st.none() | st.integers(0, 20), asks=st.sampled_from(["", "zq"]),
    )  # fmt: skip
    def recall(
        self, n: int, at: str, topic: str, k: int, kinds: Any, metadata: Any, neighbors: int, diverse: bool,
        importance: float | None, role: Any, since: int | None, until: int | None, asks: str,
    ) -> None:  # fmt: skip
        scope, now = self.place(n, at), self.stage.now
        other = self.tenants[(n + 1) % TENANTS]
        # A tenant that guesses another's secret learns nothing.
        query = f"{other.secret if asks else ''} who likes {topic}"
        filters: dict[str, Any] = {
            "kinds": kinds, "metadata": metadata, "roles": role, "min_importance": importance,
            "since": None if since is None else now - since * STEP,
            "until": None if until is None else now - until * STEP,
        }  # fmt: skip

        def search(memory: mnemic.Memory) -> list[Any]:
            hits = memory.scope(scope).recall(query, k, neighbors=neighbors, diverse=diverse, **filters)
            return [(hit.record, hit.score, hit.why, hit.before, hit.after) for hit in hits]

        self.same(n, search)
        self.tenants[n].stolen += self.tenants[n].shared.scope(self.tenants[n].path).recall(query, 1, uses=False)
        if self.stage.all_kinds:
            self.same(n, lambda memory: memory.scope(scope).context(f"who likes {topic}", 500, **filters).text)

    @rule(n=who, at=places, thief=st.integers(1, TENANTS - 1), act=st.sampled_from(["get", "update", "used", "forget"]))
    def use_what_is_of_another(self, n: int, at: str, thief: int, act: str) -> None:
        """Hand over a hit, an item or the ref of one that another tenant was given."""
        scope, other = self.place(n, at), self.tenants[(n + thief) % TENANTS]
        for item in other.stolen[-2:]:
            given = Ref(item.scope, item.kind, item.id) if isinstance(item, mnemic.Hit) else item
            if act == "update":
                self.ask(n, scope, "update", given, importance=9.0)
            else:
                self.ask(n, scope, act, given)
            self.ask(n, ScopePath(), "recall", "likes", exclude=[given])

    # ------------------------------------------------------------ sessions

    @rule(n=who, at=places, name=chats, id=keys, topic=topics, once=st.none() | keys)
    def add_message(self, n: int, at: str, name: str, id: str, topic: str, once: str | None) -> None:
        scope, text = self.place(n, at), self.text(n, topic)
        self.chat(n, scope, name, "add", "user", text, id=id, once=once)

    @precondition(lambda self: self.stage.all_kinds)
    @rule(n=who, at=places, name=chats, most=st.integers(1, 3), overflow=st.sampled_from(["archive", "drop"]))
    def configure(self, n: int, at: str, name: str, most: int, overflow: Any) -> None:
        scope = self.place(n, at)
        self.chat(n, scope, name, "configure", max_messages=most, overflow=overflow)
        self.chat(n, scope, name, "settings")

    @rule(n=who, at=places, name=chats, id=keys, limit=st.integers(1, 3), back=st.integers(0, 1))
    def read_session(self, n: int, at: str, name: str, id: str, limit: int, back: int) -> None:
        scope = self.place(n, at)
        self.chat(n, scope, name, "messages", limit, back, roles="user")
        self.chat(n, scope, name, "window", 200)
        self.chat(n, scope, name, "get", id)
        self.chat(n, scope, name, "info")
        self.chat(n, scope, name, "archived")

    @precondition(lambda self: self.stage.all_kinds)
    @rule(n=who, at=places, name=chats, to=chats, id=keys, topic=topics)
    def edit_session(self, n: int, at: str, name: str, to: str, id: str, topic: str) -> None:
        scope, text = self.place(n, at), self.text(n, topic)
        self.chat(n, scope, name, "fork", to, None)
        self.chat(n, scope, name, "edit", {"id": id, "role": "user", "content": text})
        self.chat(n, scope, name, "delete", id)

    @rule(n=who, at=places, name=chats, act=st.sampled_from(["clear", "delete"]))
    def end_session(self, n: int, at: str, name: str, act: str) -> None:
        scope = self.place(n, at)
        if act == "clear":
            self.chat(n, scope, name, "clear")
        else:
            self.ask(n, scope, "sessions.delete", name)

    @rule(n=who, at=places, thief=st.integers(1, TENANTS - 1))
    def open_the_session_of_another(self, n: int, at: str, thief: int) -> None:
        scope, other = self.place(n, at), self.tenants[(n + thief) % TENANTS]
        for info in other.shared.scope(other.path).sessions.list()[:2]:
            self.chat(n, scope, info, "messages")
            self.ask(n, scope, "sessions.get", info)
            self.ask(n, scope, "sessions.delete", info)

    # ------------------------------------------------------------ notes and facts

    @precondition(lambda self: self.stage.all_kinds)
    @rule(n=who, at=places, key=keys, topic=topics, version=versions)
    def write_note(self, n: int, at: str, key: str, topic: str, version: int | None) -> None:
        scope, text = self.place(n, at), self.text(n, topic)
        done = self.ask(n, scope, "notes.write", key, {"text": text}, if_version=version)
        if done is not None and at == "home":
            self.tenants[n].notes[key] = {"text": text}

    @precondition(lambda self: self.stage.all_kinds)
    @rule(n=who, at=places, key=keys, to=keys, version=versions)
    def change_notes(self, n: int, at: str, key: str, to: str, version: int | None) -> None:
        scope, notes = self.place(n, at), self.tenants[n].notes
        renamed = self.ask(n, scope, "notes.rename", key, to)
        if renamed is not None and at == "home":
            notes[to] = notes.pop(key)
        deleted = self.ask(n, scope, "notes.delete", key, if_version=version)
        if deleted and at == "home":
            del notes[key]

    @precondition(lambda self: self.stage.all_kinds)
    @rule(n=who, at=places, key=keys)
    def read_notes(self, n: int, at: str, key: str) -> None:
        scope = self.place(n, at)
        for call in ("list", "read_all", "usage", "settings"):
            self.ask(n, scope, f"notes.{call}")
        self.ask(n, scope, "notes.get", key)
        self.ask(n, scope, "notes.stale", STEP)

    @precondition(lambda self: self.stage.all_kinds)
    @rule(n=who, at=places, subject=names, predicate=predicates, object=names, single=st.booleans())
    def add_fact(self, n: int, at: str, subject: str, predicate: str, object: str, single: bool) -> None:
        scope, source = self.place(n, at), self.tenants[n].secret
        self.ask(n, scope, "facts.add", subject, predicate, object, single=single)
        self.ask(n, scope, "facts.add", source, predicate, object, source=source)

    @precondition(lambda self: self.stage.all_kinds)
    @rule(n=who, at=places, subject=names, predicate=predicates, object=names, ago=st.integers(0, 30))
    def walk_the_graph(self, n: int, at: str, subject: str, predicate: str, object: str, ago: int) -> None:
        scope, then = self.place(n, at), self.stage.now - ago * STEP
        self.ask(n, scope, "facts.ask", subject, as_of=then)
        self.ask(n, scope, "facts.ask", None, predicate, history=True)
        self.ask(n, scope, "facts.neighbors", object, 3)
        self.ask(n, scope, "facts.path", subject, object)
        self.ask(n, scope, "facts.graph")
        self.same(n, lambda memory: list(memory.scope(scope).facts.to_networkx(history=True).edges(data=True)))

    @precondition(lambda self: self.stage.all_kinds)
    @rule(n=who, at=places, subject=names, predicate=predicates, end=st.booleans())
    def end_facts(self, n: int, at: str, subject: str, predicate: str, end: bool) -> None:
        scope = self.place(n, at)
        if end:
            self.ask(n, scope, "facts.update", subject, predicate)
        else:
            self.ask(n, scope, "facts.delete", subject, predicate)

    # ------------------------------------------------------------ listing, forgetting, files

    @rule(n=who, at=places, limit=st.integers(1, 3))
    def list_everything(self, n: int, at: str, limit: int) -> None:
        scope = self.place(n, at)
        self.same(n, lambda memory: memory.scopes(limit=limit))
        self.same(n, lambda memory: memory.stats())
        self.ask(n, scope, "scopes")
        self.ask(n, scope, "stats")
        self.ask(n, scope, "sessions.list")
        self.same(n, lambda memory: memory.warm(scope))

    @rule(
        n=who, at=places, thief=st.integers(0, TENANTS - 1), below=st.booleans(), reverse=st.booleans(),
        limit=st.integers(1, 3), kinds=st.sampled_from([(), ("memory",), ("memory", "message", "once"), ("api-key",)]),
        kind=st.sampled_from(["", "memory", "once", "embedder"]),
    )  # fmt: skip
    def continue_from_the_cursor_of_another(
        self, n: int, at: str, thief: int, below: bool, reverse: bool, limit: int, kinds: tuple[str, ...], kind: str
    ) -> None:
        """Page through records and streams, from a cursor of another tenant's own pages, or one made up."""
        other = self.tenants[(n + thief) % TENANTS]
        first = Scan(scope=other.path, below=True, limit=1)
        if self.stage.own_order and other is not self.tenants[n]:
            return
        last = 9 if self.stage.all_kinds else 2**62  # AgentCore numbers by its clock
        cursor: str | None = to_cursor((other.path.path, kind, last if reverse else 0))
        if not kind:
            cursor = run(other.shared, other.shared._async._store.scan(first)).cursor
        scope = self.place(n, at)
        asked = Scan(scope=scope, kinds=kinds, below=below, reverse=reverse, limit=limit, cursor=cursor)
        streams = StreamScan(scope=scope, kinds=kinds, below=below, limit=limit, cursor=cursor, empty=True)
        self.raw(n, "scan", asked)
        self.raw(n, "streams", streams)

    @rule(n=who, at=places, kind=st.sampled_from(["memory", "message", "note", "once", "audit", "embedder"]), key=keys)
    def send_raw_operations(self, n: int, at: str, kind: str, key: str) -> None:
        """Read, and write what only fails or succeeds by what is stored."""
        scope = self.place(n, at)
        ref = Ref(scope, kind, key)
        self.raw(n, "read", [ref])
        ops: list[Op] = [Expect(scope, kind, key=key), Delete(ref, 1)]
        if self.stage.all_kinds:
            ops += [Expect(scope, kind, version=0), Touch(scope, "note")]
        elif kind in ("message", "once"):
            ops += [Expect(scope, kind, version=0)]
        elif kind not in ("memory", "embedder"):
            return  # AgentCore refuses to write other kinds, whoever asks
        for op in ops:
            self.raw(n, "write", Write((op,)))

    @rule(
        n=who, at=places, topic=topics, ago=st.integers(1, 20), dry=st.booleans(),
        by=st.sampled_from(["metadata", "source", "older_than", "since"]),
    )  # fmt: skip
    def forget(self, n: int, at: str, topic: str, ago: int, dry: bool, by: str) -> None:
        scope = self.place(n, at)
        filters: dict[str, Any] = {
            "metadata": {"by": topic}, "source": topic, "older_than": ago * STEP, "since": self.stage.now - ago * STEP,
        }  # fmt: skip
        self.ask(n, scope, "forget", dry_run=True, **{by: filters[by]})
        if not dry:
            self.ask(n, scope, "forget", **{by: filters[by]}, kinds=["memory", "message"])

    @rule(n=who, at=places, dry=st.sampled_from([True, True, False]))
    def erase(self, n: int, at: str, dry: bool) -> None:
        scope = self.place(n, at)
        erased = self.ask(n, scope, "erase", dry_run=dry)
        if erased is not None and not dry and at in ("home", "above", "root"):
            self.tenants[n].notes.clear()
        self.same(n, lambda memory: memory.compact())

    @precondition(lambda self: self.stage.all_kinds)
    @rule(n=who, at=places, thief=st.integers(1, TENANTS - 1), dry=st.booleans())
    def exchange_files(self, n: int, at: str, thief: int, dry: bool) -> None:
        """Export, and import another tenant's export, which has its scopes in it."""
        scope, other = self.place(n, at), self.tenants[(n + thief) % TENANTS]
        self.same(n, lambda memory: lines_of(exported(memory.scope(scope))))
        self.same(n, lambda memory: lines_of(exported(memory)))
        theirs = exported(other.shared)
        self.same(n, lambda memory: imported(memory, theirs, dry))

    @precondition(lambda self: self.stage.audited)
    @rule(n=who, at=places, thief=st.integers(1, TENANTS - 1), limit=st.integers(1, 4))
    def read_the_audit_log(self, n: int, at: str, thief: int, limit: int) -> None:
        scope, other = self.place(n, at), self.tenants[(n + thief) % TENANTS]
        self.same(n, lambda memory: memory.audit_trail(scope))
        cursor = other.shared.audit_page(limit=1).cursor
        self.same(n, lambda memory: memory.audit_page(scope, limit=limit, cursor=cursor))

    @precondition(lambda self: self.stage.audited)
    @rule(n=who, at=places, id=keys, ago=st.integers(1, 20), thief=st.integers(1, TENANTS - 1))
    def look_into_the_past(self, n: int, at: str, id: str, ago: int, thief: int) -> None:
        scope, then = self.place(n, at), self.stage.now - ago * STEP
        self.ask(n, scope, "history", id)
        self.chat(n, scope, "s", "history")
        self.ask(n, scope, "restore", id)
        self.same(n, lambda memory: memory.scope(scope).as_of(then).memories.list())
        self.same(n, lambda memory: memory.scope(scope).as_of(then).recall("likes tea", uses=False))
        for item in self.tenants[(n + thief) % TENANTS].stolen[-1:]:
            self.ask(n, scope, "history", Ref(item.scope, "memory", item.id))

    @precondition(lambda self: self.stage.audited)
    @rule(n=who, at=places)
    def hold(self, n: int, at: str) -> None:
        """Hold a scope, while another tenant has one held as well, and the operator one above."""
        scope, reason = self.place(n, at), self.text(n, "law")
        self.same(n, lambda memory: memory.scope(scope).hold(reason).reason)
        self.same(n, lambda memory: [(hold.scope, hold.reason) for hold in memory.scope(scope).holds()])
        self.ask(n, scope, "forget", "k")
        self.same(n, lambda memory: [memory.scope(scope).release(hold).reason for hold in memory.scope(scope).holds()])

    @rule(n=who, call=st.sampled_from(["metrics", "reindex", "rotate", "reembed", "restricted"]))
    def ask_for_the_whole_store(self, n: int, call: str) -> None:
        given: dict[str, list[Any]] = {"reembed": ["static"], "restricted": [self.tenants[n - 1].path]}
        self.same(n, lambda memory: getattr(memory, call)(*given.get(call, [])))


def exported(of: Any) -> bytes:
    file = io.BytesIO()
    of.export_to(file)
    return file.getvalue()


def lines_of(export: bytes) -> list[Any]:
    """Return the lines of an export, without the times at which they were written."""
    lines = [json.decode(line) for line in export.splitlines()]
    return [{name: value for name, value in line.items() if name not in ("created", "updated")} for line in lines]


def imported(memory: mnemic.Memory, lines: bytes, dry: bool) -> Any:
    return memory.import_from(io.BytesIO(lines), dry_run=dry)
