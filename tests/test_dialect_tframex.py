"""The examples of TFrameX's memory, with their imports changed and scripted models, and what they promise."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import mnemic
from mnemic.dialects.tframex import (
    AuditMemoryStore,
    AutoCleanupMemory,
    BaseMemoryStore,
    EncryptedMemoryStore,
    FilterableMemoryStore,
    InMemoryMemoryStore,
    LLMAgent,
    Message,
    PostgresMemoryStore,
    RedisMemoryStore,
    S3MemoryStore,
    SafeMemoryStore,
    ScopedMemoryStore,
    SemanticMemoryStore,
    SlidingWindowMemory,
    SummaryMemory,
    TFrameXApp,
    TokenLimitedMemoryStore,
)
from mnemic.records import now
from scripted import finding, says
from servers import aws, postgres, valkey

llm = finding(r"My name is (\w+)")
app = TFrameXApp()


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


async def fill(store: BaseMemoryStore, *contents: str) -> list[Any]:
    for content in contents:
        await store.add_message(Message(role="user", content=content))
    return [message.content for message in await store.get_history()]


def test_the_frameworks_own_test_of_persistence() -> None:
    async def test_memory_persistence() -> None:
        memory = InMemoryMemoryStore(max_messages=5)
        for i in range(10):
            await memory.add_message(Message(role="user", content=f"Message {i}"))
        history = await memory.get_history()
        assert len(history) == 5
        assert history[-1].content == "Message 9"

    run(test_memory_persistence())


def test_the_frameworks_own_test_of_filters() -> None:
    async def test_memory_filtering() -> None:
        memory = FilterableMemoryStore()
        await memory.add_message(Message(role="user", content="Important", metadata={"priority": "high"}))
        high_priority = await memory.get_messages_by_metadata(priority="high")
        assert len(high_priority) == 1

    run(test_memory_filtering())


def test_an_agent_remembers() -> None:
    async def main() -> str:
        agent = LLMAgent(
            name="ConversationBot",
            llm=llm,
            memory_store=InMemoryMemoryStore(max_messages=50),
            system_prompt="You are a helpful assistant. Reference previous messages when relevant.",
        )
        async with app.run_context() as rt:
            await rt.call_agent("ConversationBot", "My name is Alice")
            response2: str = await rt.call_agent("ConversationBot", "What's my name?")
        assert len(await agent.memory_store.get_history()) == 4
        return response2

    assert run(main()) == "Alice"


def test_agents_share_a_memory() -> None:
    async def main() -> None:
        shared_memory = InMemoryMemoryStore(max_messages=200)
        analyst = LLMAgent(name="Analyst", llm=llm, memory_store=shared_memory)
        writer = LLMAgent(name="Writer", llm=llm, memory_store=shared_memory)
        assert analyst.memory_store is writer.memory_store is shared_memory
        await analyst.ask("My name is Bob")
        assert await writer.ask("What's my name?") == "Bob"
        with pytest.raises(mnemic.NotFoundError, match="Nobody"):
            await app.call_agent("Nobody", "hi")

    run(main())


def test_limits_and_options() -> None:
    memory = InMemoryMemoryStore(max_messages=100, max_tokens=8000, eviction_strategy="fifo")
    assert run(fill(memory, "a", "b")) == ["a", "b"]
    with pytest.raises(ValueError, match="eviction_strategy"):
        InMemoryMemoryStore(eviction_strategy="random")


def test_limit_and_offset_count_from_the_newest() -> None:
    async def main() -> None:
        memory = InMemoryMemoryStore()
        await fill(memory, *"abcdef")
        await memory.add_message(Message(role="assistant", content="g"))
        assert [m.content for m in await memory.get_history(limit=2)] == ["f", "g"]
        assert [m.content for m in await memory.get_history(limit=2, offset=1)] == ["e", "f"]
        assert [m.content for m in await memory.get_history(roles=["assistant"])] == ["g"]
        assert [m.content for m in await memory.get_context_window(max_tokens=30)][-1] == "g"
        await memory.clear()
        assert await memory.get_history() == []

    run(main())


async def lasts(make: Any) -> None:
    store = make("one")
    await store.initialize()
    await store.add_message(Message(role="user", content="kept", metadata={"a": [1]}))
    other = make("one1")
    assert await other.get_history() == []
    again = make("one")
    (message,) = await again.get_history()
    assert (message.content, message.metadata) == ("kept", {"a": [1]})
    for one in (store, other, again):
        await one.close()


def test_postgres(tmp_path: Path) -> None:
    with postgres.empty_database(tmp_path) as connection_string:
        run(lasts(lambda session: PostgresMemoryStore(connection_string, session)))


def test_redis(tmp_path: Path) -> None:
    with valkey.empty_keyspace(tmp_path) as redis_url:
        run(lasts(lambda session: RedisMemoryStore(redis_url, session_id=session)))

        async def limited() -> None:
            store = RedisMemoryStore(redis_url, ttl_hours=2, max_messages=3, session_id="limited")
            assert await fill(store, *"abcde") == ["c", "d", "e"]
            info = await (await store.session()).info()
            assert info is not None
            assert info.expires is not None
            assert timedelta(hours=1.9) < info.expires - now() < timedelta(hours=2.1)
            await store.close()

        run(limited())


def test_s3(tmp_path: Path) -> None:
    with aws.empty_prefix(tmp_path) as url:
        parsed = mnemic.store.registry.StoreURL.parse(url)
        prefix = parsed.split.path.strip("/")
        run(lasts(lambda name: S3MemoryStore(parsed.split.netloc, name, prefix, **parsed.options)))


def test_scopes() -> None:
    async def main() -> None:
        memory = ScopedMemoryStore()
        user_message, system_message = Message(role="user", content="u"), Message(role="system", content="s")
        memory.add_message(user_message, scope="user_123")
        memory.add_message(system_message, scope="system")
        await memory.add_message(Message(role="user", content="d"))
        assert [m.content for m in await memory.get_history(scope="user_123")] == ["u"]
        assert [m.content for m in await memory.get_history(scope="system")] == ["s"]
        assert [m.content for m in await memory.get_history()] == ["d"]
        await memory.clear("system")
        assert await memory.get_scope("system").get_history() == []

    run(main())
    outside = ScopedMemoryStore()
    outside.add_message(Message(role="user", content="x"), scope="a")
    assert len(run(outside.get_history(scope="a"))) == 1


def test_tokens_and_windows() -> None:
    tokens = TokenLimitedMemoryStore(max_tokens=60)
    kept = run(fill(tokens, *(f"message number {n} about the harbour" for n in range(20))))
    assert kept[-1] == "message number 19 about the harbour"
    assert 2 < len(kept) < 10
    assert run(fill(SlidingWindowMemory(window_size=3), *"abcdefg")) == ["e", "f", "g"]


def test_summaries() -> None:
    async def main() -> None:
        LLMAgent("Summarizer", llm=says(lambda asked, shown: f"summary of {asked.count('user:')} messages"))
        memory = SummaryMemory(summarizer_agent="Summarizer", threshold=20)
        await fill(memory, *(f"message {n}" for n in range(25)))
        assert [m.content for m in await memory.get_summaries()] == [
            "Previous conversation summary: summary of 11 messages"
        ]
        assert [m.content for m in await memory.get_history()] == [f"message {n}" for n in range(11, 25)]
        assert len(await (await memory.session()).archived()) == 11
        plain = SummaryMemory(lambda text: "short", threshold=10, keep=5)
        await fill(plain, *"abcdefghijklm")
        assert [str(m.content)[-5:] for m in await plain.get_summaries()] == ["short"]

    run(main())


def test_search_by_meaning() -> None:
    class Model:
        async def embed(self, text: str) -> list[float]:
            return [float(text.count(letter)) + 0.01 for letter in "abcdefghij"]

    async def main() -> None:
        for memory in (SemanticMemoryStore(), SemanticMemoryStore("static"), SemanticMemoryStore(Model())):
            await fill(memory, "a cabbage in a bag", "the jig is up", "fish chief")
            found = await memory.search("jig", top_k=1)
            assert [m.content for m in found] == ["the jig is up"]

    run(main())


def test_dates() -> None:
    async def main() -> None:
        memory = FilterableMemoryStore()
        await fill(memory, "now")
        await memory.add_message(Message(role="user", content="then", timestamp=now() - timedelta(days=3)))
        start, end = datetime.now() - timedelta(hours=1), datetime.now() + timedelta(hours=1)  # noqa: DTZ005
        found = await memory.get_messages_by_date_range(start, end)
        assert [m.content for m in found] == ["now"]

    run(main())


def test_cleanup_archives_first() -> None:
    async def main() -> None:
        memory = AutoCleanupMemory()
        old = now() - timedelta(days=31)
        important = Message(role="user", content="keep me", metadata={"important": True}, timestamp=old)
        await memory.add_message(important)
        await memory.add_message(Message(role="user", content="old", timestamp=old))
        await fill(memory, "new")
        assert await memory.cleanup() == 2
        assert [m.content for m in await memory.get_history()] == ["new"]
        assert [m.content for m in await memory.archive_store.get_history()] == ["keep me"]

        class Failing(AutoCleanupMemory):
            async def archive(self, messages: list[Message]) -> None:
                raise OSError("no room")

        failing = Failing()
        await failing.add_message(important)
        with pytest.raises(OSError, match="no room"):
            await failing.cleanup()
        assert len(await failing.get_history()) == 1

    run(main())


def test_overflow_is_handled() -> None:
    handled: list[str] = []

    async def overflow_handler(messages: list[Message]) -> None:
        handled.extend(str(message.content) for message in messages)

    memory = SafeMemoryStore(max_size=10, overflow_handler=overflow_handler)
    kept = run(fill(memory, *(str(n) for n in range(25))))
    assert handled + kept == [str(n) for n in range(25)]
    assert len(kept) <= 10


def test_audit() -> None:
    async def main() -> None:
        memory = AuditMemoryStore(
            current_user_id="u1",
            session_id="s1",
            request_ip="10.0.0.1",
            check_compliance=lambda message: ["pii"] if "@" in str(message.content) else [],
        )
        message = Message(role="user", content="mail me at a@b.c", metadata={"own": 1})
        await memory.add_message(message)
        assert message.metadata == {"own": 1}
        (operational,) = await memory.get_history()
        assert operational.metadata == {"own": 1}
        (audited,) = await memory.audit_store.get_history()
        assert audited.metadata["user_id"] == "u1"
        assert audited.metadata["ip_address"] == "10.0.0.1"
        assert audited.metadata["compliance_flags"] == ["pii"]
        assert audited.content == "mail me at a@b.c"
        assert await memory.get_context_window() == [operational]

    run(main())


def test_encryption(tmp_path: Path) -> None:
    from cryptography.fernet import Fernet

    key = Fernet.generate_key()
    url = f"sqlite:///{tmp_path / 'secret.db'}"

    async def main() -> None:
        memory = EncryptedMemoryStore(key, url)
        await fill(memory, "the treasure is under the oak", *"abc")
        assert [m.content for m in await memory.get_history(limit=1, roles=["user"])] == ["c"]
        assert len(await memory.get_context_window(10_000)) == 4
        await memory.close()
        again = EncryptedMemoryStore(key, url)
        assert (await again.get_history())[0].content == "the treasure is under the oak"
        await again.close()

    run(main())
    for file in tmp_path.iterdir():
        assert b"treasure" not in file.read_bytes()


class UsersOwn(BaseMemoryStore):
    """A store as the framework's page shows how to write one."""

    def __init__(self, window_size: int = 10) -> None:
        self.window_size = window_size
        self.messages: list[Message] = []

    async def add_message(self, message: Message) -> None:
        self.messages.append(message)
        if len(self.messages) > self.window_size:
            self.messages = self.messages[-self.window_size :]

    async def get_history(
        self, limit: int | None = None, offset: int = 0, roles: list[Any] | None = None
    ) -> list[Message]:
        return self.messages[offset:limit] if limit else self.messages[offset:]


class UsersLimit(InMemoryMemoryStore):
    """A subclass that changes the list of messages."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    async def add_message(self, message: Message) -> None:
        await super().add_message(message)
        while len(self.messages) > self.most:
            self.messages.pop(0)


def test_a_store_that_keeps_nothing_says_so() -> None:
    class Half(BaseMemoryStore):
        pass

    with pytest.raises(NotImplementedError, match="Half must define add_message"):
        run(Half().add_message(Message("user", "hi")))


def test_stores_of_ones_own_keep_working() -> None:
    async def main() -> None:
        own = UsersOwn(window_size=4)
        agent = LLMAgent(name="Own", llm=llm, memory_store=own)
        await agent.ask("My name is Eve")
        assert await agent.ask("What's my name?") == "Eve"
        assert len(own.messages) == 4
        assert (await own.get_context_window())[0].content == "My name is Eve"
        limited = UsersLimit(2)
        assert await fill(limited, *"abcde") == ["d", "e"]

    run(main())


def test_one_message_that_is_too_long_is_not_the_end() -> None:
    async def main() -> None:
        for store in (InMemoryMemoryStore(), UsersOwn()):
            agent = LLMAgent(name="Long", llm=llm, memory_store=store, max_context_tokens=200)
            await agent.ask("My name is Alice")
            await agent.ask("long " * 5000)
            assert await agent.ask("What's my name?") == "Alice"
            window = await store.get_context_window(max_tokens=200)
            assert "My name is Alice" in [message.content for message in window]

    run(main())


def test_an_async_client_is_used_on_the_event_loop_that_it_was_made_on() -> None:
    class Client:
        """A client that is bound to the loop on which it was first used, as those of HTTP libraries are."""

        loop: Any = None

        async def embed(self, text: str) -> list[float]:
            loop = asyncio.get_running_loop()
            self.loop = self.loop or loop
            await asyncio.sleep(0)
            if self.loop is not loop:
                raise RuntimeError("attached to a different loop")
            food = any(word in text.lower() for word in ("pasta", "dinner"))
            return [1.0, 0.0] if food else [0.0, 1.0]

    async def main() -> None:
        client = Client()
        await client.embed("warm up")
        memory = SemanticMemoryStore(client)
        await fill(memory, "The train leaves at nine", "Alice had pasta", "It rains")
        for _ in range(2):
            assert [m.content for m in await memory.search("dinner", top_k=1)] == ["Alice had pasta"]
        await fill(memory, "They cooked pasta again")
        found = {m.content for m in await memory.search("dinner", top_k=2)}
        assert found == {"Alice had pasta", "They cooked pasta again"}

    run(main())


def test_an_embedding_model_may_be_sync() -> None:
    class Model:
        def embed(self, text: str) -> list[float]:
            return [1.0, 0.0] if "pasta" in text or "dinner" in text else [0.0, 1.0]

    async def main() -> None:
        memory = SemanticMemoryStore(Model())
        await fill(memory, "The train leaves at nine", "Alice had pasta")
        assert [m.content for m in await memory.search("dinner", top_k=1)] == ["Alice had pasta"]

    run(main())


def test_compliance_is_checked_as_a_subclass_says() -> None:
    class Strict(AuditMemoryStore):
        def check_compliance(self, message: Message) -> list[str]:
            return ["checked", *super().check_compliance(message)]

    async def main() -> None:
        for memory in (Strict(), Strict(check_compliance=lambda message: ["own"])):
            await memory.add_message(Message("user", "hi"))
            (audited,) = await memory.audit_store.get_history()
            assert audited.metadata["compliance_flags"][0] == "checked"
        assert audited.metadata["compliance_flags"] == ["checked", "own"]

    run(main())


def test_stores_that_are_empty_are_not_replaced() -> None:
    class Sized(UsersOwn):
        def __len__(self) -> int:
            return len(self.messages)

    own, other = Sized(), Sized()
    audit = AuditMemoryStore(own, other)
    assert (audit.operational_store, audit.audit_store) == (own, other)
    assert AutoCleanupMemory(archive=own).archive_store is own


def test_a_scope_is_opened_once() -> None:
    made: list[InMemoryMemoryStore] = []

    def make() -> InMemoryMemoryStore:
        made.append(InMemoryMemoryStore())
        return made[-1]

    async def main() -> None:
        memory = ScopedMemoryStore(make)
        for n in range(20):
            await memory.add_message(Message("user", str(n)), scope="a")
        memory.add_message(Message("user", "last"), scope="a")
        history = await memory.get_history(scope="a")
        assert [m.content for m in history] == [*map(str, range(20)), "last"]

    run(main())
    assert len(made) == 1


def test_an_app_holds_its_agents() -> None:
    app = TFrameXApp()
    app.register_agent(LLMAgent("Registered", llm=llm))
    LLMAgent("Found", llm=llm)
    gc.collect()
    for name in ("Registered", "Found"):
        assert run(app.call_agent(name, "hello")) == "Noted."


def test_apps_do_not_share_agents() -> None:
    one, two = TFrameXApp(), TFrameXApp()
    for app, answer in ((one, "I am of one"), (two, "I am of two")):
        app.register_agent(LLMAgent("Bot", llm=lambda messages, answer=answer: answer))
    one.register_agent(LLMAgent("Single", llm=llm))
    assert run(one.call_agent("Bot", "who?")) == "I am of one"
    assert run(two.call_agent("Bot", "who?")) == "I am of two"
    with pytest.raises(mnemic.NotFoundError, match="'Single' in this app"):
        run(two.call_agent("Single", "hello"))


def test_a_summary_is_made_by_an_agent_of_the_app_that_is_asked() -> None:
    one, two = TFrameXApp(), TFrameXApp()
    for app, name in ((one, "one"), (two, "two")):
        app.register_agent(LLMAgent("Summariser", llm=lambda messages, name=name: f"made by {name}"))
        memory = SummaryMemory("Summariser", threshold=4, keep=2)
        app.register_agent(LLMAgent("Talker", llm=llm, memory_store=memory))

    async def main() -> None:
        for app, name in ((one, "one"), (two, "two")):
            for n in range(4):
                await app.call_agent("Talker", f"message {n}")
            store: Any = app.agents["Talker"].memory_store
            assert [m.content for m in await store.get_summaries()] == [
                f"Previous conversation summary: made by {name}"
            ]
        with pytest.raises(mnemic.InvalidValueError, match="2 apps"):
            await fill(SummaryMemory("Summariser", threshold=2, keep=1), *"abc")

    run(main())


class UsersCleanup(InMemoryMemoryStore):
    """Dates as the framework's page compares them."""

    async def cleanup(self) -> None:
        cutoff_date = datetime.now() - timedelta(days=30)  # noqa: DTZ005
        self.messages = [msg for msg in self.messages if msg.timestamp > cutoff_date]

    async def get_messages_by_date_range(self, start_date: datetime, end_date: datetime) -> list[Message]:
        return [msg for msg in self.messages if start_date <= msg.timestamp <= end_date]


def test_times_compare_as_the_framework_compares_them() -> None:
    async def main() -> None:
        memory = UsersCleanup()
        days_ago = datetime.now() - timedelta(days=40)  # noqa: DTZ005
        await memory.add_message(Message("user", "old", timestamp=days_ago))
        await fill(memory, "new")
        hour = timedelta(hours=1)
        for moment in (datetime.now(), now()):  # noqa: DTZ005
            found = await memory.get_messages_by_date_range(moment - hour, moment + hour)
            assert [m.content for m in found] == ["new"]
            assert moment - memory.messages[0].timestamp > timedelta(days=39)
            assert memory.messages[1].timestamp - moment < hour
        await memory.cleanup()
        assert [m.content for m in await memory.get_history()] == ["new"]
        own = UsersOwn()
        await own.add_message(Message("user", "fresh"))
        assert own.messages[0].timestamp > days_ago

    run(main())


def test_every_store_may_be_encrypted(tmp_path: Path) -> None:
    key = bytes(range(32))

    async def main() -> None:
        with valkey.empty_keyspace(tmp_path) as url:
            store = RedisMemoryStore(url, encryption_key=key)
            assert await fill(store, "under the oak") == ["under the oak"]
            plain = RedisMemoryStore(url)
            with pytest.raises(mnemic.DecryptionError):
                await plain.get_history()
            await store.close()
        assert await fill(TokenLimitedMemoryStore(encryption_key=key), "a") == ["a"]

    run(main())
