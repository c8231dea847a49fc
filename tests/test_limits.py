"""Limits on a session, what overflows, and what fits a prompt."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mnemic
from clock import Clock
from mnemic import AgentCall, Message, Summarize, ToolCall
from mnemic.features.summary import quoted
from mnemic.tokens import count_message, encoding


def texts(messages: list[Message]) -> list[str | None]:
    return [message.text for message in messages]


def call(*ids: str) -> Message:
    return Message("assistant", f"call {','.join(ids)}", tool_calls=[ToolCall(id, "f") for id in ids])


def answer(id: str) -> Message:
    return Message("tool", f"answer {id}", tool_call_id=id)


def test_the_oldest_messages_go(alice: mnemic.Scope) -> None:
    chat = alice.session("x", max_messages=5)
    for n in range(10):
        chat.add("user", f"Message {n}")
    assert texts(chat.messages()) == [f"Message {n}" for n in range(5, 10)]


def test_tokens_are_a_limit_too(alice: mnemic.Scope) -> None:
    chat = alice.session("x", max_tokens=20, max_messages=100)
    for _ in range(10):
        chat.add("user", "one two")
    info = chat.info()
    assert info is not None
    assert (info.messages, info.tokens) == (3, 18)


def test_a_batch_larger_than_the_limit_keeps_its_end(alice: mnemic.Scope) -> None:
    chat = alice.session("x", max_messages=3)
    chat.add("user", "old")
    chat.add_many([Message("user", str(n)) for n in range(7)])
    assert texts(chat.messages()) == ["4", "5", "6"]


def test_the_system_message_is_never_dropped(alice: mnemic.Scope) -> None:
    chat = alice.session("x", max_messages=3)
    chat.set_system("Be brief.")
    chat.add("system", "Note.")
    for n in range(6):
        chat.add("user", str(n))
    assert texts(chat.messages()) == ["Be brief.", "Note.", "5"]


def test_a_call_goes_with_its_answers(alice: mnemic.Scope) -> None:
    chat = alice.session("x", max_messages=5)
    chat.add_many([Message("user", "q"), call("a", "b"), answer("a"), answer("b"), Message("assistant", "done")])
    chat.add("user", "next")
    assert texts(chat.messages()) == ["call a,b", "answer a", "answer b", "done", "next"]
    chat.add("assistant", "more")
    assert texts(chat.messages()) == ["done", "next", "more"]


def test_the_current_user_turn_stays(alice: mnemic.Scope) -> None:
    chat = alice.session("x", max_messages=4)
    chat.add("user", "old question")
    chat.add("assistant", "old answer")
    chat.add("user", "the question")
    for n in range(5):
        chat.add(call(f"c{n}"))
        chat.add(answer(f"c{n}"))
    found = texts(chat.messages())
    assert found[0] == "the question"
    assert found[1:] == ["call c4", "answer c4"]


def test_a_call_that_waits_for_its_answer_stays(alice: mnemic.Scope) -> None:
    chat = alice.session("x", max_messages=3)
    chat.add("user", "q")
    chat.add(call("a", "b"))
    chat.add(answer("a"))
    chat.add(answer("b"))
    assert texts(chat.messages()) == ["q", "call a,b", "answer a", "answer b"]
    chat.add("user", "next")
    assert texts(chat.messages()) == ["next"]


def test_a_message_over_the_limit_is_still_kept(alice: mnemic.Scope) -> None:
    chat = alice.session("x", max_tokens=10)
    chat.add("user", "short")
    chat.add("user", "word " * 50)
    assert texts(chat.messages()) == ["word " * 50]


def test_a_lowered_limit_takes_effect_with_the_next_message(alice: mnemic.Scope) -> None:
    alice.session("x").add_many([Message("user", str(n)) for n in range(500)])
    alice.session("x", max_messages=10).add("user", "last")
    assert texts(alice.session("x").messages()) == [str(n) for n in range(491, 500)] + ["last"]


def test_what_overflows_may_be_archived(alice: mnemic.Scope) -> None:
    chat = alice.session("x", max_messages=10, overflow="archive", keep=0.5)
    added = [chat.add("user", str(n), metadata={"n": n}) for n in range(23)]
    kept = chat.messages()
    assert chat.archived() + kept == added
    assert 5 <= len(kept) <= 10
    chat.clear()
    assert chat.archived() == []


def test_a_batch_larger_than_the_limit_is_archived_as_well(alice: mnemic.Scope) -> None:
    chat = alice.session("x", max_messages=10, overflow="archive", keep=0.5)
    added = chat.add_many([Message("user", str(n)) for n in range(40)])
    assert len(chat.messages()) <= 10
    assert chat.archived() + chat.messages() == added


def test_a_handler_is_called_before_they_go(alice: mnemic.Scope) -> None:
    seen: list[Message] = []
    chat = alice.session("x", max_messages=5, overflow=seen.extend, keep=0.8)
    added = [chat.add("user", str(n)) for n in range(12)]
    assert seen + chat.messages() == added


def test_a_handler_may_be_async(alice: mnemic.Scope) -> None:
    seen: list[Message] = []

    async def handler(messages: list[Message]) -> None:
        await asyncio.sleep(0)
        seen.extend(messages)

    chat = alice.session("x", max_messages=2, overflow=handler, keep=0.5)
    added = [chat.add("user", str(n)) for n in range(5)]
    assert seen + chat.messages() == added


def test_a_handler_that_fails_loses_nothing(alice: mnemic.Scope) -> None:
    def handler(_: list[Message]) -> None:
        raise RuntimeError("down")

    chat = alice.session("x", max_messages=2, overflow=handler)
    for n in range(2):
        chat.add("user", str(n))
    with pytest.raises(RuntimeError, match="down"):
        chat.add("user", "2")
    assert texts(chat.messages()) == ["0", "1", "2"]
    seen: list[Message] = []
    again = alice.session("x", max_messages=2, overflow=seen.extend)
    again.add("user", "3")
    assert texts(seen + again.messages()) == ["0", "1", "2", "3"]


def test_what_overflows_may_be_summarised(alice: mnemic.Scope) -> None:
    given: list[list[str | None]] = []

    def model(messages: list[Message]) -> str:
        given.append(texts(messages))
        return f"summary {len(given)}"

    chat = alice.session("x", max_messages=4, overflow=Summarize(model), keep=0.5)
    added = [chat.add("user", str(n)) for n in range(8)]
    assert given[0] == ["0", "1", "2"]
    assert given[1][0] == "Summary so far: summary 1"
    assert chat.summary() == f"summary {len(given)}"
    assert chat.archived() + chat.messages() == added
    window = chat.window(200)
    assert window[0].role == "user", "it holds what users said, and has no more authority than they"
    assert window[0].content == quoted([f"Summary of the earlier conversation: {chat.summary()}"])
    assert window[1:] == chat.messages()


def test_messages_that_come_while_the_model_thinks_are_not_lost(alice: mnemic.Scope) -> None:
    other = alice.session("x")

    added: list[Message] = []

    def model(messages: list[Message]) -> str:
        added.append(other.add("user", "meanwhile"))
        return "summary"

    chat = alice.session("x", max_messages=4, overflow=Summarize(model), keep=0.5)
    added += [chat.add("user", str(n)) for n in range(8)]
    everything = chat.archived() + chat.messages()
    assert sorted(message.id for message in everything) == sorted(message.id for message in added)
    assert "meanwhile" in texts(everything)


def test_many_writers_hold_the_limit_together(memory: mnemic.Memory) -> None:
    def write(writer: int) -> None:
        chat = memory.scope("team").session("x", max_messages=7)
        for n in range(30):
            chat.add("user", f"{writer}-{n}")
            assert len(chat.messages()) <= 7

    errors: list[BaseException] = []

    def guarded(writer: int) -> None:
        try:
            write(writer)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    info = memory.scope("team").session("x").info()
    assert info is not None
    assert info.messages == 7


@pytest.mark.parametrize(
    "limits",
    [{"max_messages": 0}, {"max_tokens": -1}, {"max_messages": 1.5}, {"keep": 0}, {"keep": 2}, {"overflow": "explode"}],
)
def test_a_limit_that_is_none_is_refused(alice: mnemic.Scope, limits: dict[str, Any]) -> None:
    with pytest.raises(mnemic.InvalidValueError):
        alice.session("x", **limits)


def test_many_writers_archive_together(file_url: str) -> None:
    """Nobody's message is refused or lost, and nothing is handed over twice."""
    handed: list[Message] = []
    asked = 0

    async def model(messages: list[Message]) -> str:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.001)
        return "summary"

    async def main() -> None:
        async with mnemic.open_async(file_url) as memory:
            team = memory.scope("team")
            for name, overflow in (("a", "archive"), ("h", handed.extend), ("s", Summarize(model))):
                sessions = [team.session(name, max_messages=5, overflow=overflow) for _ in range(8)]  # type: ignore[arg-type]

                async def talk(chat: mnemic.AsyncSession, writer: int) -> None:
                    for n in range(10):
                        await chat.add("user", f"{writer}-{n}")

                await asyncio.gather(*(talk(chat, n) for n, chat in enumerate(sessions)))
                await sessions[0].add("user", "last")
                kept = await sessions[0].messages()
                out = handed if name == "h" else await sessions[0].archived()
                ids = [message.id for message in [*out, *kept]]
                assert len(ids) == len(set(ids)) == 81, name
                assert len(kept) <= 5

    asyncio.run(main())
    assert asked <= 40


def test_what_was_taken_back_does_not_cost_the_user_their_message(alice: mnemic.Scope) -> None:
    chat = alice.session("x", max_messages=4)
    for role, text in (("user", "u1"), ("assistant", "a1"), ("user", "u2"), ("assistant", "a2"), ("user", "u3")):
        chat.add(role, text)  # type: ignore[arg-type]
    chat.delete(*chat.recent(2))
    assert texts(chat.messages())[-1] == "u2"
    for n in range(4):
        chat.add("assistant", f"z{n}")
    assert "u2" in texts(chat.messages())


def test_a_session_of_agents_alone_is_limited_too(alice: mnemic.Scope) -> None:
    chat = alice.session("x", max_messages=3)
    for n in range(9):
        chat.add("assistant", str(n))
    assert texts(chat.messages()) == ["6", "7", "8"]
    assert texts(chat.window(1000)) == ["6", "7", "8"]


def test_the_archive_and_the_summary_expire_with_the_session(alice: mnemic.Scope, clock: Clock) -> None:
    life = timedelta(hours=1)
    chat = alice.session("x", max_messages=2, overflow=Summarize(lambda _: "secret"), keep=0.5, ttl=life)
    for n in range(6):
        chat.add("user", f"tea {n}")
    assert chat.summary() == "secret"
    assert chat.archived()
    clock.advance(hours=1)
    assert (chat.messages(), chat.archived(), chat.summary()) == ([], [], None)
    assert alice.recall("tea secret") == []
    chat.add("user", "new")
    assert texts(chat.window(500)) == ["new"]


def test_a_handle_without_a_time_to_live_keeps_the_session_alive(alice: mnemic.Scope, clock: Clock) -> None:
    alice.session("x", ttl=timedelta(hours=1)).add("user", "a")
    for text in "bc":
        clock.advance(minutes=40)
        alice.session("x").add("user", text)
    assert texts(alice.session("x").messages()) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "message",
    [
        Message("tool", {"rows": list(range(500))}, tool_call_id="c"),
        Message("assistant", structured_data={"rows": list(range(500))}),
        Message("assistant", "", structured_data={"rows": list(range(500))}),
        Message("assistant", [{"type": "thinking", "thinking": "word " * 500, "signature": "x" * 5000}]),
        Message("assistant", [{"type": "tool_use", "id": "c", "name": "f", "input": list(range(500))}]),
        Message("user", [{"type": "tool_result", "tool_use_id": "c", "content": "word " * 500}]),
        Message("user", [{"type": "document", "source": {"type": "text", "data": "word " * 500}}]),
        Message("assistant", agent_calls=[AgentCall("writer", {"rows": list(range(500))})]),
        Message("assistant", tool_calls=[ToolCall("c", "f", str(list(range(500))))]),
    ],
    ids=lambda message: f"{message.role}-{str(message.content)[:20]}",
)
def test_all_that_is_sent_is_counted(message: Message) -> None:
    assert 400 < count_message(message, encoding()) < 4000


# ---------------------------------------------------------------- the window


def test_the_window_holds_the_newest_that_fit(alice: mnemic.Scope) -> None:
    chat = alice.session("x")
    chat.set_system("one two")
    added = [chat.add("user", "three four") for _ in range(10)]
    cost = 4 + 2
    for room in (cost * 4, cost * 5 - 1):
        window = chat.window(room)
        assert window[0].content == "one two"
        assert window[1:] == added[-3:]
    assert len(chat.window(100_000)) == 11


def test_the_window_keeps_calls_and_answers_together(alice: mnemic.Scope) -> None:
    chat = alice.session("x")
    chat.add_many([Message("user", "q"), call("a", "b"), answer("a"), answer("b"), Message("assistant", "ok")])
    tokens = encoding()
    ends = count_message(Message("user", "q"), tokens) + count_message(Message("assistant", "ok"), tokens)
    assert texts(chat.window(ends + 20)) == ["q", "ok"]
    assert len(chat.window(1000)) == 5


def test_a_call_without_its_answers_stays_out_of_the_window(alice: mnemic.Scope) -> None:
    chat = alice.session("x")
    chat.add_many([answer("lost"), Message("user", "q"), call("a", "b"), answer("a")])
    assert texts(chat.window(1000)) == ["q"]
    chat.add(answer("b"))
    assert texts(chat.window(1000)) == ["q", "call a,b", "answer a", "answer b"]


def test_blocks_that_call_and_answer_belong_together(alice: mnemic.Scope) -> None:
    chat = alice.session("x")
    asking = Message("assistant", [{"type": "tool_use", "id": "t1", "name": "f", "input": {}}])
    answering = Message("user", [{"type": "tool_result", "tool_use_id": "t1", "content": "done"}])
    chat.add_many([Message("user", "q"), asking, answering, Message("assistant", "ok")])
    assert chat.window(1000) == chat.messages()
    chat.get(asking.id)
    other = alice.session("y")
    other.add_many([answering, Message("user", "q"), Message("tool", "no id")])
    assert texts(other.window(1000)) == ["q"]


def test_answers_of_others_between_do_not_confuse_the_window(alice: mnemic.Scope) -> None:
    chat = alice.session("x")
    chat.add_many([Message("user", "q"), call("a"), call("b"), Message("assistant", "note"), answer("b"), answer("a")])
    assert texts(chat.window(1000)) == ["q", "call a", "call b", "note", "answer b", "answer a"]


def test_a_budget_too_small_says_so(alice: mnemic.Scope) -> None:
    chat = alice.session("x")
    assert chat.window(1) == []
    chat.add("user", "a rather long question that needs a few tokens")
    with pytest.raises(mnemic.BudgetError, match="need 13 tokens"):
        chat.window(12)
    assert len(chat.window(13)) == 1
    for bad in (0, -1, 1.5):
        with pytest.raises(mnemic.InvalidValueError):
            chat.window(bad)  # type: ignore[arg-type]


turns = st.lists(
    st.one_of(
        st.tuples(st.just("user"), st.integers(1, 30)),
        st.tuples(st.just("assistant"), st.integers(1, 30)),
        st.tuples(st.just("system"), st.integers(1, 5)),
        st.tuples(st.just("call"), st.integers(1, 3)),
    ),
    max_size=25,
)


@settings(max_examples=80, deadline=None)
@given(turns=turns, limit=st.integers(1, 12), budget=st.integers(60, 400), unanswered=st.booleans())
def test_whatever_was_said_the_window_and_the_log_make_sense(
    turns: list[tuple[str, int]], limit: int, budget: int, unanswered: bool
) -> None:
    with mnemic.open("memory://") as memory:
        chat = memory.scope("u").session("x", max_messages=limit)
        log: list[Message] = []
        for n, (kind, size) in enumerate(turns):
            if kind == "call":
                ids = [f"c{n}-{i}" for i in range(size)]
                log += [call(*ids)] + [answer(id) for id in (ids[:-1] if unanswered else ids)]
            else:
                log.append(Message(kind, "word " * size))  # type: ignore[arg-type]
        for message in log:
            chat.add(message)
        kept = chat.messages()
        assert kept == [message for message in log if message in kept]
        assert [m for m in kept if m.role == "system"] == [m for m in log if m.role == "system"]
        asked = [message for message in log if message.role == "user"]
        assert all(message in kept for message in asked[-1:] + log[-1:])
        _no_answer_without_its_call(kept)
        try:
            window = chat.window(budget)
        except mnemic.BudgetError:
            return
        assert sum(count_message(message, encoding()) for message in window) <= budget
        _no_answer_without_its_call(window)
        answered = {message.tool_call_id for message in window if message.role == "tool"}
        assert all(c.id in answered for message in window for c in message.tool_calls)
        assert all(message in window for message in asked[-1:])


def _no_answer_without_its_call(messages: list[Message]) -> None:
    called: set[str | None] = set()
    for message in messages:
        called |= {c.id for c in message.tool_calls}
        if message.role == "tool":
            assert message.tool_call_id in called


def test_without_a_model_a_summary_is_made_of_extracts(alice: mnemic.Scope) -> None:
    chat = alice.session("long", max_messages=6, overflow=mnemic.Summarize())
    chat.add("user", "My sister Ann is allergic to shellfish. Ok?")
    for n in range(12):
        chat.add("assistant", f"Fine, and what about the trip to Lisbon number {n}?")
        chat.add("user", "Yes")
    summary = chat.summary()
    assert summary is not None
    assert "user: My sister Ann is allergic to shellfish." in summary
    assert "Ok?" not in summary
    assert len(summary.splitlines()) <= 12
