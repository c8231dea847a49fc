"""What dialects share: calls that block wherever they are made, and messages as a list to be changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableSequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Generic, TypeVar, overload

import mnemic

from ..driving import running_loop

Result = TypeVar("Result")
Item = TypeVar("Item")


def blocking(work: Callable[[], Result]) -> Result:
    """Return what `work` returns, also on an event loop, where these APIs have always blocked."""
    return work() if running_loop() is None else _thread().submit(work).result()


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "mnemic-dialect")


@cache
def shared(url: str) -> mnemic.Memory:
    """Return the memory at a URL, opened once in this process for all who ask by it."""
    return blocking(lambda: mnemic.open(url))


class Live(MutableSequence[Item], Generic[Item]):
    """A session's messages as a list: what is done to it is done to the session."""

    def __init__(
        self,
        session: mnemic.Session,
        encode: Callable[[Item], mnemic.Message],
        decode: Callable[[mnemic.Message], Item],
    ) -> None:
        self._session = session
        self._encode = encode
        self._decode = decode

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: Any) -> Any:
        return self._read()[index]

    @overload
    def __setitem__(self, index: int, value: Item) -> None: ...
    @overload
    def __setitem__(self, index: slice, value: Iterable[Item]) -> None: ...
    def __setitem__(self, index: Any, value: Any) -> None:
        items = self._read()
        items[index] = value
        self.replace(items)

    def __delitem__(self, index: int | slice) -> None:
        items = self._read()
        del items[index]
        self.replace(items)

    def __len__(self) -> int:
        info = blocking(self._session.info)
        return info.messages if info is not None else 0

    def __eq__(self, other: object) -> bool:
        return self._read() == list(other) if isinstance(other, list | Live) else NotImplemented

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return repr(self._read())

    def insert(self, index: int, value: Item) -> None:
        if index >= len(self):
            blocking(lambda: self._session.add(self._encode(value)))
            return
        items = self._read()
        items.insert(index, value)
        self.replace(items)

    def replace(self, items: Iterable[Item]) -> None:
        messages = [self._encode(item) for item in items]
        kept = {message.id for message in messages}

        def work() -> None:
            # What stays is not taken out: only a change of order makes it necessary to begin anew.
            there = [message.id for message in self._session.messages()]
            if [id for id in there if id in kept] == [message.id for message in messages]:
                self._session.remove([id for id in there if id not in kept])
            else:
                self._session.clear()
                self._session.add_many(messages)

        blocking(work)

    def _read(self) -> list[Item]:
        return [self._decode(message) for message in blocking(self._session.messages)]
