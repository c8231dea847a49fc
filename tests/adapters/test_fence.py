"""Fence: its agents on our memory, its own memories as the oracle, and every content that its messages have."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fence.agents import Agent, BedrockAgent
from fence.agents.chat import ChatAgent
from fence.memory.base import FleetingMemory
from fence.memory.dynamodb import DynamoDBMemory as TheirDynamoDBMemory
from fence.memory.sqlite import SQLiteMemory as TheirSQLiteMemory
from fence.models.base import LLM
from fence.templates.models import (
    Content,
    ImageBlob,
    ImageContent,
    Message,
    Messages,
    Source,
    TextContent,
    ToolResultBlock,
    ToolResultContent,
    ToolResultContentBlockJson,
    ToolResultContentBlockText,
    ToolUseBlock,
    ToolUseContent,
)
from fence.tools.base import BaseTool
from hypothesis import given, settings
from hypothesis import strategies as st

import mnemic
from mnemic.adapters.fence import AgentCoreMemory, DynamoDBMemory, MnemicMemory, SQLiteMemory, to_fence, to_message
from mnemic.transfer.items import REPLACED
from servers import aws


class ScriptedModel(LLM):
    """Answers with the given texts or responses, one after the other, and keeps the prompts."""

    model_id = model_name = "scripted"

    def __init__(self, *answers: Any) -> None:
        super().__init__()
        self.answers = list(answers)
        self.prompts: list[Messages] = []

    def invoke(self, prompt: Any, **_: Any) -> Any:
        self.prompts.append(prompt)
        return self.answers.pop(0)


class Weather(BaseTool):
    """Tells the weather of a city."""

    def execute_tool(self, city: str, environment: Any = None) -> str:
        """:param city: the city"""
        return f"It rains in {city}."


# ---------------------------------------------------------------- contents

TEXT = st.text(max_size=20) | st.just("half a \ud83d")  # with NUL, as tools return it
NAME = st.text("abcXYZ_-é", min_size=1, max_size=8) | st.text(max_size=4) | st.just("long" * 200)
JSON = st.dictionaries(
    st.text(max_size=9), st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | TEXT, st.lists), max_size=3
)
PICTURE = st.binary(min_size=1, max_size=20)
RESULTS = st.lists(
    st.builds(ToolResultContentBlockText, text=TEXT)
    | st.builds(lambda value: ToolResultContentBlockJson(json=value), JSON),
    max_size=3,
)
CONTENTS: dict[str, st.SearchStrategy[Any]] = {
    "text": st.builds(TextContent, text=TEXT),
    "image": st.builds(lambda data: ImageContent(source=Source(media_type="image/png", data_raw=data)), PICTURE),
    "image_blob": st.builds(
        lambda data: ImageBlob(mime_type="image/gif", data=base64.b64encode(data).decode()), PICTURE
    ),
    "toolUse": st.builds(
        lambda key, name, given: ToolUseContent(content=ToolUseBlock(toolUseId=key, name=name, input=given)),
        NAME, NAME, JSON,
    ),
    "toolResult": st.builds(
        lambda key, content, status: ToolResultContent(
            content=ToolResultBlock(toolUseId=key, content=content, status=status)
        ),
        NAME, RESULTS, st.sampled_from([None, "success", "error"]),
    ),
}  # fmt: skip
CONTENT = st.one_of(*CONTENTS.values())
MESSAGE = st.builds(
    lambda role, content: Message(role=role, content=content),
    st.sampled_from(["user", "assistant"]),
    st.lists(CONTENT, max_size=4) | TEXT,
)


def test_every_content_has_a_strategy() -> None:
    assert {kind.model_fields["type"].default for kind in Content.__args__} == set(CONTENTS)


@settings(max_examples=150)
@given(st.lists(MESSAGE, max_size=5))
def test_every_message_comes_back_unchanged(messages: list[Message]) -> None:
    memory = MnemicMemory()
    memory.add_messages(messages)
    assert memory.get_messages() == messages
    memory.close()


def test_an_image_of_a_file_is_stored_as_data(tmp_path: Path) -> None:
    file = tmp_path / "picture.png"
    file.write_bytes(b"picture")
    memory = MnemicMemory()
    memory.add_user_message(ImageContent(source=Source(file_path=file, media_type="image/png")))
    file.unlink()
    (found,) = memory.get_messages()
    (image,) = found.content
    assert isinstance(image, ImageContent)
    assert (image.source.data_raw, image.source.media_type) == (b"picture", "image/png")


def test_tool_calls_and_results_are_ours_too() -> None:
    call = ToolUseContent(content=ToolUseBlock(toolUseId="1", name="weather", input={"city": "Oslo"}))
    parts = [ToolResultContentBlockText(text="rain")]
    result = ToolResultContent(content=ToolResultBlock(toolUseId="1", content=parts, status="error"))
    asked = to_message(Message(role="assistant", content=[TextContent(text="Let me see."), call]))
    answered = to_message(Message(role="user", content=[result]))
    assert (asked.content, asked.tool_calls) == ("Let me see.", [mnemic.ToolCall("1", "weather", '{"city": "Oslo"}')])
    assert (answered.role, answered.content, answered.tool_call_id) == ("tool", "rain", "1")
    assert "fence" not in asked.metadata | answered.metadata  # nothing is stored twice


def test_messages_of_other_ways_become_messages_of_fence() -> None:
    given = [
        mnemic.Message("user", "Look", images=["data:image/png;base64,aGk=", "https://example.com/a.png"]),
        mnemic.Message("assistant", None, tool_calls=[mnemic.ToolCall("1", "weather", '{"city": "Oslo"}')]),
        mnemic.Message("tool", "rain", tool_call_id="1"),
        mnemic.Message("tool", "without its call"),
        mnemic.Message("assistant", {"answer": "rain"}),
    ]
    user, call, result, lost, answer = [to_fence(message) for message in given]
    image = ImageContent(source=Source(media_type="image/png", data="aGk="))
    assert user.content == [TextContent(text="Look"), image, TextContent(text="https://example.com/a.png")]
    assert call.content == [ToolUseContent(content=ToolUseBlock(toolUseId="1", name="weather", input={"city": "Oslo"}))]
    assert isinstance(result.content[0], ToolResultContent)
    assert (lost.role, lost.content) == ("user", [TextContent(text="without its call")])
    assert answer.content == [TextContent(text='{"answer":"rain"}')]


# ---------------------------------------------------------------- its own memories as the oracle

SYSTEM = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
STEPS = st.lists(
    st.tuples(st.just("add"), st.sampled_from(["user", "assistant", "bad", ""]), CONTENT | TEXT)
    | st.tuples(st.just("add"), st.just("system"), SYSTEM | st.builds(TextContent, text=SYSTEM))
    | st.tuples(st.just("many"), st.lists(MESSAGE, max_size=3))
    | st.tuples(st.just("system"), SYSTEM)
    | st.tuples(st.just("pop")),
    max_size=12,
)


def play(memory: Any, step: tuple[Any, ...]) -> Any:
    match step:
        case ("add", role, content):
            return memory.add_message(role, content, {"turn": 1})
        case ("many", messages):
            return memory.add_messages(messages)
        case ("system", text):
            return memory.set_system_message(text)
        case _:
            return memory.messages.pop(0)


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (ValueError, IndexError) as error:
        return ValueError if isinstance(error, ValueError) else IndexError


@pytest.fixture(params=["memory", "sqlite"], scope="module")
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[mnemic.Memory]:
    file = tmp_path_factory.mktemp("chat") / "chat.db"
    with mnemic.open("memory://" if request.param == "memory" else f"sqlite:///{file}?synchronous=normal") as memory:
        yield memory


@settings(max_examples=60)
@given(steps=STEPS)
def test_it_does_what_fleeting_memory_does(opened: mnemic.Memory, steps: list[tuple[Any, ...]]) -> None:
    ours, theirs = MnemicMemory(opened, uuid4().hex), FleetingMemory()
    for step in steps:
        assert outcome(lambda: play(ours, step)) == outcome(lambda: play(theirs, step)), step  # noqa: B023
        assert ours.get_messages() == theirs.get_messages() == list(ours.messages)
        assert ours.get_system_message() == theirs.get_system_message()
        assert len(ours.messages) == len(theirs.messages)
    if theirs.messages:
        assert ours.to_messages_template().source == theirs.to_messages_template().source


def test_texts_in_a_file_are_those_of_its_sqlite_memory(tmp_path: Path) -> None:
    ours, theirs = SQLiteMemory(tmp_path / "ours.db", source="web"), TheirSQLiteMemory(str(tmp_path / "theirs.db"))
    for memory in (ours, theirs):
        memory.set_system_message("Be kind.")
        memory.add_user_message("I live in Oslo.")
        memory.add_assistant_message(TextContent(text="Noted."))
    assert ours.get_messages() == theirs.get_messages()
    assert ours.get_system_message() == theirs.get_system_message() == "Be kind."
    again = SQLiteMemory(str(tmp_path / "ours.db"))  # its own loses the system message, and the text of other contents
    assert (again.get_messages(), again.get_system_message()) == (ours.get_messages(), "Be kind.")
    assert [message.metadata for message in again.session.messages(roles="user")] == [{"source": "web"}]


def test_what_its_sqlite_memory_has_stored_is_imported(tmp_path: Path) -> None:
    file = str(tmp_path / "chat.db")
    theirs = TheirSQLiteMemory(file)
    theirs.add_message("user", "I live in Oslo.", {"turn": 1})
    theirs.add_message("assistant", "Noted.")
    expected = theirs.get_messages()
    theirs.add_message("user", "\0ELF", {"file": "a\0"})  # which no store holds
    theirs.close()
    with mnemic.open(f"sqlite:///{file}") as memory:  # the same file, for its tables have other names
        done = memory.import_from(file)
        assert (done.format, done.written, memory.import_from(file).written) == ("fence", 3, 0)
        assert [(left.reason, left.first) for left in done.skipped] == [(REPLACED, "row 3")]
        first, _, last = memory.scope().session("main").messages()
        assert first.metadata == {"source": "fence", "turn": 1}
        assert (last.text, last.metadata["file"]) == ("\ufffdELF", "a\ufffd")
    assert SQLiteMemory(file).get_messages()[:2] == expected
    with mnemic.open("memory://") as memory:
        assert memory.import_from(io.BytesIO(Path(file).read_bytes())).written == 3


# ---------------------------------------------------------------- agents


def test_an_agent_remembers(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    act = '[THOUGHT] Look. [ACTION]\n```toml\ntool_name = "Weather"\n[tool_params]\ncity = "Oslo"\n```'
    model = ScriptedModel("[THOUGHT] Hm. [ANSWER] Hello Ana!", act, "[ANSWER] Rain.")
    with mnemic.open(url) as memory:
        agent = Agent("helper", model, tools=[Weather()], memory=MnemicMemory(memory.scope("ana"), "monday"))
        assert agent.run("I am Ana, and I am allergic to peanuts.") == "Hello Ana!"
        assert agent.run("What is the weather in Oslo?") == "Rain."
        (hit, *_) = memory.scope("ana").recall("allergy")
        assert hit.text == "I am Ana, and I am allergic to peanuts."
    later = ScriptedModel("[ANSWER] Ana.")
    agent = Agent("helper", later, tools=[Weather()], memory=MnemicMemory(url, "monday", scope="ana"))
    assert agent.run("Who am I?") == "Ana."
    (prompt,) = later.prompts
    assert [message.role for message in prompt.messages] == ["user", "assistant"] * 3 + ["user"]
    assert "It rains in Oslo." in prompt.messages[4].content[0].text
    assert MnemicMemory(url, "monday", scope="bob").get_messages() == []


def test_a_chat_agent_remembers(tmp_path: Path) -> None:
    ChatAgent(model=ScriptedModel("Hello Ana."), memory=SQLiteMemory(tmp_path / "chat.db"), role="helper").run(
        "I am Ana."
    )
    model = ScriptedModel("You are Ana.")
    agent = ChatAgent(model=model, memory=SQLiteMemory(tmp_path / "chat.db"), role="helper")
    assert agent.run("Who am I?") == "You are Ana."
    assert [message.content[0].text for message in model.prompts[0].messages] == [
        "I am Ana.",
        "Hello Ana.",
        "Who am I?",
    ]


def test_a_bedrock_agent_keeps_tool_calls_and_results() -> None:
    call = {"toolUse": {"toolUseId": "t1", "name": "Weather", "input": {"city": "Oslo"}}}

    def response(*content: Any, stop: str = "end_turn") -> Any:
        return {"output": {"message": {"role": "assistant", "content": list(content)}}, "stopReason": stop}

    answers = [response(call, stop="tool_use"), response({"text": "<answer>Rain.</answer>"})]
    memories = [MnemicMemory(), FleetingMemory()]
    for memory in memories:
        model = ScriptedModel(*answers)
        model.toolConfig = None
        BedrockAgent("helper", model, tools=[Weather()], memory=memory, log_agentic_response=False).run("Weather?")
    ours, theirs = [memory.get_messages() for memory in memories]
    assert ours == theirs
    kinds = [block.type for message in ours for block in message.content]
    assert "toolUse" in kinds
    assert "toolResult" in kinds


def test_what_exceeds_the_size_of_an_agents_memory_is_archived() -> None:
    memory = MnemicMemory()
    agent = Agent("helper", ScriptedModel(*["[ANSWER] Yes."] * 6), memory=memory, max_memory_size=4)
    for number in range(6):
        agent.run(f"Message {number}")
    assert len(memory.messages) == 6  # four, and the last exchange
    assert [message.text for message in memory.session.archived()][::2] == ["Message 0", "Message 1", "Message 2"]


# ---------------------------------------------------------------- sharing

WRITER = """
import sys
from mnemic.adapters.fence import SQLiteMemory
memory = SQLiteMemory(sys.argv[1])
for number in range(20):
    memory.add_user_message(f"{sys.argv[2]} {number}")
"""


def test_two_processes_share_a_conversation(tmp_path: Path) -> None:
    file = str(tmp_path / "chat.db")
    SQLiteMemory(file).set_system_message("Be kind.")
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, file, name]) for name in ("a", "b")]
    assert [writer.wait() for writer in writers] == [0, 0]
    texts = [message.content[0].text for message in SQLiteMemory(file).get_messages()]
    for name in ("a", "b"):
        assert [text for text in texts if text.startswith(name)] == [f"{name} {number}" for number in range(20)]


def test_two_threads_lose_nothing(tmp_path: Path) -> None:
    memory = SQLiteMemory(tmp_path / "chat.db")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: memory.add_user_message(str(number)), range(100)))
    assert sorted(int(message.content[0].text) for message in memory.get_messages()) == list(range(100))


def test_a_system_message_is_stored_without_characters_that_cannot_be() -> None:
    memory = MnemicMemory()
    memory.set_system_message("Be \0 kind.")
    assert memory.get_system_message() == "Be \ufffd kind."


def test_bad_input_has_a_clear_error() -> None:
    memory = MnemicMemory()
    with pytest.raises(mnemic.InvalidValueError, match="role must be 'system', 'user' or 'assistant': 'tool'"):
        memory.add_message("tool", "x")
    with pytest.raises(mnemic.InvalidValueError, match="content"):
        memory.add_message("system", ToolUseContent(content=ToolUseBlock(toolUseId="1", name="x", input={})))
    with pytest.raises(ValueError, match="content"):
        memory.add_message("user", 3)
    with pytest.raises(mnemic.InvalidValueError, match="metadata"):
        memory.add_message("user", "x", {"file": object()})
    with pytest.raises(mnemic.InvalidValueError, match="a memory is given as"):
        MnemicMemory(3)  # type: ignore[arg-type]
    assert memory.get_messages() == []


# ---------------------------------------------------------------- DynamoDB and AgentCore


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> str:
    """AWS, emulated on this machine."""
    endpoint = aws.ministack().endpoint
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    return endpoint


def test_dynamodb_takes_the_arguments_of_its_own_class(endpoint: str, tmp_path: Path) -> None:
    dynamodb = aws.client("dynamodb", {"endpoint": endpoint})
    key = [{"AttributeName": "PK", "KeyType": "HASH"}, {"AttributeName": "SK", "KeyType": "RANGE"}]
    types = [{"AttributeName": name, "AttributeType": "S"} for name in ("PK", "SK")]
    with aws.empty_table() as url:
        table = url.partition("://")[2].partition("?")[0]
        mnemic.open(url).close()  # creates it
        dynamodb.create_table(
            TableName=f"{table}-theirs", AttributeDefinitions=types, KeySchema=key, BillingMode="PAY_PER_REQUEST"
        )
        common: dict[str, Any] = {
            "primary_key_value": "acme#ana/1", "sort_key_value": "s1", "sort_key_value_prefix": "chat",
            "region_name": "us-east-1", "source": "web", "extra_fields": {"team": "x"},
        }  # fmt: skip
        ours, theirs = DynamoDBMemory(table, **common), TheirDynamoDBMemory(f"{table}-theirs", **common)
        for memory in (ours, theirs):
            memory.set_system_message("Be kind.")
            memory.add_user_message("I live in Oslo.")
            memory.add_message("assistant", TextContent(text="Noted."), {"turn": 1})
        assert ours.get_messages() == theirs.get_messages()
        assert ours.get_system_message() == theirs.get_system_message()
        (_, _, stored) = ours.session.messages()
        assert stored.metadata == {"source": "web", "team": "x", "turn": 1}
        assert DynamoDBMemory(table, **{**common, "sort_key_value": "s"}).get_messages() == []  # theirs reads s1 here
        check_import(f"{table}-theirs", endpoint, theirs, dynamodb, tmp_path)
        dynamodb.delete_table(TableName=f"{table}-theirs")


def check_import(table: str, endpoint: str, theirs: Any, dynamodb: Any, tmp_path: Path) -> None:
    """Check that a table of Fence is imported, from the server and from the output of a scan."""
    theirs.add_assistant_message(ToolUseContent(content=ToolUseBlock(toolUseId="1", name="x", input={"n": 1})))
    scan = tmp_path / "scan.json"
    scan.write_text(json.dumps({"Items": dynamodb.scan(TableName=table)["Items"]}))
    for source in (f"dynamodb://{table}?region=us-east-1&endpoint={endpoint}", str(scan)):
        with mnemic.open("memory://") as memory:
            assert memory.import_from(source).format == "fence"
            found = MnemicMemory(memory, "chat#s1", scope="acme#ana/1")
            assert (found.get_messages(), found.get_system_message()) == (theirs.get_messages(), "Be kind.")
            assert found.session.messages()[2].metadata == {"source": "web", "team": "x", "turn": 1}


def test_agentcore_takes_the_arguments_of_its_own_class(endpoint: str) -> None:
    class Client:
        region_name = "us-east-1"

    with aws.empty_memory() as url:
        id = url.partition("://")[2].partition("?")[0]
        memory = AgentCoreMemory({"id": id}, Client(), "ana", "monday")
        memory.set_system_message("Be kind.")
        memory.add_user_message("I live in Oslo.")
        memory.add_assistant_message(ToolUseContent(content=ToolUseBlock(toolUseId="1", name="x", input={})))
        memory.close()
        again = AgentCoreMemory({"id": id}, Client(), "ana", "monday")
        assert [message.role for message in again.get_messages()] == ["user", "assistant"]
        assert again.get_system_message() == "Be kind."
        assert AgentCoreMemory({"id": id}, Client(), "bob", "monday").get_messages() == []


@pytest.mark.parametrize("missing", [None, "", 5])
def test_a_missing_id_is_refused(missing: Any) -> None:
    with pytest.raises(mnemic.InvalidValueError, match="primary_key_value must be a text that is not empty"):
        DynamoDBMemory("table", missing)
    with pytest.raises(mnemic.InvalidValueError, match="table_name must be a text"):
        DynamoDBMemory(missing, "ana")
    with pytest.raises(mnemic.InvalidValueError, match="actor_id must be a text"):
        AgentCoreMemory({"id": "m"}, None, missing, "monday")
    with pytest.raises(mnemic.InvalidValueError, match="session_id must be a text"):
        AgentCoreMemory({"id": "m"}, None, "ana", missing)


@pytest.mark.parametrize("wrong", [None, "x", 5])
def test_what_is_no_message_is_refused_with_all_others(wrong: Any) -> None:
    memory = MnemicMemory("memory://")
    with pytest.raises(mnemic.InvalidValueError, match="a Fence Message is stored"):
        memory.add_messages([Message(role="user", content="hi"), wrong])
    with pytest.raises(mnemic.InvalidValueError, match="a Fence Message is stored"):
        memory.messages.append(wrong)
    assert memory.get_messages() == []
