"""The page of keys: the first key closes the server, others have a scope and rights, and each is shown once."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from browser import Dashboard, Visit
from http_server import serving


@pytest.fixture
def empty(browser: Browser) -> Iterator[Dashboard]:
    """The dashboard of a server without keys."""
    with serving() as client:
        yield Dashboard(browser, str(client.base_url).rstrip("/"))


def create(page: Page, name: str, scope: str | None = None, *rights: str) -> str:
    """Create a key on the page, and return it."""
    page.get_by_role("button", name="New key").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill(name)
    if scope is not None:
        dialog.get_by_role("textbox", name="Scope").fill(scope)
        for right in ("Read", "Write", "Erase", "Admin"):
            dialog.get_by_role("checkbox", name=right).set_checked(right in rights)
    dialog.get_by_role("button", name="Create").click()
    secret = page.get_by_label("API key", exact=True).input_value()
    page.get_by_role("button", name="I have stored it").click()
    return secret


def answers(dashboard: Dashboard, key: str, path: str = "notes", **query: str) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.get(f"{dashboard.address}/api/v1/{path}", headers=headers, params=query).status_code


def opened(visit: Visit) -> Page:
    page = visit.open("keys")
    page.get_by_role("button", name="New key").wait_for()
    return page


def test_keys_are_created_used_expired_and_revoked(empty: Dashboard) -> None:
    with empty.visit() as visit:
        page = opened(visit)
        expect(page.get_by_text("There are no keys yet")).to_be_visible()
        visit.check_accessibility()
        admin = create(page, "admin")
        page.get_by_text("yours").wait_for()
        assert httpx.get(f"{empty.address}/api/v1/notes").status_code == 401
        assert answers(empty, admin, "keys") == 200

        bot = create(page, "<b>bot</b>", "acme", "Read")
        row = page.get_by_role("row", name="<b>bot</b>")
        expect(row).to_contain_text("acme")
        assert (answers(empty, bot, scope="acme"), answers(empty, bot, "keys")) == (200, 403)
        visit.check_accessibility()

        row.get_by_role("button", name="Expire").click()
        page.get_by_role("dialog").get_by_label("Expires").select_option("In a week")
        page.get_by_role("button", name="Set").click()
        expect(row).to_contain_text("in 7 days")
        page.get_by_role("button", name="Undo").click()
        expect(row).to_contain_text("never")

        row.get_by_role("button", name="Revoke").click()
        page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        expect(row).to_have_count(0)
        assert answers(empty, bot) == 401
        page.get_by_label("Show revoked").check()
        expect(row).to_contain_text("revoked")
        assert bot not in page.content()


def test_a_new_key_can_be_copied(empty: Dashboard) -> None:
    with empty.visit(390) as visit:
        visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = opened(visit)
        page.get_by_role("button", name="New key").click()
        page.get_by_label("Name").fill("admin")
        page.get_by_role("button", name="Create").click()
        page.get_by_role("button", name="Copy").click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()") == page.get_by_label("API key", exact=True).input_value()
        visit.check_width()
        visit.check_accessibility()


def test_only_an_admin_has_the_page(empty: Dashboard) -> None:
    with empty.visit() as visit:
        create(opened(visit), "admin")
        visit.page.get_by_text("yours").wait_for()
        reader = create(visit.page, "reader", "acme", "Read")
    with empty.visit() as visit:
        visit.expect_faults = ["401", "403"]
        page = visit.open("notes")
        page.get_by_label("API key", exact=True).fill(reader)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("link", name="Notes").wait_for()
        expect(page.get_by_role("link", name="Keys")).to_have_count(0)
        expect(page.get_by_role("link", name="Audit")).to_have_count(0)
        expect(page.get_by_role("button", name="New note")).to_have_count(0)
        visit.open("keys")
        expect(page.get_by_text("Your key may not do this")).to_be_visible()
