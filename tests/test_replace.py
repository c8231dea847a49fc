"""A session's messages are replaced in one atomic write, and a window may leave out what is too long."""

from __future__ import annotations

from datetime import timedelta

import pytest

import mnemic
from clock import Clock
from mnemic import Message


def texts(messages: list[Message]) -> list[str | None]:
    return [message.text for message in messages]


def fill(chat: mnemic.Session, words: str) -> None:
    chat.add_many([Message("user", word, id=word) for word in words.split()])


def test_messages_are_reordered_changed_and_removed_at_once(chat: mnemic.Session) -> None:
    fill(chat, "a b c d e")
    before = {message.id: message for message in chat.messages()}
    changed = Message("user", "C", id="c", metadata={"edited": True})
    new = Message("assistant", "f", id="f")
    made = chat.replace(lambda held: [held[4], held[0], changed, new, held[1]])
    assert chat.messages() == made == [before["e"], before["a"], changed, new, before["b"]]
    chat.add("user", "later")
    assert texts(chat.messages()) == ["e", "a", "C", "f", "b", "later"]
    info = chat.info()
    assert info is not None
    assert info.messages == 6


def test_a_change_in_place_keeps_the_place_of_all_others(chat: mnemic.Session) -> None:
    fill(chat, "a b c")
    chat.replace(lambda held: [held[0], Message("user", "B", id="b"), held[2]])
    assert texts(chat.messages()) == ["a", "B", "c"]
    chat.replace(lambda held: held[1:])
    assert texts(chat.messages()) == ["B", "c"]
    chat.replace(lambda held: [])
    assert chat.messages() == []


def test_a_change_that_fails_leaves_the_session_as_it_was(chat: mnemic.Session) -> None:
    fill(chat, "a b")
    with pytest.raises(mnemic.InvalidValueError, match="same id"):
        chat.replace(lambda held: [*held, held[0]])
    with pytest.raises(mnemic.InvalidValueError):
        chat.replace(lambda held: [*reversed(held), "c"])  # type: ignore[list-item]
    with pytest.raises(ZeroDivisionError):
        chat.replace(lambda held: 1 // 0)  # type: ignore[arg-type, return-value]
    assert texts(chat.messages()) == ["a", "b"]


def test_what_others_add_meanwhile_is_not_lost(chat: mnemic.Session) -> None:
    fill(chat, "a b")
    seen: list[int] = []

    def change(held: list[Message]) -> list[Message]:
        if not seen:
            chat.add("user", "c")
        seen.append(len(held))
        return held[::-1]

    chat.replace(change)
    assert seen == [2, 3]
    assert texts(chat.messages()) == ["c", "b", "a"]


def test_expired_messages_do_not_stand_in_the_way(chat: mnemic.Session, clock: Clock) -> None:
    chat.add("user", "short", ttl=timedelta(hours=1))
    fill(chat, "a b")
    clock.advance(hours=1)
    chat.replace(lambda held: held[::-1])
    assert texts(chat.messages()) == ["b", "a"]


def test_limits_hold(alice: mnemic.Scope) -> None:
    chat = alice.session("limited", max_messages=3, overflow="drop")
    chat.replace(lambda held: [Message("user", str(n)) for n in range(5)])
    assert texts(chat.messages()) == ["2", "3", "4"]


def test_a_partial_window_leaves_out_what_is_too_long(chat: mnemic.Session) -> None:
    chat.set_system("Be brief.")
    chat.add("user", "My name is Alice")
    chat.add("user", "long " * 500)
    chat.add("assistant", "That was long.")
    with pytest.raises(mnemic.BudgetError):
        chat.window(100)
    assert texts(chat.window(100, partial=True)) == ["Be brief.", "My name is Alice", "That was long."]
    chat.add("user", "And my dog is Rex")
    assert texts(chat.window(100, partial=True))[1] == "My name is Alice"
