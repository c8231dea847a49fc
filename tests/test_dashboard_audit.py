"""The page of the audit log: newest first, filtered, one change in full, and what it says when it is off."""

from __future__ import annotations

from datetime import UTC, datetime

import httpx
from playwright.sync_api import Browser, expect

from browser import Dashboard
from http_server import serving
from mnemic.records import AUDITED

WHERE = {"scope": "audited"}
MOMENT = datetime(2026, 3, 9, 14, 5, 9, tzinfo=UTC)


def test_the_log_is_filtered_and_an_entry_opened(dashboard: Dashboard) -> None:
    with httpx.Client(base_url=f"{dashboard.address}/api/v1", params=WHERE, timeout=60) as api:
        for number in range(60):
            api.put(f"/notes/<i>{number}</i>", json={"value": number}).raise_for_status()
        api.delete("/notes/<i>7</i>").raise_for_status()
    with dashboard.visit() as visit:
        page = visit.open("audit", **WHERE)
        rows = page.get_by_role("row")
        expect(rows.nth(1)).to_contain_text("Deleted")
        expect(rows).to_have_count(51)
        page.get_by_role("button", name="Show more").click()
        expect(rows).to_have_count(62)
        page.get_by_label("Key").fill("<i>7</i>")
        expect(rows).to_have_count(3)
        page.get_by_label("Operation").select_option("Written")
        expect(rows).to_have_count(2)
        page.wait_for_url("**operation=put**")
        page.get_by_role("row", name="Written").get_by_role("button").click()
        expect(page.get_by_role("dialog")).to_contain_text("<i>7</i>")
        visit.check_accessibility()
        page.keyboard.press("Escape")
        page.get_by_label("From").fill("2020-01-01")
        page.get_by_label("Until").fill("2020-01-02")
        expect(page.get_by_text("No change matches")).to_be_visible()
        page.get_by_role("button", name="Clear filters").click()
        expect(rows).to_have_count(51)


def test_all_kinds_can_be_chosen_and_changes_of_one_moment_keep_their_order(browser: Browser) -> None:
    with serving(audit=True, clock=lambda: MOMENT) as client:
        for key in ("a", "c", "b"):
            client.put(f"/api/v1/notes/{key}", params=WHERE, json={"value": 1}).raise_for_status()
        rights = ["read", "write", "erase", "admin"]
        made = client.post("/api/v1/keys", json={"name": "admin", "rights": rights}).json()
        with Dashboard(browser, str(client.base_url).rstrip("/")).visit() as visit:
            page = visit.open("audit", **WHERE)
            page.get_by_label("API key", exact=True).fill(made["secret"])
            page.get_by_role("button", name="Sign in").click()
            rows = page.get_by_role("row")
            expect(rows).to_have_count(4)
            assert page.locator("[data-title=Key]").all_inner_texts() == ["b", "c", "a"]
            expect(rows.nth(1)).to_contain_text("2026-03-09 14:05:09")
            kinds = page.get_by_label("Kind").locator("option").all_inner_texts()
            assert sorted(kinds) == sorted(["Any", *AUDITED])
            visit.open("audit")
            page.get_by_label("Kind").select_option("api-key")
            expect(rows).to_have_count(2)
            expect(rows.nth(1)).to_contain_text(made["id"])


def test_without_a_log_the_page_says_how_to_turn_it_on(browser: Browser) -> None:
    with serving() as client:
        with Dashboard(browser, str(client.base_url).rstrip("/")).visit() as visit:
            visit.expect_faults = ["404"]
            page = visit.open("audit")
            expect(page.get_by_text("The audit log is off")).to_be_visible()
            expect(page.get_by_text("MNEMIC_AUDIT=true")).to_be_visible()
            visit.check_accessibility()
