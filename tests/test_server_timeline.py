"""The endpoints that the timeline and the chats of the dashboard need, on the demo store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

import demo_store
import mnemic
from http_server import serving
from mnemic.features.summary import SUMMARY_ID

ALICE = {"scope": "acme/alice"}


@pytest.fixture(scope="module")
def url(demo_file: Path) -> str:
    return f"sqlite:///{demo_file}?synchronous=normal"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[httpx.Client]:
    with serving(url, clock=demo_store.DemoClock(), audit=True) as opened:
        yield opened


def get(client: httpx.Client, path: str, **query: Any) -> Any:
    answer = client.get(f"/api/v1{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_counts_add_up_to_the_statistics(client: httpx.Client) -> None:
    stats = get(client, "/stats")
    whole = get(client, "/timeline", buckets=50)
    names = {"message": "messages", "archived": "archived", "memory": "memories", "fact": "facts", "note": "notes"}
    assert {kind: sum(whole["counts"][kind]) for kind in names} == {kind: stats[name] for kind, name in names.items()}
    assert (whole["missing"], whole["read"]) == ("nothing", whole["total"])
    half = get(client, "/timeline", buckets=7, since="2026-03-01T00:00:00Z", until="2026-04-01T00:00:00Z", **ALICE)
    listed = get(client, "/timeline/records", limit=200, since=half["since"], until=half["until"], **ALICE)
    assert len(listed["items"]) == sum(map(sum, half["counts"].values())) > 0
    assert half["bucket_seconds"] * 7 == 31 * 86_400


def test_records_come_newest_first_and_one_by_one(client: httpx.Client) -> None:
    query = {"kinds": ["memory", "message"], "roles": ["user"], **ALICE}
    found: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = get(client, "/timeline/records", limit=7, **query, **({} if cursor is None else {"cursor": cursor}))
        found += page["items"]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert {one["role"] for one in found} == {"user"}
    assert [one["time"] for one in found] == sorted((one["time"] for one in found), reverse=True)
    assert len({(one["scope"], one["id"]) for one in found}) == len(found) > 10
    one = found[3]
    whole = get(client, "/timeline/record", kind=one["kind"], id=one["id"], scope=one["scope"])
    assert whole["message"]["text"] == one["text"]
    assert one["scope"] == f"acme/alice/{one['session']}"
    memory = get(client, "/timeline/record", kind="memory", id="alice-0", **ALICE)
    assert (memory["source"], memory["pinned"], memory["metadata"]) == ("visit-00", True, {"topic": "sister"})


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("timeline?since=2026-02-01T00:00:00Z&until=2026-01-01T00:00:00Z", "not after since"),
        ("timeline?since=9999-12-31T23:59:59Z", "not after since"),
        ("timeline?buckets=0", "buckets"),
        ("timeline?kinds=audit", "audit"),
        ("timeline?min_importance=nan", "min_importance"),
        ("timeline/records?cursor=x", "cursor"),
        ("forecast?below=0", "below"),
        ("forecast?half_life_days=-1", "half_life_days"),
        ("sessions/visit-21/fit?scope=acme/alice&max_tokens=0", "max_tokens"),
    ],
)
def test_bad_questions_are_refused(client: httpx.Client, path: str, said: str) -> None:
    answer = client.get(f"/api/v1/{path}")
    problem = answer.json()
    assert said in problem["detail"], problem
    assert answer.status_code == (400 if problem["detail"].startswith("the query: ") else 422)


def test_a_timeline_shows_some_time_around_a_single_record() -> None:
    for written in ("0001-01-01T00:00:00Z", "2026-01-31T09:30:00Z", "9999-12-31T23:59:59Z"):
        with serving() as client:
            said = {"role": "user", "content": "x", "timestamp": written}
            assert client.post("/api/v1/sessions/a/messages", json=said).status_code == 201
            found = get(client, "/timeline", buckets=3)
            assert sum(found["counts"]["message"]) == 1
            assert found["since"].rstrip("Z") <= written.rstrip("Z") < found["until"].rstrip("Z")
            assert found["bucket_seconds"] >= 10


def test_a_time_that_is_thousands_of_years_away_does_not_stretch_the_timeline() -> None:
    def since_until(*times: str) -> tuple[str, str, int]:
        with serving() as client:
            lines = [{"role": "user", "content": "x", "timestamp": time} for time in times]
            client.post("/api/v1/sessions/a/messages", json=lines).raise_for_status()
            found = get(client, "/timeline")
            assert (found["first"], found["last"]) == (min(times), max(times))
            return found["since"][:4], found["until"][:4], sum(found["counts"]["message"])

    near = ("2024-01-31T09:30:00Z", "2026-01-31T09:30:00Z")
    assert since_until("0001-01-01T00:00:00Z", *near, "9999-12-31T23:59:59Z") == ("2024", "2026", 2)
    assert since_until("1950-01-31T09:30:00Z", *near) == ("1950", "2026", 3)


def test_forecast_names_what_will_be_forgotten_first(client: httpx.Client) -> None:
    found = get(client, "/forecast", below=0.5, days=120, parts=6, points=5, limit=3, scope="acme")
    assert len(found["times"]) == 5
    assert found["gone"] + sum(found["parts"]) + found["later"] == found["memories"]
    ends = [one["below_at"] for one in found["fading"]]
    assert ends == sorted(ends)
    for one in found["fading"]:
        strengths = [value for value in one["curve"] if value is not None]
        assert strengths == sorted(strengths, reverse=True)
    (alice,) = get(client, "/forecast", id="alice-1", **ALICE)["fading"]
    assert alice["text"] == "Alice prefers trains to planes"


def test_a_session_as_a_chat(client: httpx.Client, url: str) -> None:
    seen = 0
    with mnemic.open(url, clock=demo_store.DemoClock()) as memory:
        for info in memory.scope().sessions.list():
            session = memory.scope(info.scope.parent).session(info.name)
            path, query = f"/sessions/{quote(info.name, safe='')}", {"scope": info.scope.parent.path}
            told = get(client, f"{path}/overview", **query)
            assert (told["title"], told["messages"], told["tokens"]) == (info.title, info.messages, info.tokens)
            summary = session.summary()
            assert (told["summary"] or {"text": None})["text"] == summary
            said = get(client, f"{path}/conversation", limit=1000, **query)["items"]
            assert [one["id"] for one in said] == [message.id for message in session.messages()]
            assert sum(one["tokens"] for one in said) == info.tokens
            gone = get(client, f"{path}/conversation", limit=1000, part="archived", **query)["items"]
            assert [one["id"] for one in gone] == [message.id for message in session.archived()]
            assert (len(gone), all(one["archived"] for one in gone)) == (told["archived"], True)
            if summary is None or not gone:
                continue
            seen += 1
            calls = {call["id"] for one in said + gone for call in one["calls"]}
            assert {id for one in said + gone for id in one["answers"]} == calls
            small = get(client, f"{path}/fit", max_tokens=5, **query)
            assert small["ids"] == []
            assert "the system message and the user's last message need" in small["problem"]
            for budget in (200, 400):
                fit = get(client, f"{path}/fit", max_tokens=budget, **query)
                window = {message.id for message in session.window(budget)}
                assert set(fit["ids"]) == window - {SUMMARY_ID}
                assert fit["summary"] == (SUMMARY_ID in window)
                assert fit["tokens"] <= budget
    assert seen


def test_images_are_named_and_long_texts_are_cut(client: httpx.Client) -> None:
    said = get(client, "/timeline/records", kinds=["message"], roles=["user"], limit=200, scope="acme")["items"]
    photo = next(one for one in said if one["text"].startswith("Here is a photo"))
    whole = get(client, "/timeline/record", kind="message", id=photo["id"], scope=photo["scope"])
    (image,) = whole["message"]["images"]
    assert image == "image/png, 1 × 1 pixels, 72 bytes"
    listed = get(client, "/timeline/records", kinds=["message"], scope="acme/<b>mallory")["items"]
    assert max(one["length"] for one in listed) == 10_000
    assert max(len(one["text"]) for one in listed) == 500
