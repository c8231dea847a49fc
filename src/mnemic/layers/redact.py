"""The redaction layer: replaces personal data and secrets before anything below stores, indexes or logs them.

It covers text, title, data, metadata and labels of records, and the settings of streams; queries and filters are
changed in the same way, so that they still find what is stored. Scopes, kinds and keys are not changed. Features that
compare what they are given with what is stored, or make keys of it, call the functions at the end first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from functools import lru_cache
from typing import Any, TypeVar, cast

from msgspec.structs import force_setattr, replace

from ..checks import check_several, check_text, shown
from ..errors import ConflictError, InvalidValueError
from ..event_loop import off_loop
from ..kinds import NOT_WRITTEN
from ..messages import Message
from ..records import MESSAGE, VAULT, VERSION, Match, Record, Ref, ScopePath
from ..redaction.config import Redaction, covered_scopes, redactor_of
from ..redaction.redactor import Redacted, Redactor
from ..store.codec import decode_record, encode_record
from ..store.protocol import Page, Scrubbed, Store, destroy, scrub
from ..store.query import (
    MAX_CHOICES,
    Condition,
    Delete,
    Derive,
    Expect,
    Op,
    Outcome,
    Purge,
    Put,
    Scan,
    Search,
    Touch,
    Write,
    place_of,
)
from .layer import Layer, filtered_scan, find_layer
from .restricted import RestrictedLayer, require
from .vault import VaultStore, erase_values

OpType = TypeVar("OpType", bound=Op)

MERGED_FACTS = (
    'redaction would make one fact of several; hashes keep them apart: redact=Redaction(action="hash", key=…)'
)
LONG = 20_000
"""Number of characters from which the work runs in a thread instead of blocking the event loop."""


class RedactLayer(Layer):
    """Redacts what is written, and queries and filters in the same way."""

    def __init__(self, below: Store, redaction: Redaction) -> None:
        """Raise InvalidValueError for a vault that is given by its URL; `close` also closes the store of the vault."""
        super().__init__(below)
        self._redaction = redaction
        self.redactor: Redactor = redactor_of(redaction)
        self._scopes = covered_scopes(redaction)
        kinds = redaction.kinds
        self._kinds = (
            None if kinds is None else frozenset([kinds] if isinstance(kinds, str) else check_several(kinds, "kinds"))
        )
        self.separate: Store | None = None
        """The store of the vault, if it is another one."""
        self.vault: VaultStore | None = None
        if redaction.vault is not None:
            if isinstance(redaction.vault.store, str):
                raise InvalidValueError("the URL of a vault is opened by open_async")
            self.separate = redaction.vault.store
            self.vault = VaultStore(self.separate or below, redaction.vault.key)
        self._name_findings = lru_cache(maxsize=10_000)(self._find_in_name)

    def covers(self, scope: ScopePath, kind: str) -> bool:
        """Return whether records of a kind in a scope are redacted."""
        if kind in NOT_WRITTEN or not (self._kinds is None or kind in self._kinds):
            return False
        return any(one.contains(scope) for one in self._scopes)

    async def write(self, write: Write) -> list[Outcome]:
        """Pass the write on, redacted; raises InvalidValueError for a name with findings, if these are refused."""
        if write.id is not None and write.ops and self._redaction.keys == "refuse":
            scope = place_of(write.ops[0])[0]
            if any(one.contains(scope) for one in self._scopes):
                self._refuse_name("id of the write, once=,", write.id)
        if self.separate is not None:
            # First, so that after an interruption the values are gone, not the only hint at them.
            gone = tuple([op for op in write.ops if isinstance(op, Delete | Purge) and place_of(op)[1] == VAULT])
            if gone:
                await self.separate.write(Write(gone))
        ops, found = await self.redacted_ops(write.ops)
        if ops is write.ops:
            return await self._below.write(write)
        await self.keep(ops, found)
        # The digest of what was found would let an attacker confirm a guess.
        return await self._below.write(replace(write, ops=ops, digest=None if found else write.digest))

    async def redacted_ops(self, ops: tuple[Op, ...]) -> tuple[tuple[Op, ...], Redacted]:
        """Return operations with redacted records and settings, the same if there are no findings, and the findings."""
        found = Redacted()
        size = sum([_size(op.record) for op in ops if isinstance(op, Put)])

        def redact() -> tuple[Op, ...]:
            changed = tuple([self._redacted(op, found) for op in ops])
            if all(one is op for one, op in zip(changed, ops, strict=True)):
                return ops
            return _with_new_refs(ops, changed)

        return (await off_loop(redact) if size > LONG else redact()), found

    def _redacted(self, op: Op, found: Redacted) -> Op:
        if isinstance(op, Put):
            scope, kind = op.record.scope, op.record.kind
            if not self.covers(scope, kind):
                return op
            if self._redaction.keys == "refuse":
                self._refuse(op.record)
            record = self.redactor.record(op.record, found)
            if record is op.record:
                return op
            changed = copy(op)  # it was checked before
            force_setattr(changed, "record", record)
            return changed
        if isinstance(op, Touch | Expect) and isinstance(op.settings, str) and self.covers(op.scope, op.kind):
            settings = self.settings(op.settings)
            return op if settings == op.settings else replace(op, settings=settings)
        return op

    def redacted(self, record: Record, into: Redacted) -> Record:
        """Return a stored record as it would be redacted, an earlier version too; the same without findings."""
        if record.kind != VERSION:
            return self.redactor.record(record, into) if self.covers(record.scope, record.kind) else record
        data: Any = record.data
        kind = record.labels.get("kind", "")
        if not isinstance(data, dict) or not isinstance(data.get("record"), str) or not self.covers(record.scope, kind):
            return record
        kept = decode_record(record.scope, kind, data["record"])
        changed = self.redactor.record(kept, into)
        if changed is kept:
            return record
        whole = {**data, "record": encode_record(changed).decode()}
        return replace(record, data=whole, labels=record.labels | {"key": changed.key})

    def settings(self, text: str) -> str:
        """Return the settings of a stream, redacted; JSON stays JSON."""
        return self.redactor.text(text)

    async def keep(self, ops: Iterable[Op] | ScopePath, found: Redacted) -> None:
        """Keep the values behind hashes, if there is a vault."""
        if self.vault is not None and found.values:
            scope = ops if isinstance(ops, ScopePath) else place_of(next(iter(ops)))[0]
            await self.vault.put(scope, found.values)

    def _refuse(self, record: Record) -> None:
        for what, name in (("scope", record.scope.path), (f"key of a {record.kind}", record.key)):
            self._refuse_name(what, name)

    def _refuse_name(self, what: str, name: str) -> None:
        if names := self._name_findings(name):
            raise InvalidValueError(
                f"the {what} holds personal data or a secret ({', '.join(names)}), and names are not redacted: "
                "use another name, such as a number or a hash"
            )

    def _find_in_name(self, name: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.name for part in name.split("/") for one in self.redactor.find(part)))

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        found = await self._below.read(refs)
        if self.vault is None:
            return found
        return [None if ref.kind == VAULT else one for ref, one in zip(refs, found, strict=True)]

    async def scan(self, scan: Scan) -> Page[Record]:
        if scan.where:
            scan = replace(scan, where=self._conditions(scan.where))
        if self.vault is None or (scan.kinds and VAULT not in scan.kinds):
            return await self._below.scan(scan)
        return await filtered_scan(self._below, scan, _without_vault)

    async def search(self, search: Search) -> list[Match]:
        query = self._query(search.scope, search.query)
        return await super().search(replace(search, query=query, where=self._conditions(search.where)))

    def _query(self, scope: ScopePath, query: str) -> str:
        """Return a question as the texts are stored; where only a part of a scope is redacted, in both forms."""
        redacted = self.redactor.text(query)
        if redacted == query or any(one.contains(scope) for one in self._scopes):
            return redacted
        return f"{query} {redacted}" if self.concerns(scope) else query

    def concerns(self, scope: ScopePath) -> bool:
        """Return whether anything in a scope or below it is redacted."""
        return any(one.contains(scope) or scope.contains(one) for one in self._scopes)

    def _conditions(self, where: tuple[Condition, ...]) -> tuple[Condition, ...]:
        """Return conditions that also match what is stored redacted."""
        if not any(_is_content(test) for test in where):
            return where
        return tuple([one for test in where for one in self._condition(test)])

    def _condition(self, test: Condition) -> list[Condition]:
        if not _is_content(test) or test.op not in ("eq", "ne", "in"):
            return [test]
        group, _, name = test.field.partition(".")
        given = test.value if isinstance(test.value, tuple) else (test.value,)
        into = Redacted()
        stored: list[Any] = []
        for value in given:
            label = group == "labels" and isinstance(value, str)
            stored.append(self.redactor.label(value, into) if label else self.redactor.value(value, into, name))  # type: ignore[arg-type]
        if not into:
            return [test]
        values = (*dict.fromkeys((*stored, *given)),)[:MAX_CHOICES]
        if test.op == "ne":
            return [replace(test, value=value) for value in values]
        return [Condition(test.field, "in", values)]

    async def scrub(self, *, finish: bool = False) -> Scrubbed:
        done = await super().scrub(finish=finish)
        if self.separate is not None:
            vault = await scrub(self.separate, finish=finish)
            done.unreached.extend(one for one in vault.unreached if one not in done.unreached)
        return done

    async def destroy(self, scope: ScopePath) -> Scrubbed:
        """Delete the values in a vault of its own, and the data keys there."""
        done = await super().destroy(scope)
        if self.separate is not None:
            done.add("values in the vault", await erase_values(self.separate, scope))
            await destroy(self.separate, scope)
        return done

    async def close(self) -> None:
        try:
            await self._below.close()
        finally:
            if self.separate is not None:
                await self.separate.close()


def _is_content(test: Condition) -> bool:
    return "." in test.field


def _size(record: Record) -> int:
    return len(record.text or "") + (
        0 if record.data is None else 100 * len(record.data) if isinstance(record.data, list | dict) else 0
    )


def _with_new_refs(ops: tuple[Op, ...], changed: tuple[Op, ...]) -> tuple[Op, ...]:
    """Return the operations in which those on a record whose key has changed name the new one."""
    new = {
        op.record.ref: one.record.ref
        for op, one in zip(ops, changed, strict=True)
        if isinstance(op, Put) and isinstance(one, Put) and op.record.key != one.record.key
    }
    if not new:
        return changed
    return tuple([replace(op, ref=new[op.ref]) if isinstance(op, Derive) and op.ref in new else op for op in changed])


async def _without_vault(records: Sequence[Record]) -> list[Record | None]:
    return [None if record.kind == VAULT else record for record in records]


class RedactedView(Layer):
    """Shows what a store holds as it would be redacted, for copies."""

    def __init__(self, below: Store, redaction: Redaction) -> None:
        """Raise InvalidValueError for a redaction with a vault, which nothing would be put into."""
        super().__init__(below)
        if redaction.vault is not None:
            raise InvalidValueError("a copy is redacted without a vault: write into a memory that was opened with one")
        self._layer = RedactLayer(below, redaction)
        self._facts: dict[Ref, str] = {}
        """The original key of each fact whose key has changed."""

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        found = await self._below.read(refs)
        return [None if one is None else self._layer.redacted(one, Redacted()) for one in found]

    async def scan(self, scan: Scan) -> Page[Record]:
        """Return a page; raises ConflictError if redaction makes one fact of several."""
        page = await self._below.scan(scan)
        seen = tuple([self._layer.redacted(record, Redacted()) for record in page.items])
        changed = [(one, record.key) for one, record in zip(seen, page.items, strict=True) if one.key != record.key]
        there = await self._below.read([fact.ref for fact, _ in changed]) if changed else []
        for (fact, key), other in zip(changed, there, strict=True):
            if self._facts.setdefault(fact.ref, key) != key or other is not None:
                raise ConflictError(
                    f"{fact.kind} {shown(key)} of scope {fact.scope.path!r} cannot be copied: {MERGED_FACTS}", key=key
                )
        return Page(seen, page.cursor)


# ---------------------------------------------------------------- for features


async def reveal(store: Store, scope: ScopePath, text: str) -> str:
    """Return a text with the values behind its hashes, as far as the vault has them in a scope and below.

    Raises InvalidValueError without a vault, DecryptionError if it has another key, AccessDeniedError for a store that
    is restricted and lacks the right "admin".
    """
    require(store, "admin")
    layer = find_layer(store, RedactLayer)
    if layer is None or layer.vault is None:
        raise InvalidValueError("there is no vault: open the memory with redact=Redaction(…, vault=Vault(key))")
    check_text(text, "text")
    reached = store.reach(scope) if isinstance(store, RestrictedLayer) else scope
    return text if reached is None else await layer.vault.reveal(reached, text)


async def redact_messages(store: Store, scope: ScopePath, messages: list[Message]) -> list[Message]:
    """Return messages as they will be stored in a session."""
    layer = find_layer(store, RedactLayer)
    if layer is None or not layer.covers(scope, MESSAGE):
        return messages
    found = Redacted()
    size = sum(len(message.text or "") for message in messages)

    def redact() -> list[Message]:
        return [layer.redactor.message(message, found) for message in messages]

    changed = await off_loop(redact) if size > LONG else redact()
    await layer.keep(scope, found)
    return changed


async def redact_record(store: Store, record: Record) -> Record:
    """Return a record as it will be stored."""
    layer = find_layer(store, RedactLayer)
    if layer is None or not layer.covers(record.scope, record.kind):
        return record
    found = Redacted()
    changed = layer.redactor.record(record, found)
    await layer.keep(record.scope, found)
    return changed


async def redact_ops(store: Store, ops: list[OpType], *, keep: bool) -> list[OpType]:
    """Return the operations of an import as they will be stored; their values go to the vault with `keep`."""
    layer = find_layer(store, RedactLayer)
    if layer is None or not ops:
        return ops
    changed, found = await layer.redacted_ops(tuple(ops))
    if keep:
        await layer.keep(changed, found)
    return cast("list[OpType]", list(changed))


async def redact_names(store: Store, scope: ScopePath, kind: str, *names: str | None) -> list[Any]:
    """Return names as they will be stored in labels of a kind; None stays None."""
    layer = find_layer(store, RedactLayer)
    if layer is None or not layer.covers(scope, kind):
        return list(names)
    found = Redacted()
    changed = [None if name is None else layer.redactor.label(name, found) for name in names]
    await layer.keep(scope, found)
    return changed


async def refuse_clear(store: Store, write: Write) -> None:
    """Raise InvalidValueError for a write of another process in which redaction would replace something.

    That process makes keys of what it writes, and returns it to its caller: it must know what is stored.
    """
    layer = find_layer(store, RedactLayer)
    if layer is None:
        return
    ops, found = await layer.redacted_ops(write.ops)
    if ops is not write.ops:
        raise InvalidValueError(
            f"this server redacts, and the write holds personal data or secrets ({', '.join(found.counts)}); nothing "
            "was stored: let the client redact as the server does, with mnemic.open(url, redact=…) or --redact"
        )


def stored_name(store: Store, scope: ScopePath, kind: str, name: str) -> str:
    """Return a name as it is stored in labels of a kind."""
    layer = find_layer(store, RedactLayer)
    return name if layer is None or not layer.covers(scope, kind) else layer.redactor.label(name, Redacted())


def redact_text(store: Store, scope: ScopePath, kind: str, text: str) -> str:
    """Return a text as it will be stored in a record of a kind."""
    layer = find_layer(store, RedactLayer)
    return text if layer is None or not layer.covers(scope, kind) else layer.redactor.text(text)


def redact_query(store: Store, scope: ScopePath, query: str) -> str:
    """Return a question as a log may keep it: redacted if anything is in the scope or below it, in any kind."""
    layer = find_layer(store, RedactLayer)
    return query if layer is None or not layer.concerns(scope) else layer.redactor.text(query)
