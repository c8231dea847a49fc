"""Memory records beside the events, for the service's own search.

They cannot replace events: one is listed only a minute or more after it was written, its text has at most 16,000
characters, and parts of a batch may fail. So each is a copy of a text, and the event has its id.
"""

from __future__ import annotations

from contextlib import suppress

from ...errors import StoreError
from ...records import now
from ..keyvalue.engine import Change
from ..keyvalue.kept import Kept
from .events import SPOKEN
from .line import Line
from .names import MOST_NAMESPACE, encode_path
from .service import Service

PREFIX = "/mnemic/"
MOST_TEXT = 16_000
"""Maximum length of a memory record's text."""
SETTLED = 600_000_000
"""Age, in microseconds, from which a missing memory record is considered deleted."""


class TwinKeeper:
    """Keeps memory records in sync with records."""

    def __init__(self, service: Service, *, new: bool) -> None:
        """Create none if `new` is false; existing ones are still deleted with their records."""
        self._service = service
        self._new = new

    async def prepare(
        self, lines: dict[str, Line], changes: dict[str, list[Change]]
    ) -> dict[str, dict[tuple[str, int], str | None]]:
        """Create and update the memory records for a write; return their ids by kind and seq."""
        found: dict[str, dict[tuple[str, int], str | None]] = {}
        updates: list[tuple[str, str, tuple[str, int], str]] = []
        creates: list[tuple[str, tuple[str, int], str]] = []
        for scope, line in lines.items():
            ids = found[scope] = {}
            for change in changes[scope]:
                kind = change.name[1]
                for kept in change.put:
                    text = text_of(kind, kept)
                    item = line.stream(kind).rows.get(kept.seq)
                    old = item.twin if item is not None else None
                    same = old is not None and item is not None and text == text_of(kind, item.kept())
                    if same or (old is not None and text is not None and self._new):
                        ids[kind, kept.seq] = old
                    if text is None or same or not self._new or len(namespace(scope)) > MOST_NAMESPACE:
                        continue
                    if old is None:
                        creates.append((scope, (kind, kept.seq), text))
                    else:
                        updates.append((scope, old, (kind, kept.seq), text))
        moment = now()
        if updates:
            failed = await self._service.update_records([(old, text) for _, old, _, text in updates], moment)
            creates += [(scope, at, text) for scope, old, at, text in updates if old in failed]
        if creates:
            made = await self._service.create_records([(namespace(scope), text) for scope, _, text in creates], moment)
            for (scope, at, _), id in zip(creates, made, strict=True):
                found[scope][at] = id
        return found

    async def undo(self, lines: dict[str, Line], twins: dict[str, dict[tuple[str, int], str | None]]) -> None:
        """Delete the memory records of a failed write."""
        known = {id for line in lines.values() for id in line.twins}
        made = {id for ids in twins.values() for id in ids.values() if id is not None}
        with suppress(StoreError):
            await self._service.delete_records(sorted(made - known))

    async def delete(self, line: Line, moment: int) -> None:
        """Delete the memory records of deleted records; failures are retried later."""
        ids = list(line.doomed_twins)
        try:
            missing = await self._service.delete_records(ids)
        except StoreError:
            return
        # A recent one may not be visible yet.
        late = {id for id in missing if line.doomed_twins[id] > moment - SETTLED}
        for id in set(ids) - late:
            del line.doomed_twins[id]
            if id in line.waste:
                line.suspects.add(line.waste.pop(id))


def namespace(path: str) -> str:
    """Return the namespace of a scope's memory records, a prefix of those of the scopes below."""
    return f"{PREFIX}{encode_path(path)}/" if path else PREFIX


def text_of(kind: str, kept: Kept) -> str | None:
    """Return the searchable text of a record; None if it is not searchable."""
    if kind in SPOKEN or not kept.text:
        return None
    text = f"{kept.title}\n{kept.text}" if kept.title else kept.text
    return text[:MOST_TEXT]
