"""Ministack with two corrections to AgentCore Memory: run as a program.

The service lists the newest events first, and a namespace finds the memory records at and below it; ministack lists
the oldest events first, and takes a namespace for a pattern.
"""

from __future__ import annotations

import runpy
from typing import Any

from ministack.services import bedrock_agentcore as agentcore

_page = agentcore._memory_page
_list = agentcore._list_events


def _reversed_page(items: list[Any], data: dict[str, Any]) -> Any:
    return _page(items[::-1], data)


def _newest_first(*arguments: Any) -> Any:
    agentcore._memory_page = _reversed_page
    try:
        return _list(*arguments)
    finally:
        agentcore._memory_page = _page


def _is_below(namespace: str, namespaces: list[str]) -> bool:
    return any(one.startswith(namespace) for one in namespaces)


if __name__ == "__main__":
    agentcore._list_events = _newest_first
    agentcore._namespace_matches = _is_below
    runpy.run_module("ministack", run_name="__main__", alter_sys=True)
