"""The examples of Fence's memories, with their imports changed and scripted models, and what they promise."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import mnemic
from mnemic.dialects.fence import (
    Agent,
    AgentCoreMemory,
    BaseMemory,
    DynamoDBMemory,
    FleetingMemory,
    SQLiteMemory,
    cleanup_old_sessions,
)
from mnemic.records import now
from scripted import finding, says
from servers import aws

MODEL = finding(
    r"My name is (\w+)",
    r"I like (\w+ \w+)",
    r"favorite (?:color|book) is (\w+)",
    r"password is '(\w+)'",
    r"order (#\d+)",
)


def GPT4omini(source: str) -> Any:  # noqa: N802
    return MODEL


def Claude35Sonnet(region: str) -> Any:  # noqa: N802
    return MODEL


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Tables with a hash key alone, made as the page says."""
    server = aws.ministack()
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", server.endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    client = aws.client("dynamodb", {"region": "us-east-1", "endpoint": server.endpoint})
    names = [f"{name}-{uuid.uuid4().hex}" for name in ("agent-memory", "other-memory")]
    for name in names:
        client.create_table(
            TableName=name,
            AttributeDefinitions=[{"AttributeName": "session_id", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "session_id", "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )
    yield names
    for name in names:
        client.delete_table(TableName=name)


@pytest.fixture
def agentcore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with aws.empty_memory(tmp_path) as url:
        parsed = mnemic.store.registry.StoreURL.parse(url)
        monkeypatch.setenv("BEDROCK_AGENTCORE_MEMORY_ID", parsed.split.netloc)
        monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_AGENTCORE", parsed.options["endpoint"])
        monkeypatch.setenv("AWS_DEFAULT_REGION", parsed.options["region"])
        yield url


@pytest.fixture(params=["fleeting", "sqlite", "dynamodb", "agentcore"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> BaseMemory:
    if request.param == "dynamodb":
        table = request.getfixturevalue("tables")[0]
        return DynamoDBMemory(table_name=table, primary_key_name="session_id", primary_key_value="a session")
    if request.param == "agentcore":
        request.getfixturevalue("agentcore")
        return AgentCoreMemory(agent_id="agent_123", session_id="session_456")
    if request.param == "sqlite":
        return SQLiteMemory(db_path=str(tmp_path / "agent_memory.db"), session_id="user_session_123")
    return FleetingMemory()


def test_every_memory_has_the_same_interface(memory: BaseMemory) -> None:
    memory.add_message(role="user", content="Hello!")
    memory.add_message(role="assistant", content="Hi there!")
    memory.add_message(role="system", content="You are a helpful assistant")
    memory.set_system_message("You are a helpful coding assistant")
    messages = memory.get_messages()
    assert [(m.role, m.content) for m in messages] == [
        ("system", "You are a helpful coding assistant"),
        ("user", "Hello!"),
        ("assistant", "Hi there!"),
    ]
    memory.clear()
    assert [m.content for m in memory.get_messages()] == ["You are a helpful coding assistant"]


def test_system_messages_do_not_pile_up(memory: BaseMemory) -> None:
    memory.set_system_message("Be kind.")
    for n in range(3):
        memory.add_message(role="user", content="Hello!")
        memory.add_message(role="system", content=f"Summary {n}")
        assert [m.content for m in memory.get_messages() if m.role == "system"] == ["Be kind.", f"Summary {n}"]
    memory.clear()
    assert [m.content for m in memory.get_messages()] == ["Be kind."]
    memory.add_message(role="system", content="Previous conversation summarized: ...")
    memory.set_system_message("Be kinder.")
    assert [m.content for m in memory.get_messages()] == ["Be kinder."]


def test_an_agent_remembers_within_a_process() -> None:
    memory = FleetingMemory()
    agent = Agent(identifier="chatbot", model=GPT4omini(source="app"), memory=memory)
    agent.run("My name is Alice")
    agent.run("I like Python programming")
    response = agent.run("What's my name and what do I like?")
    assert response == "Alice, Python programming"
    assert len(memory.get_messages()) == 6


def test_conversations_last_in_dynamodb(tables: list[str]) -> None:
    def again(session: str) -> Agent:
        memory = DynamoDBMemory(
            table_name=tables[0], primary_key_name="session_id", primary_key_value=session, region="us-east-1"
        )
        return Agent(identifier="persistent_agent", model=GPT4omini(source="app"), memory=memory)

    again("user_123_session_456").run("Remember: my favorite color is blue")
    assert again("user_123_session_456").run("What's my favorite color?") == "blue"
    assert again("user_123_session_4567").run("What's my favorite color?") == "I do not know."


def test_a_conversation_in_dynamodb_may_be_long(tables: list[str]) -> None:
    memory = DynamoDBMemory(tables[0], "session_id", "long")
    assert memory.session is not None
    memory.session.add_many([mnemic.Message("user", f"{n} " + "x" * 5000) for n in range(400)])
    found = memory.get_messages()
    assert [str(m.content).split()[0] for m in found] == [str(n) for n in range(400)]


def test_conversations_last_in_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "agent_memory.db")
    first = SQLiteMemory(db_path=path, session_id="user_session_123")
    Agent(identifier="local_agent", model=GPT4omini(source="app"), memory=first).run("My favorite book is 1984")
    second = SQLiteMemory(db_path=path, session_id="user_session_123")
    agent = Agent(identifier="local_agent", model=GPT4omini(source="app"), memory=second)
    assert agent.run("What's my favorite book?") == "1984"
    other = SQLiteMemory(db_path=path, session_id="session_2")
    assert other.get_messages() == []


def test_a_database_that_is_no_file_is_gone_with_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    memory = SQLiteMemory(":memory:", "s")
    memory.add_message("user", "hi")
    assert len(memory.get_messages()) == 1
    assert SQLiteMemory(":memory:", "s").get_messages() == []
    assert list(tmp_path.iterdir()) == []


def test_agents_share_a_memory(tables: list[str]) -> None:
    shared_memory = DynamoDBMemory(tables[1], primary_key_name="session_id", primary_key_value="team_session")
    agent1 = Agent(identifier="agent1", model=GPT4omini(source="app"), memory=shared_memory)
    agent2 = Agent(identifier="agent2", model=GPT4omini(source="app"), memory=shared_memory)
    agent1.run("The password is 'secret123'")
    assert agent2.run("What's the password?") == "secret123"


def test_the_size_of_what_is_shown_is_limited() -> None:
    shown: list[str] = []

    def answer(question: str, everything: str) -> str:
        shown.append(everything)
        return "ok"

    agent = Agent(
        identifier="limited", model=says(answer), memory=FleetingMemory(), max_memory_size=200, role="Be brief."
    )
    for n in range(30):
        agent.run(f"message number {n} of a long conversation about the harbour")
    assert "message number 29" in shown[-1]
    assert "message number 0 " not in shown[-1]
    assert shown[-1].startswith("Be brief.")
    assert len(agent.memory.get_messages()) == 60


def test_a_conversation_may_begin_with_the_agent() -> None:
    agent = Agent(
        identifier="prefilled_agent",
        model=GPT4omini(source="app"),
        memory=FleetingMemory(),
        prefill="I understand. I'll help you with that.",
    )
    agent.run("Hello")
    agent.run("Hello again")
    contents = [m.content for m in agent.memory.get_messages()]
    assert contents == ["I understand. I'll help you with that.", "Hello", "Noted.", "Hello again", "Noted."]


def test_a_support_bot(tables: list[str]) -> None:
    def create_support_agent(user_id: str, session_id: str) -> Agent:
        memory = DynamoDBMemory(
            table_name=tables[0],
            primary_key_name="session_id",
            primary_key_value=f"user_{user_id}_session_{session_id}",
        )
        return Agent(
            identifier="support_agent",
            model=Claude35Sonnet(region="us-east-1"),
            memory=memory,
            role="""You are a helpful customer support agent.
            You remember previous conversations with the customer.
            Always be polite and professional.""",
            max_memory_size=5000,
        )

    agent = create_support_agent(user_id="12345", session_id="abc-def")
    agent.run("I'm having trouble with my order #98765")
    assert agent.run("What was my order number again?") == "#98765"
    new_agent = create_support_agent(user_id="12345", session_id="xyz-123")
    new_agent.run("Hello")
    assert len(new_agent.memory.get_messages()) == 2


def test_the_size_of_a_memory_is_watched() -> None:
    memory = FleetingMemory()
    memory.add_message(role="user", content="word " * 10001)
    messages = memory.get_messages()
    total_tokens = sum(len(str(msg.content).split()) for msg in messages)
    if total_tokens > 10000:
        memory.clear()
        memory.add_message(role="system", content="Previous conversation summarized: ...")
    assert len(memory.get_messages()) == 1


def test_old_sessions_are_cleaned_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "agent.db")
    old, new = SQLiteMemory(path, "old"), SQLiteMemory(path, "new")
    old.add_message("user", "long ago")
    new.add_message("user", "now")
    assert cleanup_old_sessions(new, max_age_days=30) == 0
    later = now() + timedelta(days=31)
    monkeypatch.setattr("mnemic.dialects.fence.now", lambda: later)
    assert cleanup_old_sessions(new, max_age_days=30) == 2
    assert old.get_messages() == new.get_messages() == []


class UsersOwn(BaseMemory):
    """A memory that someone wrote against the framework's interface."""

    def __init__(self) -> None:
        self.held: list[mnemic.Message] = []

    def add_message(self, role: Any, content: str) -> None:
        self.held.append(mnemic.Message(role, content))

    def get_messages(self) -> list[mnemic.Message]:
        return self.held


def test_a_memory_of_ones_own_keeps_working() -> None:
    memory = UsersOwn()
    agent = Agent(identifier="agent", model=GPT4omini(source="app"), memory=memory)
    agent.run("My name is Bob")
    assert agent.run("What's my name?") == "Bob"
    assert [m.role for m in memory.held] == ["user", "assistant"] * 2


@pytest.mark.parametrize("kind", [UsersOwn, FleetingMemory])
@pytest.mark.parametrize(("size", "most"), [(200, 200), (None, 16_000)])
def test_what_is_shown_is_limited_for_every_memory(kind: Any, size: int | None, most: int) -> None:
    shown: list[str] = []

    def answer(question: str, everything: str) -> str:
        shown.append(everything)
        return "word " * (most // 10)

    agent = Agent("limited", says(answer), kind(), max_memory_size=size)
    for n in range(20):
        agent.run(f"message {n}")
    assert "message 19" in shown[-1]
    assert most // 2 < max(len(one.split()) for one in shown) <= most + 10


@pytest.mark.parametrize("kind", [UsersOwn, FleetingMemory])
def test_one_message_that_is_too_long_is_not_the_end(kind: Any) -> None:
    agent = Agent("limited", MODEL, kind(), max_memory_size=100)
    agent.run("My name is Alice")
    agent.run("long " * 1000)
    assert agent.run("What's my name?") == "Alice"


def test_a_conversation_in_a_file_is_encrypted(tmp_path: Path) -> None:
    path, key = tmp_path / "secret 100%.db", bytes(range(32))
    SQLiteMemory(path, "s", encryption_key=key).add_message("user", "under the oak")
    assert SQLiteMemory(path, "s", encryption_key=key).get_messages()[0].content == "under the oak"
    with pytest.raises(mnemic.DecryptionError):
        SQLiteMemory(path, "s")
    assert path.exists()
    assert not [file for file in tmp_path.iterdir() if b"oak" in file.read_bytes()]


def test_an_empty_memory_is_not_replaced() -> None:
    shared = UsersOwn()
    assert Agent("a", MODEL, shared).memory is shared


def test_without_a_model_it_says_so() -> None:
    for memory in (None, UsersOwn()):
        with pytest.raises(ValueError, match="has no model: give it one, or name one in MNEMIC_MODEL"):
            Agent(identifier="agent", memory=memory).run("hi")


def test_it_may_be_called_on_an_event_loop() -> None:
    async def main() -> str:
        agent = Agent("agent", MODEL)
        agent.run("My name is Eve")
        return agent.run("What's my name?")

    assert asyncio.run(main()) == "Eve"
