"""The examples of MARSYS's memory, with their imports changed, and what they promise."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec import json

import mnemic
from mnemic.dialects.marsys import (
    AgentCallMsg,
    ConversationMemory,
    ConversationTracker,
    MemoryManager,
    Message,
    MessageContent,
    PersistentMemory,
    SummarizingMemory,
    ToolCallMsg,
    format_for_anthropic,
    format_for_openai,
)


def contents(messages: Any) -> list[Any]:
    return [message.content for message in messages]


def test_a_conversation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    memory = ConversationMemory(max_messages=100)
    memory.add_message(Message(role="user", content="What is the weather?"))
    memory.add_message(Message(role="assistant", content="I'll help you check the weather."))
    recent = memory.get_recent(5)
    memory.save_to_file(Path("conversation.json"))

    assert contents(recent) == ["What is the weather?", "I'll help you check the weather."]
    again = ConversationMemory()
    again.load_from_file(Path("conversation.json"))
    assert again.get_messages() == memory.get_messages()
    assert again.to_dict() == memory.to_dict()
    assert memory.to_dict()[0]["role"] == "user"
    memory.clear()
    assert memory.get_messages() == []


def test_a_file_that_the_framework_itself_wrote_is_read(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_bytes(json.encode([{"role": "user", "content": "hi", "message_id": "m1"}]))
    memory = ConversationMemory()
    memory.load_from_file(old)
    assert memory.get_messages() == [Message("user", "hi", "m1")]
    with pytest.raises(mnemic.NotFoundError):
        memory.load_from_file(tmp_path / "none.json")
    assert len(memory.messages) == 1


def test_messages_of_every_form_keep_all_that_they_have(tmp_path: Path) -> None:
    call = ToolCallMsg(
        id="call_123", call_id="call_123", type="function", name="search", arguments='{"query": "AI trends"}'
    )
    forms = [
        Message(role="user", content="Analyze this data"),
        Message(role="assistant", content="I'll search for that information.", tool_calls=[call]),
        Message(role="tool", content="found", tool_call_id="call_123", name="search"),
        Message(role="assistant", structured_data={"analysis": "Complete", "results": [1, 2, 3]}),
        Message(role="user", content="What's in this image?", images=["https://example.org/a.jpg"]),
        Message(role="assistant", agent_calls=[AgentCallMsg(agent_name="DataProcessor", request={"q": 1})]),
        Message(role="assistant", content={"thought": "hm"}),
        Message(role="assistant", content=""),
        Message(role="assistant"),
    ]
    memory = ConversationMemory()
    for message in forms:
        memory.add_message(message)
        assert Message.from_dict(message.to_dict()) == message
    assert memory.get_messages() == forms
    memory.save_to_file(tmp_path / "all.json")
    again = ConversationMemory()
    again.load_from_file(tmp_path / "all.json")
    assert again.get_messages() == forms
    assert call.to_dict()["function"] == {"name": "search", "arguments": '{"query": "AI trends"}'}


def test_roles_are_checked() -> None:
    assert Message.is_valid_role("user")
    assert not Message.is_valid_role("robot")
    with pytest.raises(ValueError, match="role must be one of"):
        Message(role="robot")


def test_the_limit_keeps_the_newest() -> None:
    memory = ConversationMemory(max_messages=3)
    for n in range(10):
        memory.add_message(Message("user", str(n)))
    assert contents(memory.get_messages()) == ["7", "8", "9"]
    assert contents(memory.get_recent(2)) == ["8", "9"]
    assert memory.max_messages == 3


def test_a_manager_keeps_agents_apart() -> None:
    manager = MemoryManager(retention_policy="session")
    agent_memory = manager.get_memory("Analyzer")
    agent_memory.add_message(Message("user", "hi"))
    assert manager.get_memory("Analyzer") is agent_memory
    assert manager.get_memory("Writer").get_messages() == []
    manager.clear_agent_memory("Analyzer")
    assert agent_memory.get_messages() == []
    agent_memory.add_message(Message("user", "again"))
    manager.clear_all()
    assert agent_memory.get_messages() == []


def test_the_lifecycle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    important_session = True
    manager = MemoryManager(retention_policy="session")
    agent_memory = manager.get_memory("Agent1")
    agent_memory.add_message(Message(role="user", content="Start analysis"))
    context = agent_memory.get_recent(10)
    agent_memory.add_message(Message(role="assistant", content="Analysis complete"))
    if important_session:
        agent_memory.save_to_file(Path("important.json"))
    manager.clear_all()
    assert len(context) == 1
    assert Path("important.json").exists()
    assert agent_memory.get_messages() == []


def test_policies_act(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'kept.db'}"
    manager = MemoryManager(store=store)
    manager.set_retention_policy("Once", "single_run")
    manager.get_memory("Kept").add_message(Message("user", "before"))
    manager.set_retention_policy("Kept", "persistent")
    with manager:
        with manager.run():
            for name in ("Once", "Session", "Kept"):
                manager.get_memory(name).add_message(Message("user", name))
        assert manager.get_memory("Once").get_messages() == []
        assert contents(manager.get_memory("Session").get_messages()) == ["Session"]
    assert manager.get_memory("Session").get_messages() == []
    later = MemoryManager(retention_policy="persistent", store=store)
    assert contents(later.get_memory("Kept").get_messages()) == ["before", "Kept"]
    assert later.get_memory("Session").get_messages() == []
    with pytest.raises(ValueError, match="retention policy"):
        manager.set_retention_policy("Kept", "forever")


def test_an_older_handle_follows_its_agents_policy(tmp_path: Path) -> None:
    manager = MemoryManager(store=f"sqlite:///{tmp_path / 'kept.db'}")
    older = manager.get_memory("Analyzer")
    listed = older.messages
    older.add_message(Message("user", "a"))
    manager.set_retention_policy("Analyzer", "persistent")
    older.add_message(Message("user", "b"))
    listed.append(Message("user", "c"))
    assert manager.get_memory("Analyzer") is older
    assert contents(manager.get_memory("Analyzer").get_messages()) == ["a", "b", "c"]
    assert older.retention_policy == "persistent"
    manager.set_retention_policy("Analyzer", "session")
    older.add_message(Message("user", "d"))
    assert contents(manager.get_memory("Analyzer").get_messages()) == ["a", "b", "c", "d"]
    manager.end_session()
    assert contents(listed) == []


def test_all_memories_are_cleared_also_those_that_nobody_opened(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'kept.db'}"
    before = MemoryManager("persistent", store=store)
    for name in ("Analyzer", "Writer"):
        before.get_memory(name).add_message(Message("user", name))
    later = MemoryManager("persistent", store=store)
    later.get_memory("Analyzer")
    later.clear_all()
    assert before.get_memory("Analyzer").get_messages() == before.get_memory("Writer").get_messages() == []


def test_a_manager_that_keeps_nothing_makes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    manager = MemoryManager(retention_policy="session")
    manager.get_memory("Agent1").add_message(Message("user", "hi"))
    manager.clear_all()
    assert list(tmp_path.iterdir()) == []


def test_persistent_memories_are_encrypted(tmp_path: Path) -> None:
    store, key = f"sqlite:///{tmp_path / 'kept.db'}", bytes(range(32))
    manager = MemoryManager("persistent", store=store, encryption_key=key)
    manager.get_memory("Analyzer").add_message(Message("user", "under the oak"))
    again = MemoryManager("persistent", store=store, encryption_key=key)
    assert contents(again.get_memory("Analyzer").get_messages()) == ["under the oak"]
    with pytest.raises(mnemic.DecryptionError):
        MemoryManager("persistent", store=store).get_memory("Analyzer")
    assert not [file for file in tmp_path.iterdir() if b"oak" in file.read_bytes()]


def test_one_image_may_be_given_as_text() -> None:
    message = Message("user", "look", images="https://example.org/a.png")  # type: ignore[arg-type]
    assert message.images == ["https://example.org/a.png"]
    memory = ConversationMemory()
    memory.add_message(message)
    assert memory.get_messages() == [message]


def test_calls_may_be_given_as_dicts() -> None:
    call = ToolCallMsg("c1", "c1", "function", "search", '{"q": 1}')
    own = Message("assistant", tool_calls=[call.to_dict()])  # type: ignore[list-item]
    openai = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q": 1}'}}
    assert own.tool_calls == Message("assistant", tool_calls=[openai]).tool_calls == [call]  # type: ignore[list-item]
    asked = Message("assistant", agent_calls=[{"agent_name": "Writer", "request": 1}])  # type: ignore[list-item]
    assert asked.agent_calls == [AgentCallMsg("Writer", 1)]
    memory = ConversationMemory()
    memory.add_message(own)
    assert memory.get_messages() == [own]
    wrong: Any
    for wrong in ({"id": "c1"}, "c1", 5, {"function": {}}):
        with pytest.raises(mnemic.InvalidValueError, match="a tool call has"):
            Message("assistant", tool_calls=[wrong])
        with pytest.raises(mnemic.InvalidValueError, match="an agent call has"):
            Message("assistant", agent_calls=[wrong])
    with pytest.raises(mnemic.InvalidValueError, match="list of ToolCallMsg"):
        Message("assistant", tool_calls=openai)  # type: ignore[arg-type]


def test_empty_ids_are_refused() -> None:
    for make in (
        lambda: Message("user", "hi", message_id=""),
        lambda: Message("tool", "found", tool_call_id=""),
        lambda: ToolCallMsg("", "c1", "function", "search", "{}"),
        lambda: ToolCallMsg("c1", "", "function", "search", "{}"),
        lambda: AgentCallMsg("", None),
        lambda: MemoryManager().get_memory(""),
    ):
        with pytest.raises(mnemic.InvalidValueError, match="empty"):
            make()


def test_changing_the_list_keeps_what_the_messages_of_a_session_know() -> None:
    memory = ConversationMemory()
    memory.session.add("user", "a", metadata={"tag": 1})
    memory.session.add("user", "b")
    before = memory.session.messages()
    memory.messages.reverse()
    assert memory.session.messages() == before[::-1]


def test_structured_content() -> None:
    content = MessageContent(
        thought="I need to analyze this data", next_action="invoke_agent", action_input={"agent_name": "DataAnalyzer"}
    )
    data = content.to_dict()
    assert MessageContent.from_dict(data) == content
    with pytest.raises(ValueError, match="next_action"):
        MessageContent(next_action="sing")
    memory = ConversationMemory()
    memory.add_message(Message("assistant", content))  # type: ignore[arg-type]
    assert memory.get_messages()[0].content == data


def test_turns_are_tracked() -> None:
    tracker = ConversationTracker()
    for n in range(7):
        tracker.add_turn(f"question {n}", f"answer {n}")
    assert tracker.turn_count == 7
    assert len(tracker.get_context()) == 10
    assert contents(tracker.get_context(max_turns=1)) == ["question 6", "answer 6"]


class UsersOwn(ConversationMemory):
    """A subclass as the framework's page shows it."""

    def __init__(self, max_messages: int = 50) -> None:
        super().__init__(max_messages)
        self.summaries: list[str] = []

    def add_message(self, message: Message) -> None:
        super().add_message(message)
        assert self.max_messages is not None
        if len(self.messages) >= self.max_messages:
            old_messages = self.messages[:25]
            self.summaries.append(f"{len(old_messages)} messages")
            self.messages = self.messages[25:]


@pytest.mark.parametrize("kind", [UsersOwn, SummarizingMemory])
def test_old_messages_become_summaries(kind: Any) -> None:
    memory = kind(max_messages=50)
    for n in range(120):
        memory.add_message(Message("user", f"Message {n} is about the harbour of Lisbon."))
    assert len(memory.summaries) == 3
    assert contents(memory.get_messages()) == [f"Message {n} is about the harbour of Lisbon." for n in range(75, 120)]


def test_a_model_may_summarise() -> None:
    memory = SummarizingMemory(4, model=lambda messages: " ".join(str(m.content) for m in messages))
    for n in range(4):
        memory.add_message(Message("user", str(n)))
    assert memory.summaries == ["0 1"]


def test_the_list_of_messages_can_be_changed() -> None:
    memory = ConversationMemory()
    memory.messages.append(Message("user", "a"))
    memory.messages.extend([Message("user", "b"), Message("user", "c")])
    assert memory.messages.pop(0).content == "a"
    memory.messages[0] = Message("user", "B")
    memory.messages.insert(0, Message("system", "s"))
    assert contents(memory.messages) == ["s", "B", "c"]
    del memory.messages[1:]
    assert contents(memory.get_messages()) == ["s"]
    assert memory.messages == memory.get_messages()
    memory.messages = []
    assert len(memory.messages) == 0


def test_a_memory_with_a_file_of_its_own(tmp_path: Path) -> None:
    memory = PersistentMemory("Analyzer", tmp_path)
    memory.add_message(Message("user", "kept"))
    assert contents(PersistentMemory("Analyzer", tmp_path).memory.get_messages()) == ["kept"]
    assert (tmp_path / "Analyzer_memory.json").exists()
    with pytest.raises(ValueError, match="agent name"):
        PersistentMemory("../outside", tmp_path)


def test_formats_of_models() -> None:
    call = ToolCallMsg("c1", "c1", "function", "search", '{"q": 1}')
    messages = [
        Message("system", "Be brief."),
        Message("user", "Search"),
        Message("assistant", None, tool_calls=[call]),
        Message("tool", "found", tool_call_id="c1"),
    ]
    openai = format_for_openai(messages)
    assert [entry["role"] for entry in openai] == ["system", "user", "assistant", "tool"]
    assert openai[2]["tool_calls"][0]["function"]["name"] == "search"
    assert openai[3]["tool_call_id"] == "c1"
    anthropic = format_for_anthropic(messages)
    assert anthropic.system == "Be brief."
    assert [entry["role"] for entry in anthropic] == ["user", "assistant", "user"]


def test_it_may_be_called_on_an_event_loop() -> None:
    async def main() -> list[Any]:
        memory = ConversationMemory()
        memory.add_message(Message("user", "hi"))
        return contents(memory.get_recent())

    assert asyncio.run(main()) == ["hi"]


def test_images_that_a_loaded_file_names_are_not_opened(tmp_path: Path) -> None:
    image = tmp_path / "a.png"
    image.write_bytes(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "theirs.json").write_bytes(json.encode([{"role": "user", "content": "x", "images": [str(image)]}]))
    manager = MemoryManager("session", store=f"sqlite:///{tmp_path}/m.db")
    memory = manager.get_memory("a")
    memory.load_from_file(tmp_path / "theirs.json")
    manager.set_retention_policy("a", "persistent")
    memory.messages.reverse()
    assert [message.images for message in memory.get_messages()] == [[str(image)]]
    memory.add_message(Message("user", "y", images=[str(image)]))
    assert (memory.get_messages()[1].images or [""])[0].startswith("data:image/png")


def test_a_companion_index_is_of_the_persistent_memories_alone(tmp_path: Path) -> None:
    manager = MemoryManager(store=f"sqlite:///{tmp_path}/agents.db", index="nowhere://index")
    manager.get_memory("planner").add_message(Message("user", "only for this process"))
    with pytest.raises(mnemic.UnknownSchemeError, match="nowhere"):
        manager.set_retention_policy("planner", "persistent")
