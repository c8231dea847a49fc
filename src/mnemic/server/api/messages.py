"""Messages of a session, with tool calls and images, and the window of them that fits into a prompt."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from ...checks import shown
from ...errors import NotFoundError
from ...messages import Message, Role, decode
from ...records import ARCHIVED, MESSAGE
from ...store.matching import conditions
from ...store.protocol import Page
from ...store.query import Scan
from ...tokens import count_message
from ..endpoint import ApiCall, Body, Example, PageQuery, Query, endpoint
from . import examples
from .paging import Order, read_page
from .response_types import Metadata, Moment, Name, Seconds, Text, Tokens, duration
from .sessions import HERE, session_of

THIS = {**HERE, "id": "m1"}


class ToolCallBody(Body):
    """A model's request to run a tool; `arguments` is JSON text, as models write it."""

    id: Name
    name: Name
    arguments: Text = "{}"
    type: Text = "function"
    call_id: Text | None = None


class AgentCallBody(Body):
    """A request to another agent."""

    agent_name: Name
    request: Any = None


class MessageBody(Body):
    """A message; without an id it gets one, without a timestamp it is of now.

    `images` are URLs or data URLs; a path is stored as it is and never opened.
    """

    role: Role
    content: Text | dict[str, Any] | list[Text | dict[str, Any]] | None = None
    id: Name | UnsetType = UNSET
    name: Name | UnsetType = UNSET
    tool_calls: list[ToolCallBody] | UnsetType = UNSET
    agent_calls: list[AgentCallBody] | UnsetType = UNSET
    structured_data: dict[str, Any] | UnsetType = UNSET
    images: list[Text] | UnsetType = UNSET
    tool_call_id: Name | UnsetType = UNSET
    metadata: Metadata | UnsetType = UNSET
    timestamp: Moment | UnsetType = UNSET

    def fields(self) -> dict[str, Any]:
        """Return the given fields, as the library takes them."""
        given = {name: value for name, value in structs.asdict(self).items() if value is not UNSET}
        for name in given.keys() & {"tool_calls", "agent_calls"}:
            given[name] = [structs.asdict(call) for call in given[name]]
        return given


class SystemBody(Body):
    """The text of the system message."""

    content: Text


class MessagesOut(Struct, kw_only=True):
    """Messages, oldest first."""

    messages: list[Message]


class WindowOut(Struct, kw_only=True):
    """Messages for a prompt, oldest first, and how many tokens they have."""

    messages: list[Message]
    tokens: int


class AddQuery(Query):
    """How long the messages are kept."""

    ttl: Seconds | None = None


class MessagesQuery(PageQuery):
    """Filters of messages, and the page."""

    roles: list[Role] | None = None
    since: Moment | None = None
    until: Moment | None = None
    order: Order = "newest"


class WindowQuery(Query):
    """How large the window is."""

    max_tokens: Tokens
    interrupted: Annotated[Text, Meta(description="Shown as the result of a tool call that has none.")] | None = None
    partial: Annotated[bool, Meta(description="Leave out required messages that do not fit.")] = False


@endpoint(
    "GET", "/api/v1/sessions/{name}/messages", right="read", summary="List messages", tag="messages",
    example=Example(path=HERE, query={"limit": 1, "order": "oldest"}, answer=examples.page(examples.MESSAGE)),
)  # fmt: skip
async def list_messages(call: ApiCall, name: str, query: MessagesQuery) -> Page[Message]:
    """The messages of a session that pass the filters.

    The first page has the newest ones, and the next page those before; with `order=oldest`, it begins at the beginning.
    The messages of a page are in the order in which they were said.
    """
    where = conditions(None, roles=query.roles, since=query.since, until=query.until)
    scan = Scan(scope=session_of(call, name).scope, kinds=(MESSAGE,), where=where)
    return await read_page(call, scan, query, decode, query.order)


@endpoint(
    "POST", "/api/v1/sessions/{name}/messages", right="write", summary="Add messages", tag="messages", status=201,
    headers=("Idempotency-Key",), problems=(409,),
    example=Example(
        path=HERE,
        body={"role": "user", "content": "I sleep badly.", "id": "m1", "timestamp": "2026-01-31T09:30:00Z"},
        answer={"messages": [examples.MESSAGE]},
    ),
)  # fmt: skip
async def add_messages(
    call: ApiCall, name: str, query: AddQuery, body: MessageBody | Annotated[list[MessageBody], Meta(max_length=10_000)]
) -> MessagesOut:
    """Add one message, or several in order, all or none. A message that exists already is not added again.

    Of calls with the same `Idempotency-Key` within 24 hours, only the first adds anything, and all have its answer;
    with other content the status is 409, as for another message with the same id.
    """
    given = body if isinstance(body, list) else [body]
    added = await session_of(call, name).add_many(
        [one.fields() for one in given], ttl=duration(query.ttl), once=call.once, open_images=False
    )
    return MessagesOut(messages=added)


@endpoint(
    "GET", "/api/v1/sessions/{name}/messages/{id:path}", right="read", summary="Get a message", tag="messages",
    problems=(404,), example=Example(path=THIS, answer=examples.MESSAGE),
)  # fmt: skip
async def get_message(call: ApiCall, name: str, id: str) -> Message:
    """One message of a session."""
    return await session_of(call, name).get(id)


@endpoint(
    "PUT", "/api/v1/sessions/{name}/messages/{id:path}", right="write", summary="Replace a message", tag="messages",
    problems=(404, 409),
    example=Example(
        path=THIS, body={"role": "user", "content": "Hello."}, answer=examples.MESSAGE | {"content": "Hello."}
    ),
)  # fmt: skip
async def replace_message(call: ApiCall, name: str, id: str, body: MessageBody) -> Message:
    """Replace a message, which keeps its place and, without another one, its timestamp."""
    return await session_of(call, name).edit({**body.fields(), "id": id}, open_images=False)


@endpoint(
    "DELETE", "/api/v1/sessions/{name}/messages/{id:path}", right="write", summary="Delete a message", tag="messages",
    status=204, problems=(404,), example=Example(path=THIS),
)  # fmt: skip
async def delete_message(call: ApiCall, name: str, id: str) -> None:
    """Delete one message of a session."""
    if not await session_of(call, name).delete(id):
        raise NotFoundError(f"session {call.path.path + '/' + name!r} has no message with the id {shown(id)}")


@endpoint(
    "GET", "/api/v1/sessions/{name}/window", right="read", summary="Get the newest messages that fit", tag="messages",
    example=Example(path=HERE, query={"max_tokens": 15}, answer={"messages": [examples.MESSAGE], "tokens": 12}),
)  # fmt: skip
async def get_window(call: ApiCall, name: str, query: WindowQuery) -> WindowOut:
    """The newest messages that fit into `max_tokens`, oldest first.

    Always included are the system messages and the user's last message, and a running summary if there is room; if
    they do not fit, the status is 422. Tool calls and their results are never separated.
    """
    session = session_of(call, name)
    found = await session.window(query.max_tokens, interrupted=query.interrupted, partial=query.partial)
    tokens = call.memory._tokens
    return WindowOut(messages=found, tokens=sum(count_message(message, tokens) for message in found))


@endpoint(
    "GET", "/api/v1/sessions/{name}/archived", right="read", summary="List archived messages", tag="messages",
    example=Example(path=HERE, answer={"items": [], "cursor": None}),
)  # fmt: skip
async def list_archived(call: ApiCall, name: str, query: PageQuery) -> Page[Message]:
    """The messages that a limit moved to the session's archive, oldest first."""
    scan = Scan(scope=session_of(call, name).scope, kinds=(ARCHIVED,))
    return await read_page(call, scan, query, decode)


@endpoint(
    "GET", "/api/v1/sessions/{name}/system", right="read", summary="Get the system message", tag="messages",
    problems=(404,), example=Example(path={"name": "tuesday"}, answer=examples.SYSTEM),
)  # fmt: skip
async def get_system(call: ApiCall, name: str) -> Message:
    """The system message that was set, or else the newest that was added."""
    found = await session_of(call, name).system()
    if found is None:
        raise NotFoundError(f"session {call.path.path + '/' + name!r} has no system message")
    return found


@endpoint(
    "PUT", "/api/v1/sessions/{name}/system", right="write", summary="Set the system message", tag="messages",
    problems=(409,),
    example=Example(path=HERE, body={"content": "Be kind."}, answer=examples.SYSTEM),
)  # fmt: skip
async def set_system(call: ApiCall, name: str, body: SystemBody) -> Message:
    """Set the system message, replacing the previous one; limits never remove it."""
    return await session_of(call, name).set_system(body.content)
