"""Scopes: what there is and how much, forgetting and erasing it, and the metrics of recall."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, field

from ...features.certificate import ErasureCertificate
from ...features.forgetting import Forgotten
from ...recall.metrics import Metrics
from ...store.protocol import Page
from ..endpoint import ApiCall, Body, Example, PageQuery, endpoint
from ..idempotency import done_once
from . import examples
from .paging import decode_cursor, encode_cursor
from .response_types import Filter, Kind, Moment, Name, Number, ScopeOut, Seconds, duration, scope_out

CERTIFICATE: dict[str, Any] = {
    "format": "mnemic.erasure/1",
    "id": "",
    "scope": "acme/alice",
    "store": "memory://",
    "started": "2026-01-31T09:30:00Z",
    "finished": "2026-01-31T09:30:00Z",
    "actor": "support-bot",
    "session": None,
    "address": "127.0.0.1",
    "dry_run": True,
    "records": 5,
    "erased": [{"scope": "acme/alice", "kind": "memory", "records": 5}],
    "derived": [],
    "archives": [],
    "removed": {},
    "interrupted": [],
    "verified": [],
    "unreached": [],
    "finishes": None,
    "signature": None,
}


class ForgetBody(Body):
    """Ids of what is deleted, or filters that it must pass, at least one besides `kinds`.

    `older_than` is in seconds and compares times of creation, for notes and summaries of the last change.
    `faded_below` selects memories whose decayed importance is lower. With `archive`, memories move to the archive of
    their scope, from which they can be restored.
    """

    ids: Annotated[list[Name], Meta(max_length=1000)] = field(default_factory=list)
    older_than: Seconds | None = None
    faded_below: Number | None = None
    half_life: Seconds | None = None
    metadata: Filter | None = None
    source: Name | None = None
    since: Moment | None = None
    until: Moment | None = None
    kinds: list[Kind] | None = None
    archive: bool = False
    dry_run: bool = False


class EraseBody(Body):
    """Whether records are only counted, how the certificate names the scope, and which names the audit log keeps.

    Entries of the log in other scopes that have one of `names` as their actor, session or address lose it as well. With
    `keep_audit_names`, no name is removed from the log.
    """

    dry_run: bool = False
    pseudonym: Name | None = None
    names: Annotated[list[Name], Meta(max_length=1000)] = field(default_factory=list)
    keep_audit_names: bool = False


@endpoint(
    "GET", "/api/v1/scopes", right="read", summary="List scopes", tag="scopes",
    example=Example(answer=examples.page(examples.COUNTS)),
)  # fmt: skip
async def list_scopes(call: ApiCall, query: PageQuery) -> Page[ScopeOut]:
    """The scopes, here and below, that are not empty, in order of their paths, each with its own counts."""
    after = decode_cursor(call, query.cursor, "path")
    left = [one for one in await call.scope.scopes() if after is None or one.scope.path > after]
    items = left[: query.limit]
    more = items[-1].scope.path if len(left) > len(items) else None
    return Page(tuple(map(scope_out, items)), encode_cursor(call, more, "path"))


@endpoint(
    "GET", "/api/v1/stats", right="read", summary="Count what is stored", tag="scopes",
    example=Example(answer=examples.COUNTS),
)  # fmt: skip
async def get_stats(call: ApiCall) -> ScopeOut:
    """The counts of the scope and those below together."""
    return scope_out(await call.scope.stats())


@endpoint(
    "POST", "/api/v1/forget", right="write", summary="Forget by id or filter", tag="scopes", problems=(404, 409),
    example=Example(body={"ids": ["sleep"]}, answer={"matched": 1, "archived": 0, "deleted": 1}),
)  # fmt: skip
async def forget(call: ApiCall, body: ForgetBody) -> Forgotten:
    """Delete, in the scope and below, what has these ids, or everything that passes all filters.

    Filters need the right `erase`; they never delete pinned records, or a tool call without its results. With
    `dry_run` it only counts.
    """
    if not body.ids and not body.dry_run:
        call.require("erase")
    return await call.scope.forget(
        *body.ids,
        older_than=duration(body.older_than),
        faded_below=body.faded_below,
        half_life=duration(body.half_life),
        metadata=body.metadata,
        source=body.source,
        since=body.since,
        until=body.until,
        kinds=body.kinds,
        archive=body.archive,
        dry_run=body.dry_run,
    )


@endpoint(
    "POST", "/api/v1/erase", right="erase", summary="Erase a scope", tag="scopes", scoped="named",
    example=Example(query={"scope": "acme/alice"}, body={"dry_run": True}, answer=CERTIFICATE),
)  # fmt: skip
async def erase(call: ApiCall, body: EraseBody) -> ErasureCertificate:
    """Delete everything in the scope and below, of every kind, without a trace; `scope` must be given.

    The answer is a signed certificate, which names the scope by the `pseudonym`, if given. Its `unreached` says what
    remains, until when, and how it is finished. With `dry_run` it only counts.
    """
    return await done_once(
        call,
        lambda: call.scope.erase(
            dry_run=body.dry_run, pseudonym=body.pseudonym, names=body.names, keep_audit_names=body.keep_audit_names
        ),
    )


@endpoint(
    "GET", "/api/v1/metrics", right="admin", summary="Get the metrics of recall", tag="server", scoped=False,
    example=Example(
        answer={
            "recalls": 0, "hit_ratio": 0.0, "used": 0, "success": 0.0, "mean_score": 0.0, "drift": 0.0, "p50_ms": 0.0,
            "p95_ms": 0.0, "embedding_failures": 0, "periods": [],
        }
    ),
)  # fmt: skip
async def get_metrics(call: ApiCall) -> Metrics:
    """Hit ratio, uses, scores and latency of recall since the server was started, by hour."""
    return await call.memory.metrics()
