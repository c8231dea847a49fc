"""Types of options and arguments: stores, scopes, times, durations, files of keys."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from ..errors import InvalidValueError

if TYPE_CHECKING:
    from ..records import ScopePath

    _Type = click.ParamType[Any]  # at run time generic only since click 8.4
else:
    _Type = click.ParamType

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class StoreType(_Type):
    """The URL of a store; a plain path is that of an SQLite file.

    A command never takes a dead server for an empty store, so `on_failure=empty` is ignored.
    """

    name = "URL"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the URL."""
        from pathlib import Path
        from urllib.parse import quote

        if not value.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in value):
            self.fail("the store is not named in UTF-8", param, ctx)
        # Configuration files of clients have no shell that expands it.
        scheme, slashes, rest = value.partition(":///")
        if slashes and scheme.lower() == "sqlite" and rest.startswith("~/"):
            return f"{scheme}:///{quote(str(Path.home()), safe='/:')}{rest[1:]}"
        if value.lower().startswith(("http://", "https://")):
            address, _, options = value.partition("?")
            kept = "&".join(one for one in options.split("&") if one != "on_failure=empty")
            return f"{address}?{kept}" if kept else address
        if "://" in value or "?" in value or not value:
            return value
        value = str(Path(value).expanduser()) if value.startswith("~/") else value
        # ':' and '@' stay, so that errors recognize and mask what was meant as a user and a password.
        return f"sqlite:///{quote(value, safe='/:@')}"


class KeyFileType(click.File):
    """A file that is opened; ~ is the home folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the open file."""
        from pathlib import Path

        return super().convert(str(Path(value).expanduser()) if isinstance(value, str) else value, param, ctx)


class ScopeType(_Type):
    """The path of a scope, such as acme/alice; / is the whole store."""

    name = "SCOPE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> ScopePath:
        """Return the path; a bad one is an error of usage."""
        from ..records import ScopePath

        if isinstance(value, ScopePath):
            return value
        if not value:
            self.fail("a scope is a path of names, and / is the whole store: this one is empty", param, ctx)
        try:
            return ScopePath("" if value == "/" else value)
        except InvalidValueError as error:
            self.fail(str(error), param, ctx)


class TimeType(_Type):
    """A time in ISO 8601; one without an offset is in UTC."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return the time."""
        if isinstance(value, datetime):
            return value
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a time such as 2026-01-31 or 2026-01-31T18:00+01:00.", param, ctx)
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


class DurationType(_Type):
    """A duration such as 90s, 30m, 12h, 7d or 2w."""

    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Return the duration."""
        if isinstance(value, timedelta):
            return value
        if (found := re.fullmatch(r"(\d{1,9}(?:\.\d+)?)([smhdw])", value)) is None:
            self.fail(f"{value!r} is not a duration such as 90s, 30m, 12h, 7d or 2w.", param, ctx)
        return timedelta(**{UNITS[found[2]]: float(found[1])})


STORE, SCOPE, TIME, DURATION = StoreType(), ScopeType(), TimeType(), DurationType()
