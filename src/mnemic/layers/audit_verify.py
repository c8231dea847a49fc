"""Verification of the audit log: finds removed, changed, reordered and inserted entries, and removed chains.

Every chain is read from its first entry to its last, and each link is computed again. What the chains themselves
cannot tell, the register does: which chains there are, and how far each had come at its last checkpoint. A checkpoint
that was kept outside of the store tells the same, also of the register.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct, ValidationError, convert, field

from ..checks import shown
from ..errors import InvalidValueError, MissingExtraError, SignatureError
from ..records import AUDIT_KIND, CHAINS_KIND, Record, ScopePath, Stream, Value
from ..signing import SIGNATURE, can_sign, verify_signature
from ..store.protocol import all_streams
from ..store.query import StreamScan
from .audit_chain import REGISTER, ChainLayer
from .audit_entry import (
    BEGUN,
    LINK,
    NAMES,
    NAMES_HASH,
    SALT,
    SIGNED,
    ChainKey,
    DamagedEntry,
    Head,
    entries_around,
    link_of,
    names_hash,
    number_of,
)

FORMAT = "mnemic audit checkpoint 1"
UNKNOWN_KEY = "and perhaps others are linked with the key"
HEADS_AT_ONCE = 500
"""How many heads one entry of the register has at most."""


class AuditProblem(Value, frozen=True, kw_only=True):
    """Something that is wrong with the audit log: in the log of which scope, from which entry on, and what."""

    scope: ScopePath
    message: str
    number: int | None = None


class AuditVerification(Value, frozen=True, kw_only=True):
    """Result of a verification: `problems`, none if the log is intact, and `notes`, which explain unfinished writes.

    `keyed` tells whether the key of the links was given by the caller, and is not in the store.
    """

    chains: int
    entries: int
    problems: list[AuditProblem]
    notes: list[AuditProblem]
    keyed: bool

    @property
    def intact(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and `intact` as JSON types."""
        return {"intact": self.intact, **super().to_dict()}


class AuditCheckpoint(Struct, frozen=True, kw_only=True):
    """The last entries of all chains at a moment: id of the chain, number and link; it has no names."""

    format: str
    time: datetime
    heads: list[tuple[str, int, str]]
    register: tuple[str, int, str] | None
    signed: bool


class _Register(Struct):
    """The content of the register."""

    scopes: dict[str, str | None] = field(default_factory=dict)
    """Scope of each chain that was begun; None if its name was erased."""
    heads: dict[str, dict[int, str]] = field(default_factory=dict)
    """Numbers and links of each chain at its checkpoints."""
    erased: dict[str, int] = field(default_factory=dict)
    """Up to which entry the names of a chain were erased."""
    erased_entries: dict[str, set[int]] = field(default_factory=dict)

    def add(self, data: Mapping[str, Any]) -> bool:
        """Take an entry; return whether it could be read, which one that was damaged cannot."""
        try:
            self._add(data)
        except (KeyError, TypeError, ValueError):
            return False
        return True

    def _add(self, data: Mapping[str, Any]) -> None:
        for chain, number, link in data.get("heads", ()):
            self.heads.setdefault(chain, {})[number] = link
            if data["operation"] == "begin":
                self.scopes[chain] = data.get("key")
            elif data["operation"] == "erase":
                self.erased[chain] = max(number, self.erased.get(chain, 0))
        for chain, numbers in data.get("entries", ()):
            self.erased_entries.setdefault(chain, set()).update(numbers)

    def names_erased(self, chain: str, number: int) -> bool:
        return number <= self.erased.get(chain, 0) or number in self.erased_entries.get(chain, ())


class _Walk(Struct):
    """A chain that was read: its id, its last entry, and how many entries its first write had."""

    chain: str = ""
    last: int = 0
    begun: int = 0


class AuditVerifier:
    """One verification of the chains of a scope and below."""

    def __init__(self, layer: ChainLayer, scope: ScopePath, checkpoint: AuditCheckpoint | None = None) -> None:
        self._layer = layer
        self._scope = scope
        self._checkpoint = checkpoint
        self._problems: list[AuditProblem] = []
        self._notes: list[AuditProblem] = []
        self._keys: dict[str, bytes] = {}
        self._entries = 0
        self._said: set[tuple[ScopePath, str, str]] = set()

    async def run(self) -> AuditVerification:
        """Verify the register and the chains."""
        keys = [ChainKey(key) for key in await self._layer.keys.keys()]
        self._keys = {key.id: key.secret for key in keys}
        if self._checkpoint is not None and not self._checkpoint.signed:
            self._note(REGISTER, "the checkpoint is not signed: what it says could have been changed or removed")
        register = await self._register()
        outside: dict[str, dict[int, str]] = {}
        for chain, number, link in self._checkpoint.heads if self._checkpoint is not None else ():
            outside.setdefault(chain, {})[number] = link
        found: dict[str, ScopePath] = {}
        unregistered: list[tuple[Stream, _Walk]] = []
        async for stream in self._streams():
            head = Head.parse(stream.settings)
            if register.scopes.get(chain := stream.scope.name.removeprefix("~")) and chain in register.erased:
                self._note(stream.scope, "names are being erased: the log here is not complete yet; erase again")
                continue
            expected = {} if head is None else register.heads.get(head.chain, {}) | outside.get(head.chain, {})
            walk = await self._walk(stream.scope, stream.kind, head, expected, register)
            if walk.chain in found:
                self._twice(walk.chain, found[walk.chain], stream.scope, register)
            found[walk.chain] = stream.scope
            if walk.chain not in register.scopes:
                unregistered.append((stream, walk))
            elif (name := register.scopes[walk.chain]) not in (stream.scope.path, None) and (
                walk.chain not in register.erased
            ):
                self._problem(stream.scope, f"the log was begun in the scope {shown(name)}, and moved here")
        if unregistered:
            await self._check_registered(unregistered)
        self._check_missing(register, outside, found)
        return AuditVerification(
            chains=len(found),
            entries=self._entries,
            problems=self._problems,
            notes=self._notes,
            keyed=self._layer.keys.given,
        )

    def _problem(self, scope: ScopePath, message: str, number: int | None = None) -> None:
        self._problems.append(AuditProblem(scope=scope, number=number, message=message))

    def _note(self, scope: ScopePath, message: str) -> None:
        self._notes.append(AuditProblem(scope=scope, message=message))

    def _streams(self) -> AsyncIterator[Stream]:
        return all_streams(self._layer, StreamScan(scope=self._scope, kinds=(AUDIT_KIND,), empty=True))

    async def _register(self) -> _Register:
        register = _Register()
        head = await self._layer.stored_head(REGISTER, CHAINS_KIND)
        expected: dict[int, str] = {}
        if self._checkpoint is not None and self._checkpoint.register is not None:
            chain, number, link = self._checkpoint.register
            expected = {number: link}
            if head is None or head.chain != chain:
                self._problem(REGISTER, "the register of chains, of which the checkpoint tells, is missing")
                expected = {}
        await self._walk(REGISTER, CHAINS_KIND, head, expected, register)
        return register

    async def _walk(
        self, scope: ScopePath, kind: str, head: Head | None, expected: Mapping[int, str], register: _Register
    ) -> _Walk:
        """Read a chain to its end, and check every entry."""
        walk = _Walk("" if head is None else head.chain)
        before: Head | None = Head(0, walk.chain, "", 0)
        unnamed: list[int] = []
        where = "of the register of chains " if kind == CHAINS_KIND else ""
        wanted = {**expected} if head is None else {**expected, head.number: head.link}
        async for record in entries_around(self._layer, scope, kind):
            self._entries += kind == AUDIT_KIND
            if isinstance(record, DamagedEntry):
                walk.last, before = walk.last + 1, None
                self._problem(scope, f"{where}cannot be read", walk.last)
                continue
            data: Any = record.data if isinstance(record.data, dict) else {}
            number = number_of(record)
            if number is None or not isinstance(data.get(LINK), str):
                self._problem(scope, f"the record {shown(record.key)} {where}is not an entry")
                continue
            if number <= walk.last:
                self._problem(scope, f"{where}is out of order, after entry {walk.last}", number)
                continue
            if number > walk.last + 1:
                self._problem(scope, where + _missing(walk.last + 1, number - 1), walk.last + 1)
                before = None
            message = self._wrong(record, number, data, before)
            if message is not None and (scope, kind, message) not in self._said:
                self._problem(scope, where + message, number)
            if message is not None and message.startswith(UNKNOWN_KEY):
                self._said.add((scope, kind, message))  # once is enough, if a key is missing
            walk.begun = walk.begun or (data.get(BEGUN) or 0 if number == 1 else 0)
            walk.last = number
            if SALT not in data:
                unnamed.append(number)
            before = Head(number, walk.chain, data[LINK], 0)
            if number in wanted and wanted[number] != data[LINK]:
                self._problem(scope, f"{where}is another entry than the one at the last checkpoint", number)
            if kind == CHAINS_KIND and not register.add(data) and message is None:
                self._problem(scope, f"{where}cannot be read", number)
        for number in unnamed:
            if not register.names_erased(walk.chain, number):
                self._problem(scope, f"{where}lost its names, and not by an erasure", number)
        if head is None and walk.last:
            self._problem(scope, f"the head {where or 'of the log '}is missing")
        if (last := max(wanted, default=0)) > walk.last:
            self._problem(scope, where + _missing(walk.last + 1, last), walk.last + 1)
        elif head is not None and head.number < walk.last and not await self._continued(scope, kind, head):
            self._problem(scope, f"{where}was added without the key, or the head was put back", head.number + 1)
        return walk

    async def _continued(self, scope: ScopePath, kind: str, head: Head) -> bool:
        """Return whether a chain was continued since its head was read."""
        stored = await self._layer.stored_head(scope, kind)
        return stored is not None and stored.number > head.number

    def _wrong(self, record: Record, number: int, data: Mapping[str, Any], before: Head | None) -> str | None:
        """Return the problem of an entry, if it has one."""
        signed = data.get(SIGNED)
        secret = self._keys.get(signed) if isinstance(signed, str) else None
        assert record.created is not None
        if secret is None:
            return f"{UNKNOWN_KEY} {shown(signed)}, which is not known here"
        if record.key != f"{number:010d}" or record.text or record.title or record.meta or record.labels:
            return "has fields that no entry has"
        if before is not None and link_of(secret, before, number, record.created, data) != data[LINK]:
            return "was changed, or does not follow the entry before it"
        if SALT in data:
            named = names_hash(record.scope, data) == data.get(NAMES_HASH)
        else:
            named = not any(name in data for name in NAMES)
        return None if named else "has other names, or another scope, than when it was written"

    def _twice(self, chain: str, first: ScopePath, second: ScopePath, register: _Register) -> None:
        if chain in register.erased:
            self._note(second, f"names are being erased: the log is in {shown(first.path)} as well; erase again")
        else:
            self._problem(second, f"the log is a copy of that in {shown(first.path)}")

    async def _check_registered(self, chains: Sequence[tuple[Stream, _Walk]]) -> None:
        """Report chains that the register does not have, even after another look."""
        problems, entries = list(self._problems), self._entries
        register = await self._register()
        self._problems, self._entries = problems, entries
        for stream, walk in chains:
            if walk.chain in register.scopes or not walk.last:
                continue
            if walk.last > walk.begun:
                self._problem(stream.scope, "the log is not in the register of chains")
            else:
                self._note(stream.scope, "the log is not in the register of chains yet: its writer was interrupted")

    def _check_missing(
        self, register: _Register, outside: Mapping[str, Mapping[int, str]], found: Mapping[str, ScopePath]
    ) -> None:
        for chain in register.scopes.keys() | outside.keys():
            if chain in found:
                continue
            name = register.scopes.get(chain)
            if name is None and self._scope.path:
                continue  # of another scope, as far as is known
            scope = ScopePath(name or "")
            if self._scope.contains(scope):
                of = "" if name is not None else f", chain {chain},"
                last = max({**register.heads.get(chain, {}), **outside.get(chain, {})}, default=0)
                self._problem(scope, f"the whole log{of} is missing; it had {last} entries or more", 1)


def _missing(first: int, last: int) -> str:
    return "is missing" if first == last else f"and all entries up to {last} are missing"


# ---------------------------------------------------------------- checkpoints


async def make_checkpoint(layer: ChainLayer) -> dict[str, Any]:
    """Note the heads of all chains in the register, and return them as a document, signed if that is possible."""
    known = (await AuditVerifier(layer, ScopePath())._register()).heads
    streams = all_streams(layer, StreamScan(scope=ScopePath(), kinds=(AUDIT_KIND,), empty=True))
    heads = [head async for stream in streams if (head := Head.parse(stream.settings)) is not None]
    new = [head for head in heads if head.number not in known.get(head.chain, {})]
    for start in range(0, len(new), HEADS_AT_ONCE):
        part = [head.shown for head in new[start : start + HEADS_AT_ONCE]]
        await layer.append(REGISTER, CHAINS_KIND, [{"operation": "checkpoint", "heads": part}])
    register = await layer.stored_head(REGISTER, CHAINS_KIND)
    document = {
        "format": FORMAT,
        "time": layer.clock().isoformat(),
        "heads": sorted(list(head.shown) for head in heads),
        "register": None if register is None else list(register.shown),
    }
    try:
        return (await layer.keys.key()).sign(document)
    except MissingExtraError:
        return document


async def read_checkpoint(layer: ChainLayer, document: object) -> AuditCheckpoint:
    """Return the checkpoint in a document; raises InvalidValueError, or SignatureError if it may have been changed."""
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise InvalidValueError(f"this is not a checkpoint of an audit log: {shown(document)}")
    signed = SIGNATURE in document
    if signed:
        verify_signature(document, [key.public_key for key in await layer.keys.keys()])
    elif layer.keys.given and can_sign():
        raise SignatureError("the checkpoint is not signed, although there is a signing key: it may have been changed")
    try:
        return convert({**document, "signed": signed}, AuditCheckpoint)
    except ValidationError as error:
        raise InvalidValueError(f"this is not a checkpoint of an audit log: {error}") from None
