"""The AgentCore store, and how it is opened: agentcore://memory-id?region=…&branch=… ."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any, cast

from ...checks import check_count, check_text, shown
from ...errors import InvalidValueError
from ...records import Record, Ref, ScopePath, Stream, known_scope
from ...store.once import note_of, note_ref
from ...store.protocol import Capability, Page
from ...store.query import Derive, Outcome, Put, Scan, StreamScan, Write
from ...store.registry import Backend, StoreURL
from .. import aws
from ..keyvalue.kept import Kept
from ..keyvalue.store import KeyValueStore
from .engine import WALK_AGE, AgentCoreEngine, fresh
from .events import Extra, Held, check_size
from .names import place_of
from .service import Service, as_stream
from .sessions import MAIN
from .twins import PREFIX, namespace

_MEMORY = re.compile(
    r"(?:arn:aws[a-z-]*:bedrock-agentcore:[a-z0-9-]+:[0-9]{12}:memory/)?[a-zA-Z][a-zA-Z0-9_-]{0,99}-[a-zA-Z0-9]{10}"
)
_BRANCH = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,99}")


class AgentCoreStore(KeyValueStore):
    """Stores records in an AgentCore memory."""

    _engine: AgentCoreEngine

    @property
    def capabilities(self) -> frozenset[Capability]:
        """All but ATOMIC: the service has no conditional writes, and writes one event at a time."""
        return self._engine.capabilities

    async def write(self, write: Write) -> list[Outcome]:
        self._check_open()
        if note_ref(write) is not None:
            did = [Outcome(1, 1, self.clock(), self.clock(), key="k" * 40)] * len(write.ops)
            note = note_of(write, did, self.clock())
            check_size(Held(note.kind, Kept.of(note)), f"what write {shown(write.id)} does")
        for op in write.ops:
            if isinstance(op, Put):
                what = f"record {shown(op.record.key)}"
                check_size(Held(op.record.kind, Kept.of(op.record)), what)
                for name, value in op.record.derived.items():
                    check_size(Extra(op.record.kind, op.record.key, 0, name, 0, value), f"{name} of {what}")
            elif isinstance(op, Derive) and op.value is not None:
                check_size(Extra(op.ref.kind, op.ref.key, 0, op.name, 0, op.value), f"{op.name} of {op.ref.key}")
        return await super().write(write)

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        with _Fresh(0):
            return await super().read(refs)

    async def scan(self, scan: Scan) -> Page[Record]:
        with _Fresh(WALK_AGE if scan.below else 0):
            return await super().scan(scan)

    async def streams(self, scan: StreamScan) -> Page[Stream]:
        with _Fresh(WALK_AGE if scan.below else 0):
            return await super().streams(scan)

    async def retrieve(self, scope: ScopePath, query: str, limit: int = 10) -> list[tuple[Record, float]]:
        """Return the records at and below a scope that the service's own search finds, best first.

        Messages are not included, nor, for about a minute, what was just written.
        """
        self._check_open()
        check_count(limit, "limit")
        found: list[tuple[Record, float]] = []
        if not limit or not check_text(query, "query").strip():
            return found
        with _Fresh(0):
            async for page in self._engine.service.retrieve(namespace(scope.path), query, limit):
                for summary in page:
                    record = await self._twin(summary["memoryRecordId"], summary.get("namespaces") or ())
                    if record is not None and scope.holds(record.scope):
                        found.append((record, float(summary.get("score", 0.0))))
        return found[:limit]

    async def _twin(self, id: str, namespaces: Sequence[str]) -> Record | None:
        """Return the record of a memory record, if it still exists."""
        encoded = namespaces[0].removeprefix(PREFIX).strip("/") if namespaces else ""
        at = place_of(encoded)
        moment = self._moment()
        async with self._engine.sessions.use(at, fresh.get(), None) as line:
            item = line.twins.get(id)
            head = line.head(item.kind) if item is not None else None
            if item is None or head is None or head.ended(moment):
                return None
            if item.expires is not None and item.expires <= moment:
                return None
            return item.kept().record(known_scope(str(line.scope)), item.kind, {})


class _Fresh:
    """Context in which reads are refreshed since it was entered, or shortly before."""

    def __init__(self, age: float) -> None:
        self._age = age

    def __enter__(self) -> None:
        self._token = fresh.set(time.monotonic() - self._age)

    def __exit__(self, *error: object) -> None:
        fresh.reset(self._token)


def _branch(text: str) -> str | None:
    if not _BRANCH.fullmatch(text):
        raise ValueError(text)
    return None if text == MAIN else text


def _switch(text: str) -> bool:
    return {"1": True, "0": False}[text]


def _days(text: str) -> int:
    return check_count(int(text), "days") * 24 * 3600


async def open_store(url: StoreURL) -> AgentCoreStore:
    """Open the memory of a URL; raises a Mnemic error."""
    options = url.take(branch=_branch, recall=_switch, renew=_days, **aws.OPTIONS)
    memory = (url.split.netloc + url.split.path).rstrip("/")
    if not _MEMORY.fullmatch(memory):
        raise InvalidValueError(
            f"{url} names no memory: its id is a name, '-' and ten letters or digits, as in "
            "agentcore://support-a1B2c3D4e5?region=eu-central-1"
        )
    service = Service(await aws.Requests.open("bedrock-agentcore", url, before_send=as_stream), memory)
    try:
        await service.check()
    except BaseException:
        await service.close()
        raise
    known = {name: options[name] for name in ("branch", "recall", "renew") if name in options}
    return AgentCoreStore(AgentCoreEngine(service, **cast("dict[str, Any]", known)))


BACKEND = Backend(open=open_store)
