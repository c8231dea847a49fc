"""Endpoints of the HTTP API: one declaration each, for the route, the checks, the documentation and the tests.

To add one, write a coroutine in a module of `api`, or one that `app.py` names in MODULES, and declare it:

    @endpoint("PUT", "/api/v1/notes/{key:path}", right="write", summary="Write a note", tag="notes",
              status=(200, 201), headers=("If-Match",), problems=(409, 412),
              example=Example(path={"key": "plan"}, body={"value": 1}, answer={"key": "plan", "version": 1}))
    async def write_note(call: ApiCall, key: str, body: NoteBody) -> Answer[NoteInfo]:
        '''Describe it further here, in Markdown: what the answer has, and what the query means.'''

- The names in the path are parameters of the function. `query` and `body` are decoded into the types that they are
  annotated with: for a query a subclass of `Query`, for a body a subclass of `Body`, a list of those, or any other type
  that msgspec knows. What does not fit is refused with status 400, unknown names too; what the
  library refuses, with status 422.
- It returns a value of the annotated type, an `Answer` of it, for another status or headers, a `Streamed`, or a
  response of Starlette's. It raises errors of the library: `problems.py` turns them into responses.
- `call.scope` is the scope of `?scope=`, by default that of the key; `call.memory` shows no more than the key may see.
  So nothing is checked here, except `right`, which the key must have; None is open to all.
- `example` is a request and its answer, which a test sends and compares with the documentation.
- `python tests/test_server_documents.py` writes it into the table of docs/http-api.md.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    Required,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
)

from msgspec import UNSET, Meta, Struct, field, json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ..checks import check_name, shown
from ..errors import AccessDeniedError, ConflictError, InvalidValueError
from ..layers.restricted import Right
from ..memory import AsyncMemory
from ..records import ScopePath
from ..scope import AsyncScope
from ..store.protocol import SearchableStore
from .access import ACCESS, Access, restricted
from .api_keys import scope_named
from .decoding import JSON_TYPE, BodyDecoder, QueryDecoder, Scoped
from .problems import RequestError, problem_of, problem_response
from .settings import Settings

Value = TypeVar("Value")
Method: TypeAlias = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Header: TypeAlias = Literal["Idempotency-Key", "If-Match", "If-None-Match"]

UNDOCUMENTED = ("mem0", "store")
"""Tags of endpoints that are documented elsewhere: by mem0, and as the protocol of the back-end `http://`."""
ENDPOINTS: list[Endpoint] = []
"""Every endpoint that was declared."""


class Query(Struct, kw_only=True, forbid_unknown_fields=True):
    """Parameters of a query; a list is given by repeating its name."""


class Body(Struct, kw_only=True, forbid_unknown_fields=True):
    """An object in the body of a request."""


class PageQuery(Query):
    """Parameters of a list that comes in pages."""

    limit: Annotated[int, Meta(ge=1, le=1000, description="Largest number of items in the page.")] = 100
    cursor: Annotated[str, Meta(description="Continues after a page: its `cursor`.")] | None = None


class Example(Struct, frozen=True, kw_only=True):
    """A request, and what it answers."""

    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = UNSET
    answer: Any = UNSET


class Answer(Generic[Value]):
    """An answer with another status than the first that is declared, or with headers; `version` becomes the ETag."""

    __slots__ = ("body", "headers", "status")

    def __init__(
        self,
        body: Value,
        *,
        status: int | None = None,
        version: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.body: Value = body
        self.status: int | None = status
        self.headers: dict[str, str] = dict(headers or {})
        if version is not None:
            self.headers["ETag"] = f'"{version}"'


class Streamed:
    """An answer that is sent while it is made, in chunks of bytes."""

    def __init__(self, chunks: AsyncIterator[bytes], headers: Mapping[str, str] | None = None) -> None:
        self.chunks = chunks
        self.headers: dict[str, str] = dict(headers or {})


class ApiCall:
    """One request: who makes it, the memory and the scope that it is about."""

    def __init__(self, request: Request, memory: AsyncMemory, settings: Settings) -> None:
        self.request = request
        self.settings = settings
        self.access: Access = request.scope[ACCESS]
        self._memory = memory

    @cached_property
    def memory(self) -> AsyncMemory:
        """The memory, as far as the key may use it."""
        return restricted(self._memory, self.access)

    @property
    def store(self) -> SearchableStore:
        """The records of the memory, as far as the key may use them."""
        return self.memory._store

    @property
    def path(self) -> ScopePath:
        """The scope of `?scope=`, by default that of the key; raises InvalidValueError."""
        given = self.request.query_params.get("scope")
        return self.access.scope if given is None else scope_named("" if given == "/" else given)

    @cached_property
    def scope(self) -> AsyncScope:
        """The scope of `?scope=`, by default that of the key; raises InvalidValueError."""
        return self.memory.scope(self.path)

    @property
    def once(self) -> str | None:
        """The `Idempotency-Key`: an id of the call, whose repetition changes nothing; raises RequestError."""
        given = self.request.headers.get("Idempotency-Key")
        try:
            return None if given is None else check_name(given, "Idempotency-Key")
        except InvalidValueError as error:
            raise RequestError(400, str(error)) from None

    @property
    def if_version(self) -> int | None:
        """The version that the record must have: that of `If-Match`, or 0, for none, with `If-None-Match: *`.

        Raises RequestError for any other value of these headers, InvalidValueError for both.
        """
        headers = self.request.headers
        if (unless := headers.get("If-None-Match")) is not None:
            if unless.strip() != "*":
                raise RequestError(400, f"If-None-Match of a write must be *, not {shown(unless)}")
            if "If-Match" in headers:
                raise InvalidValueError("a write takes If-Match, or If-None-Match: *, not both")
            return 0
        given = headers.get("If-Match")
        return None if given is None else _version(given, "If-Match")

    def require(self, right: Right) -> None:
        """Raise RequestError, of status 403, unless the key has this right."""
        if right not in self.access.rights:
            raise RequestError(403, f"this needs the right {right!r}, which the key does not have")

    def knows(self, version: int) -> bool:
        """Return whether the client has this version already, by `If-None-Match`."""
        given = self.request.headers.get("If-None-Match")
        return given is not None and f'"{version}"' in given


def _version(etag: str, name: str) -> int:
    found = re.fullmatch(r'"(\d{1,15})"', etag.strip())
    if found is None:
        raise RequestError(400, f'{name} must be one ETag of this server in quotes, such as "3": {shown(etag)}')
    return int(found[1])


class Endpoint:
    """A declared endpoint."""

    def __init__(
        self,
        method: Method,
        path: str,
        run: Callable[..., Awaitable[Any]],
        *,
        right: Right | None,
        summary: str,
        tag: str,
        status: int | tuple[int, ...] = 200,
        headers: Sequence[Header] = (),
        problems: Sequence[int] = (),
        example: Example | None = None,
        content: str = JSON_TYPE,
        takes: str = JSON_TYPE,
        scoped: Scoped = True,
    ) -> None:
        self.method = method
        self.path = path
        self.run = run
        self.right = right
        self.summary = summary
        self.tag = tag
        self.statuses: tuple[int, ...] = (status,) if isinstance(status, int) else status
        self.headers: tuple[Header, ...] = tuple(headers)
        self.problems: tuple[int, ...] = tuple(problems)
        self.example: Example = example or Example()
        self.content = content
        """Type of the answer's content."""
        self.takes = takes
        """Type of the body's content, if it has one; one that is not JSON is read by the function."""
        self.scoped = scoped
        """Whether it takes `?scope=`; "named" if it must be given."""
        self.documented: bool = tag not in UNDOCUMENTED
        """Whether it is in the OpenAPI document."""
        self.name: str = run.__name__
        self.description: str = inspect.cleandoc(run.__doc__ or "")
        hints = get_type_hints(run, include_extras=True)
        answer = hints.get("return", type(None))
        self.answer: Any = get_args(answer)[0] if get_origin(answer) is Answer else answer
        self.query: type[Struct] | None = hints.get("query")
        self.body: Any = hints.get("body", UNSET)
        self.parameters: tuple[str, ...] = tuple(re.findall(r"{(\w+)", path))
        self._query = QueryDecoder(self.query, scoped)
        self._body = None if self.body is UNSET else BodyDecoder(self.body)

    def __repr__(self) -> str:
        return f"<Endpoint {self.method} {self.path}>"

    async def answer_to(self, call: ApiCall) -> Response:
        """Return the response to a call; raises RequestError or an error of the library."""
        request = call.request
        if self.right is not None:
            call.require(self.right)
        self._check_headers(request)
        given: dict[str, Any] = dict(request.path_params)
        query = self._query.decode(request)
        if self.scoped and self.right in ("write", "erase") and not call.access.scope.contains(call.path):
            # Also if nothing would be written, so that it does not tell what exists there.
            raise AccessDeniedError(f"scope {shown(call.path.path)} is not within {shown(call.access.scope.path)}")
        if self.query is not None:
            given["query"] = query
        if self._body is not None:
            given["body"] = await self._body.decode(request)
        try:
            result = await self.run(call, **given)
        except ConflictError as error:
            if "if-match" in request.headers or "if-none-match" in request.headers:
                return problem_response(412, " ".join(str(error).split()), current=error.current)
            raise
        return self._response(result)

    def _check_headers(self, request: Request) -> None:
        """Raise RequestError for a header with a condition that this endpoint would not keep."""
        if self.method != "GET":
            for name in get_args(Header):
                if name in request.headers and name not in self.headers:
                    raise RequestError(400, f"{self.method} {self.path} does not take the header {name}")

    def _response(self, result: Any) -> Response:
        status, headers = self.statuses[0], None
        if isinstance(result, Response):
            return result
        if isinstance(result, Streamed):
            return StreamingResponse(result.chunks, status, result.headers, self.content)
        if isinstance(result, Answer):
            status, headers, result = result.status or status, result.headers, result.body
        if status in (204, 304):
            return Response(None, status, headers)
        return Response(_encode(result), status, headers, self.content)


_encode = json.Encoder().encode

Run = TypeVar("Run", bound=Callable[..., Awaitable[Any]])


class EndpointOptions(TypedDict, total=False):
    """Options of an endpoint, as `Endpoint` takes them."""

    right: Required[Right | None]
    summary: Required[str]
    tag: Required[str]
    status: int | tuple[int, ...]
    headers: Sequence[Header]
    problems: Sequence[int]
    example: Example
    content: str
    takes: str
    scoped: Scoped


def endpoint(method: Method, path: str, **options: Unpack[EndpointOptions]) -> Callable[[Run], Run]:
    """Declare an endpoint; the module's docstring says how.

    `status` are the statuses of success, the usual one first; `problems` those of errors beyond the ones that every
    endpoint has; `content` and `takes` the types of the answer's and the body's content, if not JSON. `scoped` is false
    for one that takes no `?scope=`, and "named" for one that demands it.
    """

    def declare(run: Run) -> Run:
        ENDPOINTS.append(Endpoint(method, path, run, **options))
        return run

    return declare


class PathApp:
    """The endpoints of one path, by method, as an ASGI application."""

    def __init__(self, endpoints: Sequence[Endpoint], memory: AsyncMemory, settings: Settings) -> None:
        self._by_method = {one.method: one for one in endpoints}
        if "GET" in self._by_method:
            self._by_method["HEAD"] = self._by_method["GET"]  # type: ignore[index]
        self._allowed = ", ".join(sorted(self._by_method))
        self._memory = memory
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; every error becomes a problem."""
        found = self._by_method.get(scope["method"])
        try:
            if found is None:
                raise RequestError(405, f"the path has {self._allowed}", {"Allow": self._allowed})
            response = await found.answer_to(ApiCall(Request(scope, receive), self._memory, self._settings))
        except ClientDisconnect:
            return
        except Exception as error:
            response = problem_of(error)
        await response(scope, receive, send)
