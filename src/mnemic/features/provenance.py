"""Finds records that were derived from data of a scope and stand elsewhere: facts, insights, notes, journals.

A record names its sources in one of these ways, and `erase` and `subject_export` follow them:

- `source=` of a memory or fact: a path such as "acme/alice/monday", or the id of a memory of its own scope
- `metadata["sources"]`: a path, or a list of paths and of `[path, kind, key]`
- `metadata["session"]`: a path
- `metadata["written_by"]["scope"]`: the session that an agent or learner had read

A path may begin with "/".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import suppress
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from ..errors import DecryptionError, InvalidValueError, UnreadableStoreError
from ..records import FACT, HISTORY, JOURNAL, MEMORY, NOTE, PRUNED, SUMMARY, TITLE, Record, Ref, ScopePath
from ..store.codec import decode_record
from ..store.damage import records_around, streams_around
from ..store.protocol import Store, scan_all
from ..store.query import Scan

DERIVED_KINDS = (MEMORY, FACT, NOTE, SUMMARY, TITLE, PRUNED, HISTORY, JOURNAL)
"""Kinds that can be derived from others; messages are what was said."""
PAGE = 500
"""How many records are read at once."""


class Derivations(Struct):
    """Records outside a scope that were derived from it, directly or through each other, in the order of the store."""

    scope: ScopePath
    found: dict[Ref, Record] = field(default_factory=dict)
    damaged: dict[str, DecryptionError | UnreadableStoreError] = field(default_factory=dict)
    """Errors of records that could not be read, and therefore not be checked, by scope, kind and message."""

    async def find(self, store: Store, root: ScopePath) -> list[Record]:
        """Look through everything at `root` and below, until no more are found; return them."""
        if not self.scope.path:
            return []
        while True:
            before = len(self.found)
            async for record in self._pass(store, root):
                self.found[record.ref] = record
            if len(self.found) == before:
                return list(self.found.values())

    async def _pass(self, store: Store, root: ScopePath) -> AsyncGenerator[Record, None]:
        async for record in self.readable(store, root, DERIVED_KINDS):
            if record.ref not in self.found and self.concerns(record):
                yield record

    async def readable(
        self, store: Store, root: ScopePath, kinds: tuple[str, ...], *, own: bool = False
    ) -> AsyncGenerator[Record, None]:
        """Yield the records at `root` and below, around those that are damaged: the scope's `own`, or the others."""
        try:
            async for record in scan_all(store, Scan(scope=root, kinds=kinds, below=True, limit=PAGE)):
                if self.scope.contains(record.scope) == own:
                    yield record
        except (DecryptionError, UnreadableStoreError):
            async for stream in streams_around(store, kinds, root):
                if isinstance(stream, DecryptionError | UnreadableStoreError):
                    self.damaged[f"the list of records: {stream}"] = stream
                elif self.scope.contains(stream.scope) == own:
                    async for part in records_around(store, stream.scope, stream.kind, stream.last_seq):
                        if isinstance(part, tuple):
                            for record in part:
                                yield record
                        else:
                            self.damaged[f"a {stream.kind} of {stream.scope.path!r}: {part}"] = part

    def concerns(self, record: Record) -> bool:
        """Return whether a record was derived from the scope, or from a record that was."""
        if self._derived(record.scope, record.labels, record.meta):
            return True
        data: Any = record.data
        if record.kind == HISTORY:
            return Ref(record.scope, MEMORY, record.labels.get("memory", "")) in self.found
        if record.kind != JOURNAL or not isinstance(data, dict):
            return False
        if self._within(_get(data.get("by"), "scope")):
            return True
        changes = data.get("changes")
        return any(self._changed(record.scope, change) for change in (changes if isinstance(changes, list) else ()))

    def concerns_version(self, version: Record) -> bool:
        """Return whether an earlier version of a record was derived from the scope."""
        data: Any = version.data
        kind, key = version.labels.get("kind", ""), version.labels.get("key", "")
        if Ref(version.scope, kind, key) in self.found:
            return True
        kept = _get(data, "record")
        return isinstance(kept, str) and self.concerns(decode_record(version.scope, kind, kept))

    def remaining(self, record: Record) -> list[Ref | ScopePath]:
        """Return the sources of a record that stay; a scope for all of its records."""
        sources = (Ref(path, kind, key) if kind else path for path, kind, key in sources_of(record.meta))
        return [one for one in sources if self.stays(one)]

    def stays(self, source: Ref | ScopePath) -> bool:
        """Return whether a source was neither in the scope nor derived from it."""
        path = source.scope if isinstance(source, Ref) else source
        return not self.scope.contains(path) and source not in self.found

    def without_sources(self, record: Record) -> Record:
        """Return a record that names only the sources that stay."""
        left = [
            [path.path, kind, key] if kind else path.path
            for path, kind, key in sources_of(record.meta)
            if self.stays(Ref(path, kind, key) if kind else path)
        ]
        dropped = {"written_by"} | ({"session"} if self._within(record.meta.get("session")) else set())
        meta = {name: value for name, value in record.meta.items() if name not in dropped}
        labels = dict(record.labels)
        if self._is_source(record.scope, labels.get("source")):
            del labels["source"]
        return replace(record, meta={**meta, "sources": left}, labels=labels)

    def _changed(self, scope: ScopePath, change: Any) -> bool:
        if Ref(scope, _get(change, "kind") or "", _get(change, "key") or "") in self.found:
            return True
        before = _get(change, "before")
        return isinstance(before, dict) and self._derived(scope, before.get("labels") or {}, before.get("meta") or {})

    def _derived(self, scope: ScopePath, labels: Mapping[str, str], meta: Mapping[str, Any]) -> bool:
        if self._is_source(scope, labels.get("source")):
            return True
        if self._within(meta.get("session")) or self._within(_get(meta.get("written_by"), "scope")):
            return True
        return any(
            self.scope.contains(path) or (kind and Ref(path, kind, key) in self.found)
            for path, kind, key in sources_of(meta)
        )

    def _is_source(self, scope: ScopePath, source: str | None) -> bool:
        """Return whether the `source=` of a record is the scope, or a record that was derived from it."""
        return self._within(source) or (source is not None and Ref(scope, MEMORY, source) in self.found)

    def _within(self, path: Any) -> bool:
        """Return whether a value is the path of the scope, or of something below it."""
        return isinstance(path, str) and f"{path.strip('/')}/".startswith(f"{self.scope.path}/")


def sources_of(meta: Mapping[str, Any]) -> Iterator[tuple[ScopePath, str, str]]:
    """Yield the sources that metadata names: path, kind and key; the latter are empty for a whole scope."""
    sources = meta.get("sources")
    for source in sources if isinstance(sources, list) else [sources]:
        parts: list[Any] = source if isinstance(source, list) else [source, "", ""]
        if len(parts) != 3 or not all(isinstance(part, str) for part in parts) or not parts[0].strip("/"):
            continue
        with suppress(InvalidValueError):  # not a path
            yield ScopePath(parts[0].strip("/")), parts[1], parts[2]


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None
