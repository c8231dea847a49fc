"""The timeline in a browser: zoomed in every way, filtered, records opened and changed, memories archived."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Locator, Page, expect

import demo_store
from browser import Dashboard, Visit
from http_server import serving

STATUS = re.compile(r"^([\d,]+) records? from (\S+ \S+) to (\S+ \S+)\.")


@pytest.fixture
def visit(dashboard: Dashboard) -> Iterator[Visit]:
    with dashboard.visit() as opened:
        yield opened


def status(page: Page) -> tuple[int, datetime, datetime]:
    """Return how many records are shown, from when to when."""
    found = STATUS.match(page.locator(".timeline-status").inner_text())
    assert found
    times = [datetime.strptime(found[n], "%Y-%m-%d %H:%M").replace(tzinfo=UTC) for n in (2, 3)]
    return int(found[1].replace(",", "")), times[0], times[1]


def span(page: Page) -> float:
    _, since, until = status(page)
    return (until - since).total_seconds()


def rest(visit: Visit) -> None:
    """Wait until the last change has rested, and what it asks for is there."""
    expect(visit.page.locator(".timeline[aria-busy=false]")).to_have_count(1)
    visit.settle()


def plot(page: Page) -> Locator:
    return page.get_by_role("application", name="Records along time")


def test_zoom_with_buttons_keys_wheel_and_drag(visit: Visit) -> None:
    page = visit.open("timeline", scope="acme/alice")
    everything = status(page)
    whole = span(page)
    page.get_by_role("button", name="Zoom in").click()
    rest(visit)
    assert span(page) == pytest.approx(whole / 2, rel=0.01)
    page.get_by_role("button", name="Earlier").click()
    rest(visit)
    assert status(page)[1] == everything[1]
    assert status(page)[2] < everything[2]
    page.get_by_role("button", name="Show all").click()
    rest(visit)
    assert status(page) == everything

    plot(page).focus()
    for key, factor in (("+", 0.5), ("ArrowUp", 0.25), ("-", 0.5), ("ArrowRight", 0.5), ("Home", 1.0)):
        page.keyboard.press(key)
        rest(visit)
        assert span(page) == pytest.approx(whole * factor, rel=0.01), key

    box = plot(page).bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)
    shown = page.locator(".timeline-status").inner_text()
    page.mouse.wheel(0, -300)
    expect(page.locator(".timeline-status")).not_to_have_text(shown, use_inner_text=True)
    rest(visit)
    assert span(page) < whole * 0.6
    page.keyboard.press("Home")
    rest(visit)
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 40, steps=4)
    page.mouse.up()
    rest(visit)
    assert span(page) == pytest.approx(whole / 4, rel=0.02)
    count, since, until = status(page)
    assert 0 < count < everything[0]
    assert everything[1] < since < until < everything[2]
    visit.check_accessibility()
    page.reload()  # the address has the time
    visit.settle()
    rest(visit)
    assert status(page) == (count, since, until)


def test_filters_agree_with_the_records(visit: Visit) -> None:
    page = visit.open("timeline", scope="acme")
    page.get_by_role("group", name="Kinds").get_by_role("button", name="Memories").click()
    rest(visit)
    memories = status(page)[0]
    assert memories == 21
    page.get_by_label("Importance from").fill("6")
    rest(visit)
    important = status(page)[0]
    assert 0 < important < memories
    records = page.locator(".records .record")
    assert records.count() == important
    assert all("memory" in text and "importance" in text for text in records.all_inner_texts())
    page.get_by_role("button", name="Clear filters").click()
    page.get_by_role("group", name="Roles").get_by_role("button", name="tool").click()
    rest(visit)
    expect(records.first).to_contain_text("tool")
    assert all("tool" in text for text in records.all_inner_texts())
    page.get_by_role("group", name="Kinds").get_by_role("button", name="Notes").click()
    rest(visit)
    expect(page.get_by_text("No records in this time")).to_be_visible()


def test_a_record_opens_with_its_source_and_changes_with_undo(visit: Visit) -> None:
    page = visit.open("timeline", scope="globex/dan", kinds="memory", fading="gone")
    page.locator(".records .record", has_text="The ARM runners need a timeout").first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("globex/dan")).to_be_visible()
    expect(dialog.get_by_role("img", name="Importance of 1 memory over time")).to_be_visible()
    visit.check_accessibility()
    dialog.get_by_role("button", name="Pin").click()
    expect(dialog.get_by_text("pinned", exact=True)).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(dialog.get_by_text("pinned", exact=True)).to_have_count(0)
    dialog.get_by_role("spinbutton", name="Importance").fill("7.5")
    dialog.get_by_role("button", name="Set importance").click()
    expect(dialog.locator("dl")).to_contain_text("Importance7.5")
    expect(page.locator(".records .record", has_text="ARM runners").first).to_contain_text("importance 7.5")
    expect(page.locator(".fading .record", has_text="ARM runners")).to_contain_text("of 7.5 left")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page.locator(".records .record", has_text="ARM runners").first).to_be_focused()


def test_a_record_leads_to_its_session(visit: Visit) -> None:
    page = visit.open("timeline", scope="acme/alice", kinds="message")
    page.locator(".records .record").first.click()
    dialog = page.get_by_role("dialog")
    name = dialog.locator("dd .link").first.inner_text()
    dialog.get_by_role("button", name=name).click()
    page.wait_for_url(re.compile(rf"#/sessions\?.*session=acme%2Falice%2F{name}"))
    visit.settle()
    expect(page.get_by_role("region", name=f"Conversation {name}")).to_be_visible()


def test_what_fades_is_archived_and_brought_back(visit: Visit) -> None:
    page = visit.open("timeline", scope="acme/bob")
    card = page.get_by_role("region", name="Forgetting")
    expect(card.get_by_role("img", name=re.compile("^Importance of"))).to_be_visible()
    expect(card.locator(".fading li")).not_to_have_count(0)
    card.get_by_label("Forget below importance").fill("3")
    archive = card.get_by_role("button", name=re.compile(r"^Archive \d memor"))
    expect(archive).to_contain_text("below 3")
    count = int(re.findall(r"\d+", archive.inner_text())[0])
    card.get_by_role("combobox", name="Memories").select_option("gone")
    expect(card.locator(".fading li")).to_have_count(count)
    faded = card.locator(".fading li").all_inner_texts()
    archive.click()
    expect(archive).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("Undone")).to_be_visible()
    expect(card.locator(".fading li")).to_have_count(count)
    assert card.locator(".fading li").all_inner_texts() == faded
    card.get_by_role("combobox", name="Memories").select_option("next")
    expect(card.locator(".fading li")).not_to_have_count(0)
    visit.check_accessibility()


def test_a_phone_and_an_empty_store(dashboard: Dashboard) -> None:
    with serving(clock=demo_store.DemoClock()) as client:
        empty = Dashboard(dashboard.browser, str(client.base_url).rstrip("/"))
        for width in (1280, 390):
            with empty.visit(width) as visit:
                page = visit.open("timeline")
                expect(page.get_by_text("Nothing is stored here yet")).to_be_visible()
                expect(page.get_by_text("No memories here")).to_be_visible()
                visit.check_width()
                visit.check_accessibility()


def test_a_record_of_the_year_1_is_shown_when_it_is_asked_for(dashboard: Dashboard) -> None:
    with serving(clock=demo_store.DemoClock()) as client:
        for time in ("0001-01-01T00:00:00Z", "2025-01-31T09:30:00Z", "2025-02-28T09:30:00Z"):
            said = {"role": "user", "content": "x", "timestamp": time}
            client.post("/api/v1/sessions/a/messages", json=said).raise_for_status()
        with Dashboard(dashboard.browser, str(client.base_url).rstrip("/")).visit() as visit:
            page = visit.open("timeline")
            expect(page.locator(".timeline-status")).to_contain_text("2 records from")
            expect(page.locator(".timeline-status")).to_contain_text("many years before or after")
            page.get_by_role("button", name="Show all").click()
            expect(page.locator(".timeline-status")).to_contain_text("3 records from")
            expect(page.locator(".timeline-status")).not_to_contain_text("many years")


def test_a_server_that_fails_is_said_so(visit: Visit) -> None:
    visit.expect_faults = ["503", "status of 503"]
    page = visit.page
    problem = '{"title": "The store is busy", "detail": "Try again in a moment.", "status": 503}'
    broken = [True]
    page.route(
        "**/api/v1/timeline?*",
        lambda route: (
            route.fulfill(status=503, content_type="application/problem+json", body=problem)
            if broken[0]
            else route.continue_()
        ),
    )
    page.goto(f"{visit.address}/dashboard/#/timeline?scope=acme/alice")
    expect(page.get_by_role("alert").first).to_contain_text("Try again in a moment.")
    broken[0] = False
    page.get_by_role("button", name="Try again").first.click()
    expect(plot(page)).to_be_visible()


def test_the_address_has_the_open_record_and_back_returns_to_the_time_before(visit: Visit) -> None:
    page = visit.open("timeline", scope="globex/dan", kinds="memory")
    everything = page.locator(".timeline-status").inner_text()
    page.get_by_role("button", name="Zoom in").click()
    rest(visit)
    zoomed = page.locator(".timeline-status").inner_text()
    assert zoomed != everything
    page.get_by_role("button", name="Zoom in").click()
    rest(visit)
    page.go_back()
    expect(page.locator(".timeline-status")).to_have_text(zoomed, use_inner_text=True)
    rest(visit)
    page.go_back()
    expect(page.locator(".timeline-status")).to_have_text(everything, use_inner_text=True)
    rest(visit)
    page.locator(".records .record", has_text="The ARM runners need a timeout").first.click()
    expect(page.get_by_role("dialog")).to_contain_text("The ARM runners need a timeout")
    page.reload()
    expect(page.get_by_role("dialog")).to_contain_text("The ARM runners need a timeout")
    page.go_back()
    expect(page.get_by_role("dialog")).to_have_count(0)
    card = page.get_by_role("region", name="Forgetting")
    card.get_by_label("Forget below importance").fill("3")
    page.wait_for_url("**below=3**")
    page.reload()
    expect(card.get_by_label("Forget below importance")).to_have_value("3")


def test_a_short_time_is_told_with_its_seconds(visit: Visit) -> None:
    times = {"since": "2026-05-01T10:00:00.250Z", "until": "2026-05-01T10:00:01.250Z"}
    page = visit.open("timeline", scope="acme", **times)
    expect(page.locator(".timeline-status")).to_contain_text("from 2026-05-01 10:00:00.250 to 2026-05-01 10:00:01.250")


def test_more_records_are_shown(visit: Visit) -> None:
    page = visit.open("timeline", scope="acme")
    records = page.locator(".records .record")
    expect(records).to_have_count(15)
    page.get_by_role("button", name="Show more").click()
    expect(records).to_have_count(30)
