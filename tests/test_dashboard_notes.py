"""The page of notes: browse, read, write without overwriting others, rename, delete, and undo each."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import expect

from browser import Dashboard

WHERE = {"scope": "acme/carla"}


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
