"""Checkpoints of LangGraph for the tests of the saver."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, ChannelVersions, Checkpoint


def config(namespace: str | None = None, id: str | None = None, thread: str = "t/1") -> RunnableConfig:
    named = {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": id}
    return {"configurable": {name: value for name, value in named.items() if value is not None}}


def checkpoint(id: str, values: dict[str, Any], versions: ChannelVersions) -> Checkpoint:
    return {
        "v": 4,
        "id": id,
        "ts": "2026-11-16T12:00:00+00:00",
        "channel_values": values,
        "channel_versions": dict(versions),
        "versions_seen": {"node": dict(versions)},
        "updated_channels": [*values],
    }


def put_one(saver: BaseCheckpointSaver[str], id: str, thread: str = "t/1") -> None:
    values = {"n": id}
    saver.put(config("", thread=thread), checkpoint(id, {**values}, {**values}), {"run_id": f"run {id}"}, {**values})


def newest(saver: BaseCheckpointSaver[str], thread: str = "t/1") -> str | None:
    found = saver.get_tuple(config(thread=thread))
    return None if found is None else str(found.checkpoint["channel_values"]["n"])
