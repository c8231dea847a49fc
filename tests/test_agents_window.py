"""A window shows a call that was never answered as interrupted, if it is told how to say so."""

from __future__ import annotations

import mnemic
from mnemic import Message, ToolCall


def chat_with(*messages: Message) -> mnemic.Session:
    chat = mnemic.open("memory://").scope("acme").session("monday")
    chat.add_many(messages)
    return chat


def test_a_call_without_an_answer_is_left_out_unless_there_is_something_to_say_for_it() -> None:
    call = Message("assistant", "Let me see.", tool_calls=[ToolCall("c1", "look"), ToolCall("c2", "look")])
    chat = chat_with(Message("user", "Where?"), call, Message("tool", "here", tool_call_id="c1"))
    assert [message.role for message in chat.window(1000)] == ["user"]

    shown = chat.window(1000, interrupted="Interrupted.")
    assert [message.role for message in shown] == ["user", "assistant", "tool", "tool"]
    assert {message.tool_call_id: message.content for message in shown[2:]} == {"c1": "here", "c2": "Interrupted."}
    assert next(m for m in shown if m.tool_call_id == "c2").metadata == {"interrupted": True}
    assert len(chat.messages()) == 3, "nothing is written: the real answer may still come"

    chat.add(Message("tool", "there", tool_call_id="c2"))
    assert [m.content for m in chat.window(1000, interrupted="Interrupted.")[2:]] == ["here", "there"]


def test_what_stands_in_for_an_answer_is_within_the_budget() -> None:
    call = Message("assistant", tool_calls=[ToolCall(f"c{n}", "look") for n in range(50)])
    chat = chat_with(Message("user", "Where?"), call, Message("assistant", "Sorry."), Message("user", "And?"))
    assert [m.content for m in chat.window(400, interrupted="This call was interrupted.")] == ["Sorry.", "And?"]
