"""How well the recognizers do on the labelled set, and that no text takes them long."""

import re
import time
from pathlib import Path

import pytest

import mnemic
from attack import soak_only
from mnemic.redaction.redactor import RECOGNIZERS, Redacted, Redactor
from redaction_set import PARTS, cases, counts, measure, parse, redactor

FLOOR = {"EMAIL": (0.9, 0.9), "PHONE": (0.95, 0.8), "SECRET": (0.95, 0.85), "PAYMENT_CARD": (0.9, 0.95)}
"""Least precision and recall of a recognizer on the held-out part, where it is not 1."""
HOSTILE = {
    1_000_000: ("a", "1", "::", '{"a":', "+1-"),
    50_000: (
        "1 ", "@", "a@", "a@b.", "0 ", "(0", "password=", "password is ", "[EMAIL", "[EMAIL]a@b.co ", "eyJabcdefgh.",
        "AA11", "DE89 ", "-----BEGIN PRIVATE KEY-----", "://a:b@", '"key": "', "a at b dot ", "a [at] b [dot] ",
        "sk-a_", "Bearer a1", "1.1.1.1", "4111 ", "api_key: ", "tel: 1-1-", "Dana ", "12345678Z ", "ssn 1", "AB 12 34 ",
        "RSSMRA85T10A562", "password - a1", "my password is abc ", "Cookie: a=", "é\u0301", "a\u200b@", "curl -u a:",
        "[", "İ", "٣", 'secret="', "123-45-6789 ", "ann@example.com ",
    ),
}  # fmt: skip
"""Texts that are repeated to this size."""
MOST = 60
"""How many times the time of a plain text a hostile one may take; the slowest takes half of that."""


def test_the_set_is_large_and_has_every_type() -> None:
    assert sum(counts(part)[""] for part in PARTS) >= 600
    for part in PARTS:
        assert set(counts(part)) >= {one.name for one in RECOGNIZERS} | {"NAME"}
        assert sum(not case.labels for case in cases(part)) >= 100
    dev, held_out = ({case.text for case in cases(part)} for part in PARTS)
    assert not dev & held_out


@pytest.mark.parametrize("name", [*(one.name for one in RECOGNIZERS), "NAME"])
def test_recognizers_keep_their_precision_and_recall(name: str) -> None:
    developed, held_out = (measure(part)[name] for part in PARTS)
    assert (developed.wrong, developed.missing) == ([], [])
    precision, recall = FLOOR.get(name, (1.0, 1.0))
    assert held_out.precision >= precision
    assert held_out.recall >= recall


def test_what_is_labelled_is_gone_and_the_rest_stays() -> None:
    finder = redactor()
    for case in cases("dev"):
        text = finder.text(case.text, Redacted())
        for label in case.labels:
            assert case.text[label.start : label.end] not in text
        if not case.labels:
            assert text == case.text


def test_a_case_is_read_with_its_labels() -> None:
    case = parse("a ⟦EMAIL|x@y.co⟧ b")
    assert (case.text, [case.text[one.start : one.end] for one in case.labels]) == ("a x@y.co b", ["x@y.co"])


def processor_time(text: str) -> float:
    started = time.process_time()
    Redactor().text(text)
    return time.process_time() - started


@soak_only
@pytest.mark.parametrize("size", HOSTILE)
def test_no_text_takes_long(size: int) -> None:
    plain = "My sister is allergic to shellfish, so on 12 May we eat at 19:30 in Lisbon. "
    usual = processor_time((plain * (size // len(plain) + 1))[:size])
    times = {part: processor_time((part * (size // len(part) + 1))[:size]) for part in HOSTILE[size]}
    assert {part: took / usual for part, took in times.items() if took > MOST * usual} == {}


def test_many_secret_fields_are_gone_from_the_text_too() -> None:
    fields = {f"password_{n}": f"secret-{n:06}" for n in range(2_000)}
    with mnemic.open("memory://", redact=True) as memory:
        message = (
            memory.scope("a").session("s").add("tool", {f"{name}_password": value for name, value in fields.items()})
        )
        assert "secret-" not in str(message.to_dict())


def test_the_documented_figures_are_those_of_the_recognizers() -> None:
    page = (Path(__file__).parent.parent / "docs" / "redaction.md").read_text()
    for part in PARTS:
        for name, score in measure(part).items():
            found = score.right + len(score.missing)
            assert re.search(rf"\| `{name}` \|.* {found} \| {score.precision:.1%} \| {score.recall:.1%} \|", page), name
