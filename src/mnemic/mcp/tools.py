"""A tool of the MCP server: its definition, the check of its arguments, and its result."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import cached_property
from pathlib import Path
from traceback import format_tb
from typing import Any, NamedTuple, TypeAlias

import mcp_types as types
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from ..errors import InvalidValueError, MnemicError
from ..records import ScopePath
from ..scope import AsyncScope

LOG = logging.getLogger("mnemic.mcp")
MAX_REASON = 300
"""Maximum length of the reason why arguments are invalid, which may quote them."""

Schema: TypeAlias = dict[str, Any]
TEXT: Schema = {"type": "string"}


class ToolContext(NamedTuple):
    """The scope of a call, the name of the client that made it, and the file of the profile graph, if it has one."""

    scope: AsyncScope
    client: str | None = None
    graph_file: Path | None = None

    def below(self, scope: ScopePath) -> str:
        """Return the path of a scope below that of the call, relative to it."""
        return scope.path.removeprefix(self.scope.path.path).strip("/")


class ToolResult(NamedTuple):
    """A result: text for the model, and the same as data of the tool's output schema."""

    text: str
    data: dict[str, Any]


class Tool:
    """A tool, whose function is called with the arguments that its schema allows."""

    def __init__(
        self,
        name: str,
        description: str,
        run: Callable[..., Awaitable[ToolResult]],
        input: Schema,
        output: Schema,
        *,
        title: str | None = None,
        read_only: bool = False,
        destructive: bool = False,
        idempotent: bool = False,
    ) -> None:
        self.name = name
        self.read_only = read_only
        self._run = run
        self._input = input
        hints = types.ToolAnnotations(
            read_only_hint=read_only, destructive_hint=destructive, idempotent_hint=idempotent, open_world_hint=False
        )
        self.definition: types.Tool = types.Tool(
            name=name, title=title, description=description, input_schema=input, output_schema=output, annotations=hints
        )

    async def call(self, call: ToolContext, arguments: dict[str, Any]) -> types.CallToolResult:
        """Run the tool; an error becomes a result that the model can read, in one line."""
        try:
            answer = await self._run(call, **self._checked(arguments))
        except MnemicError as error:
            return _result(" ".join(str(error).split()), None)
        except Exception as error:
            # Without the message of the error, which may quote content.
            where = "".join(format_tb(error.__traceback__))
            LOG.error("the tool %s failed (%s)\n%s", self.name, type(error).__name__, where)
            return _result(f"the tool {self.name} failed: {type(error).__name__}; see the server's log", None)
        return _result(*answer)

    def _checked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments that the schema names; raises InvalidValueError unless it allows them."""
        if (error := best_match(self._validator.iter_errors(arguments))) is not None:
            where = "".join(f".{step}" if isinstance(step, str) else f"[{step}]" for step in error.absolute_path)
            reason = error.message if len(error.message) <= MAX_REASON else f"{error.message[:MAX_REASON]}…"
            raise InvalidValueError(f"{self.name}{where}: {reason}")
        given = {name: arguments[name] for name in self._input["properties"] if name in arguments}
        # To JSON Schema, 2.0 is an integer.
        return {
            name: int(value) if self._input["properties"][name].get("type") == "integer" else value
            for name, value in given.items()
        }

    @cached_property
    def _validator(self) -> Draft202012Validator:
        return Draft202012Validator(self._input)


def _result(text: str, data: dict[str, Any] | None) -> types.CallToolResult:
    content: list[types.ContentBlock] = [types.TextContent(type="text", text=text)]
    return types.CallToolResult(content=content, structured_content=data, is_error=data is None)


def shortened_text(text: str, most: int) -> str:
    """Return a text, or its beginning and how long it is."""
    return text if len(text) <= most else f"{text[:most]}… ({most:,} of {len(text):,} characters)"


def checked_query(query: str) -> str:
    """Return a query; raises InvalidValueError if there is nothing in it to search for."""
    if not query.strip():
        raise InvalidValueError("the query is empty: say what to look for")
    return query


def object_schema(required: str, **properties: Schema) -> Schema:
    """Return the schema of an object with these properties and no others; `required` names some, between spaces."""
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": required.split()} if required else schema
