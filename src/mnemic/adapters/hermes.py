"""Hermes agent's memory provider: sessions are stored, and what they say is recalled before each turn.

Hermes 0.19 loads memory providers from folders, so `python -m mnemic.adapters.hermes` puts one into its home.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from .foreign import require

require("hermes-agent", "0.19", "0.20", "hermes")

from agent.memory_provider import MemoryProvider

from ..checks import check_count, shown, to_segment
from ..errors import InvalidValueError, MnemicError
from ..features.hits import Hit, best_passing
from ..files import replace_file
from ..formats import from_openai
from ..memory_access import AnyMemory, MemoryAccess
from ..messages import Message
from ..scope import AsyncScope
from ..store.registry import StoreURL, sqlite_url
from ..transfer.json_stream import clean_json, clean_text

NAME = "mnemic"
SOURCE = "hermes"
"""Source of memories that Hermes's own memory tool has written."""
SETTINGS = ("url", "user")
LOCAL = ("cli", "tui", "desktop", "acp", "local", "cron", "subagent", "curator")
"""Platforms on the user's own machine: they have no user ids."""
OTHERS = 3
"""How many times as many hits as wanted a recall looks through first, and 4 times these next, for other sessions'."""
PROMPT = """\
# Memory
You remember all earlier conversations with this user. What seems to matter for a message is shown with it. Use \
mnemic_recall to look for more, with several questions if need be, before you say that you do not know; \
mnemic_remember for lasting facts, preferences and decisions; and mnemic_forget for what is wrong."""


def _tool(name: str, description: str, required: str, **parameters: Any) -> dict[str, Any]:
    properties = {name: {"type": kind, "description": text} for name, (kind, text) in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": [required]}
    return {"name": f"{NAME}_{name}", "description": description, "parameters": schema}


TOOLS = [
    _tool(
        "recall",
        "Search earlier conversations with the user, and what was remembered, by meaning and by words.",
        "query",
        query=("string", "A question or keywords."),
        k=("integer", "How many results, by default 10, at most 50."),
    ),
    _tool(
        "remember",
        "Remember a fact about the user or the work that will matter in later conversations.",
        "text",
        text=("string", "A sentence that makes sense on its own, with names."),
        importance=("number", "From 0 to 10, by default 1."),
    ),
    _tool("forget", "Delete something that mnemic_recall has found.", "id", id=("string", "Its id.")),
]


class MnemicMemoryProvider(MemoryProvider):  # type: ignore[misc]  # it has no types
    """A memory for Hermes: `memory.provider: mnemic` in its config.yaml.

    A user of the CLI is the scope `user`, one of a gateway a scope such as `telegram/123`; who has no id there is the
    chat, such as `telegram/chat:-100`, or the session. A session of Hermes is a session of that scope.
    """

    def __init__(self, memory: AnyMemory | None = None, user: str | None = None) -> None:
        """Take a scope, a memory or a URL, and the id of the user, instead of those of the configuration."""
        self._given, self._given_user = memory, user
        self._access: MemoryAccess | None = None
        self._user: tuple[str, ...] = ()
        self._session = ""
        self._writes = True

    @property
    def name(self) -> str:
        return NAME

    def is_available(self) -> bool:
        return True

    def initialize(self, session_id: str, **kwargs: Any) -> None:
        """Take the user and the session; only a primary agent's turns are stored, not those of jobs and subagents.

        The memory is opened on first use. Raises InvalidValueError if `mnemic.json` cannot be read, or has other
        settings.
        """
        home = kwargs.get("hermes_home") or _home()
        config = _config(home)
        own = sqlite_url(Path(home).absolute() / "mnemic.db")
        self.shutdown()
        self._access = MemoryAccess(self._given if self._given is not None else config.get("url") or own)
        platform = kwargs.get("platform") or "cli"
        if user := self._given_user or config.get("user"):
            self._user = (to_segment(user, "user"),)
        elif user := kwargs.get("user_id"):
            self._user = (to_segment(platform, "platform"), to_segment(str(user), "user_id"))
        elif platform in LOCAL:
            self._user = ("user",)
        else:
            chat = kwargs.get("chat_id") or kwargs.get("gateway_session_key")
            name = f"chat:{chat}" if chat else f"session:{session_id}"
            self._user = (to_segment(platform, "platform"), to_segment(name, "chat_id"))
        self._session = session_id
        self._writes = kwargs.get("agent_context", "primary") == "primary"

    def system_prompt_block(self) -> str:
        return PROMPT

    def prefetch(self, query: str, *, session_id: str = "") -> str:
        """Return texts of other sessions and memories that matter for a message, as a list; empty if there are none."""
        hits = self._run(lambda scope: _recall(scope, query, 6, session_id or self._session))
        return "\n".join(["From earlier conversations:", *map(_line, hits)]) if hits else ""

    def sync_turn(
        self,
        user_content: str,
        assistant_content: str,
        *,
        session_id: str = "",
        messages: list[dict[str, Any]] | None = None,
    ) -> None:
        """Store a turn, with its tool calls if `messages` has them, all or none."""
        if self._writes:
            turn = _turn(user_content, assistant_content, messages or ())
            name = to_segment(session_id or self._session, "session_id")
            self._run(lambda scope: scope.session(name).add_many(turn))

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        return TOOLS

    def handle_tool_call(self, tool_name: str, args: dict[str, Any], **kwargs: Any) -> str:
        """Return the result of a tool as JSON, an object with `error` if it failed."""
        try:
            return json.dumps(self._run(lambda scope: _call(scope, tool_name, args)), ensure_ascii=False)
        except MnemicError as error:
            return json.dumps({"error": str(error)})

    def on_session_switch(self, new_session_id: str, **kwargs: Any) -> None:
        self._session = new_session_id

    def on_memory_write(self, action: str, target: str, content: str, metadata: dict[str, Any] | None = None) -> None:
        """Do to memories what Hermes's own memory tool did to its files."""
        if self._writes:
            content = clean_text(content)
            old = clean_text(str((metadata or {}).get("old_text") or (content if action == "remove" else "")))
            self._run(lambda scope: _mirror(scope, target, old, "" if action == "remove" else content))

    def on_delegation(self, task: str, result: str, *, child_session_id: str = "", **kwargs: Any) -> None:
        """Store the task of a subagent and its result as a session of their own."""
        if self._writes:
            name = to_segment(child_session_id or f"{self._session} (delegated)", "child_session_id")
            self._run(lambda scope: scope.session(name).add_many(_turn(task, result, ())))

    def get_config_schema(self) -> list[dict[str, Any]]:
        return [
            {"key": "url", "description": "URL of the store; empty for a file in Hermes's home", "default": ""},
            {"key": "user", "description": "Your name as a scope, on all platforms; empty for one each", "default": ""},
        ]

    def save_config(self, values: dict[str, Any], hermes_home: str) -> None:
        known = {name: value for name, value in {**_config(hermes_home), **values}.items() if value}
        replace_file(Path(hermes_home) / "mnemic.json", (json.dumps(known, indent=2) + "\n").encode())

    def backup_paths(self) -> list[str]:
        """Return the files of a SQLite store that is not in Hermes's home, for `hermes backup`."""
        url = StoreURL.parse(_config(_home()).get("url") or "memory://")
        file = Path(unquote(url.split.path[1:])).absolute()
        outside = url.scheme == "sqlite" and not file.is_relative_to(Path(_home()).absolute())
        return [str(file), f"{file}-wal"] if outside else []

    def shutdown(self) -> None:
        """Close the memory, if it was opened here."""
        if self._access is not None:
            self._access.close_sync()

    def _run(self, work: Any) -> Any:
        if self._access is None:
            raise InvalidValueError("the memory provider is used before `initialize`")
        return self._access.call_sync(lambda root: work(root.scope(*self._user)))


def register(context: Any) -> None:
    """Register the provider with Hermes; where its plugins cannot have one, put it where Hermes looks for providers."""
    if hasattr(context, "register_memory_provider"):
        context.register_memory_provider(MnemicMemoryProvider())
    else:
        install()


def install(hermes_home: str | None = None) -> Path:
    """Put the provider into Hermes's home, and return its folder."""
    folder = Path(hermes_home or _home()) / "plugins" / NAME
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "__init__.py": "from mnemic.adapters.hermes import MnemicMemoryProvider, register  # noqa: F401\n",
        "plugin.yaml": f"name: {NAME}\nkind: exclusive\ndescription: Memory in a local file or a database\n",
    }
    for name, text in files.items():
        replace_file(folder / name, text.encode())
    return folder


def _home() -> str:
    from hermes_constants import get_hermes_home

    return str(get_hermes_home())


def _config(home: str) -> dict[str, Any]:
    path = Path(home) / "mnemic.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidValueError(f"{str(path)!r} is not a JSON object")
    if unknown := sorted(found.keys() - {*SETTINGS}):
        raise InvalidValueError(f"{str(path)!r} has no setting {', '.join(unknown)}: there are {', '.join(SETTINGS)}")
    return found


def _turn(said: str, answer: str, messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return a turn as messages: what the user said, tool calls and results, and the answer."""
    said, answer = clean_text(said), clean_text(answer)
    last = max((n for n, one in enumerate(messages) if one.get("role") == "user"), default=len(messages))
    try:
        between = [one for one in from_openai(clean_json(messages[last + 1 :])) if one.role in ("assistant", "tool")]
    except MnemicError:
        between = []  # a form of messages that is not known: the texts are stored in any case
    turn = [Message("user", said), *between]
    if answer.strip() and turn[-1].text != answer:
        turn.append(Message("assistant", answer))
    return turn


def _line(hit: Hit) -> str:
    said = f"{hit.message.name or hit.message.role}: " if hit.message is not None else ""
    return f"- {f'{hit.created:%Y-%m-%d}, ' if hit.created else ''}{said}{' '.join(hit.text.split())[:1000]}"


async def _recall(scope: AsyncScope, query: str, k: int, session: str | None = None) -> list[Hit]:
    """Return the best hits; without those of a session, which the agent sees anyway."""
    if not query.strip():
        return []
    if session is None:
        return await scope.recall(query, k)
    current = scope.session(to_segment(session, "session_id")).scope
    return await best_passing(lambda n: scope.recall(query, OTHERS * n), k, lambda hit: hit.scope != current, 4 * k)


async def _call(scope: AsyncScope, tool: str, given: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise InvalidValueError(f"the arguments of {tool} are an object, not {shown(given)}")
    if tool == "mnemic_recall":
        hits = await _recall(scope, str(given.get("query", "")), min(check_count(given.get("k", 10), "k"), 50))
        return {"results": [{"id": hit.id, "text": _line(hit)[2:], "score": round(hit.score, 2)} for hit in hits]}
    if tool == "mnemic_remember":
        if not (text := given.get("text")) or not str(text).strip():
            raise InvalidValueError("mnemic_remember needs a text")
        item = await scope.remember(clean_json(text), importance=given.get("importance", 1.0), duplicates="skip")
        return {"id": item.id, "remembered": item.text}
    if tool == "mnemic_forget":
        return {"deleted": (await scope.forget(given.get("id", ""))).deleted}
    raise InvalidValueError(f"there is no tool {shown(tool)}")


async def _mirror(scope: AsyncScope, target: str, old: str, new: str) -> None:
    """Replace, add or remove what Hermes's own memory has: an entry with `old` in its text by `new`."""
    known = [item for item in await scope.memories.list() if item.source == SOURCE] if old else []
    found = [item for item in known if item.metadata.get("target") == target and old in item.text]
    if new and found:
        await scope.memories.update(found[0], text=new)
    elif new:
        await scope.remember(new, source=SOURCE, metadata={"target": target}, duplicates="skip")
    else:
        await scope.memories.delete(*found[:1])


if __name__ == "__main__":
    sys.stdout.write(f"{install()}: now choose it with: hermes config set memory.provider {NAME}\n")
