"""Subject-access export: everything about a subject in one .zip, for people to read and for programs to import."""

from __future__ import annotations

from collections.abc import AsyncIterator
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

from msgspec import json

from ..checks import shown
from ..errors import NotFoundError, UnreadableStoreError
from ..event_loop import off_loop
from ..features.export import SubjectExport, export_file
from ..features.provenance import Derivations
from ..files import check_path, replacing
from ..layers.audit import AuditLayer
from ..layers.layer import find_layer
from ..layers.restricted import RestrictedLayer, require, visible_root
from ..records import VERSION, ScopePath, plain
from ..store.codec import decode_record
from ..store.protocol import Store
from .exporting import export_any

README = """This archive has everything that is stored about {scope} in {store}, as of {time}.

readable/         conversations, memories, notes and facts, to read in any text editor
records.jsonl     the same, complete, as mnemic.export/1: `mnemic import records.jsonl` reads it
elsewhere.jsonl   records in other places that were derived from this data, one per line
versions.jsonl    earlier versions of all these records, and deleted ones, as long as they are kept, one per line
audit.jsonl       what was done with this data, when and by whom, one entry per line
"""
UNREADABLE = """
{count:,} damaged records in other places could not be read. They may have been derived from this data.
"""


async def export_subject(store: Store, scope: ScopePath, path: str | PathLike[str]) -> SubjectExport:
    """Write the archive, which is replaced atomically.

    Raises NotFoundError if there is nothing, StorePermissionError or StoreFullError if it cannot be written.

    The audit log is included if there is one and, with a restricted memory, if it has the right "admin".
    """
    require(store, "read")
    target = check_path(path)
    if isinstance(store, RestrictedLayer):
        scope = store.reach(scope) or scope
    with TemporaryDirectory() as made:
        folder = Path(made)
        done = await export_file(store, scope, folder / "records.jsonl")
        if done.records:
            await export_any(store, scope, folder / "readable", "markdown", None)
        inner = store._below if isinstance(store, RestrictedLayer) else store
        derivations = Derivations(scope)
        derived = await derivations.find(inner, visible_root(store))
        counts = SubjectExport(
            records=done.records,
            elsewhere=await _write(folder / "elsewhere.jsonl", _each([one.to_dict() for one in derived])),
            audit=await _write(folder / "audit.jsonl", _audit_entries(store, scope)),
            versions=await _write(folder / "versions.jsonl", _versions(inner, visible_root(store), derivations)),
            unreadable=list(derivations.damaged),
        )
        if not (counts.records or counts.elsewhere or counts.audit or counts.versions):
            raise NotFoundError(f"nothing is stored about the scope {shown(scope.path)}")
        origin = getattr(store, "origin", None)
        where = getattr(origin, "id", "") or "this store"
        about = README.format(scope=scope.path or "everyone", store=where, time=f"{store.clock():%Y-%m-%d %H:%M} UTC")
        if counts.unreadable:  # without their names, which are not the subject's
            about += UNREADABLE.format(count=len(counts.unreadable))
        (folder / "README.txt").write_text(about, encoding="utf-8")
        await off_loop(lambda: _zip(folder, target))
    return counts


async def _each(values: list[dict[str, object]]) -> AsyncIterator[dict[str, object]]:
    for value in values:
        yield value


async def _versions(store: Store, root: ScopePath, derivations: Derivations) -> AsyncIterator[dict[str, object]]:
    """Yield the earlier versions of the records of a scope, and of what was derived from them elsewhere."""
    for own, where in ((True, derivations.scope), (False, root)):
        async for record in derivations.readable(store, where, (VERSION,), own=own):
            data: Any = record.data
            if not isinstance(data, dict) or "record" not in data:
                continue  # what a purge has removed besides records, or when the history began
            try:
                if own or derivations.concerns_version(record):
                    kept = decode_record(record.scope, record.labels.get("kind", ""), data["record"])
                    yield {"ended": plain(record.created), "removed": bool(data.get("removed")), **kept.to_dict()}
            except UnreadableStoreError as error:
                derivations.damaged[f"a version in {record.scope.path!r}: {error}"] = error


async def _audit_entries(store: Store, scope: ScopePath) -> AsyncIterator[dict[str, object]]:
    layer = find_layer(store, AuditLayer)
    if layer is None:
        return
    if isinstance(store, RestrictedLayer) and not ("admin" in store.rights and store.scope.contains(scope)):
        return
    for entry in await layer.trail(scope):
        yield entry.to_dict()


async def _write(path: Path, values: AsyncIterator[dict[str, object]]) -> int:
    count = 0
    with path.open("wb") as file:
        async for value in values:
            file.write(json.encode(value) + b"\n")
            count += 1
    return count


def _zip(folder: Path, target: Path) -> None:
    with replacing(target) as file, ZipFile(file, "w", ZIP_DEFLATED) as archive:
        for one in sorted(folder.rglob("*")):
            if one.is_file():
                archive.write(one, one.relative_to(folder).as_posix())
