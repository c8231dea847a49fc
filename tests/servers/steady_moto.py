"""Moto's server with two fixes for load: run as a program, with moto's arguments.

Its DynamoDB copies a whole table for every item of a transaction; here, once. It also fails if a request arrives
while it copies, so requests are serialized.
"""

from __future__ import annotations

import copy
import threading
from typing import Any

from moto.dynamodb.models import DynamoDBBackend
from moto.dynamodb.models.table import Table
from moto.dynamodb.responses import DynamoHandler
from moto.server import main

_turn = threading.RLock()
_copies: dict[int, Any] = {}
_transact = DynamoDBBackend.transact_write_items
_answer = DynamoHandler.call_action


def _copied(table: Any, memo: dict[int, Any]) -> Any:
    if id(table) not in _copies:
        twin = _copies[id(table)] = table.__class__.__new__(table.__class__)
        twin.__dict__.update(copy.deepcopy(table.__dict__, memo))
    return _copies[id(table)]


def _transact_once(self: Any, transact_items: Any) -> None:
    _copies.clear()
    _transact(self, transact_items)


def _in_turn(self: Any) -> Any:
    with _turn:
        return _answer(self)


if __name__ == "__main__":
    Table.__deepcopy__ = _copied  # type: ignore[attr-defined]
    DynamoDBBackend.transact_write_items = _transact_once  # type: ignore[method-assign]
    DynamoHandler.call_action = _in_turn  # type: ignore[method-assign]
    main()
