"""Hooks of coding agents: recall for a prompt, and store what was said."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any

from msgspec import Struct

from ..checks import check_segment
from ..errors import InvalidValueError, StoreError
from ..files import reading
from ..messages import Message
from ..records import ScopePath, now, parse_time
from ..transfer.claude_code import TranscriptReader, clean_text, decode_line
from ..transfer.codex import read_rollout_line
from .project import current_scope

if TYPE_CHECKING:
    from ..sync import Memory, Scope

MAX_CHARACTERS = 9_500
"""Maximum length of an answer: Claude Code cuts what is longer than 10,000 characters."""
MAX_LINE = 64 * 1024 * 1024
MESSAGES_AT_ONCE = 200
CHARACTERS_AT_ONCE = 2_000_000
BLOCK = 1024 * 1024
SEARCHED = 16 * BLOCK
"""How much of the end of a transcript is searched for a compaction."""
HITS = 24
"""How many hits compete for the budget."""

_COMPACTIONS = (b'"isCompactSummary":true', b'"type":"compacted"')
"""How the lines of Claude Code and Codex are marked that follow a compaction."""
_PIECES = re.compile(r"[A-Za-z]+|[0-9]+|\n+|[^\sA-Za-z0-9]")


class Event(Struct, frozen=True):
    """The input of a hook; fields that are missing, or not text, are empty."""

    session_id: str = ""
    transcript_path: str = ""
    cwd: str = ""
    prompt: str = ""
    prompt_response: str = ""
    timestamp: str = ""

    @classmethod
    def of(cls, given: dict[str, Any]) -> Event:
        """Return the known fields of a hook's input."""
        return cls(**{name: given[name] for name in cls.__struct_fields__ if isinstance(given.get(name), str)})

    @property
    def scope(self) -> ScopePath:
        """The scope of the project that the client works in."""
        return current_scope(self.cwd)


class EstimatedTokens:
    """A quick estimate, on the high side: loading an exact tokenizer takes longer than the whole recall."""

    name = "estimate"

    def count(self, text: str) -> int:
        """Return about how many tokens a text has, or more."""
        total = 0
        for found in _PIECES.finditer(text):
            piece = found[0]
            if piece.isascii() and piece.isalpha():
                total += 1 if len(piece) <= 7 else -(-len(piece) // 4)
            elif piece.isascii() and piece.isdigit():
                total += -(-len(piece) // 3)
            else:
                total += 2 if piece > "\uffff" else 1
        return total


def recall_for(scope: Scope, event: Event, max_tokens: int, min_score: float) -> str:
    """Recall for the prompt; return the hits, quoted, within the budget, or an empty text if there are none.

    Messages of the same session are left out, since the model sees them, unless it was compacted since. It only reads.
    """
    from ..features.context import best_of, block_of

    if not event.prompt.strip():
        return ""
    hits = scope.recall(clean_text(event.prompt), HITS, min_score=min_score, uses=False)
    if any(hit.scope.name == event.session_id for hit in hits):
        seen = _compacted(event.transcript_path)
        hits = [
            hit
            for hit in hits
            if hit.scope.name != event.session_id
            or (seen is not None and hit.created is not None and hit.created < seen)
        ]
    tokens = EstimatedTokens()
    while chosen := best_of(hits, [], None, tokens, max_tokens):
        text = str(block_of(chosen).content)
        if len(text) <= MAX_CHARACTERS:
            return text
        hits = chosen[:-1]
    return ""


def overview(scope: Scope, max_tokens: int) -> str:
    """Return the project's notes and pinned memories, quoted, within the budget; empty if there are none."""
    from ..features.summary import quoted

    lines = [f"- {item.text}" for item in scope.memories.list() if item.pinned]
    lines += [f"- note {note.key!r}: {note.description or 'no description'}" for note in scope.notes.list()]
    lines = [" ".join(line.split()) for line in lines]
    heading = "What is kept about this project:"
    tokens = EstimatedTokens()
    while lines:
        text = quoted([heading, *lines])
        if tokens.count(text) <= max_tokens and len(text) <= MAX_CHARACTERS:
            return text
        lines.pop()
    return ""


def store_turns(memory: Memory, scope: Scope, event: Event) -> int:
    """Store what is new since the last call, and index it for the next prompt; return the number of messages.

    A message is known by the id that the transcript has for it, so nothing is stored twice.
    """
    stored = 0
    for session, messages in _batches(_new_messages(scope, event)):
        scope.session(session).add_many(messages, open_images=False)
        stored += len(messages)
    if stored:
        memory.warm(scope.path)
    return stored


def _new_messages(scope: Scope, event: Event) -> Iterator[tuple[str, Message]]:
    if event.prompt_response:
        yield from _told(event)
        return
    session = check_segment(event.session_id, "session_id")
    if not event.transcript_path:
        raise InvalidValueError("transcript_path is empty")
    last = scope.session(session).messages(limit=1)
    with reading(os.path.expanduser(event.transcript_path)) as file:  # noqa: PTH111 - reading checks the path
        file.seek(_offset_after(file, last[0].id) if last else 0)
        reader = TranscriptReader()
        said = ("", "")
        for offset, line in _whole_lines(file):
            if b'"payload"' in line and (message := read_rollout_line(line, offset)) is not None:
                # Some versions of Codex write a message twice, in an old and a new form.
                if (message.role, message.text) != said:
                    yield session, message
                said = (message.role, message.text or "")
                continue
            found = reader.read(line)
            for message in found.messages:
                yield found.session, message


def _told(event: Event) -> Iterator[tuple[str, Message]]:
    """Yield the prompt and the answer that a client itself tells, with the time as their ids."""
    session = check_segment(event.session_id, "session_id")
    time = parse_time(event.timestamp, "timestamp") if event.timestamp else now()
    for role, text in (("user", event.prompt), ("assistant", event.prompt_response)):
        if text.strip():
            id = f"{time.isoformat()}:{role}"
            yield session, Message(role, clean_text(text), id, metadata={"source": "gemini-cli"}, timestamp=time)  # type: ignore[arg-type]


def _batches(messages: Iterator[tuple[str, Message]]) -> Iterator[tuple[str, list[Message]]]:
    """Yield messages of one session, as many as are written at once."""
    batch: list[Message] = []
    size, current = 0, ""
    for session, message in messages:
        if batch and (session != current or len(batch) >= MESSAGES_AT_ONCE or size > CHARACTERS_AT_ONCE):
            yield current, batch
            batch, size = [], 0
        current = session
        batch.append(message)
        size += len(message.text or "")
    if batch:
        yield current, batch


def _whole_lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield lines with their offsets; the last one only if it is complete, and none that is too long."""
    while True:
        offset = file.tell()
        line = file.readline(MAX_LINE)
        if not line:
            return
        whole = line.endswith(b"\n")
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE)
        if whole:
            yield offset, line


def _offset_after(file: IO[bytes], id: str) -> int:
    """Return where the line after that of a stored message begins; 0 if it is not in the file."""
    end = file.seek(0, os.SEEK_END)
    if id.isdecimal():
        file.seek(int(id) if int(id) < end else 0)
        file.readline(MAX_LINE)
        return file.tell() if int(id) < end else 0
    place = _find_last(file, f'"uuid":"{id.partition(":")[0]}"'.encode(), 0)
    if place < 0:
        return 0
    file.seek(place)
    file.readline(MAX_LINE)
    return file.tell()


def _compacted(transcript: str) -> datetime | None:
    """Return when a client last replaced the conversation by a summary; None if it did not."""
    with suppress(StoreError, InvalidValueError, LookupError), reading(transcript) as file:
        size = file.seek(0, os.SEEK_END)
        place = max(_find_last(file, mark, max(0, size - SEARCHED)) for mark in _COMPACTIONS)
        if place >= 0:
            start = _find_last(file, b"\n", 0, place) + 1
            file.seek(start)
            return parse_time(decode_line(file.readline(MAX_LINE))["timestamp"], "timestamp")
    return None


def _find_last(file: IO[bytes], needle: bytes, least: int, end: int | None = None) -> int:
    """Return the offset of the last occurrence of some bytes that begins at `least` or later; -1 if there is none."""
    end = file.seek(0, os.SEEK_END) if end is None else end
    while end > least:
        start = max(least, end - BLOCK)
        file.seek(start)
        place = file.read(end - start + len(needle) - 1).rfind(needle)
        if place >= 0:
            return start + place
        end = start
    return -1
