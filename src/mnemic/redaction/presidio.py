"""Microsoft Presidio as an engine of redaction, for names and places in free text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..checks import check_extra, check_names, check_number
from ..errors import InvalidValueError
from .recognizer import NAME, Finding

if TYPE_CHECKING:
    from presidio_analyzer import AnalyzerEngine


class PresidioEngine:
    """Finds what Presidio's analyzer finds, under the names of its entities: `[PERSON]`, `[LOCATION]`."""

    def __init__(
        self,
        analyzer: AnalyzerEngine | None = None,
        *,
        language: str = "en",
        entities: Sequence[str] | None = None,
        min_score: float = 0.5,
    ) -> None:
        """Take an analyzer, by default Presidio's own, which needs a spaCy model for its language.

        `entities` are those to look for, by default all; findings below `min_score` are left out. Raises
        MissingExtraError without `mnemic[presidio]`, InvalidValueError for an unknown entity.
        """
        check_extra("presidio", "Presidio", "presidio_analyzer")
        if analyzer is None:
            from presidio_analyzer import AnalyzerEngine

            analyzer = AnalyzerEngine()
        try:
            known = tuple(sorted(analyzer.get_supported_entities(language)))
        except ValueError:
            raise InvalidValueError(f"the analyzer has no recognizers for the language {language!r}") from None
        self._analyzer = analyzer
        self._language = language
        self._entities = list(known if entities is None else check_names(entities, "entity", known))
        self._min_score = check_number(min_score, "min_score")

    def __call__(self, text: str) -> Iterator[Finding]:
        """Yield the findings in a text."""
        found = self._analyzer.analyze(
            text, language=self._language, entities=self._entities, score_threshold=self._min_score
        )
        for one in found:
            yield Finding(one.start, one.end, one.entity_type if NAME.fullmatch(one.entity_type) else "PRESIDIO")
