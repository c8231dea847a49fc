"""The messages of a dialect as a list: one read to iterate, one atomic write to change, and nothing lost."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import mnemic
from mnemic.backends.memory import MemoryStore
from mnemic.dialects import marsys, tframex


@pytest.fixture(params=["marsys", "tframex"])
def memory(request: pytest.FixtureRequest) -> Any:
    return marsys.ConversationMemory() if request.param == "marsys" else tframex.InMemoryMemoryStore()


@pytest.fixture
def message(memory: Any) -> Callable[[str], Any]:
    made: Any = marsys.Message if isinstance(memory, marsys.ConversationMemory) else tframex.Message
    return lambda content: made("user", content)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often this thread called a store, by method."""
    counted: Counter[str] = Counter()
    for name in ("read", "scan", "streams", "write"):
        original = getattr(MemoryStore, name)

        def count(self: Any, *given: Any, name: str = name, original: Any = original) -> Any:
            counted[name] += threading.current_thread() is threading.main_thread()
            return original(self, *given)

        monkeypatch.setattr(MemoryStore, name, count)
    return counted


def contents(messages: Any) -> str:
    return "".join(str(message.content) for message in messages)


def test_every_operation_of_a_list_is_done_to_the_memory(memory: Any, message: Any) -> None:
    plain: list[Any] = []

    def both(work: Callable[[Any], Any]) -> None:
        assert work(memory.messages) == work(plain)
        assert memory.messages == plain
        assert contents(memory.messages) == contents(plain)

    given = {letter: message(letter) for letter in "abcdefghijk"}
    both(lambda held: held.extend(given[letter] for letter in "dab"))
    both(lambda held: held.append(given["c"]))
    both(lambda held: held.reverse())
    both(lambda held: held.sort(key=lambda one: one.content))
    both(lambda held: held.sort(key=lambda one: one.content, reverse=True))
    both(lambda held: held.insert(1, given["e"]))
    both(lambda held: held.insert(-1, given["f"]))
    both(lambda held: held.insert(99, given["g"]))
    both(lambda held: held.pop().content)
    both(lambda held: held.pop(0).content)
    both(lambda held: held.__setitem__(2, given["h"]))
    both(lambda held: held.__setitem__(-1, given["i"]))
    both(lambda held: held.__setitem__(slice(1, 3), [given["j"], given["k"]]))
    both(lambda held: held.__delitem__(0))
    both(lambda held: held.remove(given["k"]))
    both(lambda held: held.index(given["i"]))
    both(lambda held: held.count(given["j"]))
    both(lambda held: given["j"] in held)
    both(lambda held: contents(reversed(held)))
    both(
        lambda held: contents(held + [given["a"]])  # noqa: RUF005
    )
    both(
        lambda held: contents([given["a"]] + held)  # noqa: RUF005
    )
    both(lambda held: len(held))
    both(lambda held: held.clear())


def test_a_message_that_was_changed_is_stored_when_it_is_assigned(memory: Any, message: Any) -> None:
    memory.messages.extend(message(letter) for letter in "abcd")
    third = memory.messages[2]
    changed: Any
    if isinstance(memory, marsys.ConversationMemory):
        third.content = "C"
        changed = third
    else:
        changed = mnemic.Message.from_dict({**third.to_dict(), "content": "C"})
    memory.messages[2] = changed
    assert contents(memory.messages) == "abCd"


def test_adding_in_place_adds_once(memory: Any, message: Any) -> None:
    memory.messages += [message("a"), message("b")]
    memory.messages += [message("c")]
    assert contents(memory.messages) == "abc"


def test_whatever_fails_loses_nothing(memory: Any, message: Any) -> None:
    memory.messages = [message(letter) for letter in "abc"]
    first = memory.messages[0]
    for wrong in (
        lambda: memory.messages.append("text"),
        lambda: memory.messages.insert(0, None),
        lambda: memory.messages.__setitem__(1, first),
        lambda: memory.messages.__setitem__(slice(0, 2), [message("x"), 5]),
        lambda: memory.messages.sort(),
        lambda: memory.messages.pop(7),
        lambda: setattr(memory, "messages", [message("x"), object()]),
    ):
        with pytest.raises((mnemic.InvalidValueError, TypeError, IndexError)):
            wrong()
        assert contents(memory.messages) == "abc"


def test_the_calls_to_the_store_do_not_grow_with_the_list(memory: Any, message: Any, calls: Counter[str]) -> None:
    memory.messages = [message(f"{n} ") for n in range(800)]
    calls.clear()
    assert contents(memory.messages).startswith("0 1 2 ")
    assert calls == {"scan": 1}
    calls.clear()
    memory.messages.reverse()
    assert calls == {"streams": 1, "scan": 1, "write": 1}
    assert contents(memory.messages).startswith("799 798 ")


def test_the_frameworks_own_limit_by_tokens_makes_few_calls(calls: Counter[str]) -> None:
    class TokenLimitedMemoryStore(tframex.InMemoryMemoryStore):
        """As the framework's page shows it."""

        def __init__(self, max_tokens: int = 4000) -> None:
            super().__init__()
            self.max_tokens = max_tokens

        async def add_message(self, message: tframex.Message) -> None:
            await super().add_message(message)
            total_tokens = sum(len(str(msg.content).split()) * 1.3 for msg in self.messages)
            while total_tokens > self.max_tokens and len(self.messages) > 1:
                self.messages.pop(0)
                total_tokens = sum(len(str(msg.content).split()) * 1.3 for msg in self.messages)

    async def main() -> None:
        memory = TokenLimitedMemoryStore(max_tokens=100)
        for n in range(200):
            calls.clear()
            await memory.add_message(tframex.Message("user", f"message {n} of a long talk"))
            assert calls.total() <= 10, calls
        history = await memory.get_history()
        assert len(history) == 12
        assert history[-1].content == "message 199 of a long talk"

    asyncio.run(main())


def test_a_handler_of_an_event_loop_may_come_back() -> None:
    kept = marsys.ConversationMemory()

    async def handler(messages: list[tframex.Message]) -> None:
        for one in messages:
            kept.add_message(marsys.Message("user", one.content))  # type: ignore[arg-type]

    async def main() -> None:
        memory = tframex.SafeMemoryStore(4, handler)
        for n in range(6):
            memory.messages.append(tframex.Message("user", str(n)))

    asyncio.run(asyncio.wait_for(main(), 120))
    assert contents(kept.messages) == "01"
