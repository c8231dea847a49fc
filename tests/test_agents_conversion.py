"""pydantic-ai's messages become ours and come back with all that is needed to go on."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import messages as pydantic_ai_messages
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    BinaryImage,
    DocumentUrl,
    FilePart,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

import mnemic
from mnemic import Message, ToolCall
from mnemic.agents import from_pydantic_ai, to_pydantic_ai
from mnemic.agents.conversion import known_outcome
from mnemic.images import data_url

AT = datetime(2026, 5, 1, 12, tzinfo=UTC)
PNG = b"\x89PNG\r\n\x1a\n0000"


def through_a_store(messages: list[Message]) -> list[Message]:
    chat = mnemic.open("memory://").scope("acme").session("monday")
    chat.add_many(messages)
    return chat.messages()


def there_and_back(*messages: ModelMessage, **options: Any) -> list[ModelMessage]:
    kept = through_a_store(from_pydantic_ai(messages, **options))
    assert ModelMessagesTypeAdapter.dump_json(to_pydantic_ai(kept)), "it can be sent"
    return to_pydantic_ai(kept)


def parts(messages: list[ModelMessage]) -> list[Any]:
    return [part for message in messages for part in message.parts]


def test_a_turn_with_tools_comes_back_as_it_was() -> None:
    turn: list[ModelMessage] = [
        ModelRequest([UserPromptPart("Where is my order?", timestamp=AT)], timestamp=AT),
        ModelResponse(
            [
                TextPart("Let me see."),
                ToolCallPart("look", '{"order": 98765}', "call_1"),
                ToolCallPart("ask", {"who": "Å"}, "call_2"),
            ],
            timestamp=AT,
            model_name="m",
            provider_name="p",
        ),
        ModelRequest(
            [
                ToolReturnPart("look", "shipped", "call_1", timestamp=AT),
                ToolReturnPart("ask", {"ok": True, "n": [1, 2.5, None]}, "call_2", timestamp=AT),
            ],
            timestamp=AT,
        ),
        ModelResponse([TextPart("It was shipped.")], timestamp=AT),
    ]
    back = there_and_back(*turn)
    assert [type(message) for message in back] == [ModelRequest, ModelResponse, ModelRequest, ModelResponse]
    assert parts(back)[:1] == parts(turn)[:1]
    calls = parts(back)[2:4]
    assert [(call.tool_name, call.args_as_dict(), call.tool_call_id) for call in calls] == [
        ("look", {"order": 98765}, "call_1"),
        ("ask", {"who": "Å"}, "call_2"),
    ]
    assert parts(back)[4:6] == parts(turn)[4:6]
    assert back[1].model_name == "m"  # type: ignore[union-attr]
    assert back[1].provider_name == "p"  # type: ignore[union-attr]
    assert back[3] == turn[3]


@pytest.mark.parametrize(
    "item",
    [
        "text",
        ImageUrl("https://example.org/a.png"),
        ImageUrl("https://example.org/a.png", vendor_metadata={"detail": "low"}),
        AudioUrl("https://example.org/a.mp3"),
        DocumentUrl("https://example.org/a.pdf"),
        BinaryContent(PNG, media_type="image/png"),
        BinaryContent(b"%PDF\x00\xff", media_type="application/pdf"),
    ],
    ids=lambda item: type(item).__name__,
)
def test_what_a_user_shows_is_kept_as_data(item: Any) -> None:
    (back,) = there_and_back(ModelRequest([UserPromptPart(["Look:", item], timestamp=AT)], timestamp=AT))
    found = parts([back])[0].content
    assert found[0] == "Look:"
    if isinstance(item, BinaryContent):  # some versions return a subclass
        assert (found[1].data, found[1].media_type) == (item.data, item.media_type)
    else:
        assert found[1:] == [item]


def test_files_cost_no_tokens_and_images_suit_other_models() -> None:
    shown = BinaryContent(PNG * 1000, media_type="image/png")
    read = BinaryContent(b"\x00" * 10_000, media_type="application/pdf")
    (message,) = from_pydantic_ai([ModelRequest([UserPromptPart(["Look:", shown, read])])])
    chat = mnemic.open("memory://").scope("acme").session("monday")
    chat.add(message)
    info = chat.info()
    assert info is not None
    assert 1445 < info.tokens < 1460, "one image of unknown size, and no file"
    assert message.text == "Look:"
    url = mnemic.to_openai([message])[0]["content"][1]["image_url"]["url"]
    assert url.startswith("data:image/png;base64,")


@pytest.mark.parametrize("outcome", ["success", "failed", "denied", "interrupted", "retried"])
def test_what_came_of_a_call_is_kept(outcome: Any) -> None:
    call = ModelResponse([ToolCallPart("look", "{}", "c1")], timestamp=AT)
    answer = ToolReturnPart("look", "no", "c1", outcome=outcome, timestamp=AT)
    back = there_and_back(call, ModelRequest([answer], timestamp=AT))
    assert parts(back)[1] == replace(answer, outcome=known_outcome(outcome))


def test_a_tool_may_return_files_and_anything_else() -> None:
    contents: list[Any] = [None, 3, [1, "two"], {"a": {"b": []}}, ["see", BinaryImage(PNG, media_type="image/png")]]
    for content in contents:
        call = ModelResponse([ToolCallPart("look", "{}", "c1")], timestamp=AT)
        back = there_and_back(call, ModelRequest([ToolReturnPart("look", content, "c1", timestamp=AT)]))
        assert parts(back)[1].content == content, content


def test_arguments_that_are_not_json_stay_as_the_model_wrote_them() -> None:
    call = ModelResponse([ToolCallPart("look", '{"order": ', "c1")], timestamp=AT)
    (message,) = from_pydantic_ai([call])
    assert message.tool_calls == [ToolCall("c1", "look", '{"order": ')]


def test_thinking_is_left_out_unless_it_is_asked_for() -> None:
    said = ModelResponse(
        [ThinkingPart("hm", signature="s", provider_name="anthropic"), TextPart("Yes.")],
        provider_name="anthropic",
        timestamp=AT,
    )
    assert parts(there_and_back(said)) == [TextPart("Yes.")]
    assert parts(there_and_back(said, thinking=True)) == said.parts
    only = ModelResponse([ThinkingPart("hm")])
    assert from_pydantic_ai([only]) == []


def test_the_parts_of_an_answer_keep_their_order() -> None:
    said: list[Any] = [
        TextPart("a"),
        ToolCallPart("look", "{}", "c1"),
        TextPart("b"),
        NativeToolCallPart("web_search", {"q": "x"}, "n1", provider_name="p"),
        NativeToolReturnPart("web_search", ["r"], "n1", provider_name="p", timestamp=AT),
        ToolCallPart("look", "{}", "c2"),
        FilePart(BinaryImage(PNG, media_type="image/png")),
    ]
    answers = [ToolReturnPart("look", "1", "c1", timestamp=AT), ToolReturnPart("look", "2", "c2", timestamp=AT)]
    back = there_and_back(ModelResponse(said, timestamp=AT), ModelRequest(answers, timestamp=AT))
    assert parts(back)[:7] == said


def test_an_answer_that_was_cut_off_makes_no_calls() -> None:
    said = ModelResponse([TextPart("Let me"), ToolCallPart("look", '{"o', "c1")], state="interrupted")
    (message,) = from_pydantic_ai([said])
    assert message.content == "Let me"
    assert message.tool_calls == []
    assert message.metadata["interrupted"] is True


def feedback_part(text: str) -> Any:
    """Feedback as the installed version of pydantic-ai has it."""
    if hasattr(pydantic_ai_messages, "RetryFeedbackPart"):
        retry: Any = pydantic_ai_messages.RetryInfo(cause="model_retry")
        return pydantic_ai_messages.RetryFeedbackPart(text, retry=retry, timestamp=AT)
    return pydantic_ai_messages.RetryPromptPart(text, timestamp=AT)


def test_feedback_on_an_answer_is_not_taken_for_the_users_words() -> None:
    feedback = feedback_part("Shorter!")
    (kept,) = through_a_store(from_pydantic_ai([ModelRequest([feedback])]))
    assert kept.name == "retry_feedback"
    assert parts(to_pydantic_ai([kept])) == [feedback]


def test_instructions_are_not_kept() -> None:
    request = ModelRequest([SystemPromptPart("Be brief."), UserPromptPart("Hi")], instructions="Be kind.")
    assert [(message.role, message.content) for message in from_pydantic_ai([request])] == [("user", "Hi")]


def test_answers_stand_right_behind_their_call_whoever_spoke_between() -> None:
    history = [
        Message("user", "Go", id="1"),
        Message("assistant", None, id="2", tool_calls=[ToolCall("c1", "look"), ToolCall("c2", "look")]),
        Message("user", "from another", id="3"),
        Message("tool", "two", id="4", tool_call_id="c2"),
        Message("assistant", "other", id="5"),
        Message("tool", "one", id="6", tool_call_id="c1"),
    ]
    kinds = [[part.part_kind for part in message.parts] for message in to_pydantic_ai(history)]
    assert kinds == [
        ["user-prompt"],
        ["tool-call", "tool-call"],
        ["tool-return", "tool-return"],
        ["user-prompt"],
        ["text"],
    ]


def test_what_others_wrote_can_be_read_too(tmp_path: Path) -> None:
    image = tmp_path / "a.png"
    image.write_bytes(PNG)
    history = [
        *mnemic.from_openai(
            [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a.b/c.png"}}]},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "c1", "function": {"name": "look", "arguments": "{}"}}],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "here"},
            ]
        ),
        *mnemic.from_anthropic(
            [
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "ok"}]},
            ]
        ),
        Message("user", "And this?", name="Alice", images=[data_url(str(image)), "/etc/passwd"]),
        Message("assistant", {"answer": 42}),
        Message("assistant", "Mine too.", name="Writer"),
    ]
    found = parts(to_pydantic_ai(history, agent="Reader"))
    assert found[0].content == "Be brief."
    assert found[1].content == [ImageUrl("https://a.b/c.png")]
    assert found[3] == ToolReturnPart("look", "here", "c1", timestamp=found[3].timestamp)
    assert found[4].args_as_dict() == {"x": 1}
    assert found[5].tool_name == "f"
    assert found[6].content == [
        "Alice: And this?",
        BinaryImage(PNG, media_type="image/png"),
        "[an image that was not stored: /etc/passwd]",
    ]
    assert found[7] == TextPart('{"answer": 42}')
    assert found[8] == TextPart("[Writer] Mine too.")
    assert parts(to_pydantic_ai(history, agent="Writer"))[8] == TextPart("Mine too.")


def test_leave_to_reach_private_addresses_is_not_restored() -> None:
    local = "http://127.0.0.1/a.png"
    image = ImageUrl(local, force_download="allow-local")
    asked = UserPromptPart([image, DocumentUrl(local, force_download="allow-local")])
    answered = ToolReturnPart("look", [image], "c1")
    call = ModelResponse([ToolCallPart("look", "{}", "c1")])
    stored = from_pydantic_ai([ModelRequest([asked]), call, ModelRequest([answered])])
    assert "allow-local" not in repr(to_pydantic_ai(stored))
    assert [item.force_download for item in parts(to_pydantic_ai(stored))[0].content] == [True, True]
