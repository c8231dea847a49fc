"""Decodes the query and the body of a request into the types that an endpoint declares, and refuses anything else."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

from msgspec import DecodeError, Struct, ValidationError, convert, json
from msgspec.structs import fields
from starlette.requests import Request

from ..checks import shown
from .problems import RequestError

Scoped: TypeAlias = bool | Literal["named"]
"""Whether an endpoint takes `?scope=`; "named" if it must be given."""
JSON_TYPE = "application/json"


class QueryDecoder:
    """Decodes queries into a type; without one, a query may have nothing but a scope."""

    def __init__(self, type: type[Struct] | None, scoped: Scoped) -> None:
        self._type = type
        self._scoped = scoped
        known = () if type is None else fields(type)
        self._readers: dict[str, Any] = {one.encode_name: _reader(one.type) for one in known}

    def decode(self, request: Request) -> Any:
        """Return the query, None without a type; raises RequestError for one that does not have its form."""
        if not request.scope["query_string"] and self._type is None and self._scoped != "named":
            return None
        given: dict[str, Any] = {}
        for name, value in request.query_params.multi_items():
            reader = self._readers.get(name)
            if reader is list:
                given.setdefault(name, []).append(value)
            elif name in given:
                raise RequestError(400, f"the query has {shown(name)} more than once")
            else:
                given[name] = value if reader is None else reader(value)
        if self._scoped and "scope" not in self._readers and not given.pop("scope", None) and self._scoped == "named":
            raise RequestError(400, "the query needs a scope; / is everything")
        if self._type is None:
            if given:
                raise RequestError(400, f"the query has an unknown parameter: {shown(next(iter(given)))}")
            return None
        try:
            return convert(given, self._type, strict=False)
        except ValidationError as error:
            raise RequestError(400, f"the query: {error}") from None


class BodyDecoder:
    """Decodes bodies into a type."""

    def __init__(self, type: Any) -> None:
        self._type = type
        self._decode = json.Decoder(type).decode

    async def decode(self, request: Request) -> Any:
        """Return the body; raises RequestError for one that is not JSON, or does not have its form."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != JSON_TYPE:
            raise RequestError(415, f"the body must have the type {JSON_TYPE}, not {shown(kind)}")
        content = await request.body()
        try:
            return self._decode(content)
        except (DecodeError, ValidationError, RecursionError, UnicodeDecodeError) as error:
            if "got `float`" in str(error):
                # To JSON Schema, 2.0 is a whole number.
                with suppress(ValidationError, RecursionError):
                    return convert(_whole(json.decode(content)), self._type)
            raise RequestError(400, f"the body: {error}") from None


_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_BOOLEANS = {"true": True, "false": False}


def _whole(value: Any) -> Any:
    """Return a JSON value whose numbers without a fraction are whole numbers."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return {name: _whole(item) for name, item in value.items()} if isinstance(value, dict) else value


def _reader(type: Any) -> Any:
    """Return how a parameter of a query is read, beyond what msgspec does; `list` for one that may be repeated."""
    kinds = {get_origin(one) or one for one in _choices(type)}
    if kinds & {list, tuple, set, frozenset}:
        return list
    if bool in kinds:
        return lambda value: _BOOLEANS.get(value, [value])
    if datetime in kinds:
        # A number would be taken for seconds since 1970.
        return lambda value: value if _DATE.match(value) else [value]
    if str in kinds:
        return None
    # As text, null would be taken for None.
    return lambda value: [value] if value.lower() == "null" else value


def _choices(type: Any) -> list[Any]:
    """Return the types that an annotation allows."""
    if get_origin(type) is Annotated:
        return _choices(get_args(type)[0])
    if get_origin(type) in (list, tuple, set, frozenset) or not get_args(type):
        return [type]
    return [choice for one in get_args(type) for choice in _choices(one)]
