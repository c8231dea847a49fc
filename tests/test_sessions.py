"""Conversations: what is added is kept, in order, whole, and found again."""

from __future__ import annotations

import errno
import json
import re
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import mnemic
from clock import Clock
from mnemic import AgentCall, Message, ToolCall
from mnemic.backends.sql.statements import scan_statement, shape_of
from mnemic.backends.sqlite.client import FLAVOR
from mnemic.records import MESSAGE
from mnemic.store.query import Condition, Scan


def test_a_session_name_is_called_one_when_it_is_refused() -> None:
    with mnemic.open("memory://") as memory:
        with pytest.raises(mnemic.InvalidValueError, match=r"^session name holds '/': 'a/b'$"):
            memory.scope("acme").session("a/b")


def texts(messages: list[Message]) -> list[str | None]:
    return [message.text for message in messages]


FULL = [
    Message("user", "hi"),
    Message("user", ""),
    Message("assistant", None),
    Message("system", "be kind", name="boss"),
    Message("assistant", "calling", tool_calls=[ToolCall("c1", "search", '{"q": 1}')]),
    Message("assistant", None, tool_calls=[ToolCall("c2", "x", "{", "custom", "i2"), ToolCall("c3", "y")]),
    Message("tool", "found", tool_call_id="c1", name="search"),
    Message("tool", {"rows": [1, None, 2.5]}, tool_call_id="c2"),
    Message("assistant", agent_calls=[AgentCall("Writer", {"task": ["a"]}), AgentCall("Other")]),
    Message("assistant", structured_data={"analysis": "done", "n": [1, 2]}),
    Message("assistant", "both", structured_data={"analysis": "done"}),
    Message("user", [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "x"}}]),
    Message("user", "see", images=["data:image/png;base64,iVBORw0KGgo=", "https://example.org/a.png"]),
    Message("user", "dated", timestamp=datetime(2020, 2, 29, 1, 2, 3, 456789, tzinfo=UTC)),
    Message("user", "tagged", metadata={"a": {"b": [1]}}),
    Message("user", "named", id="my-own-id", metadata={"": None, "role": "tool", "é": True}),
]  # fmt: skip


def test_nothing_of_a_message_is_lost(chat: mnemic.Session) -> None:
    for message in FULL:
        assert chat.add(message) == message
    assert chat.messages() == FULL
    assert [chat.get(message.id) for message in FULL] == FULL


@pytest.mark.parametrize("message", FULL, ids=lambda message: str(message.content))
def test_a_message_becomes_a_dict_and_back(message: Message) -> None:
    assert Message.from_dict(json.loads(json.dumps(message.to_dict()))) == message


def test_a_dict_with_a_field_that_would_be_lost_is_refused() -> None:
    with pytest.raises(mnemic.InvalidValueError, match="no field colour"):
        Message.from_dict({"role": "user", "content": "hi", "colour": "red"})


def test_a_role_and_a_text_are_enough(chat: mnemic.Session) -> None:
    added = chat.add("user", "hello", name="Alice", metadata={"mood": "good"})
    assert (added.role, added.content, added.name, added.metadata) == ("user", "hello", "Alice", {"mood": "good"})
    assert chat.messages() == [added]


def test_many_are_added_all_or_none(chat: mnemic.Session) -> None:
    chat.add(Message("user", "there", id="taken"))
    with pytest.raises(mnemic.ConflictError):
        chat.add_many([Message("user", "a"), Message("user", "not the same", id="taken")])
    assert texts(chat.messages()) == ["there"]
    chat.add_many([Message("user", str(n)) for n in range(3)])
    assert texts(chat.messages()) == ["there", "0", "1", "2"]


def test_adding_again_after_a_lost_answer_adds_once(chat: mnemic.Session) -> None:
    batch = [Message("user", "a"), Message("assistant", "b", tool_calls=[ToolCall("c", "f")])]
    chat.add_many(batch)
    chat.add_many(batch)
    chat.add(batch[0])
    assert chat.messages() == batch


def test_a_retry_may_hold_more_or_other_types_than_the_first_try(chat: mnemic.Session) -> None:
    first = Message("user", "a", metadata={"pair": (1, 2)})
    chat.add(first)
    chat.add(first)
    second = Message("user", "b")
    chat.add_many([first, second])
    assert texts(chat.messages()) == ["a", "b"]


def test_a_call_with_a_name_is_done_once(alice: mnemic.Scope) -> None:
    chat = alice.session("x", max_messages=2)
    chat.add("user", "first", once="request-1")
    for n in range(3):
        chat.add("user", str(n))
    chat.add("user", "first", once="request-1")
    assert texts(chat.messages()) == ["1", "2"]
    kept = [alice.remember("tea", once="request-2") for _ in range(3)]
    assert len({record.id for record in kept}) == len(alice.memories.list()) == 1


def test_limit_and_offset_count_back_from_the_newest(chat: mnemic.Session) -> None:
    chat.add_many([Message("user", str(n)) for n in range(25)])
    assert texts(chat.messages(limit=3)) == ["22", "23", "24"]
    assert texts(chat.messages(limit=3, offset=2)) == ["20", "21", "22"]
    assert texts(chat.messages(offset=23)) == ["0", "1"]
    assert texts(chat.recent()) == [str(n) for n in range(15, 25)]
    assert texts(chat.recent(2)) == ["23", "24"]
    assert chat.messages(limit=0) == []
    assert chat.messages(limit=5, offset=99) == []
    for bad in ({"limit": -1}, {"offset": -1}, {"limit": 1.5}, {"limit": True}):
        with pytest.raises(mnemic.InvalidValueError):
            chat.messages(**bad)


def test_filters_combine(chat: mnemic.Session) -> None:
    day = datetime(2026, 1, 1, tzinfo=UTC)
    for n in range(12):
        chat.add(
            "user" if n % 2 == 0 else "assistant",
            str(n),
            timestamp=day + timedelta(days=n),
            metadata={"priority": ["low", "mid", "high"][n % 3], "n": n},
        )
    assert texts(chat.messages(roles=["user"], limit=2)) == ["8", "10"]
    assert texts(chat.messages(roles=["user", "assistant"], limit=1)) == ["11"]
    assert chat.messages(roles=[]) == []
    assert texts(chat.messages(metadata={"priority": "high"})) == ["2", "5", "8", "11"]
    assert texts(chat.messages(metadata={"priority": ["low", "mid"], "n": [0, 1, 2]})) == ["0", "1"]
    assert texts(chat.messages(since=day + timedelta(days=3), until=day + timedelta(days=5))) == ["3", "4", "5"]
    everything: dict[str, Any] = {
        "roles": ["user"], "metadata": {"priority": "high"}, "since": day + timedelta(days=1),
        "until": day + timedelta(days=9), "limit": 1, "offset": 1,
    }  # fmt: skip
    assert texts(chat.messages(**everything)) == ["2"]
    with pytest.raises(mnemic.InvalidValueError, match="robot"):
        chat.messages(roles=["robot"])  # type: ignore[list-item]


def test_the_system_message_is_set_in_place(chat: mnemic.Session) -> None:
    assert chat.system() is None
    chat.set_system("Be brief.")
    chat.add("user", "hi")
    chat.set_system("Be kind.")
    found = chat.system()
    assert found is not None
    assert found.content == "Be kind."
    assert texts(chat.messages()) == ["Be kind.", "hi"]


def test_the_system_message_is_a_message_like_others(chat: mnemic.Session) -> None:
    set_ = chat.set_system("Be brief.")
    assert chat.get(set_.id) == chat.system() == set_
    assert chat.prefill([Message("assistant", "Hello!")])
    assert texts(chat.fork("other", at=set_.id).messages()) == ["Be brief."]
    assert chat.delete(*chat.messages(roles="assistant")) == 1
    assert texts(chat.messages()) == ["Be brief."]
    with pytest.raises(mnemic.InvalidValueError, match="reserved for the system message"):
        chat.add(Message("user", "x", id=set_.id))
    for bad in (None, 5, ["x"]):
        with pytest.raises(mnemic.InvalidValueError):
            chat.set_system(bad)  # type: ignore[arg-type]


def test_a_system_message_may_also_be_added(chat: mnemic.Session) -> None:
    chat.add("system", "first")
    chat.add("user", "hi")
    chat.add("system", "second")
    found = chat.system()
    assert found is not None
    assert found.content == "second"
    chat.clear(keep_system=True)
    assert texts(chat.messages()) == ["first", "second"]


def test_clear_with_and_without_the_system_message(chat: mnemic.Session) -> None:
    chat.set_system("Be brief.")
    chat.add("user", "hi")
    chat.clear(keep_system=True)
    assert texts(chat.messages()) == ["Be brief."]
    chat.add("user", "again")
    chat.clear()
    assert chat.messages() == []
    assert chat.info() is None


def test_a_fork_goes_its_own_way(alice: mnemic.Scope, chat: mnemic.Session) -> None:
    added = chat.add_many([Message("user", str(n), metadata={"n": n}) for n in range(5)])
    branch = chat.fork("tuesday", at=added[2].id)
    assert branch.messages() == added[:3]
    branch.add("user", "another way")
    assert texts(chat.messages()) == ["0", "1", "2", "3", "4"]
    assert texts(branch.messages()) == ["0", "1", "2", "another way"]
    assert chat.fork("wednesday").messages() == added
    with pytest.raises(mnemic.ConflictError, match="already has messages"):
        chat.fork("tuesday")
    with pytest.raises(mnemic.NotFoundError):
        chat.fork("thursday", at="no such message")
    assert sorted(info.name for info in alice.sessions.list()) == ["monday", "tuesday", "wednesday"]


def test_sessions_are_listed_with_counts_tokens_and_activity(alice: mnemic.Scope) -> None:
    before = datetime.now(UTC)
    alice.session("one").add_many([Message("user", "hello world"), Message("assistant", "hi")])
    alice.session("two").add("user", "hello")
    alice.scope("deeper").session("three").add("user", "x")
    one, two, three = sorted(alice.sessions.list(), key=lambda info: info.started)
    assert (one.name, one.messages, one.tokens) == ("one", 2, 2 + 4 + 1 + 4)
    assert (two.name, two.messages, two.tokens) == ("two", 1, 1 + 4)
    assert three.scope.path == "acme/alice/deeper/three"
    assert before <= one.started <= one.last_activity <= two.last_activity <= datetime.now(UTC)
    assert alice.session("one").info() == one


def test_sessions_of_like_names_do_not_mix(alice: mnemic.Scope) -> None:
    for name in ("sess1", "sess10", "sess", "Sess1"):
        alice.session(name).add("user", name)
    for name in ("sess1", "sess10", "sess", "Sess1"):
        assert texts(alice.session(name).messages()) == [name]
    alice.session("sess1").clear()
    assert texts(alice.session("sess10").messages()) == ["sess10"]


def test_agents_share_a_session_and_keep_private_scopes_beside_it(memory: mnemic.Memory) -> None:
    team = memory.scope("acme", "team")
    shared = [team.session("plan") for _ in range(2)]
    private = [team.scope(name).session("notes") for name in ("analyst", "writer")]
    shared[0].add("assistant", "from the analyst", name="analyst")
    shared[1].add("assistant", "from the writer", name="writer")
    private[0].add("user", "secret")
    assert texts(shared[0].messages()) == texts(shared[1].messages()) == ["from the analyst", "from the writer"]
    assert private[1].messages() == []


def test_the_transcript_is_text_for_a_prompt(chat: mnemic.Session) -> None:
    chat.add("user", "My name is Alice", name="Alice")
    chat.add("assistant", "Hello!")
    assert chat.transcript() == "Alice: My name is Alice\nassistant: Hello!"
    assert chat.transcript(1) == "assistant: Hello!"


def test_calls_and_results_can_be_read_and_found(alice: mnemic.Scope, chat: mnemic.Session) -> None:
    chat.add("assistant", None, tool_calls=[ToolCall("c", "search_flights", '{"to": "Lisbon"}')])
    chat.add("tool", {"airline": "TAP", "price": 120}, tool_call_id="c")
    chat.add("assistant", agent_calls=[AgentCall("Booker", {"task": "reserve"})])
    assert chat.transcript() == 'assistant: search_flights({"to": "Lisbon"})\ntool: TAP\nassistant: Booker reserve'
    assert alice.recall("Lisbon flights", 1, traffic=True)[0].record.text == 'search_flights({"to": "Lisbon"})'
    assert alice.recall("reserve", 1, traffic=True)[0].record.text == "Booker reserve"


def test_prefill_happens_once(chat: mnemic.Session) -> None:
    greeting = [Message("assistant", "How can I help?")]
    assert chat.prefill(greeting)
    assert not chat.prefill(greeting)
    assert texts(chat.messages()) == ["How can I help?"]
    chat.clear()
    assert chat.prefill(greeting)


def test_a_session_is_saved_and_loaded_whole(alice: mnemic.Scope, chat: mnemic.Session, tmp_path: Path) -> None:
    chat.add_many(FULL)
    path = tmp_path / "chat.json"
    assert chat.save(path) == len(FULL)
    other = alice.session("other")
    other.add("user", "replaced")
    assert other.load(path) == len(FULL)
    assert other.messages() == FULL
    assert [entry.name for entry in tmp_path.iterdir() if "chat" in entry.name] == ["chat.json"]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": "else"}', '{"format": "mnemic.session/1", "messages": [{}]}']
)
def test_a_file_that_is_not_ours_changes_nothing(chat: mnemic.Session, tmp_path: Path, content: str) -> None:
    chat.add("user", "kept")
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(mnemic.InvalidValueError):
        chat.load(path)
    with pytest.raises(mnemic.NotFoundError):
        chat.load(tmp_path / "missing.json")
    assert texts(chat.messages()) == ["kept"]


def test_a_failed_save_leaves_the_old_file(
    chat: mnemic.Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat.add("user", "first")
    path = tmp_path / "chat.json"
    chat.save(path)
    before = path.read_bytes()
    chat.add("user", "second")

    def broken(_: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(mnemic.StoreFullError, match="no space"):
        chat.save(path)
    monkeypatch.undo()
    with pytest.raises(mnemic.StorePermissionError):
        chat.save(tmp_path)
    with pytest.raises(mnemic.NotFoundError, match="there is no folder"):
        chat.save(tmp_path / "no" / "folder.json")
    with pytest.raises(mnemic.StorePermissionError):
        chat.load(tmp_path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir() if "chat" in entry.name] == ["chat.json"]


def test_retention_acts(alice: mnemic.Scope) -> None:
    kept, session, single = (alice.session(name, retention=name) for name in ("persistent", "session", "single_run"))
    for chat in (kept, session, single):
        with chat:
            chat.set_system("stay")
            with chat.run():
                chat.add("user", "hi")
                assert texts(chat.messages()) == ["stay", "hi"]
            between = texts(chat.messages())
            assert between == (["stay"] if chat is single else ["stay", "hi"])
        after = texts(chat.messages())
        assert after == (["stay", "hi"] if chat is kept else ["stay"])
    with pytest.raises(mnemic.InvalidValueError, match="retention"):
        alice.session("x", retention="for ever")  # type: ignore[arg-type]


def test_a_run_that_fails_is_cleared_as_well(alice: mnemic.Scope) -> None:
    chat = alice.session("x", retention="single_run")

    def run() -> None:
        with chat.run():
            chat.add("user", "hi")
            raise KeyError("tool")

    with pytest.raises(KeyError):
        run()
    assert chat.messages() == []


def test_a_session_lives_as_long_as_it_is_used(alice: mnemic.Scope, clock: Clock) -> None:
    chat = alice.session("x", ttl=timedelta(hours=1))
    for n in range(3):
        chat.add("user", str(n))
        clock.advance(minutes=40)
    assert texts(chat.messages()) == ["0", "1", "2"]
    clock.advance(hours=1)
    assert chat.messages() == []
    assert alice.sessions.list() == []
    chat.add("user", "new")
    assert texts(chat.messages()) == ["new"]
    with pytest.raises(mnemic.InvalidValueError, match="ttl"):
        alice.session("y", ttl=timedelta(0))


def test_one_message_may_expire_alone(memory: mnemic.Memory, chat: mnemic.Session, clock: Clock) -> None:
    chat.add("user", "code 1234", ttl=timedelta(hours=1))
    chat.add("user", "stays")
    assert texts(chat.messages()) == ["code 1234", "stays"]
    clock.advance(hours=1)
    assert texts(chat.messages()) == ["stays"]
    assert memory.compact() == 1
    assert memory.compact() == 0


def test_messages_are_deleted_by_their_ids_or_as_they_are(chat: mnemic.Session) -> None:
    added = chat.add_many([mnemic.Message("user", str(n)) for n in range(5)])
    assert chat.delete(added[1].id, added[3], "gone") == 2
    assert [message.content for message in chat.messages()] == ["0", "2", "4"]
    assert chat.delete() == 0
    with pytest.raises(mnemic.InvalidValueError, match="one by one"):
        chat.delete([added[0].id])  # type: ignore[arg-type]


def test_messages_are_moved_to_the_archive(alice: mnemic.Scope, chat: mnemic.Session) -> None:
    first, second, third = chat.add_many({"role": "user", "content": f"about boat {n}"} for n in range(3))
    assert chat.archive(first, third.id, third, "not there") == 2
    assert chat.messages() == [second]
    assert chat.archived() == [first, third]
    assert {hit.id for hit in alice.recall("boat", diverse=False)} == {first.id, second.id, third.id}
    assert chat.archive() == 0
    with pytest.raises(mnemic.InvalidValueError, match="archive takes messages or their ids"):
        chat.archive([first])  # type: ignore[arg-type]


def test_replaced_messages_are_moved_to_the_archive(chat: mnemic.Session) -> None:
    first, second = chat.add_many([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    summary = Message("assistant", "summary of a")
    assert chat.replace([summary, second], archive=True) == [summary, second] == chat.messages()
    assert chat.archived() == [first]
    chat.replace(lambda stored: stored[1:])
    assert (chat.messages(), chat.archived()) == ([second], [first])


def test_the_newest_message_is_popped_once(chat: mnemic.Session) -> None:
    assert chat.pop() is None
    added = chat.add_many({"role": "user", "content": f"message {n}"} for n in range(20))
    with ThreadPoolExecutor(4) as pool:
        popped = [message for message in pool.map(lambda n: chat.pop(), range(18)) if message is not None]
    assert sorted(message.id for message in popped) == sorted(message.id for message in added[2:])
    assert chat.messages() == added[:2]
    assert [chat.pop(), chat.pop(), chat.pop()] == [added[1], added[0], None]


def test_add_takes_what_people_type(chat: mnemic.Session) -> None:
    given = Message("user", "d")
    added = [
        chat.add("user", "a"),
        chat.add(role="user", content="b", name="Ann"),
        chat.add("user", content="c"),
        chat.add({"role": "user", "content": "e", "metadata": {"n": 1}}),
        chat.add(given),
        chat.add(message=Message("assistant", "f")),
        *chat.add_many([{"role": "user", "content": "g"}, Message("user", "h")]),
    ]
    assert texts(added) == ["a", "b", "c", "e", "d", "f", "g", "h"]
    assert chat.messages() == added
    assert added[1].name == "Ann"
    assert added[3].metadata == {"n": 1}
    assert chat.prefill([{"role": "user", "content": "late"}]) is False
    chat.replace([{"role": "user", "content": "alone"}])
    assert texts(chat.messages()) == ["alone"]


def test_a_message_can_be_a_pair_of_role_and_content(chat: mnemic.Session) -> None:
    added = chat.add_many([("user", "hello"), ("assistant", [{"type": "text", "text": "hi"}])])
    assert chat.messages() == added
    assert [(one.role, one.text) for one in added] == [("user", "hello"), ("assistant", "hi")]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda chat: chat.add("hello"), r"a role \(system, user, assistant, tool\).*the role is 'hello'"),
        (lambda chat: chat.add(), "as a role.*and content.*as a dict.*or as a Message: there is no role"),
        (lambda chat: chat.add(content="hello"), "there is no role"),
        (lambda chat: chat.add(("usr", "hello")), r"as a dict.*not \('usr', 'hello'\)"),
        (lambda chat: chat.add(("user", "hello", "there")), r"as a dict.*not \('user', 'hello', 'there'\)"),
        (lambda chat: chat.add_many(["hello"]), "as a dict.*not 'hello'"),
        (lambda chat: chat.add({"content": "hello"}), "needs a role"),
        (lambda chat: chat.add({"role": "user", "text": "hello"}), "no field text: use role, content"),
        (
            lambda chat: chat.add({"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f"}}]}),
            "a ToolCall has the fields id, name.*from_openai converts this format",
        ),
        (lambda chat: chat.add("user", "hello", text="hello"), "no field text: use role, content"),
        (lambda chat: chat.add("user", "hello", role="user"), "not both"),
        (lambda chat: chat.add(Message("user", "hello"), "hello"), "not both"),
        (lambda chat: chat.add({"role": "user"}, content="hello"), "not both"),
    ],
)
def test_add_says_what_it_takes(chat: mnemic.Session, given: Callable[[mnemic.Session], object], said: str) -> None:
    with pytest.raises(mnemic.InvalidValueError, match=said):
        given(chat)
    assert chat.messages() == []


def test_expired_messages_that_are_still_stored_do_not_fill_a_session(alice: mnemic.Scope, clock: Clock) -> None:
    chat = alice.session("short-lived")
    chat.add("user", "soon gone", ttl=timedelta(hours=1))
    clock.advance(hours=1)
    assert chat.prefill([Message("user", "new")])
    assert [message.text for message in chat.messages()] == ["new"]
    other = alice.session("target")
    other.add("user", "soon gone", ttl=timedelta(hours=1))
    clock.advance(hours=1)
    chat.fork("target")
    assert [message.text for message in other.messages()] == ["new"]


def test_a_listed_session_can_be_opened_looked_at_and_deleted_from_above(memory: mnemic.Memory) -> None:
    memory.scope("acme", "alice").session("monday").add("user", "hi")
    acme = memory.scope("acme")
    (info,) = acme.sessions.list()
    assert acme.sessions.get(info) == info
    assert texts(acme.session(info).messages()) == ["hi"]
    with pytest.raises(mnemic.NotFoundError, match="'acme' has no session 'monday'"):
        acme.sessions.get("monday")
    with pytest.raises(mnemic.InvalidValueError, match="'acme/alice/monday' is not in 'other'"):
        memory.scope("other").sessions.delete(info)
    assert acme.sessions.delete(info)
    assert acme.sessions.list() == []


def test_an_edited_message_keeps_its_place_and_its_time(memory: mnemic.Memory) -> None:
    chat = memory.scope("acme").session("edited")
    first, second, third = chat.add_many([{"role": "user", "content": text} for text in ("one", "two", "three")])
    memory.scope("acme").update(mnemic.Ref(chat.scope, "message", second.id), importance=3.0, pinned=True)
    edited = chat.edit({"id": second.id, "role": "user", "content": "zwei"})
    assert (edited.timestamp, chat.messages()) == (second.timestamp, [first, edited, third])
    record = memory.scope("acme").recall("zwei", 1)[0].record
    assert (record.text, record.importance, record.pinned) == ("zwei", 3.0, True)
    with pytest.raises(mnemic.NotFoundError, match="no message with the id 'none'"):
        chat.edit({"id": "none", "role": "user", "content": ""})
    with pytest.raises(mnemic.InvalidValueError, match="id must be a string"):
        chat.edit({"role": "user", "content": ""})


def test_messages_that_are_added_together_expire_together(memory: mnemic.Memory, clock: Clock) -> None:
    chat = memory.scope("acme").session("short")
    chat.add("user", "stays")
    chat.add_many(
        [{"role": "user", "content": "goes"}, {"role": "user", "content": "goes too"}], ttl=timedelta(hours=1)
    )
    assert len(chat.messages()) == 3
    clock.advance(hours=2)
    assert [message.content for message in chat.messages()] == ["stays"]


def test_the_system_message_of_a_long_session_is_found_by_its_label(tmp_path: Path) -> None:
    with mnemic.open(f"sqlite:///{tmp_path / 'a.db'}") as memory:
        scope = memory.scope("acme").session("long").scope
        memory.scope("acme").session("long").add("user", "Hello")
    where = (Condition("labels.role", "eq", "system"),)
    scan = Scan(scope=scope, kinds=(MESSAGE,), where=where)
    statement = scan_statement(shape_of(scan, by_id=False, inside=False), FLAVOR)
    names = dict.fromkeys(re.findall(r":(\w+)", statement), 1)
    with closing(sqlite3.connect(tmp_path / "a.db")) as raw:
        (_, _, _, first), *_ = raw.execute(f"EXPLAIN QUERY PLAN {statement}", names)
    assert first == "SEARCH l USING PRIMARY KEY (stream_id=? AND name=? AND value=?)"
