"""The page of notes: browse, read, write without overwriting others, rename, delete, and undo each."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote, unquote, urlsplit

import httpx
import pytest
from playwright.sync_api import expect

from browser import Dashboard

WHERE = {"scope": "acme/carla"}
PATHS = (
    "../sessions/monday",
    "..%2Fx",
    "a/../b",
    "%2e%2e/x",
    "a//b",
    "./x",
    "a/..",
    "../../keys",
    "?scope=/",
    "a#b",
    "ä b",
)
"""Keys of notes that lead elsewhere, if they are put into an address carelessly."""


@pytest.fixture
def api(dashboard: Dashboard) -> Iterator[httpx.Client]:
    """A client of the dashboard's server, whose scope has three notes."""
    with httpx.Client(base_url=f"{dashboard.address}/api/v1", params=WHERE) as client:
        for key, value in (("plans/week", {"monday": "rest"}), ("plans/year", "sail"), ("todo", ["call"])):
            client.put(f"/notes/{key}", json={"value": value, "description": f"about {key}"}).raise_for_status()
        yield client


def test_notes_are_browsed_as_a_tree_and_read(dashboard: Dashboard, api: httpx.Client) -> None:
    with dashboard.visit() as visit:
        page = visit.open("notes", **WHERE)
        tree = page.locator(".tree").first
        tree.get_by_role("button", name="week").click()
        expect(page.get_by_text('"monday": "rest"')).to_be_visible()
        expect(page.get_by_text("about plans/week")).to_be_visible()
        page.get_by_role("searchbox", name="Filter notes").fill("todo")
        expect(tree.get_by_role("button", name="week")).to_have_count(0)
        tree.get_by_role("button", name="todo").click()
        expect(page.get_by_role("region", name="todo")).to_contain_text("call")
        visit.check_accessibility()


def test_a_note_is_edited_and_the_edit_undone(dashboard: Dashboard, api: httpx.Client) -> None:
    with dashboard.visit() as visit:
        page = visit.open("notes", key="plans/week", **WHERE)
        page.get_by_role("button", name="Edit").click()
        page.get_by_role("textbox", name="Value").fill('{"monday": ')
        expect(page.get_by_text("Not JSON yet")).to_be_visible()
        expect(page.get_by_role("button", name="Save")).to_be_disabled()
        page.get_by_role("textbox", name="Value").fill('{"monday": "work"}')
        visit.check_accessibility()
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_text('"monday": "work"')).to_be_visible()
        page.get_by_role("button", name="Undo").click()
        expect(page.get_by_text('"monday": "rest"')).to_be_visible()
        assert api.get("/notes/plans/week").json()["value"] == {"monday": "rest"}


def test_a_conflict_shows_both_versions_and_loses_neither(dashboard: Dashboard, api: httpx.Client) -> None:
    with dashboard.visit() as visit:
        visit.expect_faults = ["412"]
        page = visit.open("notes", key="plans/year", **WHERE)
        page.get_by_role("button", name="Edit").click()
        page.get_by_role("textbox", name="Value").fill("climb")
        api.put("/notes/plans/year", json={"value": "read"})
        page.get_by_role("button", name="Save").click()
        conflict = page.get_by_role("alert", name="Conflict")
        expect(conflict).to_contain_text("Somebody was faster")
        assert conflict.locator("pre").all_inner_texts() == ["read", "climb"]
        visit.check_accessibility()
        assert api.get("/notes/plans/year").json()["value"] == "read"
        page.get_by_role("button", name="Replace it with mine").click()
        page.get_by_role("button", name="Edit").wait_for()  # it is saved, and shown again
        expect(page.get_by_text("climb")).to_be_visible()
        assert api.get("/notes/plans/year").json()["value"] == "climb"


def test_a_note_that_was_deleted_meanwhile_can_be_written_again(dashboard: Dashboard, api: httpx.Client) -> None:
    with dashboard.visit() as visit:
        visit.expect_faults = ["412", "404"]
        page = visit.open("notes", key="todo", **WHERE)
        page.get_by_role("button", name="Edit").click()
        api.delete("/notes/todo")
        page.get_by_role("textbox", name="Value").fill("[1]")
        page.get_by_role("button", name="Save").click()
        page.get_by_role("button", name="Write mine again").click()
        expect(page.get_by_role("button", name="Edit")).to_be_visible()
        assert api.get("/notes/todo").json()["value"] == [1]


def test_a_note_is_created_renamed_and_deleted_with_undo(dashboard: Dashboard, api: httpx.Client) -> None:
    with dashboard.visit(390) as visit:
        visit.expect_faults = ["412"]
        page = visit.open("notes", **WHERE)
        page.get_by_role("button", name="New note").click()
        page.get_by_label("Key").fill("todo")
        page.get_by_role("button", name="Create").click()
        expect(page.get_by_role("alert")).to_contain_text("already")
        page.get_by_label("Key").fill("ideas/boat")
        page.get_by_label("Value").fill("<b>red</b>")
        visit.check_accessibility()
        page.get_by_role("button", name="Create").click()
        expect(page.get_by_text("<b>red</b>")).to_be_visible()
        page.get_by_role("button", name="Rename").click()
        page.get_by_label("Key").fill("ideas/ship")
        page.get_by_role("dialog").get_by_role("button", name="Rename").click()
        page.wait_for_url("**key=ideas%2Fship")
        page.get_by_role("button", name="Delete this note").click()
        page.get_by_text("Deleted “ideas/ship”").wait_for()
        visit.check_width()
        assert [note["key"] for note in api.get("/notes").json()["items"]] == ["plans/week", "plans/year", "todo"]
        page.locator(".toast", has_text="Deleted").get_by_role("button", name="Undo").click()
        expect(page.get_by_text("<b>red</b>")).to_be_visible()
        assert api.get("/notes/ideas/ship").json()["value"] == "<b>red</b>"
        api.delete("/notes/ideas/ship")


def test_a_scope_without_notes_leads_to_those_below(dashboard: Dashboard) -> None:
    with dashboard.visit() as visit:
        page = visit.open("notes")
        page.get_by_role("link", name="globex/dan").click()
        page.get_by_role("region", name="Changed last").get_by_role("button", name="build/flags").click()
        expect(page.get_by_text('"timeout_s": 600')).to_be_visible()


def test_hostile_notes_are_shown_as_text_and_fit(dashboard: Dashboard) -> None:
    where = {"scope": "acme/<b>mallory"}
    notes = httpx.get(f"{dashboard.address}/api/v1/notes", params=where).json()["items"]
    assert len(notes) >= 8
    with dashboard.visit(390) as visit:
        for note in notes:
            page = visit.open("notes", key=note["key"], **where)
            expect(page.get_by_role("heading", level=2)).to_have_text(note["key"])
            visit.check_width()
            assert page.locator("main :is(img, script)").count() == 0
            assert page.title() == "Notes · Mnemic"


def test_a_key_that_looks_like_a_path_leads_nowhere_else(dashboard: Dashboard, api: httpx.Client) -> None:
    api.post("/sessions/monday/messages", json={"role": "user", "content": "hello"}).raise_for_status()
    with dashboard.visit() as visit:
        sent: list[str] = []
        visit.page.on("request", lambda request: sent.append(f"{request.method} {urlsplit(request.url).path}"))
        for key in PATHS:
            api.put(f"/notes/{quote(key, safe='')}", json={"value": f"of {key}"}).raise_for_status()
            page = visit.open("notes", key=key, **WHERE)
            expect(page.locator(".note .prose")).to_have_text(f"of {key}")
            sent.clear()
            page.get_by_role("button", name="Delete this note").click()
            page.get_by_text(f"Deleted “{key}”", exact=True).wait_for()
            assert [unquote(one) for one in sent if one.startswith("DELETE")] == [f"DELETE /api/v1/notes/{key}"]
            assert api.get(f"/notes/{quote(key, safe='')}").status_code == 404
            page.locator(".toast", has_text=f"Deleted “{key}”").get_by_role("button", name="Undo").click()
            expect(page.locator(".note .prose")).to_have_text(f"of {key}")
            api.delete(f"/notes/{quote(key, safe='')}").raise_for_status()
            page.reload()  # no toasts are left
    assert api.get("/sessions/monday").status_code == 200
    api.delete("/sessions/monday").raise_for_status()


@pytest.mark.parametrize("key", [".", ".."])
def test_a_name_that_no_address_can_have_is_refused_before_a_request(
    dashboard: Dashboard, api: httpx.Client, key: str
) -> None:
    api.put("/notes/odd", json={"value": 1})
    api.patch("/notes/odd", json={"key": key}).raise_for_status()
    with dashboard.visit() as visit:
        sent: list[str] = []
        page = visit.page
        page.on("request", lambda request: sent.append(urlsplit(request.url).path))
        visit.open("notes", key=key, **WHERE)
        expect(page.get_by_role("alert")).to_contain_text(f"No address can have the name “{key}”")
        visit.open("sessions", session=f"acme/carla/{key}", **WHERE)
        expect(page.get_by_role("alert").first).to_contain_text(f"No address can have the name “{key}”")
        visit.open("notes", key="todo", **WHERE)
        page.get_by_role("button", name="Rename").click()
        page.get_by_label("Key").fill(key)
        page.get_by_role("dialog").get_by_role("button", name="Rename").click()
        expect(page.get_by_text(f"No address can have the name “{key}”")).to_be_visible()
        allowed = {"/api/v1/notes", "/api/v1/notes/todo", "/api/v1/scopes", "/api/v1/sessions"}
        assert {path for path in sent if path.startswith("/api/")} <= allowed
    with httpx.Client(base_url=dashboard.address) as client:
        found = client.get("/api/v1/export", params=WHERE).text
    assert f'"{key}"' in found
    api.post("/forget", json={"ids": [key]})


NUMBERS = '{"value": {"big": 9007199254740993, "f": 1.0, "huge": 12345678901234567890}, "metadata": {"n": 2.0}}'


def test_numbers_stay_as_they_were_written(dashboard: Dashboard, api: httpx.Client) -> None:
    json = {"Content-Type": "application/json"}
    api.put("/notes/numbers", content=NUMBERS, headers=json).raise_for_status()
    before = api.get("/notes/numbers").text
    stored = '"value":{"big":9007199254740993,"f":1.0,"huge":12345678901234567890}'
    assert stored in before
    with dashboard.visit() as visit:
        page = visit.open("notes", key="numbers", **WHERE)
        for shown in ('"big": 9007199254740993', '"f": 1.0', '"huge": 12345678901234567890'):
            expect(page.locator(".note pre").first).to_contain_text(shown)
        page.get_by_role("button", name="Edit").click()
        page.get_by_label("Description").fill("exact")
        page.get_by_role("button", name="Save").click()
        page.get_by_text("Saved “numbers”").wait_for()
        assert stored in api.get("/notes/numbers").text
        page.get_by_role("button", name="Delete this note").click()
        page.locator(".toast", has_text="Deleted").get_by_role("button", name="Undo").click()
        page.get_by_text("Undone").wait_for()
        after = api.get("/notes/numbers").text
        assert stored in after
        assert '"metadata":{"n":2.0}' in after
        page.get_by_role("button", name="Edit").click()
        page.get_by_role("textbox", name="Value").fill("12345678901234567890")
        page.get_by_role("button", name="Save").click()
        expect(page.locator(".note pre").first).to_have_text("12345678901234567890")
        assert '"value":12345678901234567890' in api.get("/notes/numbers").text
        page.get_by_role("button", name="New note").click()
        page.get_by_label("Key").fill("numbers/new")
        page.get_by_role("textbox", name="Value").fill('{"f": 1.0}')
        page.get_by_role("button", name="Create").click()
        expect(page.locator(".note pre").first).to_contain_text('"f": 1.0')
        assert '"value":{"f":1.0}' in api.get("/notes/numbers/new").text
    for key in ("numbers", "numbers/new"):
        api.delete(f"/notes/{key}")


def test_a_browser_that_changes_numbers_saves_none(dashboard: Dashboard, api: httpx.Client) -> None:
    with dashboard.visit() as visit:
        visit.page.add_init_script("delete JSON.rawJSON")
        page = visit.open("notes", key="todo", **WHERE)
        page.get_by_role("button", name="Edit").click()
        page.get_by_role("textbox", name="Value").fill("[1.0]")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_text("This browser may change numbers")).to_be_visible()
        assert api.get("/notes/todo").json()["value"] == ["call"]
