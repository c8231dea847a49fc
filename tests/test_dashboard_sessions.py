"""Sessions and the overview in a browser: chats with their window, deleting with undo, scopes, an empty store."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

import demo_store
from browser import Dashboard, Visit
from http_server import serving

LONG = "acme/alice/visit-30"
"""A session that was archived in part, and summarized."""


@pytest.fixture
def visit(dashboard: Dashboard) -> Iterator[Visit]:
    with dashboard.visit() as opened:
        yield opened


def test_the_list_is_searched_and_sorted(visit: Visit) -> None:
    page = visit.open("sessions", scope="acme")
    sessions = page.locator(".session")
    expect(page.get_by_text("29 sessions", exact=True)).to_be_visible()
    page.get_by_label("Search sessions").fill("trip lyon alice")
    expect(sessions).to_have_count(1)
    expect(sessions).to_contain_text("Trip to Lyon")
    page.get_by_label("Search sessions").fill("nothing like it")
    expect(page.get_by_text("No session matches")).to_be_visible()
    page.get_by_label("Search sessions").fill("")
    page.get_by_label("Sort by").select_option("tokens")
    expect(sessions.first).to_contain_text("3.4K tok")
    page.get_by_label("Search sessions").fill("trip")
    sessions.first.click()
    expect(page.get_by_role("region", name="Conversation")).to_be_visible()
    expect(sessions.first).to_have_attribute("aria-current", "true")
    page.go_back()
    expect(page.get_by_text("Choose a session")).to_be_visible()


def test_a_conversation_shows_its_folded_parts(visit: Visit) -> None:
    page = visit.open("sessions", scope="acme", session=LONG)
    expect(page.get_by_role("heading", name="Trip to Lyon")).to_be_visible()
    expect(page.get_by_text("at most 14 messages, then summarized")).to_be_visible()
    page.get_by_text("Summary of 19 earlier messages").click()
    expect(page.locator(".folded .text").first).to_contain_text("Casa Lyon")
    before = page.locator(".message").count()
    page.get_by_text("19 archived messages").click()
    expect(page.locator(".message")).not_to_have_count(before)
    expect(page.get_by_text("image/png, 1 × 1 pixels, 72 bytes")).to_be_visible()
    call = page.locator(".messages > .message .call").last
    call.locator("summary").click()
    expect(call.locator("pre").first).to_contain_text('"to": "Lyon"')
    expect(call.locator("pre").last).to_contain_text('"arrives": "15:40"')
    visit.check_accessibility()


def test_what_fits_is_marked_as_the_budget_moves(visit: Visit) -> None:
    page = visit.open("sessions", scope="acme", session=LONG)
    page.get_by_label("Show what fits into a prompt").check()
    counts = []
    for budget in ("100", "200", "300"):
        page.get_by_label("Budget in tokens").fill(budget)
        told = page.get_by_text(re.compile(rf"messages of 14 fit.*of {budget} tokens"))
        expect(told).to_be_visible()
        counts.append(page.locator(".message.in").count())
        assert page.locator(".message.in").count() + page.locator(".message.out").count() == 12
    assert counts[0] < counts[1]
    expect(page.get_by_text("fit, with the summary")).to_be_visible()
    expect(page.locator(".folded.in")).to_contain_text("Summary")
    expect(page.locator(".message.system")).to_have_class(re.compile(r"\bin\b"))
    visit.check_accessibility()
    page.get_by_label("Exact budget").fill("207")
    expect(page.get_by_text(re.compile(r"messages of 14 fit.*of 207 tokens"))).to_be_visible()
    page.wait_for_url("**budget=207")
    page.reload()
    expect(page.get_by_text(re.compile(r"messages of 14 fit.*of 207 tokens"))).to_be_visible()
    page.get_by_label("Budget in tokens").fill("10")
    expect(page.get_by_text("the system message and the user's last message need")).to_be_visible()
    page.get_by_label("Show what fits into a prompt").uncheck()
    expect(page.locator(".message.out")).to_have_count(0)


def test_deleting_a_message_can_be_undone_until_one_leaves(visit: Visit) -> None:
    page = visit.open("sessions", scope="globex/erin")
    page.locator(".session").first.click()
    visit.settle()
    messages = page.locator(".message")
    count, first = messages.count(), messages.nth(1)
    text = first.locator(".text").inner_text()
    first.hover()
    first.get_by_role("button", name="Delete this message").click()
    expect(messages).to_have_count(count - 1)
    page.get_by_role("button", name="Undo").click()
    expect(messages).to_have_count(count)
    expect(messages.nth(1)).to_contain_text(text)
    page.reload()
    visit.settle()
    expect(messages).to_have_count(count)
    first.hover()
    first.get_by_role("button", name="Delete this message").click()
    expect(messages).to_have_count(count - 1)
    with page.expect_response(lambda answer: answer.request.method == "DELETE") as deleted:
        page.get_by_role("link", name="Overview").click()
    assert deleted.value.status == 204
    page.go_back()
    visit.settle()
    expect(messages).to_have_count(count - 1)


def test_a_message_is_pinned(visit: Visit) -> None:
    page = visit.open("sessions", scope="acme", session=LONG)
    message = page.locator(".message.user").last
    message.hover()
    message.get_by_role("button", name="Pin or change").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Pin", exact=True).click()
    expect(message.get_by_text("pinned")).to_be_visible()
    page.keyboard.press("Escape")


def test_hostile_texts_stay_texts_in_a_chat(visit: Visit) -> None:
    name = '"><img src=x onerror=alert(1)>'
    page = visit.open("sessions", scope="acme/<b>mallory", session=f"acme/<b>mallory/{name}")
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    texts = page.locator(".message .text").all_inner_texts()
    assert demo_store.HOSTILE[0] in texts
    assert demo_store.HOSTILE[1] in texts
    page.get_by_role("button", name="Show all 10,000 characters").first.click()
    expect(page.get_by_text("x" * 10_000, exact=True)).to_be_visible()
    assert page.locator("main img, main script").count() == 0
    expect(page).to_have_title("Sessions · Mnemic")
    visit.check_width()


def test_a_phone_shows_the_list_or_the_chat(dashboard: Dashboard) -> None:
    with dashboard.visit(390) as visit:
        page = visit.open("sessions", scope="acme/alice")
        page.locator(".session").first.click()
        visit.settle()
        expect(page.locator(".session-list")).to_be_hidden()
        visit.check_width()
        visit.check_accessibility()
        page.get_by_role("button", name="All sessions").click()
        expect(page.locator(".session-list")).to_be_visible()


def test_a_session_that_is_not_there(visit: Visit) -> None:
    visit.expect_faults = ["status of 404", "answer 404"]
    page = visit.open("sessions", scope="acme", session="acme/alice/never")
    expect(page.get_by_role("alert")).to_contain_text("has no session 'never'")


def figure(page: Page, name: str) -> str:
    return page.locator(".figure", has_text=re.compile(rf"^{name}")).locator("strong").inner_text()


def test_the_overview_is_the_first_page_and_leads_into_scopes(visit: Visit) -> None:
    page = visit.open("")
    expect(page).to_have_title("Overview · Mnemic")
    sessions = int(figure(page, "Sessions"))
    assert sessions == 45
    expect(page.get_by_role("img", name=re.compile(r"^\d+ records in the last 90 days"))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile(r"^Growth to \d+ records"))).to_be_visible()
    page.get_by_role("button", name="Sessions").click()  # sorts the table
    rows = page.locator(".scopes tbody tr")
    expect(rows.first).to_contain_text("acme")
    page.get_by_role("button", name="Scopes in acme").click()
    expect(rows).to_have_count(4)
    page.get_by_label("Search scopes").fill("alice")
    expect(rows).to_have_count(1)
    rows.get_by_role("button", name="acme/alice").click()
    page.wait_for_url("**/#/overview?scope=acme%2Falice")
    visit.settle()
    assert int(figure(page, "Sessions")) == 7
    page.locator(".crumbs").get_by_role("button", name="acme").click()
    page.wait_for_url("**/#/overview?scope=acme")
    visit.settle()
    visit.check_accessibility()


def test_the_overview_shows_how_recall_answers(dashboard: Dashboard) -> None:
    with serving(clock=demo_store.DemoClock()) as client:
        client.post("/api/v1/memories", params={"scope": "acme"}, json={"text": "Ines is allergic to shellfish"})
        with Dashboard(dashboard.browser, str(client.base_url).rstrip("/")).visit() as visit:
            page = visit.open("overview")
            expect(page.get_by_text("No recalls since the server started")).to_be_visible()
            for query in ("what is Ines allergic to?", "who won the race?"):
                client.get("/api/v1/recall", params={"scope": "acme", "query": query})
            page.reload()
            visit.settle()
            assert figure(page, "Answered") == "50%"
            expect(page.get_by_text("of 2 recalls")).to_be_visible()
            visit.check_accessibility()


def test_an_empty_store_says_how_to_begin(dashboard: Dashboard) -> None:
    with serving(clock=demo_store.DemoClock()) as client:
        address = str(client.base_url).rstrip("/")
        for width in (390, 1280):
            with Dashboard(dashboard.browser, address).visit(width) as visit:
                page = visit.open("")
                expect(page.locator("pre")).to_have_text(
                    f'import mnemic\nmnemic.open("{address}").scope("demo").remember("Alice likes trains")'
                )
                visit.check_width()
                visit.check_accessibility()
                if width == 1280:
                    page.get_by_label("Something to remember").fill("Ines is allergic to shellfish")
                    page.get_by_role("button", name="Remember").click()
                    page.wait_for_url("**/#/recall?scope=demo")
        found = client.get("/api/v1/recall", params={"scope": "demo", "query": "allergic"}).json()["hits"]
        assert [hit["text"] for hit in found] == ["Ines is allergic to shellfish"]


def test_a_long_session_opens_at_its_newest_message_and_shows_all(dashboard: Dashboard) -> None:
    with serving(clock=demo_store.DemoClock()) as client:
        chat = "/api/v1/sessions/long"
        client.patch(chat, params={"scope": "acme"}, json={"max_messages": 250}).raise_for_status()
        said = [{"role": "user", "content": f"number {n}", "name": "<b>eve</b>"} for n in range(500)]
        for start in range(0, 500, 100):
            body = said[start : start + 100]
            client.post(f"{chat}/messages", params={"scope": "acme"}, json=body).raise_for_status()
        with Dashboard(dashboard.browser, str(client.base_url).rstrip("/")).visit() as visit:
            page = visit.open("sessions", scope="acme", session="acme/long")
            expect(page.get_by_text("number 499", exact=True)).to_be_in_viewport()
            assert page.locator(".message-head strong").last.inner_text() == "<b>eve</b>"
            live = page.locator(".chat > .messages .text")
            earlier = page.get_by_role("button", name="Show earlier messages")
            for count in (100, 200):
                expect(live).to_have_count(count)
                earlier.click()
            expect(live).to_have_count(250)
            expect(earlier).to_have_count(0)
            assert live.all_inner_texts() == [f"number {n}" for n in range(250, 500)]
            live.nth(200).hover()
            page.locator(".message", has_text="number 450").get_by_role("button", name="Pin or change").click()
            page.get_by_role("dialog").get_by_role("button", name="Pin", exact=True).click()
            expect(page.locator(".message", has_text="number 450").get_by_text("pinned")).to_be_visible()
            expect(live).to_have_count(250)
            page.keyboard.press("Escape")
            page.get_by_text("250 archived messages").click()
            archived = page.locator(".folded .text")
            for count in (100, 200):
                expect(archived).to_have_count(count)
                earlier.click()
            expect(archived).to_have_count(250)
            assert archived.all_inner_texts() == [f"number {n}" for n in range(250)]


def test_sessions_are_by_the_time_of_their_newest_message_and_small_days_show(dashboard: Dashboard) -> None:
    with serving(clock=demo_store.DemoClock()) as client:

        def say(scope: str, session: str, time: str, count: int = 1) -> None:
            body = [{"role": "user", "content": "x", "timestamp": time}] * count
            path = f"/api/v1/sessions/{session}/messages"
            client.post(path, params={"scope": scope}, json=body).raise_for_status()

        for name, month in (("june", 6), ("august", 8), ("july", 7)):
            say("acme", name, f"2025-0{month}-01T12:00:00Z")
        for n in range(110):
            say("acme", f"may-{n:03}", f"2025-05-01T12:{n // 60:02}:{n % 60:02}Z")
        say("big", "big", "2026-05-13T12:00:00Z", 1200)
        say("big", "small", "2026-05-11T12:00:00Z")
        say("big", "small", "2026-05-10T12:00:00Z")
        with Dashboard(dashboard.browser, str(client.base_url).rstrip("/")).visit() as visit:
            page = visit.open("sessions", scope="acme")
            expect(page.get_by_text("113 sessions", exact=True)).to_be_visible()
            names = page.locator(".session strong").all_inner_texts()
            assert names[:5] == ["august", "july", "june", "may-109", "may-108"]
            assert "2025-08-01 12:00" in (page.locator(".session time").first.get_attribute("title") or "")
            page = visit.open("overview", scope="big")
            expect(page.locator(".figure [title='1,202']")).to_contain_text("1.2K")
            expect(page.get_by_text("Heights grow with the square root")).to_be_visible()
            expect(page.locator(".hover title", has_text="2026-05-13: 1,200 records")).to_have_count(1)
            visit.check_accessibility()
            page.route("**/api/v1/scopes?limit=1000", lambda route: route.fulfill(status=200, body=""))
            page.get_by_label("Scope", exact=True).fill("missing")
            page.get_by_label("Scope", exact=True).press("Enter")
            expect(page.get_by_role("heading", name="Nothing is stored in missing yet")).to_be_visible()
