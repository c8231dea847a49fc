"""The page of facts: the graph along time, the table that says the same, sources, and changes with undo."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from threading import Thread
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

import mnemic
from browser import Dashboard, Visit
from http_server import serving
from mnemic.features.fact_items import Fact, to_record
from mnemic.records import ScopePath
from mnemic.store.query import Put, Write

DAY = datetime(2026, 1, 1, tzinfo=UTC)
WHERE = {"scope": "facts"}
STATED: tuple[tuple[str, str, str, int, int | None], ...] = (
    ("Ann", "lives_in", "Rome", 0, 30),
    ("Ann", "lives_in", "Oslo", 30, None),
    ("Ann", "knows", "<b>Ben</b>", 10, None),
    ("<b>Ben</b>", "works_for", "Initech", 20, None),
)
"""Subjects, predicates, objects, and the days from which and until which they are true."""


@pytest.fixture
def api(dashboard: Dashboard) -> Iterator[httpx.Client]:
    """A client of the dashboard's server, whose scope has these facts."""
    with httpx.Client(base_url=f"{dashboard.address}/api/v1", params=WHERE, timeout=60) as client:
        for subject, predicate in {(one[0], one[1]) for one in STATED}:
            client.delete("/facts", params={"subject": subject, "predicate": predicate}).raise_for_status()
        for subject, predicate, thing, begin, end in STATED:
            body: dict[str, Any] = {"subject": subject, "predicate": predicate, "object": thing, "confidence": 0.9}
            body["valid_from"] = (DAY + timedelta(days=begin)).isoformat()
            if end is not None:
                body["valid_to"] = (DAY + timedelta(days=end)).isoformat()
            client.post("/facts", json=body | {"source": "chat"}).raise_for_status()
        client.post("/sessions/chat/messages", json={"role": "user", "content": "I live in Oslo"}).raise_for_status()
        yield client


def known(api: httpx.Client) -> set[tuple[str, str, str, bool]]:
    found = api.get("/facts", params={"history": True}).json()["items"]
    return {(one["subject"], one["predicate"], one["object"], one["valid_to"] is None) for one in found}


def opened(visit: Visit, **query: str) -> Page:
    page = visit.open("facts", **WHERE, **query)
    page.locator(".graph[data-ready=true], table").wait_for()
    return page


def test_the_graph_is_drawn_and_follows_time(dashboard: Dashboard, api: httpx.Client) -> None:
    with dashboard.visit() as visit:
        page = opened(visit)
        expect(page.get_by_role("img", name="Graph of 5 names and 4 facts.")).to_be_visible()
        expect(page.get_by_text("3 facts true now")).to_be_visible()
        page.get_by_role("button", name="Change before").click()
        expect(page.get_by_text("2026-01-31 00:00")).to_be_visible()
        page.get_by_role("button", name="Change before").click()
        expect(page.get_by_text("· 3 facts true then")).to_be_visible()
        page.get_by_role("slider", name="Time").press("Home")
        expect(page.get_by_text("· 1 fact true then")).to_be_visible()
        page.get_by_role("tab", name="Table").click()
        expect(page.get_by_role("row")).to_have_count(2)
        expect(page.get_by_role("row", name="Rome")).to_be_visible()
        page.get_by_role("button", name="Now", exact=True).click()
        expect(page.get_by_role("row")).to_have_count(4)
        visit.check_accessibility()


def test_the_time_is_in_the_address(dashboard: Dashboard, api: httpx.Client) -> None:
    with dashboard.visit() as visit:
        page = opened(visit)
        page.get_by_role("button", name="Change before").click()
        page.wait_for_url("**at=2026-01-31T00**")
        page.get_by_role("button", name="Ann", exact=True).click()
        page.reload()
        expect(page.get_by_text("2026-01-31 00:00")).to_be_visible()
        expect(page.get_by_role("region", name="Ann")).to_be_visible()
        page.get_by_role("button", name="Now", exact=True).click()
        page.wait_for_url(lambda url: "at=" not in url)


ARRANGED = """(graph) => new Promise((done, fail) => {
    const worker = new Worker("facts/layout_worker.js", { type: "module" });
    worker.onerror = fail;
    worker.onmessage = ({ data }) => data.done && done({ x: [...data.x], y: [...data.y], box: data.box });
    worker.postMessage(graph);
})"""
"""Arranges a graph as the page does."""


def test_names_and_arrows_of_separate_parts_can_be_read(dashboard: Dashboard) -> None:
    """Ten pairs and a chain of four: no name covers another, and no arrow is too short for its text."""
    links = [(2 * n, 2 * n + 1) for n in range(10)] + [(20, 21), (21, 22), (22, 23)]
    graph = {
        "xs": [10.0 * (n % 5) for n in range(24)], "ys": [7.0 * (n // 5) + n % 3 for n in range(24)],
        "sizes": [5] * 24, "widths": [70] * 24, "edges": [end for link in links for end in link],
        "lengths": [100] * len(links), "stage": [600, 400], "rounds": 300, "small": True,
    }  # fmt: skip
    with dashboard.visit() as visit:
        page = visit.open("facts")
        found = page.evaluate(ARRANGED, graph)
        again = page.evaluate(ARRANGED, graph)
    assert found == again
    places = list(zip(found["x"], found["y"], strict=True))
    for n, (x, y) in enumerate(places):
        assert [other for other in places[n + 1 :] if abs(other[0] - x) < 70 and abs(other[1] - y) < 18] == []
        assert found["box"]["x"][0] < x < found["box"]["x"][1]
        assert found["box"]["y"][0] < y < found["box"]["y"][1]
    for start, end in links:
        assert math.dist(places[start], places[end]) > 95


def test_a_node_is_found_and_shows_its_facts_and_their_source(dashboard: Dashboard, api: httpx.Client) -> None:
    with dashboard.visit(390) as visit:
        page = opened(visit)
        page.get_by_role("combobox", name="Find a name").fill("ben")
        page.get_by_role("button", name="Find").click()
        details = page.get_by_role("region", name="<b>Ben</b>")
        expect(details).to_contain_text("works_for Initech")
        visit.check_width()
        visit.check_accessibility()
        details.get_by_role("button", name="Ann", exact=True).click()
        details = page.get_by_role("region", name="Ann")
        expect(details.get_by_role("listitem").filter(has_text="Rome")).to_contain_text("2026-01-01 to 2026-01-31")
        details.get_by_role("button", name="chat", exact=True).first.click()
        page.wait_for_url("**/#/sessions?scope=facts&session=facts%2Fchat")


def test_a_click_on_a_node_selects_it(dashboard: Dashboard) -> None:
    with httpx.Client(base_url=f"{dashboard.address}/api/v1", params={"scope": "many"}, timeout=60) as client:
        for number in range(45):
            body = {"subject": "hub", "predicate": "has", "object": f"part {number}"}
            client.post("/facts", json=body).raise_for_status()
    with dashboard.visit() as visit:
        page = visit.open("facts", scope="many")
        page.locator(".graph[data-ready=true]").wait_for()
        page.get_by_role("button", name="hub", exact=True).click()
        details = page.get_by_role("region", name="hub")
        # The camera moves to what is selected, so that it is in the middle.
        details.get_by_role("button", name="Close").click()
        expect(details).to_have_count(0)
        stage, over = page.locator(".graph-stage"), page.locator(".graph-stage.over-node")
        for _ in range(100):  # what is under the pointer is that of the last picture, which may be an older one
            page.mouse.move(5, 5)
            stage.hover()
            if over.count():
                break
        expect(over).to_be_visible()
        stage.click()
        expect(details).to_be_visible()


def test_facts_are_added_corrected_ended_and_deleted_with_undo(dashboard: Dashboard, api: httpx.Client) -> None:
    before = known(api)

    def undone(page: Page) -> None:
        page.get_by_role("button", name="Undo").click()
        page.get_by_text("Undone").wait_for()
        assert known(api) == before
        page.reload()
        page.locator(".fact-list").first.wait_for()

    with dashboard.visit() as visit:
        page = opened(visit, name="Ann")
        page.get_by_role("button", name="Add a fact").click()
        page.get_by_label("Subject").fill("Ann")
        page.get_by_label("Predicate").fill("lives_in")
        page.get_by_label("Object").fill("Bergen")
        page.get_by_label("There is one at a time: end what was true before").check()
        visit.check_accessibility()
        page.get_by_role("button", name="Add", exact=True).click()
        page.get_by_text("Added: Ann lives_in Bergen").wait_for()
        added = {("Ann", "lives_in", "Bergen", True), ("Ann", "lives_in", "Oslo", False)}
        assert known(api) == (before | added) - {("Ann", "lives_in", "Oslo", True)}
        undone(page)

        page.get_by_role("button", name="Correct: Ann lives_in Oslo").click()
        page.get_by_label("Object").fill("Bergen")
        page.get_by_role("dialog").get_by_role("button", name="Correct").click()
        page.get_by_text("Corrected: Ann lives_in Bergen").wait_for()
        assert known(api) == (before | {("Ann", "lives_in", "Bergen", True)}) - {("Ann", "lives_in", "Oslo", True)}
        undone(page)

        page.get_by_role("button", name="No longer true: Ann knows").click()
        page.get_by_text("Ended: Ann knows").wait_for()
        ended = ("Ann", "knows", "<b>Ben</b>")
        assert known(api) == (before | {(*ended, False)}) - {(*ended, True)}
        undone(page)

        page.get_by_role("button", name="Delete: Ann lives_in Rome").click()
        page.get_by_text("Deleted: Ann lives_in Rome").wait_for()
        assert known(api) == before - {("Ann", "lives_in", "Rome", False)}
        undone(page)


def test_what_somebody_has_changed_since_is_not_undone(dashboard: Dashboard, api: httpx.Client) -> None:
    with dashboard.visit() as visit:
        page = opened(visit, name="Ann")
        page.get_by_role("button", name="Delete: Ann lives_in Rome").click()
        page.get_by_text("Deleted: Ann lives_in Rome").wait_for()
        api.post("/facts", json={"subject": "Ann", "predicate": "lives_in", "object": "Ghent"})
        page.get_by_role("button", name="Undo").click()
        expect(page.get_by_text("These facts have changed since")).to_be_visible()
        assert ("Ann", "lives_in", "Ghent", True) in known(api)


def test_a_scope_without_facts_leads_to_those_below(dashboard: Dashboard) -> None:
    with dashboard.visit() as visit:
        page = visit.open("facts")
        page.get_by_role("link", name="globex/erin").click()
        page.get_by_role("button", name="Erin").click()
        expect(page.get_by_role("region", name="Erin")).to_contain_text("reviews cache")


def test_of_too_many_facts_the_newest_are_shown_and_a_search_loads_the_others(browser: Browser, file_url: str) -> None:
    scope = ScopePath("large")
    facts = [
        Fact(subject=f"name {n}", predicate="follows", object=f"name {n - 1}", valid_from=DAY) for n in range(2005)
    ]

    async def fill() -> None:
        async with mnemic.open_async(file_url) as memory:
            for start in range(0, len(facts), 500):
                puts = tuple(Put(to_record(fact, scope)) for fact in facts[start : start + 500])
                await memory._store.write(Write(puts))

    thread = Thread(target=lambda: asyncio.run(fill()))  # Playwright has an event loop in this one
    thread.start()
    thread.join()
    with serving(file_url) as client:
        with Dashboard(browser, str(client.base_url).rstrip("/")).visit() as visit:
            page = visit.open("facts", scope="large", view="table")
            expect(page.get_by_text("Showing the newest 2,000 of 2,005 facts.")).to_be_visible()
            page.get_by_role("combobox", name="Find a name").fill("name 2")
            page.get_by_role("button", name="Find").click()
            expect(page.get_by_role("region", name="name 2", exact=True)).to_contain_text("name 3 follows name 2")
            expect(page.get_by_text("Showing the newest 2,002 of 2,005 facts.")).to_be_visible()
            page.get_by_role("button", name="Close").click()
            page.get_by_role("combobox", name="Find a name").fill("nobody")
            page.get_by_role("button", name="Find").click()
            expect(page.get_by_text("No fact mentions “nobody”.")).to_be_visible()


def test_numbers_of_a_fact_outlive_a_deletion_and_its_undo(dashboard: Dashboard) -> None:
    metadata = '"metadata":{"big":9007199254740993,"f":1.0}'
    with httpx.Client(base_url=f"{dashboard.address}/api/v1", params={"scope": "numbers"}, timeout=60) as client:
        body = f'{{"subject":"Ann","predicate":"has","object":"42",{metadata}}}'
        client.post("/facts", content=body, headers={"Content-Type": "application/json"}).raise_for_status()
        with dashboard.visit() as visit:
            page = visit.open("facts", scope="numbers", name="Ann")
            page.get_by_role("region", name="Ann").get_by_role("button", name="Delete").click()
            page.get_by_role("button", name="Undo").wait_for()
            assert client.get("/facts").json()["items"] == []
            page.get_by_role("button", name="Undo").click()
            page.get_by_text("Undone").wait_for()
        assert metadata in client.get("/facts").text
