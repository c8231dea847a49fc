"""Hermes finds our memory provider, and its real agent remembers with it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
from agent.memory_manager import MemoryManager

import mnemic
from mnemic.adapters import hermes
from mnemic.adapters.hermes import MnemicMemoryProvider
from mnemic.store.registry import sqlite_url

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of Hermes, with our provider chosen."""
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    (tmp_path / "config.yaml").write_text("memory:\n  provider: mnemic\nplugins:\n  enabled: [mnemic]\n")
    for name in [name for name in sys.modules if name.startswith("_hermes_user_memory")]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


@pytest.fixture
def provider(home: Path) -> Iterator[MnemicMemoryProvider]:
    found = MnemicMemoryProvider()
    found.initialize("s1", hermes_home=str(home), platform="cli")
    yield found
    found.shutdown()


def said(home: Path, *scope: str, session: str = "s1") -> list[tuple[str, Any]]:
    with mnemic.open(f"sqlite:///{home}/mnemic.db") as store:
        return [(one.role, one.content) for one in store.scope(*(scope or ("user",))).session(session).messages()]


# ---------------------------------------------------------------- how Hermes finds it


def test_hermes_discovers_and_loads_the_provider(home: Path) -> None:
    from plugins.memory import discover_memory_providers, load_memory_provider

    assert load_memory_provider("mnemic") is None
    done = subprocess.run([sys.executable, "-m", "mnemic.adapters.hermes"], capture_output=True, text=True, check=True)
    assert "memory.provider mnemic" in done.stdout
    assert ("mnemic", "Memory in a local file or a database", True) in discover_memory_providers()
    found = load_memory_provider("mnemic")
    assert isinstance(found, MnemicMemoryProvider)


def test_the_entry_point_puts_the_provider_where_hermes_looks(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hermes_cli import plugins
    from plugins.memory import load_memory_provider

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["hermes_agent.plugins"]
    found = EntryPoints(EntryPoint(name, value, "hermes_agent.plugins") for name, value in declared.items())
    monkeypatch.setattr(plugins.importlib.metadata, "entry_points", lambda: found)
    manager = plugins.PluginManager()
    manager.discover_and_load()
    assert [(one.enabled, one.error) for key, one in manager._plugins.items() if key == "mnemic"] == [(True, None)]
    assert isinstance(load_memory_provider("mnemic"), MnemicMemoryProvider)


# ---------------------------------------------------------------- the real agent


class Script(BaseHTTPRequestHandler):
    """A model that answers from a script."""

    answers: list[dict[str, Any]]
    asked: list[dict[str, Any]]

    def do_GET(self) -> None:
        self._send({"data": []})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not request.get("tools"):  # a title or another job of its own
            return self._send(self._completion({"content": "A title"}))
        self.asked.append(request)
        answer = self.answers.pop(0) if self.answers else {"content": "Done."}
        if not request.get("stream"):
            return self._send(self._completion(answer))
        calls = [{"index": n, **one} for n, one in enumerate(answer.get("tool_calls", []))]
        deltas = [{"role": "assistant", **answer, **({"tool_calls": calls} if calls else {})}, {}]
        ends = [None, "tool_calls" if calls else "stop"]
        chunks = [
            {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}
            for choice in ({"index": 0, "delta": d, "finish_reason": e} for d, e in zip(deltas, ends, strict=True))
        ]
        body = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in chunks) + b"data: [DONE]\n\n"
        return self._send(body, "text/event-stream")

    def _completion(self, answer: dict[str, Any]) -> dict[str, Any]:
        end = "tool_calls" if answer.get("tool_calls") else "stop"
        choice = {"index": 0, "finish_reason": end, "message": {"role": "assistant", "content": None, **answer}}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}

    def _send(self, content: Any, kind: str = "application/json") -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def model() -> Iterator[type[Script]]:
    class Scripted(Script):
        answers: list[dict[str, Any]] = []  # noqa: RUF012
        asked: list[dict[str, Any]] = []  # noqa: RUF012
        port = 0

    server = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    Scripted.port = server.server_port
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Scripted
    server.shutdown()
    server.server_close()
    thread.join()


def converse(model: Any, session: str, text: str) -> str:
    from run_agent import AIAgent

    agent = AIAgent(
        base_url=f"http://127.0.0.1:{model.port}/v1",
        api_key="none",
        provider="custom",
        model="m",
        quiet_mode=True,
        enabled_toolsets=["memory"],
        session_id=session,
        skip_context_files=True,
        tool_delay=0,
    )
    answer = agent.run_conversation(text)["final_response"]
    agent._memory_manager.flush_pending(30)
    agent._memory_manager.on_session_end([])
    agent._memory_manager.shutdown_all()
    return str(answer)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]}


def test_the_agent_remembers_in_another_session(home: Path, model: Any) -> None:
    hermes.install()
    model.answers += [{"content": "I will cook soup."}]
    assert converse(model, "monday", "My sister Ines is allergic to shellfish.") == "I will cook soup."
    assert said(home, session="monday") == [
        ("user", "My sister Ines is allergic to shellfish."),
        ("assistant", "I will cook soup."),
    ]
    model.answers += [call("mnemic_remember", text="Ines prefers soup"), {"content": "Soup, then."}]
    assert converse(model, "friday", "What could I cook for Ines, is she allergic?") == "Soup, then."
    assert "My sister Ines is allergic to shellfish." in model.asked[-1]["messages"][-3]["content"]
    assert json.loads(model.asked[-1]["messages"][-1]["content"])["remembered"] == "Ines prefers soup"
    with mnemic.open(f"sqlite:///{home}/mnemic.db") as store:
        turn = store.scope("user").session("friday").messages()
        assert [(one.role, bool(one.tool_calls)) for one in turn] == [
            ("user", False),
            ("assistant", True),
            ("tool", False),
            ("assistant", False),
        ]
        assert turn[0].text == "What could I cook for Ines, is she allergic?"  # without the recalled context
        assert [item.text for item in store.scope("user").memories.list()] == ["Ines prefers soup"]


def test_the_agents_own_memory_is_mirrored(home: Path, model: Any) -> None:
    hermes.install()
    entry = {"action": "add", "target": "user", "content": "Alice lives in Oslo"}
    model.answers += [call("memory", **entry), {"content": "Noted."}]
    converse(model, "monday", "I live in Oslo")
    with mnemic.open(f"sqlite:///{home}/mnemic.db") as store:
        (item,) = store.scope("user").memories.list()
        assert (item.text, item.source, item.metadata) == ("Alice lives in Oslo", "hermes", {"target": "user"})


# ---------------------------------------------------------------- the provider


def test_every_hook_through_the_real_manager(home: Path) -> None:
    manager = MemoryManager(external_prefetch_timeout=60)
    manager.add_provider(MnemicMemoryProvider())
    manager.initialize_all("s1", platform="telegram", user_id="a/1")
    assert "mnemic_recall" in manager.build_system_prompt()
    assert manager.prefetch_all("anything?") == ""
    manager.sync_all("I live in Oslo", "Noted.", session_id="s1")
    manager.flush_pending(30)
    assert manager.prefetch_all("Oslo", session_id="s1") == ""  # the agent sees its own session anyway
    manager.on_session_switch("s2", reset=True)
    assert "user: I live in Oslo" in manager.prefetch_all("Who lives in Oslo?")
    manager.sync_all("And Ines in Lyon", "I see.")
    manager.flush_pending(30)
    for action, text, old in (("add", "Likes tea", ""), ("replace", "Likes mint tea", "Likes tea"), ("add", "x", "")):
        written = {"action": action, "content": text, "old_text": old, "target": "memory"}
        manager.notify_memory_tool_write({"success": True}, written)
    manager.notify_memory_tool_write({"success": True}, {"action": "remove", "old_text": "x", "target": "memory"})
    manager.on_delegation("Find a hotel", "The Bristol", child_session_id="child")
    found = json.loads(manager.handle_tool_call("mnemic_recall", {"query": "mint tea", "k": 1}))["results"]
    assert found[0]["text"].endswith("Likes mint tea")
    assert json.loads(manager.handle_tool_call("mnemic_forget", {"id": found[0]["id"]})) == {"deleted": 1}
    assert manager.on_pre_compress([]) == ""
    manager.on_turn_start(1, "hello")
    manager.on_session_end([])
    manager.shutdown_all()
    assert said(home, "telegram", "a%2F1", session="s2") == [("user", "And Ines in Lyon"), ("assistant", "I see.")]
    assert said(home, "telegram", "a%2F1", session="child") == [("user", "Find a hotel"), ("assistant", "The Bristol")]
    with mnemic.open(f"sqlite:///{home}/mnemic.db") as store:
        assert store.scope("telegram", "a%2F1").memories.list() == []


def test_a_user_does_not_see_another(home: Path) -> None:
    found = []
    for number, platform in ((1, "telegram"), (2, "telegram"), (1, "discord")):
        provider = MnemicMemoryProvider()
        provider.initialize("s", hermes_home=str(home), platform=platform, user_id=number)
        found.append(provider.prefetch("shellfish", session_id="other"))
        provider.sync_turn("No shellfish for me", "Noted.")
        provider.shutdown()
    assert found == ["", "", ""]


@pytest.mark.parametrize("context", ["cron", "subagent", "flush"])
def test_jobs_and_subagents_read_but_do_not_write(provider: MnemicMemoryProvider, home: Path, context: str) -> None:
    provider.sync_turn("I live in Oslo", "Noted.")
    job = MnemicMemoryProvider()
    job.initialize("job", hermes_home=str(home), agent_context=context)
    job.sync_turn("You are a cron job", "Done.")
    job.on_memory_write("add", "memory", "x")
    job.on_delegation("x", "y", child_session_id="z")
    assert "Oslo" in job.prefetch("Oslo")
    job.shutdown()
    assert said(home, session="job") == said(home, session="z") == []


def test_a_file_outside_of_hermes_is_in_its_backup(home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    from hermes_cli.backup import _collect_memory_provider_external_paths

    hermes.install()
    assert _collect_memory_provider_external_paths() == []
    file = tmp_path_factory.mktemp("a place") / "all.db"
    MnemicMemoryProvider().save_config({"url": sqlite_url(file)}, str(home))
    provider = MnemicMemoryProvider()
    provider.initialize("s1", hermes_home=str(home))
    provider.sync_turn("I live in Oslo", "Noted.")
    assert file in _collect_memory_provider_external_paths()
    provider.shutdown()
    for url in ("postgresql://somewhere/db", sqlite_url(home / "inside.db")):  # Hermes has its home in the backup
        MnemicMemoryProvider().save_config({"url": url}, str(home))
        assert MnemicMemoryProvider().backup_paths() == []


def test_settings_and_a_memory_of_your_own(home: Path) -> None:
    provider = MnemicMemoryProvider()
    assert provider.is_available()
    assert {one["key"] for one in provider.get_config_schema()} == {"url", "user"}
    provider.save_config({"url": f"sqlite:///{home}/other.db", "user": ""}, str(home))
    provider.save_config({"user": "alice"}, str(home))
    provider.initialize("s1", hermes_home=str(home), platform="telegram", user_id="1")
    provider.sync_turn("I live in Oslo", "Noted.")
    provider.shutdown()
    with mnemic.open(f"sqlite:///{home}/other.db") as store:
        assert store.scope("alice").recall("Oslo", k=1)[0].text == "I live in Oslo"
        own = MnemicMemoryProvider(store.scope("acme"), user="bob")
        own.initialize("s1", hermes_home=str(home))
        own.sync_turn("I live in Lyon", "Noted.")
        assert store.scope("acme", "bob").recall("Lyon", k=1)[0].text == "I live in Lyon"


def test_tool_calls_are_stored_and_an_unknown_form_of_messages_loses_no_text(
    provider: MnemicMemoryProvider, home: Path
) -> None:
    function = {"name": "find", "arguments": "{}"}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "before"},
        {"role": "assistant", "content": "earlier"},
        {"role": "user", "content": "Find it <memory-context>…</memory-context>"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": "found"},
        {"role": "assistant", "content": "Here."},
    ]
    provider.sync_turn("Find it", "Here.", messages=messages)
    assert said(home) == [("user", "Find it"), ("assistant", None), ("tool", "found"), ("assistant", "Here.")]
    provider.sync_turn("Again", "Here it is.", session_id="s2", messages=[messages[0], {"role": "oracle"}])
    assert said(home, session="s2") == [("user", "Again"), ("assistant", "Here it is.")]


def test_characters_that_cannot_be_stored_lose_no_turn(provider: MnemicMemoryProvider, home: Path) -> None:
    messages = [
        {"role": "user", "content": "Read \0"},
        {"role": "assistant", "content": "I look."},
        {"role": "tool", "tool_call_id": "1", "content": "\0ELF"},
    ]
    provider.sync_turn("Read \0", "Half a \ud83d.", messages=messages)
    replaced = [
        ("user", "Read \ufffd"),
        ("assistant", "I look."),
        ("tool", "\ufffdELF"),
        ("assistant", "Half a \ufffd."),
    ]
    assert said(home) == replaced
    provider.on_memory_write("add", "user", "likes \0")
    provider.on_memory_write("remove", "user", "likes \0")
    provider.on_delegation("task \0", "result", child_session_id="s3")
    assert said(home, session="s3")[0] == ("user", "task \ufffd")
    assert "remembered" in json.loads(provider.handle_tool_call("mnemic_remember", {"text": "a \0"}))


def test_bad_input_has_a_clear_error(provider: MnemicMemoryProvider, home: Path) -> None:
    for name, given, error in (
        ("mnemic_remember", {}, "text"),
        ("mnemic_remember", {"text": "x", "importance": "high"}, "importance"),
        ("mnemic_recall", {"query": "x", "k": "many"}, "k must be"),
        ("mnemic_other", {}, "no tool"),
    ):
        assert error in json.loads(provider.handle_tool_call(name, given))["error"]
    assert json.loads(provider.handle_tool_call("mnemic_forget", {"id": "unknown"})) == {"deleted": 0}
    with pytest.raises(ValueError, match="initialize"):
        MnemicMemoryProvider().prefetch("x")
    (home / "mnemic.json").write_text("{")
    with pytest.raises(ValueError, match="is not a JSON object"):
        MnemicMemoryProvider().initialize("s1", hermes_home=str(home))


SCRIPT = """
import sys
from mnemic.adapters.hermes import MnemicMemoryProvider
provider = MnemicMemoryProvider()
provider.initialize("s1", hermes_home=sys.argv[1])
for n in range(10):
    provider.sync_turn(f"question {n}", f"answer {n}")
provider.shutdown()
"""


def test_processes_and_threads_share_a_session_and_lose_nothing(
    provider: MnemicMemoryProvider, home: Path, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen([sys.executable, script, str(home)]) as process, ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: provider.sync_turn(f"thread {n}", "Noted."), range(10)))
        assert process.wait(120) == 0
    assert len(said(home)) == 40


def test_who_has_no_id_on_a_gateway_sees_neither_the_cli_nor_others(provider: MnemicMemoryProvider, home: Path) -> None:
    provider.sync_turn("The shellfish is hidden", "Noted.")
    found = []
    for session, named in (
        ("s2", {"chat_id": "-100", "user_id": ""}),
        ("s3", {"chat_id": "-200"}),
        ("s4", {"gateway_session_key": "agent:main:5"}),
        ("s5", {}),
        ("s6", {}),
    ):
        other = MnemicMemoryProvider()
        other.initialize(session, hermes_home=str(home), platform="telegram", **named)
        found.append(other.prefetch("shellfish", session_id="other"))
        other.sync_turn("No shellfish for me", "Noted.")
        other.shutdown()
    assert found == [""] * 5
    assert said(home, "telegram", "chat:-100", session="s2") == [
        ("user", "No shellfish for me"),
        ("assistant", "Noted."),
    ]
    again = MnemicMemoryProvider()
    again.initialize("s7", hermes_home=str(home), platform="telegram", chat_id="-100")
    assert "No shellfish" in again.prefetch("shellfish")
    again.shutdown()


@pytest.mark.parametrize("platform", ["cli", "tui", "acp"])
def test_platforms_of_one_machine_share_a_memory(provider: MnemicMemoryProvider, home: Path, platform: str) -> None:
    provider.sync_turn("No shellfish for me", "Noted.")
    other = MnemicMemoryProvider()
    other.initialize("s2", hermes_home=str(home), platform=platform, gateway_session_key="x")
    assert "No shellfish" in other.prefetch("shellfish")
    other.shutdown()


def test_a_long_session_does_not_hide_others(provider: MnemicMemoryProvider) -> None:
    provider.sync_turn("Ines is allergic to shellfish", "Noted.", session_id="old")
    for number in range(20):
        provider.sync_turn(f"shellfish allergy of Ines {number}", f"Ines, allergy, shellfish {number}")
    assert "Ines is allergic to shellfish" in provider.prefetch("Ines shellfish allergy")


def test_an_unknown_setting_is_refused(home: Path) -> None:
    (home / "mnemic.json").write_text('{"encryption_key": "x"}')
    with pytest.raises(mnemic.InvalidValueError, match="has no setting encryption_key"):
        MnemicMemoryProvider().initialize("s1", hermes_home=str(home), platform="cli")


@pytest.mark.parametrize("wrong", [None, "x", []])
def test_arguments_of_a_tool_that_are_no_object(provider: MnemicMemoryProvider, wrong: Any) -> None:
    assert "are an object" in json.loads(provider.handle_tool_call("mnemic_recall", wrong))["error"]
