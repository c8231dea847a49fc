"""Reads what Fence has stored: the file of its SQLite memory, and the items of its DynamoDB tables."""

from __future__ import annotations

import ast
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from ..checks import shown, to_segment
from ..errors import InvalidValueError
from ..messages import Message, ToolCall
from ..records import ScopePath, now
from .inputs import Input, each_member
from .items import REPLACED, Item, MessageItem, SkippedItem, fields_of, time_of
from .json_stream import clean_json, clean_text

SQLITE: Final = b"SQLite format 3\0"
"""How a SQLite file begins."""
SESSION = "main"
"""The session of a SQLite file, which has one conversation."""
OWN = ("PK", "SK", "Message", "Role", "Meta", "Source")
"""Attributes of an item that are not the user's."""
OTHER_ROLE = "a message of the role {!r}"


def to_message(role: str, contents: list[dict[str, Any]], metadata: Mapping[str, Any], **fields: Any) -> Message:
    """Return a message with contents of Fence, as its models dump them."""
    blocks = [block for one in contents if (block := _block(fields_of(one, "a content")))]
    results = [block for block in blocks if block["type"] == "tool_result"]
    content, about = blocks, dict(metadata)
    if len(results) == len(contents) == 1:
        role, content, fields["tool_call_id"] = "tool", results[0]["content"], results[0]["tool_use_id"]
        about |= {"is_error": True} if results[0].get("is_error") else {}
    elif not results:
        content = [block for block in blocks if block["type"] != "tool_use"]
        fields["tool_calls"] = [
            ToolCall(block["id"], block["name"], json.dumps(block["input"], ensure_ascii=False))
            for block in blocks
            if block["type"] == "tool_use"
        ]
    plain = len(content) == 1 and content[0]["type"] == "text"
    said: Any = content[0]["text"] if plain else content or None
    return Message(role, said, metadata=about, **fields)  # type: ignore[arg-type]


def _block(content: dict[str, Any]) -> dict[str, Any] | None:
    """Return a content as a block of Anthropic's format, which `mnemic.formats` knows; None for an image blob."""
    match content:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "image", "source": {"media_type": media_type, "data": data}}:
            return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}
        case {"type": "toolUse", "content": {"toolUseId": id, "name": name, "input": input}}:
            return {"type": "tool_use", "id": id, "name": name, "input": input}
        case {"type": "toolResult", "content": {"toolUseId": id, "content": list(parts)}}:
            error = {"is_error": True} if content["content"].get("status") == "error" else {}
            return {
                "type": "tool_result",
                "tool_use_id": id,
                "content": [_result_part(part) for part in parts],
                **error,
            }
        case {"type": "image_blob"}:
            return None
    raise InvalidValueError(f"not a content of Fence: {shown(content)}")


def _result_part(part: Any) -> dict[str, Any]:
    fields = fields_of(part, "a part of a result")
    text = fields.get("text")
    # By older versions, the alias of the field was not written.
    return {
        "type": "text",
        "text": text if isinstance(text, str) else json.dumps(fields.get("json", fields.get("json_field"))),
    }


def is_fence(value: Any) -> bool:
    """Return whether a JSON value is of a DynamoDB table of Fence: lines of items, or the output of a scan."""
    item = value.get("Item", value.get("Items")) if isinstance(value, dict) else None
    return isinstance(item, dict) and {"Message", "Role"} <= item.keys()


def read_fence(whole: Input) -> Iterator[Item]:
    """Yield the messages of a SQLite file as the session `main`, or of a table, each in the scope of its partition."""
    for part in whole.parts:
        with part.open() as file:
            begins = file.read(len(SQLITE))
        if begins == SQLITE:
            yield from _rows(whole)
            return
    for key, value in each_member(whole):
        if key in ("Item", "Items"):
            yield _from_item({name: _plain(one) for name, one in fields_of(value, "an item").items()})


def _rows(whole: Input) -> Iterator[Item]:
    name = getattr(whole.file, "name", "")
    try:
        if isinstance(name, str) and Path(name).is_file():
            database = sqlite3.connect(f"{Path(name).absolute().as_uri()}?mode=ro", uri=True)
        else:  # from stdin
            database = sqlite3.connect(":memory:")
            with whole.opened(whole.parts[0]) as file:
                content = bytearray(file.read())
            content[18:20] = b"\1\1"  # no write-ahead log, which a database in memory cannot have
            database.deserialize(content)
        with closing(database):
            database.execute("PRAGMA trusted_schema = OFF")
            for id, role, content, meta, time in database.execute(
                "SELECT id, role, content, meta, timestamp FROM messages ORDER BY id"
            ):
                whole.place = f"row {id}: "
                if role not in ("system", "user", "assistant"):
                    yield SkippedItem(OTHER_ROLE.format(role), str(id))
                    continue
                said, about = clean_text(content), clean_json(_meta(meta))
                if said != content:
                    yield SkippedItem(REPLACED, f"row {id}")
                sent = time_of(time, "timestamp") or now()
                yield MessageItem(SESSION, Message(role, said, f"fence-{id}", metadata=about, timestamp=sent))
    except sqlite3.Error as error:
        raise InvalidValueError(f"not a file of Fence's SQLiteMemory: {error}") from None


def _meta(text: Any) -> dict[str, Any]:
    """Return metadata, which Fence writes as Python does."""
    try:
        found = ast.literal_eval(text) if isinstance(text, str) else {}
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        found = None
    return {"source": "fence"} | (found if isinstance(found, dict) else {"meta": text})


def _from_item(item: dict[str, Any]) -> Item:
    keys = {name: value for name, value in item.items() if name not in OWN[2:] and isinstance(value, str)}
    sort = keys.get("SK") or next((value for value in keys.values() if _is_time(value.rpartition("#")[2])), "")
    others = [value for value in keys.values() if value != sort]
    partition = keys.get("PK") or (others[0] if len(others) == 1 else None)
    session, _, time = sort.rpartition("#")
    if partition is None or not session:
        raise InvalidValueError(
            f"which attributes are the keys cannot be told: {shown(item)}; import the table by its URL, dynamodb://…"
        )
    if (role := item.get("Role")) not in ("system", "user", "assistant"):
        return SkippedItem(OTHER_ROLE.format(role), sort)
    own = {name: value for name, value in item.items() if name not in OWN and value not in (partition, sort)}
    about = {"source": item.get("Source") or "fence", **own, **(item.get("Meta") or {})}
    message = to_message(role, [item["Message"]], about, id=time, timestamp=time_of(time, "the sort key"))
    return MessageItem(
        to_segment(session.removeprefix("None#"), "session"), message, scope=ScopePath.of(to_segment(partition))
    )


def _is_time(text: str) -> bool:
    try:
        return "T" in text and time_of(text, "") is not None
    except InvalidValueError:
        return False


def _plain(value: Any) -> Any:
    """Return a value of DynamoDB's JSON, such as {"S": "text"}, without its type."""
    match value:
        case {"S": text} | {"B": text} | {"BOOL": text}:
            return text
        case {"N": str(number)}:
            return int(number) if number.lstrip("-").isdigit() else float(number)
        case {"NULL": True}:
            return None
        case {"L": list(items)} | {"SS": list(items)} | {"BS": list(items)}:
            return [_plain(item) for item in items]
        case {"NS": list(numbers)}:
            return [_plain({"N": number}) for number in numbers]
        case {"M": dict(fields)}:
            return {name: _plain(item) for name, item in fields.items()}
    return value
