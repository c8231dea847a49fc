"""Presidio as an engine of redaction: a real analyzer, with patterns and a spaCy pipeline of rules."""

from __future__ import annotations

from typing import Any

import pytest
import spacy
from presidio_analyzer import AnalyzerEngine, Pattern, PatternRecognizer, RecognizerRegistry
from presidio_analyzer.nlp_engine import SpacyNlpEngine
from presidio_analyzer.predefined_recognizers import CreditCardRecognizer, SpacyRecognizer

import mnemic
from mnemic import PresidioEngine


def analyzer() -> AnalyzerEngine:
    """Return an analyzer whose pipeline knows two names by rules, as a model would by learning."""
    pipeline: Any = spacy.blank("en")
    rules = pipeline.add_pipe("entity_ruler")
    rules.add_patterns([{"label": "PERSON", "pattern": "Dana Scully"}, {"label": "GPE", "pattern": "Lisbon"}])
    nlp: Any = SpacyNlpEngine()
    nlp.nlp = {"en": pipeline}
    registry = RecognizerRegistry(supported_languages=["en"])
    registry.add_recognizer(SpacyRecognizer(supported_language="en"))
    registry.add_recognizer(CreditCardRecognizer())
    registry.add_recognizer(
        PatternRecognizer(
            supported_entity="BADGE", patterns=[Pattern("badge", r"JTT0\d{9}", 0.9), Pattern("x", "x", 0.1)]
        )
    )
    return AnalyzerEngine(nlp_engine=nlp, registry=registry, supported_languages=["en"])


def test_presidio_finds_what_mnemic_does_not() -> None:
    engine = PresidioEngine(analyzer())
    with mnemic.open("memory://", redact=mnemic.Redaction(engine=engine)) as memory:
        scope = memory.scope("acme")
        said = "Dana Scully (JTT0331613, JTT0123456789) of Lisbon wrote to x@example.com"
        text = scope.remember(said).text
        assert text == "[PERSON] (JTT0331613, [BADGE]) of [LOCATION] wrote to [EMAIL]"
        assert scope.recall("where does Dana Scully live?")[0].text == text
        assert memory.scan().matched == 0


def test_entities_and_scores_are_chosen() -> None:
    engine = PresidioEngine(analyzer(), entities=["PERSON"])
    assert [one.name for one in engine("Dana Scully of Lisbon")] == ["PERSON"]
    with pytest.raises(mnemic.InvalidValueError, match="PERSONS"):
        PresidioEngine(analyzer(), entities=["PERSONS"])
    with pytest.raises(mnemic.InvalidValueError, match="'fi'"):
        PresidioEngine(analyzer(), language="fi")


def test_of_two_findings_in_one_place_ours_counts() -> None:
    config = mnemic.Redaction(engine=PresidioEngine(analyzer()))
    with mnemic.open("memory://", redact=config) as memory:
        assert memory.scope("a").remember("4111 1111 1111 1111").text == "[PAYMENT_CARD]"
