"""Hooks of coding agents: recall for a prompt, and store what was said."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from ..checks import MAX_SIZE, check_segment
from ..errors import InvalidValueError, StoreError, TooLargeError
from ..files import reading
from ..messages import Message, Role
from ..records import ScopePath, now, parse_time
from ..transfer.agent_transcripts import (
    GEMINI,
    NOT_A_MESSAGE,
    TOO_LARGE,
    TranscriptLine,
    TranscriptReader,
    read_codex_line,
    read_gemini_record,
)
from ..transfer.json_stream import clean_text, decode_line
from .progress import Progress
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

_COMPACTIONS = (b'"isCompactSummary":true', b'"isCompactSummary": true', b'"type":"compacted"', b'"type": "compacted"')
"""How the lines of Claude Code and Codex are marked that follow a compaction."""
_PIECES = re.compile(r"[A-Za-z]+|[0-9]+|\n+|[^\sA-Za-z0-9]")


class HookInputError(InvalidValueError):
    """Input of a hook that cannot be used; its message quotes nothing that was said."""


class HookInput(Struct, frozen=True):
    """The input of a hook; fields that are missing, or not text, are empty."""

    session_id: str = ""
    transcript_path: str = ""
    cwd: str = ""
    prompt: str = ""
    prompt_response: str = ""
    timestamp: str = ""

    @classmethod
    def of(cls, given: dict[str, Any]) -> HookInput:
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


def recall_for(scope: Scope, event: HookInput, max_tokens: int, min_score: float) -> str:
    """Recall for the prompt; return the hits, quoted, within the budget, or an empty text if there are none.

    Messages of the same session are left out, since the model sees them, unless it was compacted since. It only reads.
    """
    from ..features.context import hits_that_fit, quoted_message

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
    while chosen := hits_that_fit(hits, [], None, tokens, max_tokens):
        text = str(quoted_message(chosen).content)
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


def store_turns(
    memory: Memory, scope: Scope, event: HookInput, progress: Progress, warn: Callable[[str], object] = lambda _: None
) -> int:
    """Store what is new since the last call, and index it for the next prompt; return the number of messages.

    What was stored once is not stored again, even if it was forgotten. `warn` is told of what is too large.
    """
    try:
        session = check_segment(event.session_id, "session_id")
    except InvalidValueError as error:
        raise HookInputError(str(error)) from None
    stored = 0
    path = os.path.abspath(os.path.expanduser(event.transcript_path))  # noqa: PTH100, PTH111 - reading checks the path
    if event.prompt_response and not (event.transcript_path and os.path.isfile(path)):  # noqa: PTH113
        stored = len(scope.session(session).add_many(_told(event), open_images=False))
    elif not event.transcript_path:
        raise HookInputError("transcript_path is empty")
    else:
        with reading(path) as file:
            transcript = Transcript(file, session, warn)
            start = progress.position(path, file)
            for batch in _batches(_unknown(transcript.read(start), progress)):
                scope.session(batch[0].session).add_many([said.message for said in batch], open_images=False)
                progress.advance(path, file, batch[-1].end, [said.known_as for said in batch])
                stored += len(batch)
            progress.advance(path, file, transcript.end)
    # Also if nothing is new: an earlier hook may have run out of time before this.
    memory.warm(scope.path)
    return stored


class TranscriptMessage(NamedTuple):
    """A message of a transcript, and where the transcript goes on after it."""

    session: str
    message: Message
    end: int
    own: bool = False
    """Whether its id is its own wherever it is copied to, not only within the session."""

    @property
    def known_as(self) -> str:
        """The text that a message is known by in all sessions."""
        return self.message.id if self.own else f"{self.session}/{self.message.id}"


class Transcript:
    """A transcript of Claude Code, Codex or Gemini CLI."""

    def __init__(self, file: IO[bytes], session: str, warn: Callable[[str], object]) -> None:
        self.end: int = 0
        """Up to where it was read."""
        self._file = file
        self._session = session
        self._warn = warn

    def read(self, start: int) -> Iterator[TranscriptMessage]:
        """Yield the messages after an offset, of lines that are complete."""
        if str(self._file.name).endswith(".json"):
            yield from self._read_document()
            return
        self.end = start
        reader = TranscriptReader()
        before = ("", "")
        for offset, line, end in _whole_lines(self._file, start):
            found: list[TranscriptMessage] = []
            try:
                if line is None:
                    raise TooLargeError(f"a line of the transcript is longer than {MAX_LINE:,} bytes")
                if b'"payload"' in line and (message := read_codex_line(line, offset)) is not None:
                    # Some versions of Codex write a message twice, in an old and a new form.
                    if (message.role, message.text) != before:
                        found.append(TranscriptMessage(self._session, message, end))
                    before = (message.role, message.text or "")
                else:
                    found.extend(self._other(reader.read(line), line, offset, end))
            except TooLargeError as error:
                self._warn(f"not stored: {error}")
            yield from found
            self.end = end

    def _other(self, entry: TranscriptLine, line: bytes, start: int, end: int) -> Iterator[TranscriptMessage]:
        """Yield the messages of a line of Claude Code, or that of Gemini CLI."""
        if entry.skipped == TOO_LARGE:
            raise TooLargeError(f"a message has more than {MAX_SIZE:,} characters")
        if entry.skipped == NOT_A_MESSAGE and (message := read_gemini_record(decode_line(line))) is not None:
            yield TranscriptMessage(self._session, message, end)
        last = len(entry.messages) - 1
        for place, message in enumerate(entry.messages):
            yield TranscriptMessage(entry.session, message, end if place == last else start, own=True)

    def _read_document(self) -> Iterator[TranscriptMessage]:
        """Yield the messages of a session as older versions of Gemini CLI write it: one JSON document."""
        size = min(self._file.seek(0, os.SEEK_END), MAX_LINE)  # a read reserves as much memory as it asks for
        self._file.seek(0)
        document = decode_line(self._file.read(size))
        records = document.get("messages") if isinstance(document, dict) else None
        for record in records if isinstance(records, list) else ():
            try:
                if (message := read_gemini_record(record)) is not None:
                    yield TranscriptMessage(self._session, message, 0)
            except TooLargeError as error:
                self._warn(f"not stored: {error}")


def _told(event: HookInput) -> list[Message]:
    """Return the prompt and the answer that Gemini CLI itself tells, with the time as their ids."""
    time = parse_time(event.timestamp, "timestamp") if event.timestamp else now()
    said: tuple[tuple[Role, str], ...] = (("user", event.prompt), ("assistant", event.prompt_response))
    return [
        Message(role, clean_text(text), f"{time.isoformat()}:{role}", metadata=GEMINI, timestamp=time)
        for role, text in said
        if text.strip()
    ]


def _unknown(messages: Iterator[TranscriptMessage], progress: Progress) -> Iterator[TranscriptMessage]:
    """Yield messages that were not stored before, each once: Gemini CLI writes one again when it changes."""
    before: set[str] = set()
    for said in messages:
        if said.known_as not in before and not progress.knows(said.known_as):
            before.add(said.known_as)
            yield said


def _batches(messages: Iterator[TranscriptMessage]) -> Iterator[list[TranscriptMessage]]:
    """Yield messages of one session, as many as are written at once."""
    batch: list[TranscriptMessage] = []
    size = 0
    for said in messages:
        if batch and (said.session != batch[0].session or len(batch) >= MESSAGES_AT_ONCE or size > CHARACTERS_AT_ONCE):
            yield batch
            batch, size = [], 0
        batch.append(said)
        size += len(said.message.text or "")
    if batch:
        yield batch


def _whole_lines(file: IO[bytes], start: int) -> Iterator[tuple[int, bytes | None, int]]:
    """Yield each complete line, None for one that is too long, with the offsets of its start and end."""
    while True:
        file.seek(start)
        line = file.readline(MAX_LINE)
        part = line
        while part and not part.endswith(b"\n"):
            part = file.readline(MAX_LINE)
        if not part:
            return
        end = file.tell()
        yield start, line if line.endswith(b"\n") else None, end
        start = end


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
