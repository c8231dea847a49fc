"""Diagnoses a Redis or Valkey server, or the first answering node of a cluster."""

from __future__ import annotations

from typing import Any

from ...checks import shown
from ...errors import StoreError
from ...store.diagnosis import Diagnosis
from ...store.registry import StoreURL, closed_on_error
from .client import RedisClient
from .opening import FORMAT, connect
from .store import RedisEngine
from .vector_index import RedisStore

NEARLY_FULL = 0.9
"""Share of the memory limit from which a server is nearly full."""


async def diagnose(url: StoreURL) -> Diagnosis:
    """Return the diagnosis of a server; raises a StoreError if it does not answer."""
    client, keys, _ = connect(url)
    found = Diagnosis()
    async with closed_on_error(client):
        format = await client.read("GET", keys.format)
        info, save = await _settings(client)
        _check(info, save, found)
        if format is None:
            found.no_store_yet(str(url))
        elif format != FORMAT:
            found.schema = format.decode(errors="replace")
            if found.schema.isdecimal() and int(found.schema) > int(FORMAT):
                text = f"the format {found.schema} is newer than {FORMAT.decode()}, the newest that this version knows"
                found.error("newer_schema", text, "pip install -U mnemic")
            else:
                text = f"{shown(found.schema)} is no format that Mnemic has ever had; the newest is {FORMAT.decode()}"
                found.error("unknown_schema", text, "choose another prefix, or restore the newest backup")
        else:
            found.schema = FORMAT.decode()
            found.store = RedisStore(RedisEngine(client, keys))
            return found
    await client.close()
    return found


async def _settings(client: RedisClient) -> tuple[dict[str, Any], str | None]:
    """Return the answer to INFO and the setting `save`; empty, and None, if the user may not ask."""
    info: Any = {}
    save = None
    try:
        info = await client.read("INFO")
        if info and isinstance(next(iter(info.values())), dict):  # of a cluster, by node
            info = next(iter(info.values()))
        if not client.cluster:
            save = b"".join((await client.read("CONFIG", "GET", "save"))[1:]).decode()
    except StoreError:
        pass  # a user of its own often lacks @admin and @dangerous
    return info, save


def _check(info: dict[str, Any], save: str | None, found: Diagnosis) -> None:
    if not info:
        found.warn(
            "unknown_settings", "this user may not ask the server for INFO", "ACL SETUSER name +info +config|get"
        )
        return
    valkey = info.get("valkey_version")
    version = str(valkey or info.get("redis_version", ""))
    found.engine = f"{'Valkey' if valkey else 'Redis'} {version}"
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    policy, aof = str(info.get("maxmemory_policy", "")), bool(int(info.get("aof_enabled", 0)))
    found.facts |= {
        "used_memory_bytes": used,
        "maxmemory_bytes": limit,
        "maxmemory_policy": policy,
        "appendonly": aof,
        "save": save,
    }
    if not valkey and version.partition(".")[0].isdecimal() and int(version.partition(".")[0]) < 7:
        found.error("old_server", f"Redis {version} is too old", "install Redis 7.0 or newer, or Valkey")
    if policy not in ("", "noeviction"):
        text = f"maxmemory-policy is {policy}: when memory is full, the server deletes records"
        repair = "CONFIG SET maxmemory-policy noeviction, and in the server's configuration file"
        (found.error if limit else found.warn)("evicts", text, repair)
    if limit and used > NEARLY_FULL * limit:
        text = f"{used:,} of {limit:,} bytes of memory are used"
        found.warn("nearly_full", text, "raise maxmemory, or forget what is old: mnemic forget / --older-than 90d")
    if not aof:
        text = "the append-only file is off: a restart loses what was written since the last snapshot"
        if save == "":
            text = "the server keeps nothing on disk: a restart loses everything"
        found.warn("not_persistent", text, "CONFIG SET appendonly yes, and in the server's configuration file")
    for name in ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status"):
        if info.get(name, "ok") != "ok":
            found.error(
                "persistence_fails", f"{name} is {info[name]}", "read the server's log, and free space on its disk"
            )
    if info.get("role") == "slave":
        found.error("replica", "the server is a replica, which takes no writes", "name the primary in the URL")
