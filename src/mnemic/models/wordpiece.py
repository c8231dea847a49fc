"""Cuts text into the pieces of a vocabulary: whole words where it has them, else the longest parts of words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from itertools import chain

LONGEST_WORD = 60
"""Words with more characters are looked up by their beginning alone."""
CACHED_WORDS = 200_000
"""How many words are remembered before the cache starts anew."""
_INSIDE = "##"
_WORDS = re.compile(r"[^\W_]+(?:'[^\W_]+)*").findall
_BETWEEN = {n: " " for n in range(128) if not chr(n).isalnum() and chr(n) != "'"}


class WordPieces(dict[str, tuple[int, ...]]):
    """From a word to the numbers of its pieces; a word that was asked for once is remembered.

    The vocabulary is that of uncased BERT in form: pieces that begin a word as they are, others after "##".
    """

    def __init__(self, vocabulary: Iterable[str]) -> None:
        """Take the pieces in the order of their numbers."""
        super().__init__()
        self._pieces = {piece: number for number, piece in enumerate(vocabulary)}

    def cut(self, text: str) -> list[int]:
        """Return the numbers of a text's pieces, in order; what the vocabulary cannot spell is left out."""
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
        """Return the longest pieces from left to right, or none if some part of the word has none."""
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
    """Return a text's words in small letters without accents; those with an apostrophe are one."""
    if text.isascii():
        # Faster than the pattern; apostrophes at the edges of words are taken off later.
        return text.lower().translate(_BETWEEN).split()
    folded = "".join(
        c for c in unicodedata.normalize("NFD", text.replace("\u2019", "'")) if not unicodedata.combining(c)
    )
    return _WORDS(folded.lower())
