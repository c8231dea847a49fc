"""The contract of the conversions to and from the chat formats of OpenAI and Anthropic."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mnemic.errors import InvalidValueError
from mnemic.formats import from_anthropic, from_openai, to_anthropic, to_openai
from mnemic.messages import AgentCall, Message, ToolCall

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PNG_BASE64 = base64.b64encode(PNG).decode()
PNG_URL = f"data:image/png;base64,{PNG_BASE64}"
CAT = "https://example.com/cat.png"
DOG = "https://example.com/dog.png"

LOOK_UP = ToolCall("call_1", "look_up", '{"city":"Oslo"}')
OPENAI_CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"city":"Oslo"}'}}
TOOL_USE = {"type": "tool_use", "id": "call_1", "name": "look_up", "input": {"city": "Oslo"}}
THINKING = {"type": "thinking", "thinking": "Which city?", "signature": "c2ln"}
DOCUMENT = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Norway"}}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def image_url(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def image(url: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "url", "url": url}}


PNG_BLOCK: dict[str, Any] = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": PNG_BASE64},
}


def bare(messages: list[Message]) -> list[Message]:
    """Return messages without what is made anew each time."""
    return [replace(message, id="", timestamp=datetime(1970, 1, 1, tzinfo=UTC)) for message in messages]


def assert_same(left: list[Message], right: list[Message]) -> None:
    assert bare(left) == bare(right)


def openai(message: Message) -> dict[str, Any]:
    result: dict[str, Any]
    (result,) = to_openai([message])
    return result


def turns(*messages: Message) -> list[dict[str, Any]]:
    return to_anthropic(messages)[1]


class TestToOpenAI:
    @pytest.mark.parametrize("role", ["system", "user", "assistant"])
    def test_text_stays_text(self, role: Any) -> None:
        assert openai(Message(role, "Hello")) == {"role": role, "content": "Hello"}

    def test_a_name_is_kept(self) -> None:
        assert openai(Message("user", "Hi", name="alice")) == {"role": "user", "content": "Hi", "name": "alice"}

    def test_tool_calls_without_content_have_null_content(self) -> None:
        assert openai(Message("assistant", tool_calls=[LOOK_UP])) == {
            "role": "assistant",
            "content": None,
            "tool_calls": [OPENAI_CALL],
        }

    def test_tool_calls_beside_content(self) -> None:
        assert openai(Message("assistant", "One moment", tool_calls=[LOOK_UP])) == {
            "role": "assistant",
            "content": "One moment",
            "tool_calls": [OPENAI_CALL],
        }

    def test_a_custom_tool_call_is_given_its_own_form(self) -> None:
        call = ToolCall("call_1", "shell", "ls -l", type="custom")
        assert openai(Message("assistant", tool_calls=[call]))["tool_calls"] == [
            {"id": "call_1", "type": "custom", "custom": {"name": "shell", "input": "ls -l"}}
        ]

    def test_a_tool_answer_carries_the_id_of_its_call(self) -> None:
        assert openai(Message("tool", "12 °C", tool_call_id="call_1", name="look_up")) == {
            "role": "tool",
            "content": "12 °C",
            "tool_call_id": "call_1",
            "name": "look_up",
        }

    def test_an_answer_to_the_second_id_of_a_call_is_given_the_first(self) -> None:
        call = replace(LOOK_UP, call_id="fc_9")
        messages = [Message("assistant", tool_calls=[call]), Message("tool", "12", tool_call_id="fc_9")]
        assert [m.get("tool_call_id") for m in to_openai(messages)] == [None, "call_1"]

    def test_an_object_becomes_compact_json(self) -> None:
        assert openai(Message("user", {"a": [1, "é"], "b": None}))["content"] == '{"a":[1,"é"],"b":null}'

    def test_structured_data_stands_in_for_missing_content(self) -> None:
        assert openai(Message("assistant", structured_data={"a": 1}))["content"] == '{"a":1}'
        assert openai(Message("assistant", "Done", structured_data={"a": 1}))["content"] == "Done"

    def test_agent_calls_stand_in_when_there_is_nothing_else(self) -> None:
        calls = [AgentCall("writer", {"task": "poem"}), AgentCall("critic")]
        assert openai(Message("assistant", agent_calls=calls)) == {
            "role": "assistant",
            "content": '[{"agent_name":"writer","request":{"task":"poem"}},{"agent_name":"critic"}]',
        }
        assert openai(Message("assistant", "Done", agent_calls=calls))["content"] == "Done"
        assert openai(Message("assistant", tool_calls=[LOOK_UP], agent_calls=calls))["content"] is None

    @pytest.mark.parametrize("role", ["user", "assistant", "tool"])
    @pytest.mark.parametrize("content", [None, "", []])
    def test_a_message_of_nothing_has_empty_text(self, role: Any, content: Any) -> None:
        assert openai(Message(role, content))["content"] == ""

    def test_images_follow_the_text(self) -> None:
        assert openai(Message("user", "Which?", images=[CAT, PNG_URL]))["content"] == [
            text("Which?"),
            image_url(CAT),
            image_url(PNG_URL),
        ]
        assert openai(Message("user", images=[CAT]))["content"] == [image_url(CAT)]

    def test_blocks_pass_through(self) -> None:
        audio = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
        assert openai(Message("user", [text("Listen"), audio]))["content"] == [text("Listen"), audio]

    def test_a_string_among_blocks_is_a_text_block(self) -> None:
        assert openai(Message("user", ["a", text("b")]))["content"] == [text("a"), text("b")]

    def test_anthropic_images_are_converted_where_they_stand(self) -> None:
        content = [text("This"), PNG_BLOCK, text("or this"), image(CAT)]
        assert openai(Message("user", content))["content"] == [
            text("This"),
            image_url(PNG_URL),
            text("or this"),
            image_url(CAT),
        ]

    def test_anthropic_tool_use_becomes_a_tool_call(self) -> None:
        assert openai(Message("assistant", [text("One moment"), TOOL_USE])) == {
            "role": "assistant",
            "content": [text("One moment")],
            "tool_calls": [OPENAI_CALL],
        }

    def test_a_call_in_blocks_and_in_tool_calls_is_one_call(self) -> None:
        message = Message("assistant", [TOOL_USE], tool_calls=[LOOK_UP])
        assert openai(message)["tool_calls"] == [OPENAI_CALL]

    def test_anthropic_tool_results_become_messages_before_the_rest(self) -> None:
        result = {"type": "tool_result", "tool_use_id": "call_1", "content": [text("12"), text("rain")]}
        answer = {"role": "tool", "content": "12\nrain", "tool_call_id": "call_1"}
        assert to_openai([Message("user", [result])]) == [answer]
        assert to_openai([Message("user", [text("And?"), result])]) == [
            answer,
            {"role": "user", "content": [text("And?")]},
        ]

    def test_thinking_is_left_out(self) -> None:
        assert openai(Message("assistant", [THINKING, text("Oslo")]))["content"] == [text("Oslo")]
        assert openai(Message("assistant", [THINKING, TOOL_USE]))["content"] is None

    def test_nothing_that_is_given_is_changed(self) -> None:
        content = [text("a"), TOOL_USE]
        to_openai([Message("assistant", content)])
        to_anthropic([Message("assistant", content), Message("assistant", "b")])
        assert content == [text("a"), TOOL_USE]


class TestImages:
    def test_a_file_becomes_a_data_url_if_it_may_be_opened(self, tmp_path: Path) -> None:
        path = tmp_path / "dot.png"
        path.write_bytes(PNG)
        message = Message("user", "What is it?", images=[str(path)])
        (said,) = to_openai([message], open_images=True)
        assert said["content"] == [text("What is it?"), image_url(PNG_URL)]
        assert to_anthropic([message], open_images=True)[1] == [
            {"role": "user", "content": [text("What is it?"), PNG_BLOCK]}
        ]

    @pytest.mark.parametrize("write", [to_openai, to_anthropic])
    @pytest.mark.parametrize("path", ["dot.png", "/dev/zero", "file:///etc/passwd", "", "../a.png"])
    def test_a_path_is_not_opened_unasked(self, tmp_path: Path, write: Any, path: str) -> None:
        with pytest.raises(InvalidValueError, match="open_images=True"):
            write([Message("user", images=[path])])

    def test_urls_and_data_urls_for_anthropic(self) -> None:
        assert turns(Message("user", images=[CAT, PNG_URL])) == [{"role": "user", "content": [image(CAT), PNG_BLOCK]}]

    def test_the_wrong_name_of_jpeg_is_put_right_for_anthropic(self) -> None:
        (turn,) = turns(Message("user", images=["data:image/jpg;base64,/9j/"]))
        assert turn["content"][0]["source"]["media_type"] == "image/jpeg"

    def test_anthropic_needs_base64(self) -> None:
        with pytest.raises(InvalidValueError, match="base64"):
            to_anthropic([Message("user", images=["data:image/svg+xml,<svg/>"])])

    def test_openai_blocks_are_converted_for_anthropic_where_they_stand(self) -> None:
        detailed = {"type": "image_url", "image_url": {"url": CAT, "detail": "low"}}
        assert turns(Message("user", [text("This"), detailed, text("or this"), image_url(PNG_URL)])) == [
            {"role": "user", "content": [text("This"), image(CAT), text("or this"), PNG_BLOCK]}
        ]

    @pytest.mark.parametrize("read", [from_openai, from_anthropic])
    @pytest.mark.parametrize("block", [image_url, image])
    def test_a_path_that_a_conversation_brings_along_is_never_read(self, tmp_path: Path, read: Any, block: Any) -> None:
        path = tmp_path / "private.png"
        path.write_bytes(PNG)
        found = read([{"role": "user", "content": [block(str(path))]}])
        assert found[0].images == []
        assert PNG_BASE64 not in json.dumps([to_openai(found), to_anthropic(found)])


class TestFromOpenAI:
    @pytest.mark.parametrize("stamp", [datetime(2025, 3, 1, tzinfo=UTC), "2025-03-01T00:00:00Z", 1_740_787_200])
    def test_a_message_of_an_old_chat_keeps_its_time(self, stamp: Any) -> None:
        (message,) = from_openai([{"role": "user", "content": "Hi", "timestamp": stamp}])
        assert message.timestamp == datetime(2025, 3, 1, tzinfo=UTC)
        assert message.metadata == {}

    @pytest.mark.parametrize("stamp", ["yesterday", [], 1e40])
    def test_a_timestamp_that_is_no_time_is_refused(self, stamp: Any) -> None:
        with pytest.raises(InvalidValueError, match="timestamp"):
            from_openai([{"role": "user", "content": "Hi", "timestamp": stamp}])

    def test_each_role(self) -> None:
        found = from_openai(
            [
                {"role": "system", "content": "Be brief"},
                {"role": "user", "content": "Weather?", "name": "alice"},
                {"role": "assistant", "content": None, "tool_calls": [OPENAI_CALL]},
                {"role": "tool", "content": "12 °C", "tool_call_id": "call_1"},
                {"role": "assistant", "content": "12 °C"},
            ]
        )
        assert_same(
            found,
            [
                Message("system", "Be brief"),
                Message("user", "Weather?", name="alice"),
                Message("assistant", tool_calls=[LOOK_UP]),
                Message("tool", "12 °C", tool_call_id="call_1"),
                Message("assistant", "12 °C"),
            ],
        )

    def test_the_developer_is_the_system_and_comes_back(self) -> None:
        given = [{"role": "developer", "content": "Be brief"}]
        found = from_openai(given)
        assert_same(found, [Message("system", "Be brief", metadata={"openai_role": "developer"})])
        assert to_openai(found) == given
        assert to_anthropic(found) == ("Be brief", [])

    def test_functions_of_old_are_tools(self) -> None:
        call = {"name": "look_up", "arguments": '{"city":"Oslo"}'}
        found = from_openai(
            [
                {"role": "assistant", "content": None, "function_call": call},
                {"role": "function", "name": "look_up", "content": "12 °C"},
            ]
        )
        assert_same(
            found,
            [
                Message("assistant", tool_calls=[ToolCall("look_up", "look_up", '{"city":"Oslo"}')]),
                Message("tool", "12 °C", name="look_up", tool_call_id="look_up"),
            ],
        )

    def test_text_and_images_are_taken_apart(self) -> None:
        found = from_openai([{"role": "user", "content": [text("Which?"), image_url(CAT), image_url(DOG)]}])
        assert_same(found, [Message("user", "Which?", images=[CAT, DOG])])

    def test_images_before_the_text_stay_there(self) -> None:
        given = [{"role": "user", "content": [image_url(CAT), text("What is it?")]}]
        found = from_openai(given)
        assert_same(found, [Message("user", "What is it?", images=[CAT], metadata={"images_first": True})])
        assert to_openai(found) == given

    @pytest.mark.parametrize(
        "content",
        [
            [text("one")],
            [text("one"), text("two")],
            [text("This"), image_url(CAT), text("or this"), image_url(DOG)],
            [{"type": "image_url", "image_url": {"url": CAT, "detail": "high"}}],
            [{"type": "refusal", "refusal": "No"}],
        ],
    )
    def test_other_lists_stay(self, content: list[Any]) -> None:
        assert_same(from_openai([{"role": "user", "content": content}]), [Message("user", content)])

    def test_fields_that_a_message_does_not_have_are_kept(self) -> None:
        refusal: dict[str, Any] = {
            "role": "assistant",
            "content": None,
            "refusal": "No",
            "audio": None,
            "annotations": [],
        }
        found = from_openai([refusal])
        assert_same(found, [Message("assistant", metadata={"openai": {"refusal": "No"}})])
        assert to_openai(found) == [{"role": "assistant", "content": None, "refusal": "No"}]

    def test_arguments_given_as_an_object_become_text(self) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
        (message,) = from_openai([{"role": "assistant", "tool_calls": [call]}])
        assert message.tool_calls == [ToolCall("c", "f", '{"a":1}')]

    def test_a_custom_call_comes_back(self) -> None:
        call = {"id": "c", "type": "custom", "custom": {"name": "shell", "input": "ls"}}
        given = [{"role": "assistant", "content": None, "tool_calls": [call]}]
        assert to_openai(from_openai(given)) == given


class TestToAnthropic:
    def test_text_stays_text(self) -> None:
        assert to_anthropic([Message("user", "Hello"), Message("assistant", "Hi")]) == (
            None,
            [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}],
        )

    def test_system_messages_are_lifted_out_and_joined(self) -> None:
        messages = [
            Message("system", "Be brief"),
            Message("user", "Hello"),
            Message("system", [text("Be kind"), text("Be true")]),
            Message("system", " "),
        ]
        assert to_anthropic(messages) == ("Be brief\n\nBe kind\n\nBe true", [{"role": "user", "content": "Hello"}])

    def test_tool_calls_and_their_answers(self) -> None:
        assert turns(
            Message("assistant", "One moment", tool_calls=[LOOK_UP]),
            Message("tool", "12 °C", tool_call_id="call_1", name="look_up"),
        ) == [
            {"role": "assistant", "content": [text("One moment"), TOOL_USE]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "12 °C"}]},
        ]

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ('{"a": {"b": [1.5, null]}}', {"a": {"b": [1.5, None]}}),
            ("{}", {}),
            ("", {}),
            ("[1]", {"arguments": "[1]"}),
            ('"text"', {"arguments": '"text"'}),
            ("{oops", {"arguments": "{oops"}),
            ('{"a": NaN}', {"arguments": '{"a": NaN}'}),
            ('{"a": 1e999}', {"arguments": '{"a": 1e999}'}),
            ("[" * 100_000, {"arguments": "[" * 100_000}),
        ],
    )
    def test_the_input_of_a_tool_is_an_object(self, arguments: str, expected: Any) -> None:
        (turn,) = turns(Message("assistant", tool_calls=[ToolCall("c", "f", arguments)]))
        assert turn["content"] == [{"type": "tool_use", "id": "c", "name": "f", "input": expected}]

    def test_consecutive_messages_of_one_role_are_merged(self) -> None:
        assert turns(
            Message("user", "a"),
            Message("system", "between"),
            Message("user", "b", images=[CAT]),
            Message("assistant", "c"),
            Message("assistant", tool_calls=[LOOK_UP]),
        ) == [
            {"role": "user", "content": [text("a"), text("b"), image(CAT)]},
            {"role": "assistant", "content": [text("c"), TOOL_USE]},
        ]

    def test_tool_results_come_first_in_a_merged_message(self) -> None:
        (turn,) = turns(
            Message("user", "a"),
            Message("tool", "1", tool_call_id="one"),
            Message("user", "b"),
            Message("tool", "2", tool_call_id="two"),
        )
        assert turn["content"] == [
            {"type": "tool_result", "tool_use_id": "one", "content": "1"},
            {"type": "tool_result", "tool_use_id": "two", "content": "2"},
            text("a"),
            text("b"),
        ]

    def test_tool_uses_come_last_in_a_merged_message(self) -> None:
        assert turns(Message("assistant", tool_calls=[LOOK_UP]), Message("assistant", "One moment")) == [
            {"role": "assistant", "content": [text("One moment"), TOOL_USE]}
        ]

    def test_empty_text_is_left_out(self) -> None:
        assert turns(Message("assistant", "", tool_calls=[LOOK_UP])) == [{"role": "assistant", "content": [TOOL_USE]}]
        assert turns(Message("user", [text(""), text("a"), text("\n")])) == [{"role": "user", "content": "a"}]

    def test_a_message_of_nothing_is_left_out(self) -> None:
        assert turns(Message("user", "a"), Message("assistant", " "), Message("user", "b")) == [
            {"role": "user", "content": [text("a"), text("b")]}
        ]
        assert to_anthropic([Message("system", ""), Message("user")]) == (None, [])

    def test_an_answer_of_nothing_has_no_content(self) -> None:
        assert turns(Message("tool", "", tool_call_id="c")) == [
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]}
        ]

    def test_an_answer_may_hold_images_and_be_an_error(self) -> None:
        message = Message("tool", "See", images=[CAT], tool_call_id="c", metadata={"is_error": True})
        assert turns(message)[0]["content"] == [
            {"type": "tool_result", "tool_use_id": "c", "content": [text("See"), image(CAT)], "is_error": True}
        ]

    def test_objects_and_agent_calls_become_json(self) -> None:
        assert turns(Message("user", {"a": 1}), Message("assistant", agent_calls=[AgentCall("writer", 1)])) == [
            {"role": "user", "content": '{"a":1}'},
            {"role": "assistant", "content": '[{"agent_name":"writer","request":1}]'},
        ]

    def test_a_block_with_more_than_text_stays_a_block(self) -> None:
        cached = {**text("a"), "cache_control": {"type": "ephemeral"}}
        assert turns(Message("user", [cached])) == [{"role": "user", "content": [cached]}]

    def test_a_refusal_is_text(self) -> None:
        assert turns(Message("assistant", [{"type": "refusal", "refusal": "No"}])) == [
            {"role": "assistant", "content": "No"}
        ]


class TestFromAnthropic:
    def test_the_system_comes_first(self) -> None:
        assert_same(
            from_anthropic([{"role": "user", "content": "Hello"}], "Be brief"),
            [Message("system", "Be brief"), Message("user", "Hello")],
        )

    def test_a_system_of_blocks(self) -> None:
        cached = {**text("Be brief"), "cache_control": {"type": "ephemeral"}}
        assert_same(from_anthropic([], [text("Be brief")]), [Message("system", "Be brief")])
        assert_same(from_anthropic([], [cached]), [Message("system", [cached])])

    @pytest.mark.parametrize("system", [None, "", []])
    def test_no_system(self, system: Any) -> None:
        assert from_anthropic([], system) == []

    def test_a_system_message_within_the_conversation(self) -> None:
        found = from_anthropic([{"role": "system", "content": "Be brief"}])
        assert_same(found, [Message("system", "Be brief")])

    def test_blocks_are_split(self) -> None:
        found = from_anthropic(
            [
                {"role": "user", "content": [text("Weather here?"), image(CAT), PNG_BLOCK]},
                {"role": "assistant", "content": [text("One moment"), TOOL_USE]},
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "call_1", "content": [text("12"), text("rain")]},
                        {"type": "tool_result", "tool_use_id": "call_2", "content": "no", "is_error": True},
                        {"type": "tool_result", "tool_use_id": "call_3", "content": [text("map"), PNG_BLOCK]},
                        {"type": "tool_result", "tool_use_id": "call_4"},
                        text("And tomorrow?"),
                    ],
                },
            ]
        )
        assert_same(
            found,
            [
                Message("user", "Weather here?", images=[CAT, PNG_URL]),
                Message("assistant", "One moment", tool_calls=[LOOK_UP]),
                Message("tool", "12\nrain", tool_call_id="call_1"),
                Message("tool", "no", tool_call_id="call_2", metadata={"is_error": True}),
                Message("tool", "map", images=[PNG_URL], tool_call_id="call_3"),
                Message("tool", tool_call_id="call_4"),
                Message("user", "And tomorrow?"),
            ],
        )

    @pytest.mark.parametrize("other", [THINKING, DOCUMENT])
    def test_blocks_of_other_types_stay_blocks(self, other: dict[str, Any]) -> None:
        given = [{"role": "assistant", "content": [other, text("Oslo"), TOOL_USE]}]
        found = from_anthropic(given)
        assert_same(found, [Message("assistant", [other, text("Oslo")], tool_calls=[LOOK_UP])])
        assert to_anthropic(found) == (None, given)

    def test_texts_in_pieces_stay_in_pieces(self) -> None:
        given = [{"role": "user", "content": [text("a"), image(CAT), text("b")]}]
        found = from_anthropic(given)
        assert_same(found, [Message("user", [text("a"), image(CAT), text("b")])])
        assert to_anthropic(found) == (None, given)

    def test_images_before_the_text_stay_there(self) -> None:
        given = [{"role": "user", "content": [PNG_BLOCK, text("What is it?")]}]
        found = from_anthropic(given)
        assert_same(found, [Message("user", "What is it?", images=[PNG_URL], metadata={"images_first": True})])
        assert to_anthropic(found) == (None, given)

    def test_a_conversation_of_one_format_reads_in_the_other(self) -> None:
        given: list[dict[str, Any]] = [
            {"role": "user", "content": [text("Weather here?"), PNG_BLOCK]},
            {"role": "assistant", "content": [THINKING, TOOL_USE]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "12 °C"}]},
            {"role": "assistant", "content": "12 °C"},
        ]
        found = from_anthropic(given, "Be brief")
        assert to_openai(found) == [
            {"role": "system", "content": "Be brief"},
            {"role": "user", "content": [text("Weather here?"), image_url(PNG_URL)]},
            {"role": "assistant", "content": None, "tool_calls": [OPENAI_CALL]},
            {"role": "tool", "content": "12 °C", "tool_call_id": "call_1"},
            {"role": "assistant", "content": "12 °C"},
        ]
        back = to_anthropic(from_openai(to_openai(found)))
        assert back == ("Be brief", [given[0], {"role": "assistant", "content": [TOOL_USE]}, *given[2:]])


class TestErrors:
    @pytest.mark.parametrize("read", [from_openai, from_anthropic])
    @pytest.mark.parametrize("role", ["robot", None, 7, ["user"]])
    def test_an_unknown_role(self, read: Any, role: Any) -> None:
        with pytest.raises(InvalidValueError, match="role") as caught:
            read([{"role": role, "content": "Hello"}])
        assert repr(role) in str(caught.value)

    @pytest.mark.parametrize("read", [from_openai, from_anthropic])
    @pytest.mark.parametrize("message", ["Hello", None, 7, ["role", "user"], Message("user", "Hello")])
    def test_a_message_that_is_not_a_mapping(self, read: Any, message: Any) -> None:
        with pytest.raises(InvalidValueError, match="a message must be a mapping") as caught:
            read([message])
        assert repr(message)[:10] in str(caught.value)

    @pytest.mark.parametrize("read", [from_openai, from_anthropic])
    def test_a_block_that_is_not_a_mapping(self, read: Any) -> None:
        with pytest.raises(InvalidValueError, match=r"content\[0\] must be text or an object.*: 7"):
            read([{"role": "user", "content": [7]}])

    @pytest.mark.parametrize("read", [from_openai, from_anthropic])
    def test_content_of_another_type(self, read: Any) -> None:
        with pytest.raises(InvalidValueError, match="content"):
            read([{"role": "user", "content": 7}])

    @pytest.mark.parametrize(
        "fields",
        [
            {"tool_calls": 7},
            {"tool_calls": ["look_up"]},
            {"tool_calls": [{"id": "c"}]},
            {"tool_calls": [{"id": "c", "function": {"arguments": "{}"}}]},
            {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
            {"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {"a": {1}}}}]},
            {"function_call": "look_up"},
        ],
    )
    def test_a_tool_call_that_is_none(self, fields: dict[str, Any]) -> None:
        with pytest.raises(InvalidValueError, match=r"tool.call|function_call"):
            from_openai([{"role": "assistant", **fields}])

    def test_a_tool_use_without_an_id(self) -> None:
        with pytest.raises(InvalidValueError, match="tool call id"):
            from_anthropic([{"role": "assistant", "content": [{"type": "tool_use", "name": "f"}]}])

    def test_an_answer_for_anthropic_without_the_id_of_its_call(self) -> None:
        with pytest.raises(InvalidValueError, match=r"tool_call_id.*m1"):
            to_anthropic([Message("tool", "12 °C", id="m1")])

    @pytest.mark.parametrize("write", [to_openai, to_anthropic])
    @pytest.mark.parametrize("value", [float("nan"), {1}, datetime.now(UTC)])
    def test_an_object_that_json_cannot_hold(self, write: Any, value: Any) -> None:
        with pytest.raises(InvalidValueError, match="content cannot be written as JSON"):
            write([Message("user", {"a": value})])


texts = st.text(min_size=1).filter(str.strip)
names = st.from_regex(r"[a-zA-Z0-9_-]{1,12}", fullmatch=True)
urls = names.map(lambda name: f"https://example.com/{name}") | st.binary(max_size=8).map(
    lambda data: f"data:image/png;base64,{base64.b64encode(data).decode()}"
)
images = st.lists(urls, max_size=3)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(st.text(), values, max_size=3)
compact = objects.map(lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def calls(arguments: st.SearchStrategy[str], least: int = 0) -> st.SearchStrategy[list[ToolCall]]:
    call = st.builds(ToolCall, names, names, arguments, call_id=st.none())
    return st.lists(call, min_size=least, max_size=3, unique_by=lambda call: call.id)


def answer(name: st.SearchStrategy[str | None]) -> st.SearchStrategy[Message]:
    return st.builds(Message, st.just("tool"), texts, name=name, tool_call_id=names, images=images)


maybe_name = st.none() | names
raw = st.text("{}a", max_size=3)
openai_messages = st.lists(
    st.builds(Message, st.just("system"), st.text(), name=maybe_name)
    | st.builds(Message, st.just("user"), st.text(), name=maybe_name, images=images)
    | st.builds(Message, st.just("user"), images=st.lists(urls, min_size=1, max_size=3))
    | st.builds(Message, st.just("assistant"), st.text(), name=maybe_name, tool_calls=calls(raw))
    | st.builds(Message, st.just("assistant"), tool_calls=calls(compact, 1))
    | answer(maybe_name),
    max_size=5,
)
openai_parts = st.lists(
    st.text().map(text)
    | urls.map(image_url)
    | urls.map(lambda url: {"type": "image_url", "image_url": {"url": url, "detail": "low"}}),
    min_size=1,
    max_size=4,
)
openai_content = st.text() | openai_parts
openai_calls = st.lists(
    st.fixed_dictionaries(
        {"id": names, "type": st.just("function"), "function": st.fixed_dictionaries({"name": names, "arguments": raw})}
    ),
    min_size=1,
    max_size=3,
)
openai_dicts = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "assistant"]), "content": openai_content},
        optional={"name": names},
    )
    | st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": st.none() | st.text(), "tool_calls": openai_calls},
        optional={"refusal": texts},
    )
    | st.fixed_dictionaries({"role": st.just("tool"), "content": openai_content, "tool_call_id": names}),
    max_size=5,
)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Draw a conversation in which no two messages would be merged, but for the answers of tools."""
    found = draw(st.lists(st.builds(Message, st.just("system"), texts), max_size=1))
    for _ in range(draw(st.integers(0, 3))):
        found.append(draw(st.builds(Message, st.just("user"), texts, images=images)))
        found.append(draw(st.builds(Message, st.just("assistant"), texts | st.none(), tool_calls=calls(compact, 1))))
        found += draw(st.lists(answer(st.none()), min_size=1, max_size=3))
        found.append(draw(st.builds(Message, st.just("assistant"), texts)))
    return found


base64_images = st.binary(max_size=8).map(lambda data: {**PNG_BLOCK["source"], "data": base64.b64encode(data).decode()})
blocks: st.SearchStrategy[dict[str, Any]] = (
    texts.map(text)
    | names.map(lambda name: image(f"https://example.com/{name}"))
    | base64_images.map(lambda source: {"type": "image", "source": source})
    | st.sampled_from([THINKING, DOCUMENT, {**text("a"), "cache_control": {"type": "ephemeral"}}])
)
tool_results = st.fixed_dictionaries(
    {"type": st.just("tool_result"), "tool_use_id": names},
    optional={
        "content": texts | names.map(lambda name: [text("See"), image(f"https://example.com/{name}")]),
        "is_error": st.just(True),
    },
)
tool_uses = st.lists(
    st.fixed_dictionaries({"type": st.just("tool_use"), "id": names, "name": names, "input": objects}),
    max_size=2,
    unique_by=lambda block: str(block["id"]),
)


def anthropic_content(draw: st.DrawFn, role: str) -> str | list[dict[str, Any]]:
    content: list[dict[str, Any]] = [*draw(st.lists(blocks, min_size=1, max_size=4))]
    if role == "assistant":
        content += draw(tool_uses)
    else:
        content = [*draw(st.lists(tool_results, max_size=2)), *content]
    return str(content[0]["text"]) if len(content) == 1 and content[0].keys() == {"type", "text"} else content


@st.composite
def anthropic_dicts(draw: st.DrawFn) -> list[dict[str, Any]]:
    roles = ["user", "assistant"] * draw(st.integers(0, 2))
    return [{"role": role, "content": anthropic_content(draw, role)} for role in roles]


class TestRoundTrips:
    @given(openai_messages)
    def test_messages_through_openai(self, messages: list[Message]) -> None:
        assert_same(from_openai(to_openai(messages)), messages)

    @given(openai_dicts)
    def test_openai_through_messages(self, given: list[dict[str, Any]]) -> None:
        assert to_openai(from_openai(given)) == given

    @given(conversations())
    def test_messages_through_anthropic(self, messages: list[Message]) -> None:
        system, found = to_anthropic(messages)
        assert_same(from_anthropic(found, system), messages)

    @given(anthropic_dicts(), st.none() | texts)
    def test_anthropic_through_messages(self, given: list[dict[str, Any]], system: str | None) -> None:
        assert to_anthropic(from_anthropic(given, system)) == (system, given)

    @given(openai_messages)
    def test_merging_for_anthropic_is_done_once(self, messages: list[Message]) -> None:
        system, found = to_anthropic(messages)
        assert to_anthropic(from_anthropic(found, system)) == (system, found)
        assert all(before["role"] != after["role"] for before, after in pairwise(found))


def test_blocks_of_the_responses_api_are_converted() -> None:
    image = {"type": "input_image", "image_url": "https://example.org/tram.png", "detail": "low"}
    asked = Message("user", [{"type": "input_text", "text": "Which tram?"}, image])
    said = Message("assistant", [{"type": "output_text", "text": "28", "annotations": []}])
    assert to_openai([asked, said]) == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Which tram?"},
                {"type": "image_url", "image_url": {"url": "https://example.org/tram.png", "detail": "low"}},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "28"}]},
    ]
    _, (first, second) = to_anthropic([asked, said])
    assert first["content"][1] == {"type": "image", "source": {"type": "url", "url": "https://example.org/tram.png"}}
    assert second["content"] == "28"
