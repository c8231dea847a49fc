"""Writers that others overtake: retries end with an error, and nothing that was acknowledged is undone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import mnemic
from mnemic.backends.memory import MemoryStore
from mnemic.layers.layer import Layer
from mnemic.records import Record
from mnemic.store.protocol import Page
from mnemic.store.query import Delete, Outcome, Put, Scan, Write
from mnemic.store.retry import ATTEMPTS


class OvertakenStore(Layer):
    """A store in which a rival changes whatever a write expects at a version, just before that write."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.refused = 0
        self.active = False

    async def write(self, write: Write) -> list[Outcome]:
        if self.active:
            for op in write.ops:
                if isinstance(op, Put | Delete) and op.if_version is not None:
                    ref = op.record.ref if isinstance(op, Put) else op.ref
                    (there,) = await self._below.read([ref])
                    rival = there or (op.record if isinstance(op, Put) else None)
                    if rival is not None:
                        await self._below.write(Write((Put(rival),)))
        try:
            return await self._below.write(write)
        except mnemic.ConflictError:
            self.refused += 1
            raise


Step = Callable[[mnemic.AsyncScope], Awaitable[Any]]
STEPS: dict[str, Step] = {
    "update": lambda alice: alice.update("k", importance=2.0),
    "merge": lambda alice: alice.remember("Ann likes green tea.", duplicates="merge"),
    "facts.add": lambda alice: alice.facts.add("ann", "likes", "tea", confidence=0.5),
    "facts.add single": lambda alice: alice.facts.add("ann", "likes", "coffee", single=True),
    "facts.update": lambda alice: alice.facts.update("ann", "likes"),
    "notes.write": lambda alice: alice.notes.write("plan", 2),
    "notes.rename": lambda alice: alice.notes.rename("plan", "other"),
    "forget": lambda alice: alice.forget(metadata={"tag": "a"}),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_writer_that_is_always_overtaken_gives_up_with_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mnemic.store.retry.LONGEST_PAUSE", 0)

    async def main() -> None:
        store = OvertakenStore()
        async with mnemic.AsyncMemory(store) as memory:
            alice = memory.scope("acme", "alice")
            await alice.remember("Ann likes green tea.", id="k", metadata={"tag": "a"})
            await alice.facts.add("ann", "likes", "tea")
            await alice.notes.write("plan", 1)
            await alice.session("x").add("user", "hello")
            store.active = True
            with pytest.raises(mnemic.ConflictError, match=f"gave up after {ATTEMPTS} attempts"):
                await asyncio.wait_for(STEPS[name](alice), 240)
            assert store.refused <= ATTEMPTS

    asyncio.run(main())


class InterruptedStore(Layer):
    """A store in which something happens between a filtered scan and what the scanner does next."""

    between: Callable[[], Awaitable[object]] | None = None

    async def scan(self, scan: Scan) -> Page[Record]:
        page = await super().scan(scan)
        if self.between is not None and any(condition.field == "meta.tag" for condition in scan.where):
            happen, self.between = self.between, None
            await happen()
        return page


def test_forget_spares_what_left_the_filter_meanwhile(file_url: str) -> None:
    async def main() -> None:
        async with mnemic.open_async(file_url) as opened:
            store = InterruptedStore(opened._store)
            alice = mnemic.AsyncMemory(store).scope("acme", "alice")
            for n in range(40):
                await alice.remember(f"text {n}", id=str(n), metadata={"tag": "old", "n": n})

            async def update() -> None:
                for n in range(0, 40, 2):
                    await alice.update(str(n), metadata={"tag": "new" if n % 4 else "old", "n": -n})

            store.between = update
            assert (await alice.forget(metadata={"tag": "old"})).deleted == 30
            left = {record.id: record.metadata for record in await alice.memories.list()}
            assert left == {str(n): {"tag": "new", "n": -n} for n in range(2, 40, 4)}

    asyncio.run(main())
