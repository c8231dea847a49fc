"""The page of the audit log: newest first, filtered, one change in full, and what it says when it is off."""

from __future__ import annotations

import httpx
from playwright.sync_api import Browser, expect

from browser import Dashboard
from http_server import serving

WHERE = {"scope": "audited"}


def test_the_log_is_filtered_and_an_entry_opened(dashboard: Dashboard) -> None:
    with httpx.Client(base_url=f"{dashboard.address}/api/v1", params=WHERE) as api:
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


def test_without_a_log_the_page_says_how_to_turn_it_on(browser: Browser) -> None:
    with serving() as client:
        with Dashboard(browser, str(client.base_url).rstrip("/")).visit() as visit:
            visit.expect_faults = ["404"]
            page = visit.open("audit")
            expect(page.get_by_text("The audit log is off")).to_be_visible()
            expect(page.get_by_text("MNEMIC_AUDIT=true")).to_be_visible()
            visit.check_accessibility()
