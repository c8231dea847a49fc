"""Recall in languages other than English: detection, stems, accents, times, persons, and small sets of questions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.languages import BEGAN, SETS, recall_at_3

import mnemic
from mnemic.recall.document_table import DocumentTable
from mnemic.recall.document_view import DocumentView
from mnemic.recall.index_entry import TextFlags, pack, unpack_all
from mnemic.recall.languages.detection import LANGUAGES, fold, language_of
from mnemic.recall.languages.question_words import QUESTION_WORDS
from mnemic.recall.languages.stop_words import STOP_WORDS
from mnemic.recall.languages.time_words import DAYS, MONTHS, OTHERS
from mnemic.recall.question import Date, analyze_question
from mnemic.recall.text_analysis import similarity, terms, words
from mnemic.records import Record, Stream, known_scope

STEMMED = [language for language, stemmer in LANGUAGES.items() if stemmer]


@pytest.fixture
def alice() -> mnemic.Scope:
    return mnemic.open("memory://", embedder="none").scope("acme", "alice")


def detected(text: str) -> str:
    return language_of(text, words(text))


@pytest.mark.parametrize("path", sorted(SETS.glob("*.txt")), ids=lambda path: path.stem)
def test_questions_find_their_answers(path: Path) -> None:
    assert recall_at_3(path, "none") >= 0.8
    assert recall_at_3(path, "static") >= 0.9


@pytest.mark.parametrize("path", sorted(SETS.glob("*.txt")), ids=lambda path: path.stem)
def test_most_turns_and_questions_are_of_the_language_that_they_are_in(path: Path) -> None:
    lines = [line.lstrip("0123456789 ") for line in path.read_text().splitlines()[1:] if line]
    languages = [detected(line) for line in lines]
    # Short turns count as English, and some as a related language.
    assert languages.count(path.stem) >= 0.75 * len(lines)
    assert languages.count(path.stem) + languages.count("en") >= 0.9 * len(lines)


def test_detection_is_the_same_in_every_process() -> None:
    program = (
        "import sys; from mnemic.recall.languages.detection import likely_language; "
        "print([likely_language(line) for line in sys.stdin])"
    )
    lines = "".join(path.read_text() for path in SETS.glob("*.txt"))
    found = [
        subprocess.run(
            [sys.executable, "-c", program],
            input=lines,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONUTF8": "1"},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in "12"
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "text",
    [
        "Im gonna go to bed, one more time",
        "Have a good one, see ya!",
        "We met Sam in Las Vegas, and he sat at the end of the pier",
        "Der Spiegel is a magazine that my uncle in Los Angeles reads",
        "She ordered a café au lait and a crème brûlée",
        "Come on in",
        "OK 👍 great",
        "pip install mnemic",
        "",
        "1234",
    ],
)
def test_english_stays_english(text: str) -> None:
    assert detected(text) == "en"


def test_every_language_has_every_table() -> None:
    assert set(QUESTION_WORDS) == set(LANGUAGES)
    assert list(STOP_WORDS) == list(MONTHS) == list(DAYS) == list(OTHERS) == STEMMED
    assert {len(months) for months in MONTHS.values()} == {12}


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("La conversación de ayer fue muy larga", "conversacion"),
        ("la conversacion de ayer fue muy larga", "¿Cómo fue la conversación?"),
        ("Die Straße ist für den Verkehr gesperrt", "strasse"),
        ("Mieszkam teraz w Łodzi i nie w Krakowie", "Lodzi"),
        ("Это моя новая ёлка, и она очень красивая", "елка"),
        ("På mandag skal jeg kjøpe rømme til vaflene", "romme"),
        ("パスタを食べました", "パスタ"),
    ],
)
def test_accents_may_be_left_out(alice: mnemic.Scope, text: str, query: str) -> None:
    alice.remember_many([text, "バスに乗りました", "An English sentence about nothing in particular"])
    assert [hit.text for hit in alice.recall(query, k=1)] == [text]


def test_letters_are_not_accents() -> None:
    assert fold("Ёлка, мой край; がパ; Łódź, Straße, Ærø") == "Елка, мой край; がパ; Lodz, Strasse, Aero"


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("Clara besitzt keine Katzen", "Welche Katze hat sie?"),
        ("Bücherregal", "Wo sind die Bücherregale?"),
        ("Katzenfutter!", "Was ist mit dem Katzenfutter, hast du es?"),
        ("我每天早上喝绿茶", "我喝什么茶？"),
        ("猫を飼っています", "猫がいますか？"),
        ("Lisboa", "What did she say about Lisboa?"),
    ],
)
def test_short_texts_and_questions_in_another_language_find_each_other(
    alice: mnemic.Scope, text: str, query: str
) -> None:
    alice.remember_many(
        [text, "Ich habe den Hund schon gefüttert, und du?", "Mudei-me para o Porto na semana passada."]
    )
    assert [hit.text for hit in alice.recall(query, k=1)] == [text]


def test_a_scope_of_several_languages_is_searched_in_all_of_them(alice: mnemic.Scope) -> None:
    alice.remember("Ich habe in Lissabon zwei Wohnungen besichtigt")
    alice.remember("We looked at some offices in Lisbon as well")
    alice.remember("Ontem vi as casas novas em Lisboa com a minha irmã")
    assert [hit.text[:3] for hit in alice.recall("Welche Wohnung hat sie besichtigt?", k=1)] == ["Ich"]
    assert [hit.text[:3] for hit in alice.recall("Did they see an office?", k=1)] == ["We "]
    assert [hit.text[:3] for hit in alice.recall("De quem era a casa nova?", k=1)] == ["Ont"]
    assert [hit.text[:3] for hit in alice.recall("Wohnungen", k=1)] == ["Ich"]


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("Was geschah am 5. Mai 2023?", Date(2023, 5, 5)),
        ("Que s'est-il passé le 1er août 2022 ?", Date(2022, 8, 1)),
        ("¿Qué pasó el 5 de mayo de 2023?", Date(2023, 5, 5)),
        ("O que aconteceu em março?", Date(None, 3, None)),
        ("Che cosa è successo nel 2021?", Date(2021, None, None)),
        ("Wat gebeurde er in maart 2020?", Date(2020, 3, None)),
        ("Co się stało w październiku?", Date(None, 10, None)),
        ("Что случилось 9 мая 2021 года?", Date(2021, 5, 9)),
        ("2023年5月5日发生了什么？", Date(2023, 5, 5)),
        ("5月に何がありましたか？", Date(None, 5, None)),
        ("Der Mai ist doch sehr schön, oder nicht?", None),
    ],
)
def test_dates(text: str, date: Date | None) -> None:
    assert analyze_question(text, {}, {"de": 1} if "Mai" in text else {}).date == date


@pytest.mark.parametrize(
    ("text", "signals"),
    [
        ("Wann habe ich das gekauft?", "user time"),
        ("Wie viele Katzen hast du?", "assistant number"),
        ("Kannst du mir das erklären?", "user"),
        ("Können Sie das erklären?", ""),
        ("Quand est-ce que j'ai déménagé ?", "user time"),
        ("Combien de chats as-tu dans ta maison ?", "assistant number"),
        ("¿Cuándo compré el coche?", "user time"),
        ("¿Cuál es mi trabajo actual?", "user latest"),
        ("Quantos gatos você tem?", "assistant number"),
        ("Quando ho comprato la macchina?", "user time"),
        ("Wanneer heb ik de fiets gekocht?", "user time"),
        ("Kiedy kupiłem ten rower?", "user time"),
        ("Ile kotów masz w swoim domu?", "number"),
        ("Когда я купил велосипед?", "user time"),
        ("Какой храм ты советовал?", "assistant"),
        ("När köpte jag den nya cykeln?", "user time"),
        ("Hvornår købte jeg den nye cykel?", "user time"),
        ("Når kjøpte jeg den nye sykkelen?", "user time"),
        ("Milloin minä ostin sen uuden pyörän?", "user time"),
        ("Ben bu bisikleti ne zaman aldım?", "user time"),
        ("我什么时候买的自行车？", "user time"),
        ("你推荐了多少本书？", "assistant number"),
        ("私はいつ自転車を買いましたか？", "user time"),
    ],
)
def test_persons_times_and_numbers(text: str, signals: str) -> None:
    question = analyze_question(text, {})
    found = {
        "user": question.about_user,
        "assistant": question.about_assistant,
        "time": question.wants_time,
        "number": question.wants_number,
        "latest": question.wants_latest,
    }
    assert [name for name, given in found.items() if given] == signals.split()


@pytest.mark.parametrize(
    ("language", "text", "name"),
    [
        ("de", "Wo wohnt Annas Schwester?", "Anna"),
        ("ru", "Где живёт сестра Анны?", "Анна"),
        ("pl", "Gdzie mieszka siostra Anny?", "Anna"),
        ("zh", "小红的妹妹住在哪里？", "小红"),
        ("ja", "花子の妹はどこに住んでいますか？", "花子"),
    ],
)
def test_inflected_names_are_names(language: str, text: str, name: str) -> None:
    assert analyze_question(text, {"": 0, "X": 1, name: 2}, {language: 9}).speakers == {2}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Gestern Abend", True),
        ("C'était samedi dernier", True),
        ("В прошлый четверг", True),
        ("上周三见面了", True),
        ("先週の火曜日に会った", True),
        ("Ich habe den Hund gefüttert", False),
        ("我喜欢喝茶", False),
        ("Put mayo on it, a bar of Mars", False),
    ],
)
def test_texts_that_name_a_time(text: str, named: bool) -> None:
    record = Record(scope=known_scope("a"), kind="memory", key="m", text=text)
    assert bool(unpack_all([pack(record, None)]).flags[0] & TextFlags.TIME) == named


def test_a_pronoun_is_not_a_name_that_is_written_alike() -> None:
    assert analyze_question("Ben bu bisikleti ne zaman aldım?", {"": 0, "Ali": 1, "Ben": 2}).speakers == frozenset()
    assert analyze_question("Wann hat Ben das gekauft?", {"": 0, "Ali": 1, "Ben": 2}).speakers == {2}


def test_facts_are_found_in_the_language_of_the_question(alice: mnemic.Scope) -> None:
    alice.facts.add("Clara", "besitzt", "Segelboote")
    (hit,) = alice.recall("Wo sind die Segelboote, die sie hat?", k=1)
    assert (hit.kind, hit.text) == ("fact", "Clara besitzt Segelboote")
    assert hit.why["graph"] > 0


def test_turns_in_pairs_of_characters_are_not_long() -> None:
    stream = Stream(
        scope=known_scope("a"), kind="message", count=1, weight=0, last_seq=1, version=1, created=BEGAN, updated=BEGAN
    )
    text = "我上周搬到了里斯本，公寓很小，但是有阳台。"
    record = Record(scope=stream.scope, kind="message", key="m", seq=1, created=BEGAN, text=text, data={"role": "user"})
    table = DocumentTable()
    table.add([(stream, [record])], unpack_all([pack(record, None)]))
    assert 0 < DocumentView(table).mean_length == pytest.approx(0.25 * len(terms(text)))


@pytest.mark.parametrize(
    ("text", "query"),
    [("下周三我要去北京出差", "我什么时候去北京？"), ("Моя сестра живёт в Казани", "Где живёт сестра?")],
)
def test_scores_in_other_scripts_do_not_depend_on_vectors_that_mean_nothing(text: str, query: str) -> None:
    scores = []
    for embedder in ("static", "none"):
        with mnemic.open("memory://", embedder=embedder) as memory:
            memory.scope("a").remember(text)
            scores.append(memory.scope("a").recall(query, k=1)[0].score)
    assert scores[0] == scores[1] > 0.3


def test_stop_words_are_not_terms() -> None:
    assert terms("Ich habe die Schlüssel in der Küche gesehen") == ["schlussel", "kuch", "geseh"]
    assert terms("跳了舞") == ["跳了", "了舞", "跳舞", "跳", "舞"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Sie hat den Termin am Montag", "Sie hat den Termin am Dienstag"),
        ("la cita es mañana por la tarde", "la cita es ayer por la tarde"),
        ("zij wil de afspraak van morgen houden", "zij wil de afspraak van morgen niet houden"),
        ("hun vil gerne have kaffe", "hun vil ikke gerne have kaffe"),
    ],
)
def test_another_day_or_a_negation_is_another_text(one: str, other: str) -> None:
    assert similarity(one, other) == 0
