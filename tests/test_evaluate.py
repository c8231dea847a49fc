"""`mnemic eval`: figures that were worked out by hand, both forms of a recall set, and a store left clean."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import mnemic
from mnemic.evaluate import evaluate, measure, steps
from mnemic.recallset import read_recall_set, with_categories

ANN: dict[str, Any] = {
    "id": "ann",
    "turns": [
        {"id": "t1", "session": "s1", "text": "I adopted a zebra named Quill", "role": "user", "name": "Ann"},
        {"id": "t2", "session": "s1", "text": "The weather is dull", "time": "2024-05-01T10:00:00"},
        {"id": "t1", "session": "s2", "text": "We sailed to Madeira", "time": "2024-05-02T10:00:00+02:00"},
        {"id": "t2", "session": "s2", "text": "Quill the zebra escaped", "role": "assistant"},
        {"id": "t3", "session": "s2", "text": ""},
    ],
    "questions": [
        {"id": "q1", "question": "zebra Quill", "evidence": ["s1/t1", "s2/t2", "s1/t1"], "category": "1"},
        {"id": "q2", "question": "Who sailed to Madeira?", "evidence": ["s2/t1"], "category": 2},
        {"id": "q3", "question": "dull weather", "evidence": ["s1/t2"]},
        {"id": "q4", "question": "nobody knows", "evidence": [], "category": "2"},
    ],
}
# Fifty hits are asked for, and more turns than that answer better than the evidence.
BOB: dict[str, Any] = {
    "id": "bob",
    "turns": [
        *({"id": f"t{n}", "session": "s1", "text": "The garden gate squeaks at night"} for n in range(60)),
        {"id": "odd", "session": "s2", "text": "Καλημέρα"},
    ],
    "questions": [{"id": "q1", "question": "Does the garden gate squeak?", "evidence": ["odd"], "category": "2"}],
}

NATIVE: dict[str, Any] = {
    "sample_id": "duo",
    "conversation": {
        "speaker_a": "Ida",
        "speaker_b": "Per",
        "session_10": [{"speaker": "Ida", "dia_id": "D10:1", "text": "The boat is sold."}],
        "session_10_date_time": "12:05 am on 1 June, 2024",
        "session_2": [
            {"speaker": "Per", "dia_id": "D2:1", "text": "I bought a boat.", "blip_caption": "a red boat"},
            {"speaker": "Ida", "dia_id": "D2:2", "text": "What colour?"},
        ],
        "session_2_date_time": "1:56 pm on 8 May, 2024",
        "session_3_date_time": "2:00 pm on 9 May, 2024",
    },
    "qa": [
        {"question": "Who bought a boat?", "answer": "Per", "evidence": ["D2:1"], "category": 4},
        {"question": "Nothing?", "evidence": [], "category": 5},
        {"question": "What of it?", "evidence": ["D2:01; D10:1", "D", "D:2:2", "D2:1", "D9:9"], "category": 1},
        {"question": "Not there?", "evidence": ["D9:9"], "category": 1},
        {"question": "Which colour?", "evidence": ["D2:2 D2:1"], "category": 1},
    ],
}
CANONICAL: dict[str, Any] = {
    "id": "duo",
    "turns": [
        {"id": "D2:1", "session": "2", "time": "2024-05-08T13:56:00", "role": "user", "name": "Per"}
        | {"text": "I bought a boat."},
        {"id": "D2:2", "session": "2", "time": "2024-05-08T13:56:00", "role": "assistant", "name": "Ida"}
        | {"text": "What colour?"},
        {"id": "D10:1", "session": "10", "time": "2024-06-01T00:05:00", "role": "assistant", "name": "Ida"}
        | {"text": "The boat is sold."},
    ],
    "questions": [
        {"id": "duo/0", "question": "Who bought a boat?", "evidence": ["D2:1"], "category": "4"},
        {"id": "duo/1", "question": "Nothing?", "evidence": [], "category": "5"},
        {"id": "duo/2", "question": "What of it?", "evidence": ["D2:1", "D10:1", "D2:2"], "category": "1"},
        {"id": "duo/3", "question": "Not there?", "evidence": [], "category": "1"},
        {"id": "duo/4", "question": "Which colour?", "evidence": ["D2:2", "D2:1"], "category": "1"},
    ],
}


def lines(*conversations: dict[str, Any]) -> str:
    return "".join(json.dumps(conversation, ensure_ascii=False) + "\n" for conversation in conversations)


@pytest.fixture
def recall_set(tmp_path: Path) -> Path:
    path = tmp_path / "set.jsonl"
    path.write_text(lines(ANN, BOB), encoding="utf-8")
    return path


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mnemic", *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=os.environ | environment,
    )


def even(share: float) -> dict[str, float]:
    return dict.fromkeys(["1", "5", "10", "20", "50"], share)


# Metrics


def test_the_figures_of_one_ranking_are_those_worked_out_by_hand() -> None:
    level = measure([(["a", "b", "c", "d"], {"b", "d", "z"})])
    assert level.any == {"1": 0, "5": 1, "10": 1, "20": 1, "50": 1}
    assert level.all == even(0)
    assert level.mean == pytest.approx({"1": 0, "5": 2 / 3, "10": 2 / 3, "20": 2 / 3, "50": 2 / 3})
    assert level.mrr == 1 / 2
    assert level.ndcg10 == pytest.approx(0.498189, abs=1e-6)  # (0.630930 + 0.430677) / 2.130930


def test_the_figures_of_several_rankings_are_their_averages() -> None:
    late = [f"x{n}" for n in range(12)]
    level = measure([(["a"], {"a"}), ([], {"a"}), ([*late, "a"], {"a"}), (["b", "a"], {"a", "b"})])
    assert level.any == {"1": 0.5, "5": 0.5, "10": 0.5, "20": 0.75, "50": 0.75}
    assert level.all == {"1": 0.25, "5": 0.5, "10": 0.5, "20": 0.75, "50": 0.75}
    assert level.mean == {"1": 0.375, "5": 0.5, "10": 0.5, "20": 0.75, "50": 0.75}
    assert level.mrr == pytest.approx((1 + 0 + 1 / 13 + 1) / 4)
    assert level.ndcg10 == (1 + 0 + 0 + 1) / 4


def test_the_best_gain_is_of_ten_hits_though_there_is_more_evidence() -> None:
    level = measure([(list(range(20)), set(range(15)))])
    assert level.ndcg10 == 1
    assert level.mean["10"] == pytest.approx(10 / 15)
    assert (level.all["10"], level.all["20"]) == (0, 1)


def test_what_recall_finds_is_measured_by_turn_by_session_and_by_category(
    memory: mnemic.Memory, recall_set: Path
) -> None:
    report = evaluate(memory, read_recall_set(recall_set))
    # Found first: q2, q3. Found first and second: both turns, and both sessions, of q1. Not found: bob's.
    for level in (report.turn, report.session):
        assert level.any == even(0.75)
        assert level.all == even(0.75) | {"1": 0.5}
        assert level.mean == even(0.75) | {"1": 0.625}
        assert (level.ndcg10, level.mrr) == (0.75, 0.75)
    assert list(report.categories) == ["1", "2"]
    first, second = report.categories.values()
    for level in (first.turn, first.session):
        assert level.mean == even(1) | {"1": 0.5}
        assert level.all == even(1) | {"1": 0}
        assert (level.ndcg10, level.mrr) == (1, 1)
    for level in (second.turn, second.session):
        assert level.any == level.all == level.mean == even(0.5)
        assert (level.ndcg10, level.mrr) == (0.5, 0.5)
    assert (first.questions, second.questions, report.questions) == (1, 2, 4)
    assert report.store_s > 0
    assert 0 < report.recall_ms.p50 <= report.recall_ms.p95


def test_sessions_rank_by_their_first_hits(memory: mnemic.Memory, tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    turns = [("s1", "a", "walnut walnut"), ("s1", "b", "walnut trees here"), ("s2", "c", "my old walnut desk")]
    path.write_text(
        lines(
            {
                "id": "x",
                "turns": [{"session": session, "id": id, "text": text} for session, id, text in turns],
                "questions": [{"id": "q", "question": "walnut desk", "evidence": ["a", "b"]}],
            }
        )
    )
    report = evaluate(memory, read_recall_set(path))
    assert report.turn.any["1"] == 0
    assert report.turn.all["5"] == 1
    assert report.session.any == even(1) | {"1": 0}
    assert report.session.mrr == 1 / 2
    assert report.session.ndcg10 == pytest.approx(1 / math.log2(3))
    assert report.categories == {}


# Recall sets


def test_turns_become_messages_with_their_names_and_times(recall_set: Path) -> None:
    ann, _ = read_recall_set(recall_set)
    assert [message.id for message in ann.sessions["s2"]] == ["t1", "t2", "t3"]
    zebra, weather = ann.sessions["s1"]
    assert (zebra.role, zebra.name, weather.role, weather.name) == ("user", "Ann", "user", None)
    assert weather.timestamp == datetime(2024, 5, 1, 10, tzinfo=UTC)  # no zone: UTC on every machine
    assert ann.sessions["s2"][0].timestamp == datetime(2024, 5, 2, 8, tzinfo=UTC)
    assert ann.questions[0].evidence == (("s1", "t1"), ("s2", "t2"))
    assert [question.category for question in ann.questions] == ["1", "2", None]
    assert (ann.turns, ann.left_out) == (5, 1)


@pytest.mark.parametrize("indent", [None, 2])
def test_both_forms_give_the_same(tmp_path: Path, indent: int | None) -> None:
    ours, theirs = tmp_path / "ours.jsonl", tmp_path / "theirs.json"
    ours.write_text(lines(CANONICAL))
    theirs.write_text(json.dumps([NATIVE], indent=indent))
    assert read_recall_set(ours) == read_recall_set(theirs)
    (duo,) = read_recall_set(theirs)
    assert list(duo.sessions) == ["2", "10"]
    assert [question.id for question in duo.questions] == ["duo/0", "duo/2", "duo/4"]
    assert duo.left_out == 2


def test_either_form_may_stand_in_lines_or_in_an_array(tmp_path: Path) -> None:
    path = tmp_path / "set"
    path.write_text("\ufeff" + lines(NATIVE) + "\r\n\n" + lines(ANN), encoding="utf-8")
    assert [one.id for one in read_recall_set(path)] == ["duo", "ann"]
    path.write_text(json.dumps([ANN, NATIVE]))
    assert [one.id for one in read_recall_set(path)] == ["ann", "duo"]


def test_a_line_ends_where_json_says(tmp_path: Path) -> None:
    path = tmp_path / "set"
    odd = ANN | {"turns": [{"id": "t", "session": "s", "text": "a\u2028b\x85c"}], "questions": []}
    path.write_text(lines(odd), encoding="utf-8")
    assert read_recall_set(path)[0].sessions["s"][0].text == "a\u2028b\x85c"


def test_questions_are_chosen_by_category(recall_set: Path) -> None:
    chosen = with_categories(read_recall_set(recall_set), ["2", "9"])
    assert [[question.id for question in one.questions] for one in chosen] == [["q2"], ["q1"]]
    assert steps(chosen, ["lexical"]) == 5 + 61 + 2 * 2
    with pytest.raises(mnemic.InvalidValueError, match="no question has a category of 9; there are: 1, 2"):
        with_categories(read_recall_set(recall_set), ["9"])


def changed(place: str, **values: Any) -> str:
    """Return a set of one conversation, with members of its first turn or question replaced."""
    conversation = json.loads(json.dumps(CANONICAL))
    (conversation if place == "" else conversation[place][0]).update(values)
    return lines(conversation)


def foreign(place: str, **values: Any) -> str:
    sample = json.loads(json.dumps(NATIVE))
    where = {
        "": sample,
        "conversation": sample["conversation"],
        "turn": sample["conversation"]["session_2"][0],
        "qa": sample["qa"][0],
    }
    where[place].update(values)
    return json.dumps([sample])


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "bad holds no conversations"),
        ("\n \n", "bad holds no conversations"),
        ("[]", "bad holds no conversations"),
        ("{", "bad, line 1, column 2 is not JSON: .*; a recall set has one object per line, or is one array"),
        (lines(ANN) + "\n{]\n", "bad, line 3, column 2 is not JSON"),
        ('[\n{"id": 1},\n nope]', "bad, line 3, column 2 is not JSON"),
        ("[" * 100_000, "bad, line 1 cannot be read as JSON"),
        ('{"id": ' + "9" * 5000 + "}", "bad, line 1 cannot be read as JSON"),
        (b'{"id": "a"}\n\xff', "bad, line 2 is not UTF-8"),
        ("7", "bad, line 1 must be an object: 7"),
        ('["x"]', "bad, item 1 must be an object: 'x'"),
        ("{}", "bad, line 1 has no 'id'"),
        (lines(ANN, ANN), "bad, line 2: another conversation has the id 'ann'"),
        (changed("", id=""), "bad, line 1: id is empty"),
        (changed("", id=True), "bad, line 1: id must be a string, not bool"),
        (changed("", turns=None), "bad, line 1 has no 'turns'"),
        (changed("", turns={}), "bad, line 1: turns must be a list"),
        (changed("", turns=["x"]), r"bad, line 1: turns\[0\] must be an object: 'x'"),
        (changed("", questions=None), "bad, line 1 has no 'questions'"),
        (changed("turns", id=None), r"bad, line 1: turns\[0\] has no 'id'"),
        (changed("turns", id=1.5), r"bad, line 1: turns\[0\].id must be a string, not float"),
        (changed("turns", id="D2:2"), "bad, line 1: session '2' has two turns 'D2:2'"),
        (changed("turns", session=None), r"bad, line 1: turns\[0\] has no 'session'"),
        (changed("turns", text=None), r"bad, line 1: turns\[0\] has no 'text'"),
        (changed("turns", text=["a"]), r"bad, line 1: turns\[0\].text must be a string, not list"),
        (changed("turns", text="a\0b"), r"bad, line 1: turns\[0\].text holds a NUL character"),
        (changed("turns", text="\ud800").replace("\ud800", "\\ud800"), r"turns\[0\].text holds the lone surrog"),
        (changed("turns", role="narrator"), r"turns\[0\].role must be one of system, .*: 'narrator'"),
        (changed("turns", role=[]), r"turns\[0\].role must be one of"),
        (changed("turns", name=3.5), r"turns\[0\].name must be a string"),
        (changed("turns", time="yesterday"), r"turns\[0\].time is not an ISO 8601 time: 'yesterday'"),
        (changed("turns", time=1714557600), r"turns\[0\].time must be a string, not int"),
        (changed("turns", time="0001-01-01T00:00:00+14:00"), r"turns\[0\].time is out of range"),
        (changed("questions", id=None), r"questions\[0\] has no 'id'"),
        (changed("questions", question=None), r"questions\[0\] has no 'question'"),
        (changed("questions", question=" "), r"questions\[0\].question is empty"),
        (changed("questions", evidence=None), r"questions\[0\] has no 'evidence'"),
        (changed("questions", evidence="D2:1"), r"questions\[0\].evidence must be a list: 'D2:1'"),
        (changed("questions", evidence=[["D2:1"]]), r"questions\[0\].evidence\[0\] must be a string"),
        (changed("questions", evidence=["D7:1"]), r"evidence\[0\] names no turn of this conversation: 'D7:1'"),
        (lines(ANN).replace("s2/t1", "t1"), r"evidence\[0\] names turns of several sessions.*session/id: 't1'"),
        (changed("questions", category=["1"]), r"questions\[0\].category must be a string"),
        (foreign("", sample_id=None), "bad, item 1 has no 'sample_id'"),
        (foreign("", conversation=[]), "bad, item 1: conversation must be an object"),
        (foreign("", qa=None), "bad, item 1 has no 'qa'"),
        (foreign("conversation", session_2="x"), "bad, item 1: conversation.session_2 must be a list"),
        (
            foreign("conversation", session_2_date_time="8 May"),
            "conversation.session_2_date_time is not a time such as",
        ),
        (foreign("turn", speaker=None), r"conversation.session_2\[0\] has no 'speaker'"),
        (foreign("turn", dia_id=None), r"conversation.session_2\[0\] has no 'dia_id'"),
        (foreign("turn", text=7), r"conversation.session_2\[0\].text must be a string"),
        (foreign("turn", dia_id="D2:2"), "bad, item 1: session '2' has two turns 'D2:2'"),
        (foreign("qa", evidence="D2:1"), r"qa\[0\].evidence must be a list"),
        (foreign("qa", evidence=[21]), r"qa\[0\].evidence\[0\] must be a string"),
        (foreign("qa", question=None), r"qa\[0\] has no 'question'"),
    ],
)
def test_a_bad_set_is_refused_with_its_line_and_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | bytes, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("bad")
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(mnemic.InvalidValueError, match=named):
        read_recall_set(path)


def test_a_file_that_is_not_there_or_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(mnemic.NotFoundError, match=r"there is no file .*gone"):
        read_recall_set(tmp_path / "gone")
    with pytest.raises(mnemic.StorePermissionError):
        read_recall_set(tmp_path)


# The store


def test_nothing_is_left_in_the_store_and_nothing_else_is_touched(memory: mnemic.Memory, recall_set: Path) -> None:
    memory.scope("eval", "ann").remember("zebras are striped")
    memory.scope("eval").session("mine").add("user", "hello")
    evaluate(memory, read_recall_set(recall_set))
    assert [str(info.scope) for info in memory.scope("eval").sessions.list()] == ["eval/mine"]
    assert [record.text for record in memory.scope("eval", "ann").memories.list()] == ["zebras are striped"]


def test_what_is_kept_can_be_read_and_is_not_written_over(memory: mnemic.Memory, recall_set: Path) -> None:
    conversations = read_recall_set(recall_set)
    evaluate(memory, conversations, keep=True)
    kept = memory.scope("eval", "ann").session("s1").messages()
    assert kept == conversations[0].sessions["s1"]
    with pytest.raises(mnemic.ConflictError, match="'eval/ann' has sessions already; erase it"):
        evaluate(memory, conversations)
    assert memory.scope("eval", "ann").session("s1").messages() == kept


def test_an_evaluation_that_is_broken_off_leaves_nothing(memory: mnemic.Memory, recall_set: Path) -> None:
    done = []

    def stop(count: int) -> None:
        done.append(count)
        if len(done) == 5:
            raise KeyboardInterrupt

    conversations = read_recall_set(recall_set)
    with pytest.raises(KeyboardInterrupt):
        evaluate(memory, conversations, progress=stop)
    assert memory.scope("eval").sessions.list() == []
    done.clear()
    evaluate(memory, conversations, progress=lambda count: done.append(count))
    assert sum(done) == steps(conversations)


def test_a_set_without_questions_is_refused_before_anything_is_stored(memory: mnemic.Memory, tmp_path: Path) -> None:
    path = tmp_path / "set"
    path.write_text(lines(ANN | {"questions": []}))
    with pytest.raises(mnemic.InvalidValueError, match="no questions"):
        evaluate(memory, read_recall_set(path), keep=True)
    assert memory.scope("eval").sessions.list() == []


# The command line

LEVEL = {"any": even(0), "all": even(0), "mean": even(0), "ndcg10": 0, "mrr": 0}
PART = {"turn": LEVEL, "session": LEVEL, "questions": 0}
WHOLE = PART | {"categories": {"1": PART, "2": PART}, "store_s": 0, "recall_ms": {"p50": 0, "p95": 0}}


def keys(value: Any) -> Any:
    return {name: keys(item) for name, item in value.items()} if isinstance(value, dict) else None


def test_the_command_prints_the_figures_as_json(recall_set: Path, tmp_path: Path) -> None:
    odd = tmp_path / "a folder, 100%"
    odd.mkdir()
    ran = run("eval", recall_set, "--json", TMPDIR=str(odd))
    assert (ran.returncode, ran.stderr) == (0, "")
    report = json.loads(ran.stdout)
    assert keys(report) == keys(WHOLE)
    assert report["turn"]["mean"] == even(0.75) | {"1": 0.625}
    assert report["categories"]["2"]["session"]["mrr"] == 0.5
    assert report["questions"] == 4
    assert list(odd.iterdir()) == []


def test_the_command_prints_a_table(recall_set: Path) -> None:
    ran = run("eval", recall_set, "--limit", "1")
    assert (ran.returncode, ran.stderr) == (0, "")
    title, *_ = ran.stdout.splitlines()
    assert title == "conversations: 1, turns: 5, questions: 3 (1 without evidence left out)"
    rows = [line.split() for line in ran.stdout.splitlines()]
    assert ["turn", "any", *["100.0"] * 5] in rows
    assert ["mean", "83.3", *["100.0"] * 4] in rows
    assert ["category", "1", "turn", "50.0", *["100.0"] * 6, "1"] in rows
    assert rows[-1][:2] == ["stored", "in"]
    columns = {line.index("@50") + 3 for line in ran.stdout.splitlines() if "found, %" in line}
    assert len(columns) == 2
    assert {len(line) for line in ran.stdout.splitlines()[2:9]} == {min(columns)}


def test_the_command_asks_for_some_categories_alone(recall_set: Path) -> None:
    report = json.loads(run("eval", recall_set, "--json", "--categories", "2, 7").stdout)
    assert list(report["categories"]) == ["2"]
    assert report["questions"] == 2


def test_the_command_leaves_a_given_store_clean_unless_told(recall_set: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'mine.db'}"
    assert run("eval", recall_set, "--json", "--store", url).returncode == 0
    with mnemic.open(url) as memory:
        assert memory.scope().sessions.list() == []
    assert run("eval", recall_set, "--json", "--store", url, "--keep").returncode == 0
    with mnemic.open(url) as memory:
        assert [info.messages for info in memory.scope("eval").sessions.list()] == [2, 3, 60, 1]
    again = run("eval", recall_set, "--store", url)
    assert again.returncode == 1
    assert again.stderr == "mnemic: 'eval/ann' has sessions already; erase it, or use another store\n"


def test_the_command_compares_signals(recall_set: Path) -> None:
    ran = run("eval", recall_set, "--json", "--compare", "lexical,lexical+recency")
    assert ran.stderr == ""
    report = json.loads(ran.stdout)
    assert list(report["compare"]) == ["lexical", "lexical+recency"]
    assert keys(report["compare"]["lexical"]) == keys(WHOLE)
    assert report["compare"]["lexical"]["turn"]["mean"] == even(0.75) | {"1": 0.625}
    table = run("eval", recall_set, "--compare", "lexical").stdout.splitlines()
    head = next(line for line in table if line.startswith("by signal"))
    assert [part.strip() for part in head.split("  ")[-2:]] == ["all signals", "lexical"]
    assert any(line.split()[-3:] == ["mean@1", "62.5", "62.5"] for line in table)
    unknown = run("eval", recall_set, "--compare", "luck")
    assert unknown.returncode == 1
    assert unknown.stderr.startswith("mnemic: ")
    assert "luck" in unknown.stderr


def test_an_error_of_ours_is_one_line_and_a_traceback_only_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "bad\nname"
    path.write_text("{}")
    ran = run("eval", path)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == f"mnemic: {tmp_path}/bad name, line 1 has no 'id'\n"
    for arguments in (["--debug", "eval", path], ["eval", path, "--debug"]):
        ran = run(*arguments)
        assert ran.returncode == 1
        assert "Traceback" in ran.stderr
        assert "InvalidValueError" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["gone.jsonl"], 1, "mnemic: there is no file gone.jsonl"),
        (["--store", "nothing?x=1"], 1, "mnemic: a store is named by a URL"),
        (["--store", "nosuch://x"], 1, "mnemic: no installed back-end serves nosuch://"),
        (["--categories", "9"], 1, "mnemic: no question has a category of 9; there are: 1, 2"),
        (["--categories", "1,,2"], 2, "empty name"),
        (["--compare", ""], 2, "empty name"),
        (["--limit", "0"], 2, "--limit"),
        (["--limit", "many"], 2, "--limit"),
        (["--keep"], 2, "--keep needs --store"),
        (["--nonsense"], 2, "--nonsense"),
    ],
)
def test_what_goes_wrong_is_told_by_the_exit_code(
    recall_set: Path, arguments: list[str], code: int, named: str
) -> None:
    ran = run("eval", *([] if arguments[0].endswith("jsonl") else [recall_set]), *arguments)
    assert (ran.returncode, ran.stdout) == (code, "")
    assert named in ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_command_tells_its_version_and_how_to_use_it() -> None:
    assert run("--version").stdout == f"mnemic, version {mnemic.__version__}\n"
    assert "eval" in run("--help").stdout
    told = run("eval", "-h").stdout
    assert all(option in told for option in ("--json", "--categories", "--embedder", "--store", "--compare"))
    assert run("eval").returncode == 2


@pytest.fixture
def marked(file_url: str, tmp_path: Path) -> Path:
    """A store, and questions about a scope of it."""
    with mnemic.open(file_url) as memory:
        alice = memory.scope("acme", "alice")
        alice.session("monday").add("user", "My sister is allergic to shellfish.", id="m1")
        alice.remember("Alice drinks green tea", id="tea", importance=2)
        alice.notes.write("plan", "Lisbon in May")
    answered = {
        "What does Alice drink?": ("memory", "acme/alice", "tea"),
        "What is her sister allergic to?": ("message", "acme/alice/monday", "m1"),
        "Where to in May?": ("note", "acme/alice", "plan"),
    }
    questions = [
        {"id": str(n), "question": text, "evidence": [dict(zip(("kind", "scope", "id"), ref, strict=True))]}
        for n, (text, ref) in enumerate(answered.items())
    ]
    file = tmp_path / "marks.jsonl"
    file.write_text(json.dumps({"id": "lab", "scope": "acme", "questions": questions}))
    return file


def test_questions_about_a_store(marked: Path, file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        before = memory.scope("acme", "alice").memories.list(), memory.scope("acme").stats()
        report = evaluate(memory, read_recall_set(marked))
        assert report.questions == 3
        assert report.turn.any["1"] == report.turn.mrr == report.session.mrr == 1
        last = evaluate(memory, read_recall_set(marked), weights={"lexical": 0, "dense": 0, "recency": 100})
        assert last.turn.mrr < 1
        assert (memory.scope("acme", "alice").memories.list(), memory.scope("acme").stats()) == before
        assert [fade.uses for fade in memory.scope("acme", "alice").memories.fading()] == [0]


def test_the_command_asks_a_store(marked: Path, file_url: str, tmp_path: Path) -> None:
    done = run("eval", marked, "--store", file_url, "--weight", "dense=0.5", "--json")
    assert json.loads(done.stdout)["turn"]["any"]["1"] == 1, done.stderr
    unnamed = run("eval", marked)
    assert (unnamed.returncode, "name it with --store" in unnamed.stderr) == (2, True)
    missing = run("eval", marked, "--store", tmp_path / "missing.db")
    assert (missing.returncode, "missing.db" in missing.stderr) == (1, True)
    assert not (tmp_path / "missing.db").exists()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"scope": "a//b"}, "scope: "),
        (
            {"questions": [{"id": "1", "question": "x", "evidence": [{"kind": "lease", "scope": "a", "id": "1"}]}]},
            "kind",
        ),
        ({"questions": [{"id": "1", "question": "x", "evidence": [{"kind": "note", "id": "1"}]}]}, "has no 'scope'"),
        ({"questions": [{"id": "1", "question": "x", "evidence": ["t1"]}]}, "must be an object"),
    ],
)
def test_bad_questions_about_a_store_are_refused(marked: Path, change: dict[str, Any], problem: str) -> None:
    marked.write_text(json.dumps(json.loads(marked.read_text()) | change))
    with pytest.raises(mnemic.InvalidValueError, match=problem):
        read_recall_set(marked)
