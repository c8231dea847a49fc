"""Settings of the server: flags, then MNEMIC_* variables, then a TOML file, then defaults; each value has an origin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import msgspec
from msgspec import Meta, Struct

from ..checks import shown
from ..errors import InvalidValueError, NotFoundError
from ..store.registry import masked

__all__ = ["EffectiveSettings", "Field", "Settings", "fields", "load"]

PREFIX = "MNEMIC_"
FILE = "mnemic.toml"
"""The file that is read from the working folder if no other is named."""
MOST_FILE_BYTES = 1_000_000
OTHER_VARIABLES = ("MNEMIC_API_KEY", "MNEMIC_CONFIG", "MNEMIC_MODEL", "MNEMIC_SCOPE")
"""Variables that other parts of Mnemic read."""
OTHER_PREFIXES = ("MNEMIC_ATTACK_", "MNEMIC_DEMO_", "MNEMIC_TEST_")

Names = tuple[str, ...]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Bytes = Annotated[int, Meta(ge=1024, le=2**40)]


def _about(text: str) -> Meta:
    return Meta(description=text)


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of the server."""

    store: Annotated[str | None, _about("URL of the store, or path of an SQLite file")] = None
    index: Annotated[str | None, _about("URL of a companion index for recall")] = None
    embedder: Annotated[str, _about("what computes vectors; auto is the one that made the store's")] = "auto"
    key_file: Annotated[Names, _about("files with the keys of an encrypted store; the first encrypts")] = ()
    key_env: Annotated[Names, _about("names of variables with such keys; they come after the files")] = ()
    key_store: Annotated[str | None, _about("URL of the store with its data keys, if they are kept apart")] = None
    redact: Annotated[bool, _about("replace personal data and secrets before they are stored")] = False
    redact_file: Annotated[str | None, _about("TOML file that says what to redact, and how; turns it on")] = None
    audit: Annotated[bool, _about("log every change in the store's audit log")] = True
    audit_reads: Annotated[bool, _about("log what is read and recalled as well")] = False
    signing_key_file: Annotated[Names, _about("files with the keys that sign the audit log; the first signs")] = ()
    signing_key_env: Annotated[Names, _about("names of variables with such keys; they come after the files")] = ()
    history_days: Annotated[
        float, Meta(ge=0, le=365_000), _about("days that earlier versions are kept; 0 is as before, if at all")
    ] = 0.0

    host: Annotated[str, _about("address to listen on; one that is not loopback needs keys or JWTs")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535), _about("port to listen on; 0 is any free one")] = 7676
    allowed_hosts: Annotated[Names, _about("names in the Host header besides loopback's and the address")] = ()
    allowed_origins: Annotated[Names, _about("origins of web pages that may call the API (CORS)")] = ()
    trusted_proxies: Annotated[Names, _about("addresses of proxies whose X-Forwarded-* headers are believed")] = ()
    tls_cert: Annotated[str | None, _about("file with the certificate, to serve HTTPS")] = None
    tls_key: Annotated[str | None, _about("file with the certificate's private key")] = None
    dashboard: Annotated[bool, _about("serve the dashboard")] = True
    mcp: Annotated[bool, _about("serve MCP at /mcp/SCOPE")] = True

    require_key: Annotated[bool, _about("ask for a key or a JWT also on loopback")] = False
    jwt_issuer: Annotated[str | None, _about("issuer whose JWTs are accepted")] = None
    jwt_audience: Annotated[str | None, _about("audience that a JWT must be for")] = None
    jwt_jwks: Annotated[str | None, _about("URL or file of the issuer's public keys (JWKS)")] = None
    jwt_scope: Annotated[str, _about("scope of a JWT; {claim} is one segment, {claim:path} several")] = (
        "{mnemic_scope:path}"
    )
    jwt_rights_claim: Annotated[str, _about("claim with the rights of a JWT")] = "mnemic_rights"

    rate: Annotated[float, Meta(ge=0, le=1_000_000), _about("requests a second for each key; 0 is no limit")] = 500.0
    rate_burst: Annotated[Count, _about("requests that a key may make at once after a pause")] = 1_000
    max_requests: Annotated[Count, _about("requests that are worked on at the same time")] = 64
    max_queued: Annotated[int, Meta(ge=0, le=1_000_000), _about("requests that wait for their turn")] = 1_000
    queue_seconds: Annotated[Seconds, _about("how long a request waits for its turn")] = 10.0
    max_connections: Annotated[Count, _about("open connections")] = 4_000
    max_streams: Annotated[Count, _about("open streams: events, exports")] = 2_000
    max_streams_per_key: Annotated[Count, _about("open streams of one key")] = 200
    max_header_bytes: Annotated[Bytes, _about("size of a request's headers and address")] = 32_768
    header_seconds: Annotated[Seconds, _about("time for a request's headers to arrive")] = 10.0
    max_body_bytes: Annotated[Bytes, _about("size of a request's body")] = 16 * 1024 * 1024
    max_import_bytes: Annotated[Bytes, _about("size of an import, which is read as a stream")] = 2**30
    max_buffered_bytes: Annotated[Bytes, _about("memory for the bodies of all requests together")] = 256 * 1024 * 1024
    body_seconds: Annotated[Seconds, _about("time for a body to arrive; a second more for each 16 kB")] = 30.0
    write_seconds: Annotated[Seconds, _about("how long a client may leave an answer unread")] = 30.0
    idle_seconds: Annotated[Seconds, _about("how long a connection may be idle between requests")] = 75.0
    ready_seconds: Annotated[Seconds, _about("how long /ready waits for the store")] = 2.0
    stop_seconds: Annotated[Seconds, _about("how long running requests may take at a stop")] = 10.0

    metrics: Annotated[bool, _about("count operations of the library for /metrics")] = True
    log_format: Annotated[str, Meta(pattern="^(text|json)$"), _about("text or json")] = "text"
    access_log: Annotated[bool, _about("log a line for each request")] = False

    @property
    def exposed(self) -> bool:
        """Whether other machines may reach the server, by its address or through a proxy."""
        return not is_loopback(self.host) or bool(self.allowed_hosts or self.trusted_proxies)


def is_loopback(host: str) -> bool:
    """Return whether an address is of this machine alone; a name other than localhost is not trusted to be."""
    from ipaddress import ip_address

    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


LOCATIONS = {"index", "jwt_jwks", "store"}
"""URLs, which are shown without secrets."""


class Field(NamedTuple):
    """One setting: its name in the file, its flag and variable, its type, and what it is."""

    name: str
    type: Any
    default: Any
    about: str

    @property
    def flag(self) -> str:
        """The flag of `mnemic serve`."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"{PREFIX}{self.name.upper()}"

    def parse(self, value: Any, where: str, *, text: bool) -> Any:
        """Return a value of its type; a text holds several names between commas. Raises InvalidValueError."""
        if text and self.type is Names:
            value = [name.strip() for name in value.split(",") if name.strip()]
        try:
            return msgspec.convert(value, self.type, strict=not text)
        except msgspec.ValidationError as error:
            secret = shown(shown_value(self.name, value)) if isinstance(value, str) else shown(value)
            raise InvalidValueError(f"{where} has a bad value {secret}: {error}") from None


def fields() -> dict[str, Field]:
    """Return all settings, in the order in which they are shown."""
    types = get_type_hints(Settings, include_extras=True)
    return {field.name: _field(types[field.name], field) for field in msgspec.structs.fields(Settings)}


def _field(type: Any, field: msgspec.structs.FieldInfo) -> Field:
    about = next(meta.description for meta in type.__metadata__ if meta.description)
    kind = type.__origin__ if type.__origin__ is Names else type
    return Field(field.name, kind, field.default, about)


class EffectiveSettings(NamedTuple):
    """Settings, and where each value came from: a flag, a variable, a file or the default."""

    settings: Settings
    origins: dict[str, str]

    def shown(self) -> dict[str, dict[str, Any]]:
        """Return each value, without secrets, with its origin."""
        return {
            name: {"value": shown_value(name, getattr(self.settings, name)), "origin": origin}
            for name, origin in self.origins.items()
        }


def shown_value(name: str, value: Any) -> Any:
    """Return a value as it may be shown."""
    return masked(value) if name in LOCATIONS and isinstance(value, str) else value


def load(flags: Mapping[str, Any], environ: Mapping[str, str], config: str | None = None) -> EffectiveSettings:
    """Return the settings in force; `config` is the file named by a flag.

    Raises InvalidValueError for an unknown setting, with the nearest name, and for a bad value; NotFoundError if a
    file that was named is not there.
    """
    known = fields()
    _check_variables(environ, known)
    named = config or environ.get(f"{PREFIX}CONFIG") or None
    path = Path(named or FILE).expanduser()
    found: dict[str, tuple[Any, str]] = {}
    if named is not None or path.is_file():
        for name, value in _read(path).items():
            if name not in known:
                raise InvalidValueError(f"{path} has an unknown setting {shown(name)}{_nearest(name, known)}")
            where = f"{name} in {path}"
            found[name] = known[name].parse(value, where, text=False), f"file {path}"
    for name, field in known.items():
        if (given := environ.get(field.variable)) is not None:
            if not given:
                raise InvalidValueError(f"{field.variable} is empty: remove it, or give it a value")
            found[name] = field.parse(given, field.variable, text=True), f"variable {field.variable}"
        if flags.get(name) is not None:
            found[name] = field.parse(flags[name], field.flag, text=isinstance(flags[name], str)), f"flag {field.flag}"
    settings = Settings(**{name: value for name, (value, _) in found.items()})
    _check_together(settings)
    return EffectiveSettings(settings, {name: found[name][1] if name in found else "default" for name in known})


def _check_variables(environ: Mapping[str, str], known: Mapping[str, Field]) -> None:
    names = {field.variable for field in known.values()} | set(OTHER_VARIABLES)
    for name in sorted(environ):
        if name.upper().startswith(PREFIX) and name not in names and not name.startswith(OTHER_PREFIXES):
            raise InvalidValueError(f"the environment has an unknown variable {name}{_nearest(name, names)}")


def _check_together(settings: Settings) -> None:
    jwt = {name: getattr(settings, name) for name in ("jwt_issuer", "jwt_audience", "jwt_jwks")}
    missing = [name for name, value in jwt.items() if not value]
    if missing and len(missing) < len(jwt):
        said = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set"
        raise InvalidValueError(f"JWTs need jwt_issuer, jwt_audience and jwt_jwks: {said}")
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise InvalidValueError("HTTPS needs both tls_cert and tls_key")
    if settings.max_streams_per_key > settings.max_streams:
        raise InvalidValueError(
            f"max_streams_per_key is {settings.max_streams_per_key:,}, more than max_streams {settings.max_streams:,}"
        )


def _read(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        with path.open("rb") as file:
            content = file.read(MOST_FILE_BYTES + 1)
    except FileNotFoundError:
        raise NotFoundError(f"there is no settings file {path}") from None
    except OSError as error:
        raise InvalidValueError(f"cannot read the settings file {path}: {error.strerror}") from None
    if len(content) > MOST_FILE_BYTES:
        raise InvalidValueError(f"the settings file {path} is longer than {MOST_FILE_BYTES:,} bytes")
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # also for a number of thousands of digits
        raise InvalidValueError(f"the settings file {path} is not valid TOML: {error}") from None


def _nearest(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    names = sorted(known)
    meant = name.upper() if name.upper().startswith(PREFIX) else name.replace("-", "_")
    close = get_close_matches(meant, names, 1, 0.5)
    return f"; did you mean {close[0]}?" if close else f"; known are: {', '.join(names)}"
