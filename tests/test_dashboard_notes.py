"""The page of notes: browse, read, write without overwriting others, rename, delete, and undo each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, Dialog, Page, expect

import mnemic
from browser import Dashboard, Visit
from http_server import serving
from mnemic.server.api_keys import ApiKeys

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
    with httpx.Client(base_url=f"{dashboard.address}/api/v1", params=WHERE, timeout=60) as client:
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
        expect(page.get_by_text("This is not valid JSON")).to_be_visible()
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
        page.get_by_label("Description").fill("of mine")
        api.put("/notes/plans/year", json={"value": "read", "description": "of theirs"})
        page.get_by_role("button", name="Save").click()
        conflict = page.get_by_role("alert", name="Conflict")
        expect(conflict).to_contain_text("Somebody was faster")
        assert conflict.locator("pre").all_inner_texts() == ["read", "climb"]
        assert conflict.locator(".columns p").all_inner_texts() == ["of theirs", "of mine"]
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
        page.get_by_role("textbox", name="Value").fill("<b>red</b>")
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
    notes = httpx.get(f"{dashboard.address}/api/v1/notes", params=where, timeout=60).json()["items"]
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
            page.goto("about:blank")  # no toasts are left, and nothing asks for the note
            api.delete(f"/notes/{quote(key, safe='')}").raise_for_status()
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
    with httpx.Client(base_url=dashboard.address, timeout=60) as client:
        found = client.get("/api/v1/export", params=WHERE).text
    assert f'"{key}"' in found
    api.post("/forget", json={"ids": [key]})


def test_undoing_a_deletion_restores_everything_that_was_written(dashboard: Dashboard, api: httpx.Client) -> None:
    body = {
        "value": 1,
        "description": "d",
        "metadata": {"tag": "x"},
        "source": "agent",
        "created": "2020-02-03T04:05:06Z",
    }
    api.put("/notes/old", json=body).raise_for_status()
    before = api.get("/notes/old").json()
    assert before["created"] == "2020-02-03T04:05:06Z"
    with dashboard.visit() as visit:
        page = visit.open("notes", key="old", **WHERE)
        page.get_by_role("button", name="Delete this note").click()
        page.locator(".toast", has_text="Deleted").get_by_role("button", name="Undo").click()
        page.get_by_text("Undone").wait_for()
        after = api.get("/notes/old").json()
    assert after == before | {"version": after["version"], "updated": after["updated"]}
    api.delete("/notes/old")


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


def typed(page: Page) -> None:
    """Edit the note that is shown, without saving."""
    page.get_by_role("button", name="Edit").click()
    page.get_by_role("textbox", name="Value").fill("typed for long")


def test_what_was_typed_is_not_left_without_a_question(dashboard: Dashboard, api: httpx.Client) -> None:
    with dashboard.visit() as visit:
        page = visit.open("notes", key="plans/year", **WHERE)
        typed(page)
        question = page.get_by_role("dialog", name="Leave without saving?")

        def stays() -> None:
            expect(question).to_be_visible()
            question.get_by_role("button", name="Keep writing").click()
            expect(page.get_by_role("textbox", name="Value")).to_have_value("typed for long")
            assert page.url.endswith("#/notes?key=plans%2Fyear&scope=acme%2Fcarla")

        page.get_by_role("link", name="Facts").click()
        visit.check_accessibility()
        stays()
        page.locator(".tree").first.get_by_role("button", name="todo").click()
        stays()
        page.get_by_role("combobox", name="Scope").fill("acme/alice")
        page.keyboard.press("Enter")
        stays()
        page.get_by_role("button", name="Close").click()
        stays()
        page.get_by_role("button", name="Cancel").click()
        stays()
        asked: list[str] = []

        def dismiss(dialog: Dialog) -> None:
            asked.append(dialog.type)
            dialog.dismiss()

        page.on("dialog", dismiss)
        page.evaluate("location.reload()")
        expect(page.get_by_role("textbox", name="Value")).to_have_value("typed for long")
        assert asked == ["beforeunload"]
        page.get_by_role("link", name="Facts").click()
        question.get_by_role("button", name="Leave without saving").click()
        expect(page.get_by_role("heading", name="Facts", level=1)).to_be_visible()
        page.go_back()
        expect(page.locator(".note .prose")).to_have_text("sail")
        page.get_by_role("button", name="New note").click()
        page.get_by_role("textbox", name="Value").fill("typed for long")
        page.keyboard.press("Escape")
        expect(question).to_be_visible()
        question.get_by_role("button", name="Leave without saving").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        page.get_by_role("link", name="Facts").click()
        expect(page.get_by_role("heading", name="Facts", level=1)).to_be_visible()


def test_what_was_typed_outlives_the_session(browser: Browser, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/keys.db"
    with mnemic.open(url) as memory:
        keys = ApiKeys(memory._async)
        mine, other = (
            memory._driver.run(keys.create(name, "", ["read", "write"])).secret for name in ("mine", "other")
        )
        memory.scope("acme").notes.write("plan", "sail")
    with serving(url) as client, Visit(browser, str(client.base_url).rstrip("/")) as visit:
        visit.expect_faults = ["401"]
        page = visit.open("notes", scope="acme", key="plan")
        value, ended = (
            page.get_by_role("textbox", name="Value"),
            page.get_by_text("Your session has ended; sign in to go on."),
        )

        def sign_in(key: str) -> None:
            page.get_by_label("API key").fill(key)
            page.get_by_role("button", name="Sign in").click()
            expect(page.get_by_role("heading", name="Sign in to Mnemic")).to_have_count(0)

        expect(ended).to_have_count(0)
        sign_in(mine)
        typed(page)
        visit.context.clear_cookies()
        page.get_by_role("button", name="Save").click()
        expect(ended).to_be_visible()
        expect(page.get_by_text("sail")).to_be_hidden()
        visit.check_accessibility()
        sign_in(mine)
        expect(value).to_have_value("typed for long")
        page.get_by_role("button", name="Save").click()
        expect(page.locator(".note .prose")).to_have_text("typed for long")
        page.get_by_role("button", name="New note").click()
        page.get_by_label("Key").fill("new")
        value.fill("private")
        visit.context.clear_cookies()
        page.get_by_role("button", name="Create").click()
        sign_in(mine)
        expect(value).to_have_value("private")
        visit.context.clear_cookies()
        page.get_by_role("button", name="Create").click()
        sign_in(other)
        expect(page.get_by_role("button", name="New note")).to_be_visible()
        expect(value).to_have_count(0)


def test_broken_json_becomes_text_only_if_one_says_so(dashboard: Dashboard, api: httpx.Client) -> None:
    with dashboard.visit() as visit:
        page = visit.open("notes", **WHERE)
        page.get_by_role("button", name="New note").click()
        page.get_by_label("Key").fill("broken")
        page.get_by_role("textbox", name="Value").fill('{"a": 1,}')
        expect(page.get_by_role("tab", name="JSON")).to_have_attribute("aria-selected", "true")
        expect(page.get_by_text("This is not valid JSON")).to_contain_text("line 1 column 9")
        expect(page.get_by_role("button", name="Create")).to_be_disabled()
        visit.check_accessibility()
        page.get_by_role("tab", name="Text").click()
        page.get_by_role("button", name="Create").click()
        expect(page.locator(".note .prose")).to_have_text('{"a": 1,}')
    api.delete("/notes/broken")


def test_a_double_click_creates_once(dashboard: Dashboard, api: httpx.Client) -> None:
    with dashboard.visit() as visit:
        page = visit.open("notes", **WHERE)
        sent: list[str] = []
        page.on("request", lambda request: sent.append(request.method) if "/notes/twice" in request.url else None)
        page.get_by_role("button", name="New note").click()
        page.get_by_label("Key").fill("twice")
        page.get_by_role("button", name="Create").dblclick()
        expect(page.get_by_role("region", name="twice")).to_be_visible()
        visit.settle()
        assert sent == ["PUT", "GET"]
    api.delete("/notes/twice")


def test_refusals_are_said_in_the_words_of_the_page(dashboard: Dashboard, api: httpx.Client) -> None:
    with dashboard.visit() as visit:
        visit.expect_faults = ["409", "412"]
        page = visit.open("notes", key="todo", **WHERE)
        page.get_by_role("button", name="Rename").click()
        page.get_by_label("Key").fill("plans/week")
        page.get_by_role("dialog").get_by_role("button", name="Rename").click()
        expect(page.get_by_role("alert")).to_have_text("There is a note “plans/week” already.")
        visit.check_accessibility()
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Delete this note").click()
        undo = page.locator(".toast", has_text="Deleted").get_by_role("button", name="Undo")
        undo.wait_for()
        api.put("/notes/todo", json={"value": "of another"}).raise_for_status()
        undo.click()
        expect(page.get_by_text("Somebody has changed “todo” since, so this cannot be undone.")).to_be_visible()
        assert api.get("/notes/todo").json()["value"] == "of another"


def test_a_page_that_cannot_be_loaded_can_be_tried_again(dashboard: Dashboard) -> None:
    with dashboard.visit() as visit:
        visit.expect_faults = ["ERR_FAILED", "Failed to load"]
        page = visit.open("overview")
        page.route("**/*", lambda route: route.abort())
        page.get_by_role("link", name="Notes").click()
        expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached")
        page.get_by_role("button", name="Try again").click()
        expect(page.get_by_text("The server does not answer")).to_be_visible()
        page.unroute("**/*")
        page.get_by_role("button", name="Try again").click()
        expect(page.get_by_role("heading", name="Notes", level=1)).to_be_visible()
