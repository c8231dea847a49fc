"""Diagnoses a DynamoDB table."""

from __future__ import annotations

from shlex import quote

from msgspec.structs import replace

from ...errors import InvalidValueError, StoreError, UnreadableStoreError
from ...store.diagnosis import Diagnosis
from ...store.registry import StoreURL, closed_on_error
from ..keyvalue.store import KeyValueStore
from .client import Table
from .opening import expires, open_layout
from .store import DynamoEngine


async def diagnose(url: StoreURL) -> Diagnosis:
    """Return the diagnosis of a table; raises a StoreError if the service does not answer."""
    found = Diagnosis(engine="DynamoDB")
    options = {name: value for name, value in url.options.items() if name != "create"}
    try:
        layout, _ = await open_layout(replace(url, options=options), create=False)
    except UnreadableStoreError as error:
        found.error("missing_table", str(error), f"mnemic migrate --store {quote(str(url))}")
        return found
    async with closed_on_error(layout.table.requests):
        await _check(layout.table, found)
    found.store = KeyValueStore(DynamoEngine(layout))
    return found


async def _check(table: Table, found: Diagnosis) -> None:
    described = (await table.call("describe_table"))["Table"]
    found.schema = "own" if len(described["KeySchema"]) > 1 else "hash"
    found.facts |= {"bytes": described.get("TableSizeBytes", 0), "items": described.get("ItemCount", 0)}
    try:
        on = await expires(table)
    except InvalidValueError as error:
        found.error("wrong_ttl", str(error), "turn the table's TTL off, wait an hour, then: mnemic migrate")
    else:
        if not on:
            text = "TTL is off: what has expired is hidden, but stays in the table and is paid for"
            found.warn("ttl_off", text, f"mnemic migrate --store {quote(str(table.url))}")
    try:
        backups = (await table.call("describe_continuous_backups"))["ContinuousBackupsDescription"]
    except StoreError:
        return  # this user may not ask, or it is another service
    recovery = backups.get("PointInTimeRecoveryDescription", {}).get("PointInTimeRecoveryStatus")
    found.facts["point_in_time_recovery"] = recovery == "ENABLED"
    if recovery != "ENABLED":
        found.warn(
            "no_backups",
            "point-in-time recovery is off: what is deleted by mistake cannot be restored",
            f"aws dynamodb update-continuous-backups --table-name {quote(table.name)} "
            "--point-in-time-recovery-specification PointInTimeRecoveryEnabled=true",
        )
