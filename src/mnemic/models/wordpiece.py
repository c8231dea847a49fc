"""Splits text into word pieces of a vocabulary: whole words where possible, otherwise the longest parts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from itertools import chain

LONGEST_WORD = 60
"""Longer words are looked up by their beginning."""
CACHED_WORDS = 200_000
"""Maximum number of cached words before the cache is reset."""
_INSIDE = "##"
_WORDS = re.compile(r"[^\W_]+(?:'[^\W_]+)*").findall
_BETWEEN = {n: " " for n in range(128) if not chr(n).isalnum() and chr(n) != "'"}


class WordPieces(dict[str, tuple[int, ...]]):
    """Maps a word to the ids of its pieces; cached.

    The vocabulary has the format of uncased BERT: pieces that continue a word start with "##".
    """

    def __init__(self, vocabulary: Iterable[str]) -> None:
        """Take the pieces in the order of their ids."""
        super().__init__()
        self._pieces = {piece: number for number, piece in enumerate(vocabulary)}

    def cut(self, text: str) -> list[int]:
        """Return the ids of a text's pieces in order; words that the vocabulary cannot spell are skipped."""
        return list(chain.from_iterable(map(self.__getitem__, words(text))))

    def __missing__(self, word: str) -> tuple[int, ...]:
        number = self._pieces.get(word.strip("'"))
        if number is not None:
            found: tuple[int, ...] = (number,)
        elif "'" in word:
            found = tuple(number for part in word.split("'") for number in self[part])
        else:
            found = self._spelled(word[:LONGEST_WORD])
        if len(self) >= CACHED_WORDS:
            self.clear()
        self[word] = found
        return found

    def _spelled(self, word: str) -> tuple[int, ...]:
        """Return the longest pieces from left to right, or none if a part of the word has none."""
        found = []
        start = 0
        while start < len(word):
            mark = _INSIDE if start else ""
            for end in range(len(word), start, -1):
                number = self._pieces.get(mark + word[start:end])
                if number is not None:
                    found.append(number)
                    start = end
                    break
            else:
                return ()
        return tuple(found)


def words(text: str) -> list[str]:
    """Return a text's words in lower case without accents; apostrophes do not split a word."""
    if text.isascii():
        # Faster than the regular expression; apostrophes at word edges are stripped later.
        return text.lower().translate(_BETWEEN).split()
    folded = "".join(
        c for c in unicodedata.normalize("NFD", text.replace("\u2019", "'")) if not unicodedata.combining(c)
    )
    return _WORDS(folded.lower())
