"""Recall through the public API: its signals, its filters, and that none of them does harm."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import mnemic
from clock import Clock
from mnemic import MemoryItem, Message
from mnemic.backends.memory import MemoryStore
from mnemic.recall import scope_index
from mnemic.recall.question import analyze_question
from mnemic.recall.text_analysis import terms
from mnemic.records import Record, Ref
from mnemic.store.protocol import Page
from mnemic.store.query import Scan

DAY = timedelta(days=1)
START = datetime(2026, 1, 5, 12, tzinfo=UTC)
SIGNALS = {"lexical", "dense", "session", "speaker", "time", "form", "recency", "importance", "graph"}


def found(hits: list[mnemic.Hit]) -> list[str]:
    return [hit.record.text or "" for hit in hits]


def scored(hits: list[mnemic.Hit]) -> list[tuple[str, float]]:
    return [(hit.record.text or "", round(hit.score, 4)) for hit in hits]


def talk(session: mnemic.Session, *turns: tuple[str, str], named: bool = True) -> list[Message]:
    """Add turns, a minute apart; with names, or else as user and assistant by turns."""
    messages = []
    for n, (who, text) in enumerate(turns):
        role: Any = "user" if named or who == "user" else "assistant"
        name = who if named else None
        messages.append(Message(role, text, name=name, timestamp=START + timedelta(minutes=n)))
    return session.add_many(messages)


# ---------------------------------------------------------------- why


def explained(hits: list[mnemic.Hit]) -> None:
    assert hits
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    for hit in hits:
        assert set(hit.why) <= SIGNALS
        assert sum(hit.why.values()) == pytest.approx(hit.score, abs=1e-5)
        assert np.isfinite(hit.score)
        assert hit.score <= 1 + 1e-6


@pytest.mark.parametrize(
    "query",
    [
        "When did Anna buy the red bicycle in May?",
        "What do I like?",
        "which dogs do you know",
        "how many bicycles",
        "the latest news on Globex",
        "bicycle",
    ],
)
def test_the_parts_of_every_hit_sum_to_its_score(alice: mnemic.Scope, query: str) -> None:
    talk(
        alice.session("s"),
        ("Anna", "I bought a red bicycle last May, it was 300 euros"),
        ("Bert", "Do you like it? My dog likes running beside bicycles"),
        ("Anna", "I like dogs"),
    )
    alice.remember("Anna's bicycle is red", importance=5)
    alice.remember("Bert has had 3 dogs since 2019", importance=0.1, created=START - 400 * DAY)
    alice.facts.add("Anna", "works_at", "Globex")
    alice.notes.write("pets", ["dog", "bicycle"], description="what Bert owns")
    explained(alice.recall(query, k=20))


def test_no_hit_scores_below_the_least_score(alice: mnemic.Scope) -> None:
    alice.remember_many(["Globex closes at five", "Initech closes at six", "the office of Anna"])
    alice.facts.add("Anna", "works_at", "Globex")
    talk(alice.session("s"), ("Bert", "Is it?"), ("Bert", "Where is the office?"))
    for query in ("where is Anna", "the office of Anna", "Globex"):
        assert min(hit.score for hit in alice.recall(query, k=99, min_score=0)) >= 0


def test_a_good_answer_scores_near_one_and_none_near_zero(alice: mnemic.Scope) -> None:
    alice.remember_many(["Alice is allergic to peanuts", "The office moved to Oslo", "Bert plays chess"])
    assert alice.recall("is Alice allergic to peanuts")[0].score > 0.8
    assert all(hit.score < 0.4 for hit in alice.recall("which telescope did the astronomers order"))


def test_weights_multiply_signals_and_why_explains_the_score(alice: mnemic.Scope) -> None:
    chat = alice.session("s")
    chat.add_many([Message("user", text) for text in ("a cat on the mat", "kittens sleep a lot", "a dog in the fog")])
    alice.remember("cats purr", importance=9)
    plain = alice.recall("what does the cat do?", k=9)
    assert alice.recall("what does the cat do?", k=9, weights={}) == plain
    assert alice.recall("what does the cat do?", k=9, weights={"dense": 1, "lexical": 1}) == plain
    for weights in ({"dense": 0}, {"lexical": 0.25, "importance": 3.5}, dict.fromkeys(SIGNALS, 100)):
        for hit in alice.recall("what does the cat do?", k=9, weights=weights):
            assert sum(hit.why.values()) == pytest.approx(hit.score, abs=1e-5)
            assert all(weights.get(name, 1) > 0 for name in hit.why)
    only = alice.recall("what does the cat do?", k=9, weights=dict.fromkeys(SIGNALS, 0) | {"importance": 1})
    assert set(only[0].why) == {"importance"}
    halved = {hit.id: hit.why for hit in alice.recall("what does the cat do?", k=9, weights={"dense": 0.5})}
    for hit in plain:
        was, now = hit.why, halved[hit.id]
        if "dense" in was and "lexical" in was:
            assert now["dense"] / now["lexical"] == pytest.approx(was["dense"] / was["lexical"] / 2, rel=1e-3)


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        ({"luck": 1}, "no signal is named 'luck'"),
        ({"dense": -1}, "weight of 'dense' must be at least 0"),
        ({"dense": 101}, "weight of 'dense' must be at most 100"),
        ({"dense": float("nan")}, "weight of 'dense' must be finite"),
        ({"dense": "2"}, "weight of 'dense' must be a number"),
        ([("dense", 1)], "weights must be a mapping"),
        ({1: 1}, "weights must be a mapping"),
    ],
)
def test_bad_weights_are_refused(alice: mnemic.Scope, weights: Any, problem: str) -> None:
    alice.remember("a cat")
    with pytest.raises(mnemic.InvalidValueError, match=problem):
        alice.recall("cat", weights=weights)


def test_only_the_signals_that_are_chosen_count(alice: mnemic.Scope) -> None:
    alice.remember_many(["a cat on the mat", "a dog in the fog"])
    for hit in alice.recall("cat", signals="lexical"):
        assert set(hit.why) <= {"lexical"}
    for hit in alice.recall("cat", signals=["dense", "recency"]):
        assert set(hit.why) <= {"dense", "recency"}
    with pytest.raises(mnemic.InvalidValueError, match="no signal is named 'luck'"):
        alice.recall("cat", signals=["luck"])


def test_meaning_is_found_where_no_word_is_shared(alice: mnemic.Scope) -> None:
    alice.remember_many(["The physician prescribed antibiotics", "The train leaves at noon", "He repaired the roof"])
    (best, *_) = alice.recall("doctor and medicine")
    assert best.record.text == "The physician prescribed antibiotics"
    assert best.why["dense"] > 0
    assert "lexical" not in best.why


def test_keyword_search_without_an_embedder() -> None:
    with mnemic.open("memory://", embedder=None) as memory:
        space = memory.scope("a")
        space.remember_many(["green tea", "black coffee"])
        (hit,) = space.recall("tea")
        assert hit.record.text == "green tea"
        assert "dense" not in hit.why
        explained([hit])


# ---------------------------------------------------------------- questions without an answer, odd scopes


@pytest.mark.parametrize("query", ["", " ", "?", "the of and", "🎉", "🎉🎊", "…", "_", "-", "'", "\n\t", "A", "0"])
def test_odd_queries_do_no_harm(alice: mnemic.Scope, query: str) -> None:
    assert alice.recall(query) == []
    alice.remember("We had a party 🎉")
    talk(alice.session("s"), ("user", "thanks 👍"), ("assistant", "🎉"), named=False)
    for hit in alice.recall(query, k=9, neighbors=2):
        assert sum(hit.why.values()) == pytest.approx(hit.score, abs=1e-5)


@pytest.mark.parametrize("query", ["green tea\0", "\0\0tea", "tea \ud800", "tea \udfff\0"])
def test_a_query_may_hold_what_cannot_be_stored(alice: mnemic.Scope, query: str) -> None:
    alice.remember("Alice drinks green tea")
    assert found(alice.recall(query)) == ["Alice drinks green tea"]
    assert "green tea" in alice.context(query).text


@pytest.mark.parametrize("query", [None, 7, b"tea", ["tea"]])
def test_a_query_is_text(alice: mnemic.Scope, query: Any) -> None:
    with pytest.raises(mnemic.InvalidValueError):
        alice.recall(query)


@pytest.mark.parametrize(
    "options",
    [
        {"k": -1},
        {"neighbors": -1},
        {"min_score": float("nan")},
        {"min_score": "high"},
        {"as_of": "2024"},
        {"roles": ["narrator"]},
        {"kinds": 7},
        {"min_importance": float("inf")},
        {"metadata": {"a": object()}},
    ],
)
def test_bad_options_are_refused(alice: mnemic.Scope, options: dict[str, Any]) -> None:
    alice.remember("tea")
    with pytest.raises(mnemic.InvalidValueError):
        alice.recall("tea", **options)


def test_scopes_of_one_record_and_of_none(memory: mnemic.Memory) -> None:
    assert memory.scope("never").recall("anything at all", neighbors=3) == []
    memory.scope("one").remember("a lone zebra")
    (hit,) = memory.scope("one").recall("zebra")
    explained([hit])
    memory.scope("one").erase()
    assert memory.scope("one").recall("zebra") == []


def test_records_without_text_are_no_hindrance(alice: mnemic.Scope) -> None:
    chat = alice.session("s")
    chat.add("user", "Where is my parcel?")
    chat.add(Message("assistant", None))
    chat.add(Message("assistant", ""))
    chat.add(Message("user", [{"type": "image_url", "image_url": {"url": "data:,x"}}]))
    chat.add("assistant", "The parcel is in Bergen")
    hits = alice.recall("parcel", k=9, neighbors=1)
    assert sorted(found(hits)) == ["The parcel is in Bergen", "Where is my parcel?"]
    best = next(hit for hit in hits if hit.record.text == "The parcel is in Bergen")
    assert [near.text for near in best.before] == ["Where is my parcel?"]
    alice.remember("")
    assert len(alice.recall("parcel", k=9)) == 2


def found_texts(records: list[mnemic.Record]) -> list[str | None]:
    return [record.text for record in records]


def test_hits_are_not_more_than_asked_for(alice: mnemic.Scope) -> None:
    alice.remember_many([f"tea of the kind {n}" for n in range(50)])
    for k in (0, 1, 7, 50, 500):
        assert len(alice.recall("tea", k=k)) == min(k, 50)


# ---------------------------------------------------------------- large and unusual texts


def test_a_text_of_a_megabyte_is_found_by_its_words(alice: mnemic.Scope) -> None:
    alice.remember("The cat sat. It ran away, as He did. " * 30_000 + "xylophone")
    alice.remember("a short note on cats")
    begun = time.process_time()
    assert len(alice.recall("cat", k=5)) == 2
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    "text",
    [
        "x" * 20_000 + " a-b",
        "the hex-dump: " + "0123456789abcdef" * 1250,
        "北" * 20_000 + "a-b",
        "-".join("ab" * 5_000),
        "a'" * 10_000 + "-",
    ],
    ids=["long-word", "hex", "unspaced", "hyphens", "apostrophes"],
)
def test_no_text_takes_long_to_take_apart(text: str) -> None:
    begun = time.process_time()
    terms(text)
    assert time.process_time() - begun < 1


def test_a_long_question_takes_no_longer_than_a_long_text(alice: mnemic.Scope) -> None:
    alice.remember_many([f"note {n} on the subject word{n}" for n in range(300)])
    begun = time.process_time()
    hits = alice.recall(" ".join(f"word{n}" for n in range(8000, -1, -1)), k=3)
    assert hits
    assert time.process_time() - begun < 2


def test_long_answers_with_code_do_not_drown_the_short_one(alice: mnemic.Scope) -> None:
    code = "\n".join(
        f"def step_{n}(value: int) -> int:\n    return value * {n} + offset  # the next step" for n in range(80)
    )
    chat = alice.session("s")
    for n in range(6):
        chat.add("user", f"Can you write function number {n}?")
        chat.add("assistant", f"Of course, here it is:\n```python\n{code}\n```\nShall I explain it?")
    chat.add("user", "By the way, the staging password rotates every Thursday")
    chat.add("assistant", "Noted.")
    assert "rotates" in found(alice.recall("how often does the staging password rotate", k=1))[0]


def test_what_stands_deep_in_a_long_text_is_found_by_its_meaning(alice: mnemic.Scope) -> None:
    filler = "The quarterly figures were discussed at some length by the committee. " * 30
    ill = "The physician examined the patient in the hospital and prescribed antibiotics for the infection. "
    alice.remember(f"{filler} {ill * 6} {filler}", id="long")
    alice.remember_many([f"{filler} Nothing else of note happened on day {n}." for n in range(5)])
    (best, *_) = alice.recall("doctor medicine illness", signals="dense")
    assert best.record.key == "long"


# ---------------------------------------------------------------- languages, names that are stop words


@pytest.mark.parametrize(
    ("text", "query", "others"),
    [
        ("Der Schlüssel liegt unter der Fußmatte", "Schlüssel", ["Das Auto steht vor dem Haus"]),
        ("我的猫叫小白，今年三岁", "小白", ["明天去上海开会"]),
        ("会議は火曜日の午後です", "火曜日の会議", ["犬の散歩に行きました"]),
        ("المفتاح تحت السجادة", "المفتاح", ["السيارة أمام البيت"]),
        ("הקפה נמצא במטבח", "הקפה", ["המפתח בכיס"]),
        ("चाबी दराज में है", "चाबी", ["गाड़ी बाहर है"]),
        ("กุญแจอยู่ในลิ้นชัก", "กุญแจ", ["รถอยู่หน้าบ้าน"]),
        ("Ключ лежит под ковриком", "ключ", ["Машина стоит у дома"]),
        ("L'été dernier à Nîmes", "nimes été", ["Le chien dort"]),
        ("Chìa khóa ở dưới thảm", "chia khoa", ["Xe ở trước nhà"]),
    ],
)
def test_every_language_is_found(alice: mnemic.Scope, text: str, query: str, others: list[str]) -> None:
    alice.remember_many([*others, text, "An English sentence about nothing in particular"])
    talk(alice.session("s"), ("user", others[0]), ("assistant", "OK"), named=False)
    hits = alice.recall(query, k=3)
    assert hits[0].record.text == text
    explained(hits)


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("What did Will order?", "Will ordered a new bicycle"),
        ("Who works in IT?", "Bert works in IT since March"),
        ("When does Anna fly to the US?", "Anna flies to the US in autumn"),
    ],
)
def test_names_that_are_stop_words_are_found(alice: mnemic.Scope, query: str, best: str) -> None:
    alice.remember_many(
        [
            "Will ordered a new bicycle",
            "Bert works in IT since March",
            "Anna flies to the US in autumn",
            "Carol ordered a new sofa",
            "Dora works in sales since March",
            "Emil flies to Spain in autumn",
        ]
    )
    assert found(alice.recall(query, k=1)) == [best]


# ---------------------------------------------------------------- speakers, roles, times


def test_whom_a_question_names_counts(alice: mnemic.Scope) -> None:
    talk(
        alice.session("s"),
        ("Anna", "I went hiking near Bergen"),
        ("Bert", "Nice. I went hiking near Oslo"),
        ("Anna", "Good weather there?"),
        ("Bert", "Very good"),
    )
    (anna, *_), (bert, *_) = (alice.recall(f"Where did {name} go hiking?") for name in ("Anna", "Bert"))
    assert anna.record.text == "I went hiking near Bergen"
    assert bert.record.text == "Nice. I went hiking near Oslo"
    assert anna.why["speaker"] > 0


def test_who_has_no_name_is_the_user_or_the_assistant(alice: mnemic.Scope) -> None:
    talk(
        alice.session("s"),
        ("user", "My favourite colour is teal"),
        ("assistant", "A fine colour. Mine would be the colour amber"),
        named=False,
    )
    assert "teal" in found(alice.recall("What is my favourite colour?"))[0]
    assert "amber" in found(alice.recall("Which colour would be yours?"))[0]


@pytest.mark.parametrize(
    ("speaker", "query"),
    [
        ("Will", "Will the parcel arrive before Friday?"),
        ("US", "who told us that the parcel arrives before friday"),
        ("May", "May the parcel arrive before Friday?"),
        ("You", "Do You know whether the parcel arrives before Friday?"),
    ],
)
def test_a_word_that_is_also_a_name_does_not_turn_the_answer(alice: mnemic.Scope, speaker: str, query: str) -> None:
    talk(
        alice.session("s"),
        (speaker, "I had soup for lunch"),
        ("Anna", "The parcel arrives before Friday, they told me"),
        (speaker, "I like the garden"),
        (speaker, "My shoes are new"),
    )
    assert "parcel" in found(alice.recall(query, k=1))[0]


@pytest.mark.parametrize("name", ["April", "June", "Jan", "May"])
def test_a_name_is_not_taken_for_a_month(alice: mnemic.Scope, name: str) -> None:
    month = {"April": 4, "June": 6, "Jan": 1, "May": 5}[name]
    chat = alice.session("s")
    in_it, not_in_it = datetime(2025, month, 3, tzinfo=UTC), datetime(2025, 9, 3, tzinfo=UTC)
    chat.add(Message("user", "I collect stamps and old coins", name=name, timestamp=not_in_it))
    chat.add(Message("user", "I collect tickets", name="Bert", timestamp=in_it))
    chat.add(Message("user", "The weather was fine", name="Bert", timestamp=in_it))
    assert found(alice.recall(f"What does {name} collect?", k=1)) == ["I collect stamps and old coins"]
    for hit in alice.recall(f"What does {name} collect?", k=9):
        assert "time" not in hit.why


def test_may_is_no_month_at_the_start_of_a_request(alice: mnemic.Scope) -> None:
    alice.remember("The guests may smoke on the balcony", created=datetime(2025, 2, 1, tzinfo=UTC))
    alice.remember("The balcony faces south", created=datetime(2025, 5, 1, tzinfo=UTC))
    for hit in alice.recall("May I smoke on the balcony?", k=9):
        assert "time" not in hit.why


def test_a_question_for_a_time_prefers_what_tells_one(alice: mnemic.Scope) -> None:
    talk(
        alice.session("s"),
        ("Anna", "I adopted the cat from the shelter"),
        ("Bert", "And then?"),
        ("Bert", "Is it big?"),
        ("Bert", "I see"),
        ("Bert", "OK"),
        ("Anna", "I adopted the cat last Tuesday"),
    )
    hits = alice.recall("When did Anna adopt the cat?")
    assert hits[0].record.text == "I adopted the cat last Tuesday"
    assert hits[0].why["time"] > 0
    assert all("time" not in hit.why for hit in alice.recall("Who adopted the cat?"))


@pytest.mark.parametrize(
    ("query", "asks"),
    [
        ("When was that?", True),
        ("Since when does she live there?", True),
        ("Do you know when Anna moved?", True),
        ("She moved when?", True),
        ("Who came, and when?", True),
        ("What does Anna do when it rains?", False),
        ("What did the minister say when talking about the budget?", False),
    ],
)
def test_when_asks_for_a_time_unless_it_joins_sentences(query: str, asks: bool) -> None:
    assert analyze_question(query, {"": 0}).wants_time is asks


@pytest.mark.parametrize("when", ["on 3 March 2025", "on March 3rd", "on 2025-03-03", "in March 2025"])
def test_a_date_in_the_question_prefers_what_was_said_then(alice: mnemic.Scope, when: str) -> None:
    for month in (2, 3, 4):
        alice.session(f"s{month}").add(
            Message("user", f"We ate out, place {month}", timestamp=datetime(2025, month, 3, 12, tzinfo=UTC))
        )
    assert found(alice.recall(f"Where did we eat {when}?", k=1)) == ["We ate out, place 3"]


@pytest.mark.parametrize("when", ["2025-13-45", "99 May 2025", "31 February", "in 1999", "2025-00-00"])
def test_a_date_that_never_was_does_no_harm(alice: mnemic.Scope, when: str) -> None:
    alice.remember("We ate out in Bergen", created=START)
    assert found(alice.recall(f"Where did we eat out {when}?")) == ["We ate out in Bergen"]


def test_the_latest_is_preferred_where_it_is_asked_for(alice: mnemic.Scope) -> None:
    for n in range(4):
        alice.remember(f"The project status report says {'abcd'[n]}", created=START + n * 30 * DAY)
    assert found(alice.recall("the latest project status report", k=1)) == ["The project status report says d"]


def test_importance_lifts_what_is_otherwise_alike(alice: mnemic.Scope) -> None:
    for n, importance in enumerate((0.1, 5.0, 1.0)):
        alice.remember(f"The door code of house {'abc'[n]}", importance=importance)
    hits = alice.recall("door code", k=3)
    assert [hit.record.importance for hit in hits] == [5.0, 1.0, 0.1]
    assert hits[0].why["importance"] > 0 > hits[2].why["importance"]


@pytest.mark.parametrize("importance", [0, 1e-30, 1e300, 3.5e38])
def test_any_importance_is_borne(alice: mnemic.Scope, importance: float) -> None:
    alice.remember("the door code", importance=importance)
    alice.remember("the door handle")
    explained(alice.recall("door"))
    assert len(alice.recall("door", min_importance=importance, k=9)) == (2 if importance < 1 else 1)


def test_facts_lead_to_what_they_link(alice: mnemic.Scope) -> None:
    alice.facts.add("Anna", "works_at", "Globex")
    alice.remember_many(["Globex closes at five", "Initech closes at six", "Umbrella closes at seven"])
    hits = alice.recall("When may one call Anna at the office?", k=9)
    texts = found(hits)
    assert "Globex closes at five" in texts
    assert hits[texts.index("Globex closes at five")].why["graph"] > 0
    assert all("graph" not in hit.why for hit in hits if hit.record.text == "Umbrella closes at seven")


def test_a_note_about_a_role_is_no_turn_of_a_conversation(alice: mnemic.Scope) -> None:
    notes = alice.notes
    notes.write("profile", {"role": "user", "name": "Bert", "likes": "zebra stripes"})
    notes.write("other", {"role": "assistant", "likes": "zebra crossings"})
    alice.session("s").add("user", "zebra")
    assert [hit.record.kind for hit in alice.recall("zebra", roles="user")] == ["message"]
    for hit in alice.recall("zebra", kinds="note", neighbors=3):
        assert (hit.before, hit.after) == ([], [])


# ---------------------------------------------------------------- filters


def test_no_kinds_are_none_and_not_all(alice: mnemic.Scope) -> None:
    alice.remember("tea")
    assert alice.recall("tea", kinds=[]) == []
    assert alice.recall("tea", roles=[]) == []
    assert alice.recall("tea", metadata={"a": []}) == []


def test_every_kind_is_found_together_and_alone(alice: mnemic.Scope) -> None:
    model = mnemic.Summarize(lambda messages: f"They spoke of the zebra, {len(messages)} times")
    chat = alice.session("s", max_messages=2, overflow=model, keep=0.5)
    for n in range(4):
        chat.add("user", f"zebra {n}")
    alice.remember("zebra remembered")
    alice.notes.write("animal", "zebra noted")
    alice.facts.add("Zebra", "eats", "grass")
    kinds = {"message", "archived", "summary", "memory", "note", "fact"}
    assert {hit.record.kind for hit in alice.recall("zebra", k=20)} == kinds
    for kind in kinds:
        alone = {"message", "archived"} if kind == "message" else {kind}
        assert {hit.record.kind for hit in alice.recall("zebra", k=20, kinds=kind)} == alone
    assert {hit.record.kind for hit in alice.recall("zebra", k=20, kinds=["fact", "note"])} == {"fact", "note"}


def test_filters_hold_together(alice: mnemic.Scope) -> None:
    for n in range(60):
        alice.remember(f"tea {n}", metadata={"even": n % 2 == 0, "n": n}, importance=n, created=START + n * DAY)
    hits = alice.recall(
        "tea", k=99, metadata={"even": True}, min_importance=10, since=START + 12 * DAY, until=START + 20 * DAY
    )
    assert sorted(hit.record.meta["n"] for hit in hits) == [12, 14, 16, 18, 20]
    assert len(alice.recall("tea", k=99, metadata={"n": [1, 2, 99]})) == 2


@pytest.mark.parametrize("count", [2500])
def test_a_filter_that_few_pass_finds_them_all(alice: mnemic.Scope, count: int) -> None:
    alice.remember_many(
        [MemoryItem(text=f"tea {n}", metadata={"rare": n % 800 == 7}, id=f"k{n}") for n in range(count)]
    )
    for key in ("k7", "k8"):
        alice.update(key, importance=2)
    hits = alice.recall("tea", k=10, metadata={"rare": True})
    assert sorted(hit.record.key for hit in hits) == ["k1607", "k2407", "k7", "k807"]


def test_weaker_hits_than_the_least_score_are_left_out(alice: mnemic.Scope) -> None:
    alice.remember_many(["green tea with milk", "tea", "milk from the farm", "a farm in Kent"])
    hits = alice.recall("green tea with milk", k=9)
    for n, hit in enumerate(hits):
        if hit.score > 0:
            assert len(alice.recall("green tea with milk", k=9, min_score=hit.score - 1e-4)) >= n + 1
            assert all(h.score >= hit.score for h in alice.recall("green tea with milk", k=9, min_score=hit.score))
    assert alice.recall("green tea with milk", min_score=1.01) == []


def test_a_hit_of_just_the_least_score_is_kept(alice: mnemic.Scope) -> None:
    alice.remember("green tea")
    (hit,) = alice.recall("green tea")
    assert len(alice.recall("green tea", min_score=hit.score)) == 1


def test_as_of_keeps_what_was_true_then(alice: mnemic.Scope) -> None:
    years = {n: datetime(n, 1, 1, tzinfo=UTC) for n in range(2019, 2027)}
    alice.remember("lives in Paris", valid_from=years[2020], valid_to=years[2022])
    alice.remember("lives in Rome", valid_from=years[2022], valid_to=years[2024])
    alice.remember("lives with a cat")
    alice.facts.add("Alice", "lives_in", "Paris", valid_from=years[2020], valid_to=years[2022])

    def then(year: int) -> list[str]:
        return sorted(found(alice.recall("lives in Paris or Rome", k=9, as_of=years[year])))

    assert then(2019) == ["lives with a cat"]
    assert then(2020) == ["Alice lives_in Paris", "lives in Paris", "lives with a cat"]
    assert then(2022) == ["lives in Rome", "lives with a cat"]
    assert then(2025) == ["lives with a cat"]


# ---------------------------------------------------------------- neighbours


def test_neighbours_come_in_their_order(alice: mnemic.Scope) -> None:
    chat = alice.session("s")
    talk(chat, *[("Anna", f"word{n}x") for n in range(9)])
    (hit, *_) = alice.recall("word4x", neighbors=2)
    assert hit.record.text == "word4x"
    assert [near.text for near in hit.before] == ["word2x", "word3x"]
    assert [near.text for near in hit.after] == ["word5x", "word6x"]
    (first, *_) = alice.recall("word0x", neighbors=3)
    assert (first.before, [near.text for near in first.after]) == ([], ["word1x", "word2x", "word3x"])
    (all_of_it, *_) = alice.recall("word4x", neighbors=1000)
    assert len(all_of_it.before) + len(all_of_it.after) == 8


def test_neighbours_are_of_the_same_conversation(alice: mnemic.Scope) -> None:
    for name in ("a", "b"):
        alice.session(name).add("user", f"first of {name}")
    for name in ("a", "b"):
        alice.session(name).add("user", f"second of {name}")
    alice.remember("first remembered")
    for hit in alice.recall("first second", k=9, neighbors=5):
        for near in (*hit.before, *hit.after):
            assert near.text is not None
            assert near.text.endswith(f"of {hit.record.scope.name}")
    (noted,) = alice.recall("remembered", kinds="memory", neighbors=5)
    assert (noted.before, noted.after) == ([], [])


def test_neighbours_close_up_where_one_is_gone(alice: mnemic.Scope) -> None:
    chat = alice.session("s", max_messages=6)
    talk(chat, *[("Anna", f"word{n}x") for n in range(6)])
    assert found(alice.recall("word3x", k=1)) == ["word3x"]
    chat.delete(*chat.recent(1))
    chat.add("user", "word6x")
    chat.add("user", "word7x")
    (hit, *_) = alice.recall("word3x", neighbors=9)
    assert [*(m.text for m in hit.before), hit.text, *(m.text for m in hit.after)] == [m.text for m in chat.messages()]
    chat.set_system("You are a parrot")
    chat.set_system("You are an owl")
    (hit, *_) = alice.recall("word4x", neighbors=9)
    turns = [m.text for m in chat.messages(roles="user")]
    assert [*(m.text for m in hit.before), hit.text, *(m.text for m in hit.after)] == turns
    assert alice.recall("parrot", signals="lexical") == []


# ---------------------------------------------------------------- diversity


def test_copies_of_a_better_hit_are_left_out(alice: mnemic.Scope) -> None:
    alice.remember_many(["Tea is ready"] * 8 + ["tea, is ready!"] + ["Tea was late", "The tea shop is closed"])
    texts = found(alice.recall("tea is ready", k=3))
    assert sorted(text.lower().strip("!").replace(",", "") for text in texts) == [
        "tea is ready", "tea was late", "the tea shop is closed",
    ]  # fmt: skip
    assert len(set(found(alice.recall("tea is ready", k=3, diverse=False)))) < 3
    assert len(alice.recall("tea is ready", k=99)) == 3
    assert len(alice.recall("tea is ready", k=99, diverse=False)) == 11


def test_near_copies_do_not_fill_the_answer(alice: mnemic.Scope) -> None:
    words = ["really", "surely", "clearly", "certainly", "definitely", "truly", "simply", "actually"]
    alice.remember_many([f"The staging server {word} runs on port number ninety in Oslo" for word in words])
    alice.remember_many(["The server in Bergen runs on other ports", "A server was sold to the staging team"])
    texts = found(alice.recall("which port does the staging server run on", k=3))
    assert sum("Oslo" in text for text in texts) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Anna likes Bert", "Bert likes Anna"),
        ("I do drink coffee", "I do not drink coffee"),
        ("The cat is on the roof", "The cat is under the roof"),
        ("Pay in 3 days, 2 times", "Pay in 2 days, 3 times"),
    ],
)
def test_what_says_something_else_is_no_copy(alice: mnemic.Scope, one: str, other: str) -> None:
    alice.remember_many([one, other, *(f"{one.split()[0]} {word}" for word in ("sofa", "lamp", "desk", "rug"))])
    assert {one, other} <= set(found(alice.recall(one, k=3)))


def test_copies_stay_out_where_a_filter_leaves_hits_out(alice: mnemic.Scope) -> None:
    out, kept = {"in": False}, {"in": True}
    alice.remember("green tea is ready", metadata=kept)
    for n in range(6):
        alice.remember("green tea is ready", metadata=kept, id=f"copy{n}")
    for text in ("green tea is ready now", "green tea is ready soon", "ready is green tea today"):
        alice.remember(text, metadata=out)
    for text in ("the tea shop", "tea in a green cup"):
        alice.remember(text, metadata=kept)
    texts = found(alice.recall("green tea is ready", k=3, metadata={"in": True}))
    assert sorted(texts) == ["green tea is ready", "tea in a green cup", "the tea shop"]


def test_a_thousand_copies_hide_nothing(alice: mnemic.Scope, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scope_index, "RANKED", 50)
    alice.remember_many(["tea is ready"] * 120 + ["the tea shop", "tea in a cup"])
    assert len(set(found(alice.recall("tea is ready", k=3)))) == 3


# ---------------------------------------------------------------- what is gone


def fresh(space: mnemic.Scope, url: str, query: str, **options: Any) -> list[tuple[str, float]]:
    """Return what another handle, which has seen nothing yet, finds."""
    with mnemic.open(url) as other:
        return scored(other.scope(*space.path.segments).recall(query, **options))


def test_an_erased_scope_below_leaves_no_trace(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        alice = memory.scope("acme", "alice")
        alice.remember_many(["tea is ready", "a cup of tea", "coffee"])
        alice.scope("old").remember_many(["tea is ready", "tea is ready indeed, ready tea"])
        alice.scope("old").facts.add("tea", "is", "ready")
        assert len(alice.recall("tea is ready", k=9, diverse=False)) == 5
        alice.scope("old").erase()
        assert found(alice.recall("tea is ready", k=1)) == ["tea is ready"]
        assert scored(alice.recall("tea is ready", k=9)) == fresh(alice, file_url, "tea is ready", k=9)


def test_what_another_handle_erased_leaves_no_trace(file_url: str) -> None:
    with mnemic.open(file_url) as mine, mnemic.open(file_url) as other:
        for name in ("a", "b"):
            mine.scope("x", name).remember_many([f"tea is ready {name}", "tea"])
        assert len(other.scope("x").recall("tea is ready a b", k=9, diverse=False)) == 4
        mine.scope("x", "a").erase()
        assert scored(other.scope("x").recall("tea is ready a b", k=9)) == fresh(
            mine.scope("x"), file_url, "tea is ready a b", k=9
        )


def test_a_deleted_text_is_gone_though_a_silent_record_came(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        alice = memory.scope("acme", "alice")
        chat = alice.session("s")
        talk(chat, ("Anna", "zebra one"), ("Anna", "zebra two"), ("Anna", "zebra three"))
        assert len(alice.recall("zebra", k=9)) == 3
        chat.delete(*chat.recent(1))
        chat.add(Message("assistant", None))
        hits = alice.recall("zebra", k=9, neighbors=3)
        assert sorted(found(hits)) == ["zebra one", "zebra two"]
        assert scored(hits) == fresh(alice, file_url, "zebra", k=9)


@pytest.mark.parametrize("rewrites", [3, 30])
def test_facts_that_were_rewritten_lead_on(file_url: str, rewrites: int) -> None:
    with mnemic.open(file_url) as memory:
        alice = memory.scope("acme", "alice")
        alice.remember_many(["Globex closes at five", "Initech closes at six", "the office of Anna"])
        for n in range(rewrites):
            alice.facts.add("Anna", "works_at", "Globex", metadata={"n": n})
            alice.recall("where is Anna")
        mine = alice.recall("where is Anna", k=9)
        assert scored(mine) == fresh(alice, file_url, "where is Anna", k=9)


def test_a_session_that_ended_by_itself_hides_nothing(
    alice: mnemic.Scope, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scope_index, "RANKED", 20)
    chat = alice.session("short", ttl=timedelta(hours=1))
    chat.add_many([Message("user", f"tea is ready {'abcdefghij'[n % 10]}{n}") for n in range(40)])
    alice.remember("tea was cold")
    assert len(alice.recall("tea is ready", k=99)) == 41
    clock.advance(hours=1)
    assert found(alice.recall("tea is ready", k=5)) == ["tea was cold"]


def test_what_has_expired_takes_no_place(alice: mnemic.Scope, clock: Clock) -> None:
    for n in range(6):
        alice.remember(f"tea is ready {n}", ttl=timedelta(hours=1))
    alice.remember("tea was cold")
    chat = alice.session("s")
    chat.add("user", "before", timestamp=START)
    chat.add("user", "in between", ttl=timedelta(hours=1))
    chat.add("user", "afterwards")
    assert len(alice.recall("tea is ready", k=3)) == 3
    clock.advance(hours=1)
    hits = alice.recall("tea is ready", k=9, signals="lexical")
    assert found(hits) == ["tea was cold"]
    (hit, *_) = alice.recall("afterwards", neighbors=1)
    assert "in between" not in [near.text for near in hit.before]


@pytest.mark.parametrize("overflow", ["drop", "archive"])
def test_recall_follows_a_session_that_evicts(alice: mnemic.Scope, overflow: Any) -> None:
    chat = alice.session("s", max_messages=10, overflow=overflow)
    for n in range(60):
        chat.add("user", f"turn number{n} of the talk")
        if n % 7 == 0:
            kept = {m.text for m in (*chat.messages(), *chat.archived())}
            assert set(found(alice.recall("turn of the talk", k=99))) == kept
    kept = {m.text for m in (*chat.messages(), *chat.archived())}
    assert set(found(alice.recall("turn of the talk", k=99))) == kept
    assert (len(kept) == 60) == (overflow == "archive")


# ---------------------------------------------------------------- several at once


OTHER = """
import sys, mnemic
with mnemic.open(sys.argv[1]) as memory:
    alice = memory.scope("acme", "alice")
    what = sys.argv[2]
    if what == "add":
        alice.remember("green tea", id="tea")
        alice.session("s").add("user", "tea for two")
    elif what == "update":
        alice.memories.update("tea", text="black coffee")
    elif what == "delete":
        alice.forget("tea")
        alice.session("s").clear()
    else:
        alice.erase()
        alice.remember("tea of the next one", id="next")
"""


def test_another_process_is_seen_without_opening_anew(file_url: str) -> None:
    def other(what: str) -> None:
        subprocess.run([sys.executable, "-c", OTHER, file_url, what], check=True, timeout=240)

    def tea() -> list[str]:
        return sorted(found(alice.recall("tea", k=9, signals="lexical")))

    with mnemic.open(file_url) as memory:
        alice = memory.scope("acme", "alice")
        assert tea() == []
        other("add")
        assert tea() == ["green tea", "tea for two"]
        other("update")
        assert tea() == ["tea for two"]
        assert found(alice.recall("coffee", signals="lexical")) == ["black coffee"]
        other("delete")
        assert tea() == []
        alice.remember("tea of mine")
        other("erase")
        assert tea() == ["tea of the next one"]


def test_handles_that_write_by_turns_agree(file_url: str) -> None:
    with mnemic.open(file_url) as one, mnemic.open(file_url) as two:
        for n in range(12):
            writer, reader = (one, two) if n % 2 else (two, one)
            space = writer.scope("a")
            space.remember(f"tea {n}", id=f"k{n}")
            if n > 4:
                space.forget(f"k{n - 4}")
                space.memories.update(f"k{n - 1}", text=f"better tea {n - 1}")
            space.session("s", max_messages=4).add("user", f"talk of tea {n}")
            ours, theirs = (scored(m.scope("a").recall("better talk of tea", k=99)) for m in (writer, reader))
            assert dict(ours) == pytest.approx(dict(theirs), abs=2e-3)


def test_many_threads_recall_and_write(memory: mnemic.Memory) -> None:
    space = memory.scope("a")
    space.remember("tea at the start")
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for n in range(12):
                space.remember(f"tea of thread {number}, cup {n}", id=f"{number}-{n}")
                assert space.recall("tea", k=5, neighbors=1)
                if n % 3 == 2:
                    space.forget(f"{number}-{n - 1}")
                    space.session(f"s{number}").add("user", f"tea talk {n}")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(space.recall("tea", k=999, diverse=False)) == 1 + 6 * 12


def test_the_first_recall_of_many_threads_is_whole(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        memory.scope("a").remember_many([f"tea {n}" for n in range(300)])
    with mnemic.open(file_url) as memory, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: len(memory.scope("a").recall("tea", k=999)), range(16)))
    assert answers == [300] * 16


class Waiting:
    """Embeds a question only after the event loop has gone on."""

    id = "waiting"

    def __init__(self) -> None:
        self.entered, self.released = threading.Event(), threading.Event()

    def embed(self, texts: Any) -> Any:
        return np.ones((len(texts), 4), dtype=np.float32)

    def embed_query(self, query: str) -> Any:
        self.entered.set()
        if not self.released.wait(120):
            raise TimeoutError("the event loop was held up")
        return np.ones(4, dtype=np.float32)


def test_a_slow_embedder_does_not_hold_up_the_event_loop(file_url: str) -> None:
    async def main() -> None:
        embedder = Waiting()
        async with mnemic.open_async(file_url, embedder=embedder) as memory:
            space = memory.scope("a")
            await space.remember("tea")
            searches = [asyncio.create_task(space.recall("tea")) for _ in range(3)]
            assert await asyncio.to_thread(embedder.entered.wait, 60)
            await space.remember("coffee")
            searches.append(asyncio.create_task(space.recall("tea")))
            embedder.released.set()
            assert [found(hits)[:1] for hits in await asyncio.gather(*searches)] == [["tea"]] * 4
            assert (await memory.metrics()).embedding_failures == 0

    asyncio.run(main())


def test_recall_is_the_same_on_an_event_loop(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        memory.scope("a").remember_many([f"tea of the kind {n}" for n in range(40)])
        talk(memory.scope("a").session("s"), ("Anna", "tea?"), ("Bert", "please"))
        expected = [hit.record.key for hit in memory.scope("a").recall("Anna and her tea", k=20)]

    async def main() -> list[str]:
        async with mnemic.open_async(file_url) as memory:
            many = await asyncio.gather(
                *(memory.scope("a").recall("Anna and her tea", k=20, neighbors=1) for _ in range(5))
            )
            assert len({tuple(hit.record.key for hit in hits) for hits in many}) == 1
            return [hit.record.key for hit in many[0]]

    assert asyncio.run(main()) == expected


def test_a_closed_memory_recalls_nothing(file_url: str) -> None:
    memory = mnemic.open(file_url)
    space = memory.scope("a")
    space.remember("tea")
    space.recall("tea")
    memory.close()
    memory.close()
    with pytest.raises(mnemic.ClosedError):
        space.recall("tea")


def test_erasing_everything_counts_what_was_stored(memory: mnemic.Memory) -> None:
    memory.scope("a").remember_many(["tea", "coffee"])
    assert memory.scope().erase().records == 2
    assert memory.scope().recall("tea") == []
    memory.scope("a").remember("tea again")
    assert found(memory.scope().recall("tea")) == ["tea again"]


# ---------------------------------------------------------------- metrics


def test_metrics_count_what_was_found_and_what_was_used(alice: mnemic.Scope, memory: mnemic.Memory) -> None:
    empty = memory.metrics()
    assert (empty.recalls, empty.hit_ratio, empty.success, empty.drift, empty.p50_ms) == (0, 0, 0, 0, 0)
    alice.remember_many(["Alice is allergic to peanuts", "Bert plays chess"])
    (hit, *_) = alice.recall("is Alice allergic to peanuts")
    alice.recall("xylophone quartz bivouac", signals=None)
    assert alice.used(hit) == 1
    alice.memories.similar("Bert plays chess")
    report = memory.metrics()
    assert (report.recalls, report.used, report.success, report.hit_ratio) == (2, 1, 0.5, 0.5)
    assert 0 < report.mean_score <= 1
    assert 0 < report.p50_ms <= report.p95_ms
    assert report.embedding_failures == 0
    assert sum(period.recalls for period in report.periods) == 2


def test_drift_compares_late_hours_with_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    from mnemic.recall import metrics

    clock = [0.0]
    monkeypatch.setattr("mnemic.recall.metrics.time.time", lambda: clock[0])
    measured = metrics.MetricsRecorder()
    for hour in range(8):
        clock[0] = hour * 3600.0
        measured.recalled(0.9 if hour < 6 else 0.4, 0.001)
    report = measured.report(3)
    assert report.drift == pytest.approx(-0.5)
    assert report.embedding_failures == 3
    for hour in range(8, 1000):
        clock[0] = hour * 3600.0
        measured.recalled(None, 0.001)
    assert len(measured.report(0).periods) == metrics.KEPT_HOURS


def test_what_this_process_forgets_need_not_be_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    scans: list[Scan] = []
    scan = MemoryStore.scan

    async def counted(self: MemoryStore, asked: Scan) -> Page[Record]:
        scans.append(asked)
        return await scan(self, asked)

    with mnemic.open("memory://") as memory:
        space = memory.scope("a")
        kept = space.remember_many([f"tea number {n}" for n in range(50)])
        chat = memory.scope("a").session("s", max_messages=3, overflow="drop")
        chat.add_many([Message("user", f"coffee number {n}") for n in range(3)])
        assert len(space.recall("tea coffee", k=99)) == 53
        space.forget(kept[7].id)
        chat.add("user", "coffee number 3")
        monkeypatch.setattr(MemoryStore, "scan", counted)
        hits = found(space.recall("tea coffee", k=99))
        assert len(hits) == 52
        assert not {"tea number 7", "coffee number 0"} & set(hits)
        assert [asked.kinds for asked in scans] == [("memory",), ("message",)]
        assert all(asked.after_version for asked in scans)


@pytest.mark.parametrize("memory", ["memory"], indirect=True)
def test_near_copies_are_looked_for_among_the_first_hits_alone(
    alice: mnemic.Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is compared with all before it."""
    alice.remember_many([f"note {n} about apples and pears" for n in range(1000)])
    alike = Mock(side_effect=scope_index._alike)
    monkeypatch.setattr(scope_index, "_alike", alike)
    assert len(alice.recall("apples", k=1000)) == 1000
    assert 0 < alike.call_count < scope_index.COMPARED**2


def test_recall_in_threads_beside_another_process(file_url: str) -> None:
    program = (
        "import sys, mnemic\n"
        "with mnemic.open(sys.argv[1]) as memory:\n"
        "    for n in range(40):\n"
        "        memory.scope('a').remember_many([f'tea note {n} {m}' for m in range(50)])\n"
        "        memory.scope('a').session(str(n)).add('user', f'tea note {n}')\n"
    )
    with mnemic.open(file_url) as memory:
        memory.scope("a").remember("tea note")
        other = subprocess.Popen([sys.executable, "-c", program, file_url])

        def ask(_: int) -> int:
            asked = 0
            while other.poll() is None:
                assert memory.scope("a").recall("tea note", k=5, neighbors=1)
                asked += 1
            return asked

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(ask, range(4))) > 0
        assert other.returncode == 0
        assert len(memory.scope("a").recall("tea note", k=5000, diverse=False)) == 2041


def test_a_name_that_is_also_a_word_is_not_always_a_name() -> None:
    speakers = {"": 0, "Anna": 1, "Will": 2, "May": 3, "Jan Smit": 4, "Jan van Dyk": 5}
    for text, named in (
        ("what will anna do?", {1}),
        ("Will Anna come?", {1}),
        ("What did Will say?", {2}),
        ("When did Anna go to Oslo in May?", {1}),
        ("What does May like?", {3}),
        ("Where does Jan van Dyk live?", {5}),
    ):
        assert analyze_question(text, speakers).speakers == named, text


def test_of_a_text_that_was_stored_a_thousand_times_not_all_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with mnemic.open("memory://") as memory:
        scope = memory.scope("a")
        scope.remember_many(["We land in Lisbon on Tuesday."] * 1000)
        scope.remember("In Lisbon we rent the blue house.")
        memory.warm("a")
        backend = memory._async._backend
        read: list[Ref] = []
        really_read = backend.read

        def reading(refs: Sequence[Ref]) -> Any:
            read.extend(refs)
            return really_read(refs)

        monkeypatch.setattr(backend, "read", reading)
        hits = scope.recall("When do we land in Lisbon?", 10)
    assert [hit.text for hit in hits] == ["We land in Lisbon on Tuesday.", "In Lisbon we rent the blue house."]
    assert len(read) < 150


def test_a_filter_finds_one_of_many_equal_texts(alice: mnemic.Scope) -> None:
    """Copies that a filter leaves out do not hide the one that it wants."""
    for n in range(40):
        alice.remember("The parcel was delivered to the office", metadata={"order": n})
    for n in (0, 20, 39):
        assert [hit.metadata for hit in alice.recall("parcel delivered", metadata={"order": n})] == [{"order": n}]


def test_a_negation_is_found_among_many_equal_texts(alice: mnemic.Scope) -> None:
    """Stop words are not terms, so "not" is told only by comparing texts."""
    for n in range(60):
        alice.remember("The parcel was delivered to the office", created=datetime(2026, 1, 1, 0, n, tzinfo=UTC))
    alice.remember("The parcel was not delivered to the office", created=datetime(2025, 1, 1, tzinfo=UTC))
    assert len(alice.recall("parcel delivered")) == 2
