"""Shared by the dialects: cached memories, and messages as a mutable list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence
from os import PathLike, fspath
from threading import Lock
from typing import Any, Generic, TypeVar, Unpack, overload
from urllib.parse import quote

import mnemic

from ..memory import OpenOptions

Result = TypeVar("Result")
Item = TypeVar("Item")


def sqlite_url(path: str | PathLike[str]) -> str:
    """Return the URL of a SQLite file, whatever characters it has; ":memory:" is not a file."""
    return "memory://" if path == ":memory:" else f"sqlite:///{quote(fspath(path))}"


_opened: list[tuple[str, OpenOptions, mnemic.Memory]] = []
_opening = Lock()


def shared(url: str, **options: Unpack[OpenOptions]) -> mnemic.Memory:
    """Return the memory at a URL with these options, opened once per process."""
    with _opening:
        for known, before, memory in _opened:
            if known == url and before == options:
                return memory
        memory = mnemic.open(url, **options)
        _opened.append((url, options, memory))
        return memory


class MessageList(MutableSequence[Item], Generic[Item]):
    """A session's messages as a list: each operation reads once, and writes atomically.

    Returned messages are copies: to change one, assign it.
    """

    def __init__(
        self,
        session: Callable[[], mnemic.Session],
        encode: Callable[[Item, Mapping[str, mnemic.Message]], mnemic.Message],
        decode: Callable[[mnemic.Message], Item],
    ) -> None:
        """`encode` takes an item and the stored messages by id, which may have more fields."""
        self._session = session
        self._encode = encode
        self._decode = decode

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: Any) -> Any:
        return self.copy()[index]

    @overload
    def __setitem__(self, index: int, value: Item) -> None: ...
    @overload
    def __setitem__(self, index: slice, value: Iterable[Item]) -> None: ...
    def __setitem__(self, index: Any, value: Any) -> None:
        given = list(value) if isinstance(index, slice) else value
        self._change(lambda items: items.__setitem__(index, given))

    def __delitem__(self, index: int | slice) -> None:
        self._change(lambda items: items.__delitem__(index))

    def __iter__(self) -> Iterator[Item]:
        return iter(self.copy())

    def __reversed__(self) -> Iterator[Item]:
        return reversed(self.copy())

    def __len__(self) -> int:
        info = self._session().info()
        return info.messages if info is not None else 0

    def __add__(self, other: Iterable[Item]) -> list[Item]:
        return [*self, *other]

    def __radd__(self, other: Iterable[Item]) -> list[Item]:
        return [*other, *self]

    def __eq__(self, other: object) -> bool:
        return self.copy() == list(other) if isinstance(other, list | MessageList) else NotImplemented

    __hash__: None = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.copy())

    def copy(self) -> list[Item]:
        return [self._decode(message) for message in self._session().messages()]

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        items = self.copy()
        return items.index(value, start, len(items) if stop is None else stop)

    def append(self, value: Item) -> None:
        self.extend([value])

    def extend(self, values: Iterable[Item]) -> None:
        added = [self._encode(value, {}) for value in values]
        self._session().add_many(added)

    def insert(self, index: int, value: Item) -> None:
        self._change(lambda items: items.insert(index, value))

    def pop(self, index: int = -1) -> Item:
        return self._change(lambda items: items.pop(index))

    def remove(self, value: Item) -> None:
        self._change(lambda items: items.remove(value))

    def clear(self) -> None:
        self._change(lambda items: items.clear())

    def reverse(self) -> None:
        self._change(lambda items: items.reverse())

    def sort(self, *, key: Callable[[Item], Any] | None = None, reverse: bool = False) -> None:
        sortable: Any = key
        self._change(lambda items: items.sort(key=sortable, reverse=reverse))

    def replace(self, values: Iterable[Item]) -> None:
        """Replace all messages; does nothing if given a list of the same session."""
        if not isinstance(values, MessageList) or values._session().scope != self._session().scope:
            given = list(values)
            self._change(lambda items: items.__setitem__(slice(None), given))

    def _change(self, change: Callable[[list[Item]], Result]) -> Result:
        changed: list[Result] = []

        def changed_messages(stored: list[mnemic.Message]) -> list[mnemic.Message]:
            known = {message.id: message for message in stored}
            items = [self._decode(message) for message in stored]
            changed.append(change(items))
            return [self._encode(item, known) for item in items]

        self._session().replace(changed_messages)
        return changed[-1]
