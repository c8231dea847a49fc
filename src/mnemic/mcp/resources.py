"""Resources and prompts of the MCP server: notes and sessions of the scope, and two prompts."""

from __future__ import annotations

from urllib.parse import quote, unquote

import mcp_types as types
from msgspec import json

from ..errors import NotFoundError
from ..features.note_files import as_text
from ..features.summary import quoted
from .graph_tools import graph_json, graph_of
from .tools import ToolContext, shortened_text

PAGE = 100
"""How many resources a list returns at once."""
MESSAGES = 200
"""How many messages of a session are shown, the newest."""
SESSION, SAID = 50_000, 5_000
"""Maximum length of what is shown of a session, and of one message, in characters."""
NOTES, SESSIONS = "mnemic://notes/", "mnemic://sessions/"
GRAPH = "memory://knowledge-graph"
"""The address that the reference memory server has for its graph."""

TEMPLATES = [
    types.ResourceTemplate(name="note", uri_template=f"{NOTES}{{key}}", description="A note, by its key"),
    types.ResourceTemplate(
        name="session", uri_template=f"{SESSIONS}{{name}}", description="A conversation", mime_type="text/plain"
    ),
]
GRAPH_RESOURCE = types.Resource(
    uri=GRAPH,
    name="knowledge-graph",
    title="Knowledge Graph",
    description="The full knowledge graph with all entities and relations",
    mime_type="application/json",
)
PROMPTS = {
    "recall": types.Prompt(
        name="recall",
        description="Bring what is remembered about a topic into the conversation",
        arguments=[types.PromptArgument(name="topic", description="What to look for", required=True)],
    ),
    "remember": types.Prompt(name="remember", description="Store what matters from this conversation"),
}
REMEMBER = (
    "Go through this conversation, and store what will matter in later ones with the tools of your memory: "
    "decisions, preferences, facts about people and projects, and what is left to do. Store each as one sentence that "
    "makes sense on its own. Leave out what is already stored, secrets, and what only mattered here."
)


async def list_resources(call: ToolContext, start: int) -> tuple[list[types.Resource], bool]:
    """Return a page of resources from `start` on, and whether there are more."""
    found = [
        types.Resource(
            uri=NOTES + quote(note.key, safe=""), name=note.key, description=note.description, size=note.size
        )
        for note in await call.scope.notes.list()
    ]
    for session in await call.scope.sessions.list():
        name = call.below(session.scope)
        found.append(
            types.Resource(
                uri=SESSIONS + quote(name, safe=""),
                name=name,
                description=f"Conversation of {session.messages} messages",
                mime_type="text/plain",
            )
        )
    return found[start : start + PAGE], len(found) > start + PAGE


async def complete(call: ToolContext, ref: object, begun: str) -> list[str]:
    """Return the keys of notes, or names of sessions, that begin with a text."""
    template = ref.uri if isinstance(ref, types.ResourceTemplateReference) else ""
    found: list[str] = []
    if template.startswith(NOTES):
        found = [note.key for note in await call.scope.notes.list()]
    elif template.startswith(SESSIONS):
        found = [call.below(session.scope) for session in await call.scope.sessions.list()]
    return [name for name in found if name.startswith(begun)][:PAGE]


async def read_resource(call: ToolContext, uri: str) -> tuple[str, str]:
    """Return the text of a resource and its type; raises NotFoundError."""
    if uri == GRAPH:
        return json.format(json.encode(graph_json(await graph_of(call).read())), indent=2).decode(), "application/json"
    if uri.startswith(NOTES):
        value = await call.scope.notes.read(unquote(uri.removeprefix(NOTES)))
        return as_text(value), "text/plain" if isinstance(value, str) else "application/json"
    if not uri.startswith(SESSIONS):
        raise NotFoundError(f"there is no resource {uri!r}")
    *above, name = unquote(uri.removeprefix(SESSIONS)).split("/")
    scope = call.scope.scope(*above)
    info = await scope.sessions.get(name)
    lines: list[str] = []
    for message in reversed(await scope.session(info).messages(limit=MESSAGES)):
        lines.append(f"{message.name or message.role}: {shortened_text(message.text or '', SAID)}")
        if sum(map(len, lines)) > SESSION:
            del lines[-1]
            break
    if older := info.messages - len(lines):
        lines.append(f"({older:,} older messages are left out)")
    return quoted(reversed(lines)), "text/plain"


async def prompt_text(call: ToolContext, name: str, topic: str) -> str:
    """Return the text of a prompt, which goes to the model as the user's."""
    if name == "remember":
        return REMEMBER
    return (await call.scope.context(topic)).text or f"Nothing is remembered about {topic!r}."
