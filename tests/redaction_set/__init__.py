"""A labelled set of texts with personal data and secrets, and hard ones without; how well recognizers do on it.

Each line of `dev.txt`, on which the recognizers were developed, and `held_out.txt`, on which they were not, is a text
with its findings as ⟦TYPE|value⟧. ⏎ is the end of a line, and ¦ nothing: it keeps made-up keys from looking real.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct, field

from mnemic.redaction.config import Redaction, redactor_of
from mnemic.redaction.recognizer import Finding
from mnemic.redaction.redactor import Redactor

PARTS = ("dev", "held_out")
NAMES = ("Dana Scully", "Zoë O'Neil", "Jean-Luc Picard")
"""The list of names to find."""
_LABEL = re.compile(r"⟦(\w+)\|(.*?)⟧", re.DOTALL)


class Case(Struct, frozen=True):
    """A text and the findings that it has."""

    text: str
    labels: tuple[Finding, ...]


class Score(Struct):
    """How many findings are right, wrong and missing, with examples of the last two."""

    right: int = 0
    wrong: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def precision(self) -> float:
        return self.right / max(1, self.right + len(self.wrong))

    @property
    def recall(self) -> float:
        return self.right / max(1, self.right + len(self.missing))


def cases(part: str) -> Iterator[Case]:
    """Yield the cases of a part."""
    lines = (Path(__file__).parent / f"{part}.txt").read_text(encoding="utf-8").splitlines()
    for line in lines:
        if line and not line.startswith("# "):
            yield parse(line.replace("⏎", "\n").replace("¦", ""))


def parse(line: str) -> Case:
    """Return the case of a marked text."""
    text, labels, end = "", [], 0
    for match in _LABEL.finditer(line):
        text += line[end : match.start()]
        labels.append(Finding(len(text), len(text) + len(match[2]), match[1]))
        text += match[2]
        end = match.end()
    return Case(text + line[end:], tuple(labels))


def redactor() -> Redactor:
    """Return the redactor that is measured: all recognizers, and a list of names."""
    return redactor_of(Redaction(names=NAMES))


def measure(part: str) -> dict[str, Score]:
    """Return the score of each recognizer: a finding is right if it covers a label of its type wholly."""
    scores: dict[str, Score] = {}
    finder = redactor()
    for case in cases(part):
        found = finder.find(case.text)
        for label in case.labels:
            score = scores.setdefault(label.name, Score())
            if any(one.name == label.name and one.start <= label.start and label.end <= one.end for one in found):
                score.right += 1
            else:
                score.missing.append(case.text)
        for one in found:
            if not any(
                one.name == label.name and one.start < label.end and label.start < one.end for label in case.labels
            ):
                scores.setdefault(one.name, Score()).wrong.append(case.text)
    return scores


def counts(part: str) -> Counter[str]:
    """Return how many labels of each type a part has; the empty name counts the texts."""
    found = list(cases(part))
    return Counter([label.name for case in found for label in case.labels] + [""] * len(found))
