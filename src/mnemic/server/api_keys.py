"""API keys: records at the root of the store, bound to a scope and to rights, with a hash instead of the key.

A key is `mnk_<id>_<secret>`. It is found by its id, and its secret is compared in constant time with a SHA-256 hash.
The secret has 256 random bits, so it cannot be guessed from the hash, and a slow hash, as for passwords, is not needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from hashlib import sha256
from secrets import token_hex

from msgspec import Struct, ValidationError, convert, to_builtins
from msgspec.structs import replace

from ..checks import check_name, check_names, check_time, shown
from ..errors import AccessDeniedError, InvalidValueError, NotFoundError
from ..layers.restricted import RIGHTS, Right
from ..memory import AsyncMemory
from ..records import API_KEY_KIND, Record, Ref, ScopePath
from ..store.protocol import scan_all
from ..store.query import Condition, Delete, Derive, Put, Scan, StreamScan, Write
from ..store.retry import retry_conflicts

__all__ = ["ApiKey", "ApiKeys", "NewKey", "outlives", "parse_key"]

ROOT = ScopePath()
USED = "last-used"
"""Name of the derived value with the time of the last use, which changes no version and has no audit entry."""
MAX_KEYS = 10_000
"""How many keys a store can have, revoked ones included."""
_KEY = re.compile(r"mnk_([0-9a-f]{16})_([0-9a-f]{64})")


def scope_named(path: str) -> ScopePath:
    """Return the scope of a path in a request, a key or a token; raises InvalidValueError.

    A segment "." or ".." is refused: clients remove them from addresses, and would name another scope.
    """
    scope = ScopePath(path)
    if not {".", ".."}.isdisjoint(scope.segments):
        raise InvalidValueError(f"a scope of a server has no segment '.' or '..': {shown(path)}")
    return scope


class ApiKey(Struct, frozen=True, kw_only=True):
    """A key: who uses it, the scope and the rights that it has, and its times; never the key itself."""

    id: str
    name: str
    scope: str
    rights: tuple[Right, ...]
    created: datetime
    expires: datetime | None = None
    last_used: datetime | None = None
    """To the hour."""
    revoked: datetime | None = None

    def is_valid(self, now: datetime) -> bool:
        """Return whether the key can be used at a moment."""
        return self.revoked is None and (self.expires is None or now < self.expires)

    @property
    def path(self) -> ScopePath:
        """The scope."""
        return ScopePath(self.scope)


class NewKey(Struct, frozen=True):
    """A key that was just created, with the text that its user sends, which is not stored."""

    key: ApiKey
    secret: str


class _StoredKey(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The data of a key's record."""

    hash: str
    name: str
    scope: str
    rights: tuple[Right, ...]
    expires: datetime | None = None
    revoked: datetime | None = None


def parse_key(text: str) -> tuple[str, bytes] | None:
    """Return the id of a key and the hash of its secret; None for a text that is not a key."""
    found = _KEY.fullmatch(text)
    return None if found is None else (found[1], sha256(found[2].encode()).digest())


class ApiKeys:
    """The keys of a store."""

    def __init__(self, memory: AsyncMemory) -> None:
        """Take the whole memory: a restricted one does not have them."""
        self._store = memory._store

    def now(self) -> datetime:
        """Return the time of the store's clock."""
        return self._store.clock()

    async def create(
        self, name: str, scope: ScopePath | str, rights: Sequence[str], expires: datetime | None = None
    ) -> NewKey:
        """Create a key; raises InvalidValueError for an invalid name, scope, right or time, or too many keys."""
        path = scope_named(str(scope))
        given = check_names(rights, "right", RIGHTS)
        if not given:
            raise InvalidValueError(f"a key needs at least one right: {', '.join(RIGHTS)}")
        if expires is not None and check_time(expires, "expires") <= self.now():
            raise InvalidValueError(f"a new key must expire in the future, not {expires.isoformat()}")
        if await self.count() >= MAX_KEYS:
            raise InvalidValueError(f"there are {MAX_KEYS:,} keys already")
        id, secret = token_hex(8), token_hex(32)
        stored = _StoredKey(
            hash=sha256(secret.encode()).hexdigest(),
            name=check_name(name, "name of a key"),
            scope=path.path,
            rights=tuple(right for right in RIGHTS if right in given),
            expires=None if expires is None else check_time(expires, "expires"),
        )
        (did,) = await self._store.write(Write((Put(_to_record(id, stored), 0),)))
        assert did.created is not None
        return NewKey(_to_key(id, stored, did.created), f"mnk_{id}_{secret}")

    async def count(self) -> int:
        """Return how many keys there are, also expired and revoked ones."""
        page = await self._store.streams(StreamScan(scope=ROOT, kinds=(API_KEY_KIND,), below=False))
        return sum(stream.count for stream in page.items)

    async def list(self, within: ScopePath = ROOT, *, revoked: bool = True) -> list[ApiKey]:
        """Return the keys of a scope and those below, oldest first."""
        scan = Scan(scope=ROOT, kinds=(API_KEY_KIND,), derived=(USED,))
        keys = [_read(record) async for record in scan_all(self._store, scan)]
        return [key for key in keys if within.contains(key.path) and (revoked or key.revoked is None)]

    async def get(self, id: str, within: ScopePath = ROOT) -> ApiKey:
        """Return a key by its id; raises NotFoundError if it is not of this scope."""
        return _read(await self._find(id, within))

    async def find(self, id: str) -> tuple[ApiKey, bytes] | None:
        """Return a key and the hash of its secret."""
        (record,) = await self._store.read([Ref(ROOT, API_KEY_KIND, id)])
        return None if record is None else (_read(record), bytes.fromhex(_stored(record).hash))

    async def expire(
        self,
        id: str,
        expires: datetime | None,
        within: ScopePath = ROOT,
        rights: Collection[str] = RIGHTS,
        until: datetime | None = None,
    ) -> ApiKey:
        """Set when a key expires, None for never; the caller's own key ends at `until`, and prolongs none beyond that.

        Raises NotFoundError, InvalidValueError for a revoked key, AccessDeniedError for one with more rights.
        """
        moment = None if expires is None else check_time(expires, "expires")

        def change(stored: _StoredKey) -> _StoredKey:
            _check_rights(stored, rights)
            if stored.revoked is not None:
                raise InvalidValueError(f"the key {id} is revoked, which cannot be undone: create another")
            if outlives(moment, until) and outlives(moment, stored.expires):
                raise AccessDeniedError(f"a key that expires at {until} cannot prolong one beyond that")
            return replace(stored, expires=moment)

        return await self._change(id, within, change)

    async def revoke(self, id: str, within: ScopePath = ROOT, rights: Collection[str] = RIGHTS) -> ApiKey:
        """Revoke a key, for good; it stays in the list.

        Raises NotFoundError, AccessDeniedError for one with more rights.
        """
        now = self.now()

        def change(stored: _StoredKey) -> _StoredKey:
            _check_rights(stored, rights)
            return replace(stored, revoked=stored.revoked or now)

        return await self._change(id, within, change)

    async def delete(self, id: str) -> ApiKey:
        """Delete the record of a revoked key; raises NotFoundError, InvalidValueError for one that is not revoked."""
        record = await self._find(id, ROOT)
        if _stored(record).revoked is None:
            raise InvalidValueError(f"the key {id} is not revoked: revoke it first")
        await self._store.write(Write((Delete(record.ref),)))  # a revoked key never changes again
        return _read(record)

    async def used(self, id: str, moment: datetime) -> None:
        """Store when a key was used last."""
        ref = Ref(ROOT, API_KEY_KIND, id)
        await self._store.write(Write((Derive(ref, USED, moment.isoformat().encode()),)))

    async def _find(self, id: str, within: ScopePath) -> Record:
        where = (Condition("key", "eq", id),)
        page = await self._store.scan(Scan(scope=ROOT, kinds=(API_KEY_KIND,), where=where, derived=(USED,)))
        for record in page.items:
            if within.contains(ScopePath(_stored(record).scope)):
                return record
        raise NotFoundError(f"there is no key {shown(id)}")

    async def _change(self, id: str, within: ScopePath, change: Callable[[_StoredKey], _StoredKey]) -> ApiKey:
        async def step() -> ApiKey:
            record = await self._find(id, within)
            stored = change(_stored(record))
            await self._store.write(Write((Put(_to_record(id, stored), record.version),)))
            return _read(replace(record, data=to_builtins(stored)))

        return await retry_conflicts(step, f"changing the key {id}")


def outlives(expires: datetime | None, until: datetime | None) -> bool:
    """Return whether what expires at a time, or never, lasts longer than something else."""
    return until is not None and (expires is None or expires > until)


def _check_rights(stored: _StoredKey, rights: Collection[str]) -> None:
    if more := set(stored.rights).difference(rights):
        raise AccessDeniedError(f"only a key with all of its rights can change it: {', '.join(sorted(more))}")


def _to_record(id: str, stored: _StoredKey) -> Record:
    return Record(ROOT, API_KEY_KIND, id, data=to_builtins(stored))


def _stored(record: Record) -> _StoredKey:
    try:
        return convert(record.data, _StoredKey)
    except ValidationError as error:
        raise InvalidValueError(f"the key {record.key} was not written by this version of Mnemic: {error}") from None


def _read(record: Record) -> ApiKey:
    used = record.derived.get(USED)
    assert record.created is not None
    key = _to_key(record.key, _stored(record), record.created)
    return key if used is None else replace(key, last_used=datetime.fromisoformat(used.decode()))


def _to_key(id: str, stored: _StoredKey, created: datetime) -> ApiKey:
    return ApiKey(
        id=id,
        name=stored.name,
        scope=stored.scope,
        rights=stored.rights,
        created=created,
        expires=stored.expires,
        revoked=stored.revoked,
    )
