"""Finds records that were derived from data of a scope and stand elsewhere: facts, insights, notes, journals.

A record names its sources in one of these ways, and `erase` and `subject_export` follow them:

- `source=` of a memory or fact: a path such as "acme/alice/monday", or the id of a memory of its own scope
- `metadata["sources"]`: a list of paths, or of `[path, kind, key]`
- `metadata["session"]`: a path
- `metadata["written_by"]["scope"]`: the session that an agent or learner had read
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from ..records import FACT, HISTORY, JOURNAL, MEMORY, NOTE, PRUNED, SUMMARY, TITLE, Record, Ref, ScopePath
from ..store.codec import decode_record
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
        async for record in scan_all(store, Scan(scope=root, kinds=DERIVED_KINDS, below=True, limit=PAGE)):
            if not self.scope.holds(record.scope) and record.ref not in self.found and self.concerns(record):
                yield record

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

    def remaining(self, record: Record) -> list[Ref]:
        """Return the sources of a record that stay."""
        refs = [Ref(ScopePath(path), kind, key) for path, kind, key in sources_of(record.meta) if kind and key]
        return [ref for ref in refs if not self.scope.holds(ref.scope) and ref not in self.found]

    def _changed(self, scope: ScopePath, change: Any) -> bool:
        if Ref(scope, _get(change, "kind") or "", _get(change, "key") or "") in self.found:
            return True
        before = _get(change, "before")
        return isinstance(before, dict) and self._derived(scope, before.get("labels") or {}, before.get("meta") or {})

    def _derived(self, scope: ScopePath, labels: Mapping[str, str], meta: Mapping[str, Any]) -> bool:
        source = labels.get("source")
        if self._within(source) or (source and Ref(scope, MEMORY, source) in self.found):
            return True
        if self._within(meta.get("session")) or self._within(_get(meta.get("written_by"), "scope")):
            return True
        return any(
            self._within(path) or (kind and Ref(ScopePath(path), kind, key) in self.found)
            for path, kind, key in sources_of(meta)
        )

    def _within(self, path: Any) -> bool:
        """Return whether a value is the path of the scope, or of something below it."""
        return isinstance(path, str) and (path == self.scope.path or path.startswith(f"{self.scope.path}/"))


def sources_of(meta: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the sources that metadata names: path, kind and key; the latter are empty for a whole scope."""
    sources = meta.get("sources")
    for source in sources if isinstance(sources, list) else ():
        if isinstance(source, str):
            yield source, "", ""
        elif isinstance(source, list) and len(source) == 3 and all(isinstance(part, str) for part in source):
            yield source[0], source[1], source[2]


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def without_sources(meta: Mapping[str, Any], gone: Collection[Ref], scope: ScopePath) -> dict[str, Any]:
    """Return metadata that names only the sources that stay."""
    left = [
        [path, kind, key]
        for path, kind, key in sources_of(meta)
        if kind and not scope.holds(ScopePath(path)) and Ref(ScopePath(path), kind, key) not in gone
    ]
    return {**{name: value for name, value in meta.items() if name != "written_by"}, "sources": left}
