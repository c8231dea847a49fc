"""The messages of a session as a mutable list, for frameworks that hold theirs in one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence
from typing import Any, Generic, TypeVar, overload

from .messages import Message, Role
from .sync import Session

Result = TypeVar("Result")
Item = TypeVar("Item")


class MessageList(MutableSequence[Item], Generic[Item]):
    """A session's messages as a list: each operation reads once, and writes atomically.

    Returned messages are copies: to change one, assign it.
    """

    def __init__(
        self,
        session: Callable[[], Session],
        encode: Callable[[Item, Mapping[str, Message]], Message],
        decode: Callable[[Message], Item],
        roles: Sequence[Role] | None = None,
        *,
        open_images: bool = True,
    ) -> None:
        """`encode` takes an item and the stored messages by id, which may have more fields.

        With `roles`, the list has only messages with these; others stay in the session, at their places. Images are
        as in `Session.add_many`.
        """
        self._session = session
        self._encode = encode
        self._decode = decode
        self._roles = roles
        self._open_images = open_images

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: Any) -> Any:
        # The newest messages are read without those before them.
        start, stop = (index.start, index.stop) if isinstance(index, slice) else (index, None)
        if isinstance(start, int) and start < 0 and stop is None and self._roles is None:
            items = [self._decode(message) for message in self._session().messages(-start)]
            return items[index] if isinstance(index, slice) or len(items) == -start else self.copy()[index]
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
        if self._roles is not None:
            return len(self.stored())
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

    def stored(self) -> list[Message]:
        """Return the messages of the list as the session has them."""
        return [message for message in self._session().messages() if self._lists(message)]

    def copy(self) -> list[Item]:
        return [self._decode(message) for message in self.stored()]

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        items = self.copy()
        return items.index(value, start, len(items) if stop is None else stop)

    def append(self, value: Item) -> None:
        self.extend([value])

    def extend(self, values: Iterable[Item]) -> None:
        added = [self._encode(value, {}) for value in values]
        self._session().add_many(added, open_images=self._open_images)

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

    def _lists(self, message: Message) -> bool:
        return self._roles is None or message.role in self._roles

    def _change(self, change: Callable[[list[Item]], Result]) -> Result:
        changed: list[Result] = []

        def changed_messages(stored: list[Message]) -> list[Message]:
            known = {message.id: message for message in stored}
            items = [self._decode(message) for message in stored if self._lists(message)]
            changed.append(change(items))
            after = [self._encode(item, known) for item in items]
            for place, message in enumerate(stored):
                if not self._lists(message):
                    after.insert(place, message)
            return after

        self._session().replace(changed_messages, open_images=self._open_images)
        return changed[-1]
