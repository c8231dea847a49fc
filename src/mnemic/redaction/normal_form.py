"""A text in a plain form, in which recognizers look, with the places of its characters in the text as it was given."""

from __future__ import annotations

import re
import unicodedata

from msgspec import Struct

_HIDDEN = re.compile("[\u00ad\u200b-\u200d\u2060\ufeff]")
"""Characters that are not seen: soft hyphen, spaces of no width, joiners."""
_MARKS = re.compile("[\u0300-\u036f]")
_STOP = re.compile(r"(?<=[A-Za-z0-9])[。｡．](?=[A-Za-z0-9])")
"""A full stop of another script, in an address."""
_PLAIN: dict[int, str] = {
    **{code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F) if code != 0xFF0E},
    0xFE6B: "@",
    0x2019: "'",
    0x02BC: "'",
}
"""Full-width characters, and apostrophes."""
_DIGIT = re.compile(r"(?![0-9])\d")


class NormalForm(Struct):
    """A text in its plain form; `places` are start and end of each of its characters, None if none was moved."""

    text: str
    places: list[tuple[int, int]] | None = None

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return where a part of it is in the text as it was given."""
        if self.places is None or not 0 <= start < end <= len(self.places):
            return start, end
        return self.places[start][0], self.places[end - 1][1]


def normal_form(text: str) -> NormalForm:
    """Return a text with plain digits and letters, composed accents, and without what is not seen."""
    if text.isascii():
        return NormalForm(text)
    places: list[tuple[int, int]] | None = None
    if _HIDDEN.search(text) is not None or _MARKS.search(text) is not None:
        pieces: list[str] = []
        places = []
        for at, one in enumerate(text):
            if _HIDDEN.match(one):
                continue
            if pieces and _MARKS.match(one) and len(both := unicodedata.normalize("NFC", pieces[-1] + one)) == 1:
                pieces[-1] = both
                places[-1] = (places[-1][0], at + 1)
            else:
                pieces.append(one)
                places.append((at, at + 1))
        text = "".join(pieces)
    text = _DIGIT.sub(lambda match: str(unicodedata.decimal(match[0])), text.translate(_PLAIN))
    return NormalForm(_STOP.sub(".", text), places)
