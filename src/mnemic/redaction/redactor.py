"""Redaction of texts, JSON values, messages and records: finds with all recognizers, and masks, drops or hashes."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from hmac import digest
from typing import Any, Literal, TypeAlias, get_args

from msgspec import Struct, field
from msgspec.structs import replace

from ..checks import MAX_JSON_DEPTH, MAX_KEY
from ..errors import InvalidValueError
from ..messages import AgentCall, Message, ToolCall
from ..records import FACT, Record, fact_key
from .contact import EMAIL, IP_ADDRESS, PHONE
from .credentials import SECRET, SECRET_NAME
from .json_replace import replace_in_json
from .national_ids import NATIONAL_IDS, find_national_ids
from .payment import IBAN, PAYMENT_CARD
from .recognizer import NAME_LIST, Finding, Recognizer, normal_form

RedactionAction: TypeAlias = Literal["mask", "drop", "hash"]
"""The replacement of a finding: its type, nothing, or its type and a keyed hash, as in `[EMAIL:kdwqzbtmarfxpu]`."""
ACTIONS: tuple[RedactionAction, ...] = get_args(RedactionAction)
RedactionEngine: TypeAlias = Callable[[str], Iterable[Finding]]
"""Finds data of any type in a text, such as `PresidioEngine`."""

RECOGNIZERS: tuple[Recognizer, ...] = (SECRET, IBAN, PAYMENT_CARD, *NATIONAL_IDS, EMAIL, IP_ADDRESS, PHONE)
"""The recognizers of Mnemic; of two findings in the same place, that of the first counts."""
_ALWAYS = frozenset((SECRET, EMAIL, IP_ADDRESS))
"""Recognizers whose findings need no long number."""

LETTERS = "abcdefghijklmnopqrstuvwxyz"
LENGTH = 14
"""Letters of a hash: 65 bits. Without digits, no recognizer takes it for a number."""
TOKEN = re.compile(rf"\[([A-Z][A-Z0-9_]{{0,31}})(?::([a-z]{{{LENGTH}}}))?\]")
"""The replacement of a finding."""


def tokens_in(text: str) -> set[str]:
    """Return the hashes in a text that replace findings."""
    return {match[0] for match in TOKEN.finditer(text) if match[2]}


_NUMBER = re.compile(r"\d(?:[^\w\n]{0,3}\d){5}|\d\d[A-Za-z]\d\d")
"""In every long number: six digits, or the middle of an Italian codice fiscale."""
_DATA_URL = re.compile(r"data:[\w.+\-]++/[\w.+\-]++;base64,[A-Za-z0-9+/=_\-]*+(?=\Z|[\s\"'`)\]}>,;<\\])")
"""A data URL that ends where its base64 does, so that nothing else passes for a part of it."""
_NUMBER_NAME = re.compile(
    r"(?:.*[_\-. ])?(?:phone|mobile|tel|fax|ssn|card|iban|cvv|cvc|pin|account|pesel|bsn|cpf|tax_?id|national_?id)"
    r"(?:[_\-. ]?(?:number|no|nr|id))?",
    re.IGNORECASE,
)
MOST_KNOWN, LONGEST_KNOWN = 64, 20_000
"""How many texts without findings are known, and how long they may be."""
PASSES = 8
"""How often a text is looked at again after something was replaced in it."""
_TELLING = re.compile(
    r"phone|mobile|tel|fax|ssn|card|iban|account|pesel|bsn|cpf|tax|national|sin|token|key|secret|pass|auth|credential",
    re.IGNORECASE,
)
"""Names of fields that tell what their value is."""
LONGEST_FIELD = 300
"""How long the value of such a field is at most."""
MOST_LITERALS = 200
"""How many values are looked for in the other texts of a record; with more, these are replaced as a whole."""
SHORTEST = 4
"""The fewest characters of a secret, found by the name of its field, that are looked for in the texts beside it."""


class Hashing(Struct, frozen=True):
    """Makes the hashes of findings, equal for equal values under the same key."""

    key: bytes

    def token(self, name: str, value: str) -> str:
        """Return the replacement of a value; differences of case and spacing do not matter."""
        same = re.sub(r"[\s\-.()/]+", "", value.casefold()) if name != SECRET.name else value
        number = int.from_bytes(
            digest(self.key, f"{name}\0{same}".encode(errors="surrogatepass"), "sha256")[:16], "big"
        )
        letters = []
        for _ in range(LENGTH):
            number, place = divmod(number, len(LETTERS))
            letters.append(LETTERS[place])
        return f"[{name}:{''.join(letters)}]"


class Redacted(Struct):
    """Collects what one redaction found: how many of each recognizer, and the values behind hashes."""

    counts: dict[str, int] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    """The value of each token that was made."""
    literals: dict[str, str] = field(default_factory=dict)
    """Secrets of the current record that only the name of their field shows, with what replaces them in its texts."""

    def __bool__(self) -> bool:
        return bool(self.counts)


class Redactor:
    """Finds and replaces, in any value."""

    def __init__(
        self,
        recognizers: Sequence[Recognizer] = RECOGNIZERS,
        engine: RedactionEngine | None = None,
        action: RedactionAction = "mask",
        actions: Mapping[str, RedactionAction] | None = None,
        hashing: Hashing | None = None,
    ) -> None:
        self._order = {one.name: place for place, one in enumerate(recognizers)}
        # Those of Mnemic that need a number are not asked about texts without one.
        self._any = [one for one in recognizers if one in _ALWAYS or one.name == NAME_LIST]
        # Those of the user see the text as it is.
        self._given = [one for one in recognizers if one not in self._any and one not in RECOGNIZERS]
        apart = {*self._any, *self._given, *NATIONAL_IDS}
        self._numbers = [one for one in recognizers if one not in apart]
        self._ids = frozenset(one.name for one in recognizers if one in NATIONAL_IDS)
        self._engine = engine
        self._action = action
        self._actions = dict(actions or {})
        self._hashing = hashing
        self._secrets = SECRET.name in self._order
        self._clean: dict[str, None] = {}
        """Texts without findings: a feature redacts what it is given, and the layer looks at the same text again."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the recognizers."""
        return tuple(self._order)

    def find(self, text: str) -> list[Finding]:
        """Return the findings in a text, in order, without overlaps."""
        if text in self._clean:
            return []
        found = self._search(text)
        if not found and len(text) <= LONGEST_KNOWN:
            if len(self._clean) >= MOST_KNOWN:
                self._clean.clear()  # unlike removing the oldest, safe with several threads
            self._clean[text] = None
        return found

    def _search(self, text: str) -> list[Finding]:
        normal = normal_form(text)
        plain = normal.text
        found = [Finding(start, end, one.name) for one in self._any for start, end in one.find(plain)]
        if _NUMBER.search(plain) is not None:
            found += [Finding(start, end, one.name) for one in self._numbers for start, end in one.find(plain)]
            found += [Finding(start, end, name) for name, (start, end) in find_national_ids(plain, self._ids)]
        if normal.places is not None:
            found = [Finding(*normal.span(one.start, one.end), one.name) for one in found]
        found += [Finding(start, end, one.name) for one in self._given for start, end in one.find(text)]
        if self._engine is not None:
            found += self._engine(text)
        if not found:
            return []
        for one in found:
            if not 0 <= one.start <= one.end <= len(text):
                raise InvalidValueError(f"a recognizer of {one.name} returned a place outside of its text")
        taken = [match.span() for match in TOKEN.finditer(text)] if "[" in text else []
        if ";base64," in text:
            taken = sorted(taken + [match.span() for match in _DATA_URL.finditer(text)])
        return self._merged(part for one in found if one.start < one.end for part in _outside(one, taken, text))

    def _merged(self, found: Iterable[Finding]) -> list[Finding]:
        """Join findings that overlap under the name of the first recognizer, so that nothing of them stays."""
        merged: list[Finding] = []
        for one in sorted(found):
            if merged and one.start < merged[-1].end:
                last = merged[-1]
                first = min(last, one, key=lambda each: self._order.get(each.name, len(self._order)))
                merged[-1] = Finding(last.start, max(last.end, one.end), first.name)
            else:
                merged.append(one)
        return merged

    def text(self, text: str, into: Redacted | None = None) -> str:
        """Return a text in which findings are replaced; JSON stays JSON."""
        if _DATA_URL.fullmatch(text) is not None:
            return text
        found = self.find(text)
        if not found:
            return text
        into = Redacted() if into is None else into
        if is_json := _is_json(text):
            text = replace_in_json(
                text,
                lambda name: self.text(name, into),
                lambda value, name: self._named(value, into, name) if name else self.text(value, into),
                lambda value, name: self._number(value, into, name),
            )
            found = self.find(text)  # found by what stands beside it
        for _ in range(PASSES):
            if not found:
                break
            pieces, end = [], 0
            for one in found:
                new = self.replacement(one.name, text[one.start : one.end], into)
                if text[one.start : one.end].isdecimal() and _is_number_in_json(text, one, is_json):
                    new = f'"{new}"'
                pieces += [text[end : one.start], new]
                end = one.end
            text = "".join([*pieces, text[end:]])
            # What stood directly beside a finding can be one, now that there is a boundary.
            found = self.find(text)
        return text

    def replacement(self, name: str, value: str, into: Redacted) -> str:
        """Return the replacement of a value, and count it."""
        into.counts[name] = into.counts.get(name, 0) + 1
        action = self._actions.get(name, self._action)
        if action == "drop":
            return ""
        if action == "mask" or self._hashing is None:
            return f"[{name}]"
        token = self._hashing.token(name, value)
        into.values[token] = value
        return token

    def value(self, value: Any, into: Redacted, name: str = "", depth: int = MAX_JSON_DEPTH) -> Any:
        """Return a JSON value in which findings are replaced, in names too; `name` is that of its field."""
        if isinstance(value, str):
            return self._named(value, into, name) if name else self.text(value, into)
        if isinstance(value, int) and not isinstance(value, bool):
            return self._number(value, into, name)
        if isinstance(value, list) and depth:
            return [self.value(item, into, name, depth - 1) for item in value]
        if isinstance(value, dict) and depth:
            changed: dict[str, Any] = {}
            for key, item in value.items():
                new = self.text(key, into) if isinstance(key, str) else key  # what is not JSON is refused later
                while new in changed or (new != key and new in value):
                    new += " +"  # two names that are masked alike stay two
                changed[new] = self.value(item, into, key if isinstance(key, str) else "", depth - 1)
            return changed
        return value

    def _named(self, value: str, into: Redacted, name: str) -> str:
        """Return the value of a field; its name can tell what it is."""
        if self._secrets and value and SECRET_NAME.fullmatch(name) and TOKEN.fullmatch(value) is None:
            token = self.replacement(SECRET.name, value, into)
            if len(value) >= SHORTEST:
                into.literals[value] = token
            return token
        changed = self.text(value, into)
        if changed != value or len(value) > LONGEST_FIELD or _TELLING.search(name) is None:
            return changed
        shown = f'"{name}": "{value}'
        found = [one for one in self.find(shown) if one.start >= len(shown) - len(value)]
        if not found:
            return value
        token = self.replacement(found[0].name, value, into)
        if len(value) >= SHORTEST:
            into.literals[value] = token
        return token

    def _number(self, value: int, into: Redacted, name: str) -> int | str:
        digits = str(value)
        if not 8 <= len(digits) <= 19:
            return value
        shown = f"{name}: {digits}" if _NUMBER_NAME.fullmatch(name) else digits
        found = [one for one in self.find(shown) if one.end == len(shown)]
        if not found or (shown == digits and found[0].name != PAYMENT_CARD.name):
            return value
        return self.replacement(found[0].name, digits, into)

    def label(self, text: str, into: Redacted) -> str:
        """Return a label in which findings are replaced; it is never empty, nor too long."""
        changed = self.text(text, into)
        if changed == text:
            return text
        changed = " ".join(changed.split())
        return changed if 0 < len(changed) <= MAX_KEY else "[REDACTED]"

    def message(self, message: Message, into: Redacted) -> Message:
        """Return a message in which findings are replaced; the same one if there are none."""
        before = sum(into.counts.values())
        into.literals.clear()
        content = self.value(message.content, into)
        calls = [self._call(call, into) for call in message.tool_calls]
        requests = [AgentCall(call.agent_name, self.value(call.request, into)) for call in message.agent_calls]
        structured = self.value(message.structured_data, into)
        metadata = self.value(message.metadata, into)
        name = None if message.name is None else self.label(message.name, into)
        images = [self.text(image, into) for image in message.images]
        if sum(into.counts.values()) == before:
            return message
        return replace(
            message,
            content=_without(content, into.literals),
            tool_calls=calls,
            agent_calls=requests,
            structured_data=structured,
            metadata=metadata,
            name=name,
            images=images,
        )

    def _call(self, call: ToolCall, into: Redacted) -> ToolCall:
        arguments = self.text(call.arguments, into)
        return call if arguments == call.arguments else replace(call, arguments=arguments)

    def record(self, record: Record, into: Redacted) -> Record:
        """Return a record in which findings are replaced, without derived values; the same one if there are none.

        The key of a fact is made from its words, so it changes with them. Other keys, and scopes, stay.
        """
        before = sum(into.counts.values())
        into.literals.clear()
        data = self._data(record, into)
        meta = self.value(record.meta, into) if record.meta else record.meta
        labels = {name: self.label(value, into) for name, value in record.labels.items()}
        text = None if record.text is None else _without(self.text(record.text, into), into.literals)
        title = None if record.title is None else _without(self.text(record.title, into), into.literals)
        if sum(into.counts.values()) == before:
            return record
        changed = replace(record, text=text, title=title, data=data, meta=meta, labels=labels, derived={})
        return _with_fact_key(changed) if record.kind == FACT and labels != record.labels else changed

    def _data(self, record: Record, into: Redacted) -> Any:
        """Return the payload; of a message, ids and roles stay, since they link messages."""
        data = record.data
        if not isinstance(data, dict) or "role" not in data:
            return data if data is None else self.value(data, into)
        fixed = ("role", "encoding", "tool_call_id", "tool_calls")
        changed = self.value({name: value for name, value in data.items() if name not in fixed}, into)
        changed = {name: data[name] if name in fixed else changed.get(name) for name in data}
        if isinstance(calls := data.get("tool_calls"), list):
            changed["tool_calls"] = [
                [*call[:2], self.text(call[2], into), *call[3:]]
                if isinstance(call, list) and len(call) > 2 and isinstance(call[2], str)
                else self.value(call, into)
                for call in calls
            ]
        return changed


def _is_json(text: str) -> bool:
    if text.lstrip()[:1] not in ("{", "["):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _is_number_in_json(text: str, one: Finding, is_json: bool) -> bool:
    """Return whether digits are a number in JSON, which may stand within other text."""
    before, after = text[max(0, one.start - 20) : one.start].rstrip(), text[one.end : one.end + 20].lstrip()
    if after[:1] not in (",", "}", "]"):
        return False
    return (before.endswith(":") and before[:-1].rstrip().endswith('"')) or (is_json and before[-1:] in ("[", ","))


def _outside(one: Finding, taken: list[tuple[int, int]], text: str) -> list[Finding]:
    """Return the parts of a finding outside of what was redacted before, if they have letters or digits."""
    parts, start = [], one.start
    # They are in order, so that only those around the finding are looked at.
    for place in range(max(0, bisect_right(taken, (one.start, one.start)) - 1), len(taken)):
        begin, end = taken[place]
        if begin >= one.end:
            break
        if start < end:
            parts.append(Finding(start, begin, one.name))
            start = end
    if start == one.start:
        return [one]
    parts.append(Finding(start, one.end, one.name))
    return [part for part in parts if any(map(str.isalnum, text[part.start : part.end]))]


def _without(value: Any, literals: Mapping[str, str]) -> Any:
    if literals and isinstance(value, str):
        if len(literals) > MOST_LITERALS:
            return "[REDACTED]"
        for literal, token in literals.items():
            value = value.replace(literal, token)
    return value


def _with_fact_key(record: Record) -> Record:
    """Return a fact whose key and combined labels are those of its words."""
    labels = record.labels
    try:
        names = labels["subject"], labels["predicate"], labels["object"]
    except KeyError:
        return record
    _, at, since = record.key.partition("@")
    whole = fact_key(*names)
    return replace(record, key=f"{whole}{at}{since}", labels=labels | {"pair": fact_key(*names[:2]), "fact": whole})
