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
    page.get_by_label("I have stored it").check()
    page.get_by_role("button", name="Done").click()
    return secret


def answers(dashboard: Dashboard, key: str, path: str = "notes", **query: str) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.get(f"{dashboard.address}/api/v1/{path}", headers=headers, params=query, timeout=60).status_code


def opened(visit: Visit) -> Page:
    page = visit.open("keys")
    page.get_by_role("button", name="New key").wait_for()
    return page


def signed_in(visit: Visit, name: str, key: str) -> Page:
    page = visit.open(name)
    page.get_by_label("API key", exact=True).fill(key)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name="Notes").wait_for()
    visit.settle()
    return page


def test_keys_are_created_used_expired_and_revoked(empty: Dashboard) -> None:
    with empty.visit() as visit:
        page = opened(visit)
        expect(page.get_by_text("There are no keys yet")).to_be_visible()
        visit.check_accessibility()
        admin = create(page, "admin")
        page.get_by_text("yours").wait_for()
        assert httpx.get(f"{empty.address}/api/v1/notes", timeout=60).status_code == 401
        assert answers(empty, admin, "keys") == 200

        bot = create(page, "<b>bot</b>", "acme", "Read")
        row = page.get_by_role("row", name="<b>bot</b>")
        expect(row).to_contain_text("acme")
        assert (answers(empty, bot, scope="acme"), answers(empty, bot, "keys")) == (200, 403)
        visit.check_accessibility()

        page.reload()
        expect(row.locator("[data-title='Last used']")).to_have_text("this hour")

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
        page = signed_in(visit, "notes", reader)
        expect(page.get_by_role("link", name="Keys")).to_have_count(0)
        expect(page.get_by_role("link", name="Audit")).to_have_count(0)
        expect(page.get_by_role("button", name="New note")).to_have_count(0)
        visit.open("keys")
        expect(page.get_by_text("This page needs a key with the right admin")).to_be_visible()
        expect(page.get_by_text("Your key “reader” has: read.")).to_be_visible()
        expect(page.get_by_role("button", name="New key")).to_have_count(0)
        visit.check_accessibility()


@pytest.mark.parametrize("width", [1280, 390])
def test_a_new_key_stays_until_it_is_stored(empty: Dashboard, width: int) -> None:
    with empty.visit(width) as visit:
        page = opened(visit)
        page.get_by_role("button", name="New key").click()
        page.get_by_label("Name").fill("admin")
        page.get_by_role("button", name="Create").click()
        secret = page.get_by_label("API key", exact=True)
        expect(page.get_by_text("it is not shown again")).to_be_visible()
        for _ in range(3):  # the browser closes a dialog at the second Escape, whatever the page says
            page.keyboard.press("Escape")
        page.mouse.click(5, 5)
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
        expect(secret).to_be_visible()
        expect(page.get_by_role("button", name="Done")).to_be_disabled()
        expect(page.get_by_role("button", name="Close")).to_have_count(0)
        visit.check_accessibility()
        page.get_by_label("I have stored it").check()
        page.keyboard.press("Escape")
        expect(secret).to_have_count(0)
        page.get_by_text("yours").wait_for()


def test_a_key_of_a_scope_is_told_what_is_its_own(empty: Dashboard) -> None:
    with empty.visit() as visit:
        create(opened(visit), "admin")
        visit.page.get_by_text("yours").wait_for()
        alice = create(visit.page, "alice", "acme/alice", "Read", "Write", "Admin")
    headers = {"Authorization": f"Bearer {alice}"}
    note = {"params": {"scope": "acme/alice/trips"}, "json": {"value": 1}, "headers": headers}
    httpx.put(f"{empty.address}/api/v1/notes/plan", timeout=60, **note).raise_for_status()  # type: ignore[arg-type]
    with empty.visit() as visit:
        page = signed_in(visit, "overview", alice)
        box = page.get_by_role("combobox", name="Scope")
        box.focus()
        page.get_by_role("option", name="acme/alice/trips").wait_for()
        names = page.get_by_role("option").locator("span").all_inner_texts()
        assert names == ["acme/alice", "acme/alice/trips"]
        page.keyboard.press("Escape")

        visit.open("overview", scope="acme/bob")
        expect(page.get_by_text("Your key does not reach acme/bob")).to_be_visible()
        expect(page.get_by_text("Nothing is stored")).to_have_count(0)
        visit.check_accessibility()
        page.get_by_role("main").get_by_role("link", name="acme/alice").click()
        page.wait_for_url("**/#/overview?scope=acme%2Falice")
        expect(page.get_by_role("region", name="Sizes")).to_be_visible()

        visit.open("sessions", session="acme/bob/monday")
        expect(page.get_by_text("Your key does not reach acme/bob/monday")).to_be_visible()
        expect(page.locator(".state")).to_have_count(1)
        visit.expect_faults = ["404"]
        visit.open("sessions", session="acme/alice/monday")
        expect(page.locator(".conversation .state")).to_have_count(1)

        visit.open("keys")
        page.get_by_role("button", name="New key").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Yours reaches acme/alice and below.")
        expect(dialog).not_to_contain_text("everything.")
        expect(dialog).not_to_contain_text("metrics")
        dialog.get_by_label("Name").fill("bot")
        dialog.get_by_role("textbox", name="Scope").fill("")
        dialog.get_by_role("button", name="Create").click()
        expect(page.get_by_text("Key for bot")).to_be_visible()
        expect(page.get_by_role("dialog")).to_contain_text("the scope acme/alice")
