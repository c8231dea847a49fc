"""The frame of the dashboard: files and their headers, the shell, the scope picker, themes, and the keyboard."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

import demo_store
import mnemic
from browser import SIZES, Dashboard, Visit
from http_server import serving
from mnemic.server.api_keys import ApiKeys
from mnemic.server.dashboard import FOLDER
from mnemic.server.settings import Settings

PAGES = ("recall", "timeline", "sessions", "overview", "facts", "notes", "audit", "keys")


def test_files_come_with_a_strict_policy() -> None:
    with serving() as client:
        assert client.get("/").headers["location"] == "/dashboard/"
        page = client.get("/dashboard/")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        policy = page.headers["content-security-policy"].split("; ")
        assert policy[:3] == ["default-src 'none'", "script-src 'self'", "style-src 'self'"]
        assert "unsafe" not in page.headers["content-security-policy"]
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["referrer-policy"] == "no-referrer"
        again = client.get("/dashboard/", headers={"If-None-Match": page.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        for path in FOLDER.rglob("*.*"):
            answer = client.get(f"/dashboard/{path.relative_to(FOLDER).as_posix()}")
            assert (answer.status_code, answer.content) == (200, path.read_bytes())
            assert answer.headers["content-security-policy"] == page.headers["content-security-policy"]


@pytest.mark.parametrize(
    "path", ["../dashboard.py", "%2e%2e/dashboard.py", "..%2fdashboard.py", "vendor", "x.js", "\\"]
)
def test_nothing_else_is_served(path: str) -> None:
    with serving() as client:
        answer = client.get(f"/dashboard/{path}")
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"


def test_it_can_be_turned_off() -> None:
    with serving(settings=Settings(dashboard=False)) as client:
        assert client.get("/dashboard/").status_code == 404


def test_a_page_does_not_style_what_belongs_to_another() -> None:
    """All style sheets are loaded together, so a class has its rules in one of them."""
    places: dict[str, set[str]] = {}
    for path in FOLDER.rglob("*.css"):
        if path.parent.name != "vendor":
            rules = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.S)
            assert rules.count("{") == rules.count("}"), path
            for selectors in re.findall(r"([^{}]+)\{", rules):
                for name in re.findall(r"(?:^|,)\s*\.([\w-]+)", selectors):
                    places.setdefault(name, set()).add(path.name)
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


@pytest.mark.parametrize("name", PAGES)
def test_every_page(dashboard: Dashboard, name: str) -> None:
    """No fault, nothing wider than the window, nothing that axe-core finds, in both sizes and themes."""
    for width in SIZES:
        with dashboard.visit(width) as visit:
            visit.open(name, scope="acme/alice")
            visit.check_width()
            visit.check_accessibility()


@pytest.mark.parametrize("name", PAGES)
def test_hostile_texts_are_only_texts(dashboard: Dashboard, name: str) -> None:
    with dashboard.visit(390) as visit:
        page = visit.open(name, scope="acme/<b>mallory")
        visit.check_width()
        expect(page).to_have_title(re.compile("^[A-Z][a-z ]+ · Mnemic$"))
        assert page.locator("img[src=x], main b:text-is('mallory')").count() == 0


def test_the_keyboard_reaches_everything(dashboard: Dashboard) -> None:
    with dashboard.visit() as visit:
        page = visit.open("recall")
        page.keyboard.press("Tab")
        expect(page.get_by_text("Skip to the page", exact=True)).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#main")).to_be_focused()
        page.get_by_role("link", name="Notes").focus()
        page.keyboard.press("Enter")
        page.wait_for_url("**/#/notes")
        visit.settle()
        expect(page).to_have_title("Notes · Mnemic")


def test_the_scope_is_chosen_with_completion(dashboard: Dashboard) -> None:
    with dashboard.visit() as visit:
        page = visit.open("notes")
        box = page.get_by_role("combobox", name="Scope")
        box.focus()
        box.press_sequentially("ali")
        page.get_by_role("option", name="acme/alice").wait_for()
        visit.check_accessibility()
        box.press("ArrowDown")
        box.press("Enter")
        page.wait_for_url("**/#/notes?scope=acme%2Falice")
        expect(box).to_have_value("acme/alice")
        page.get_by_role("link", name="Recall lab").click()
        page.wait_for_url("**/#/recall?scope=acme%2Falice")
        box.fill("DAN")
        page.get_by_role("option", name="globex/dan").wait_for()
        box.press("Enter")
        page.wait_for_url("**/#/recall?scope=globex%2Fdan")
        box.fill("globex")
        box.press("Enter")
        page.wait_for_url("**/#/recall?scope=globex")


def test_the_theme_is_kept(dashboard: Dashboard) -> None:
    with dashboard.visit() as visit:
        page = visit.open("recall")
        color = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(color)
        page.get_by_role("button", name="dark theme").click()
        dark = page.evaluate(color)
        assert dark != light
        page.reload()
        assert page.evaluate(color) == dark


def test_the_menu_of_a_phone(dashboard: Dashboard) -> None:
    with dashboard.visit(390) as visit:
        page = visit.open("recall")
        menu = page.get_by_role("button", name="Menu")
        menu.click()
        visit.check_accessibility()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(menu).to_be_focused()
        menu.click()
        page.get_by_role("link", name="Facts").click()
        page.wait_for_url("**/#/facts")
        expect(page.get_by_role("dialog")).to_have_count(0)


def test_an_unknown_page(dashboard: Dashboard) -> None:
    with dashboard.visit() as visit:
        page = visit.open("nothing")
        expect(page.get_by_text("There is no such page")).to_be_visible()


def test_signing_in_and_out(browser: Browser, demo_file: Path, tmp_path: Path) -> None:
    """With a key of one scope: it sees that scope alone, and no page that it has no right to."""
    url = f"sqlite:///{shutil.copy(demo_file, tmp_path)}?synchronous=normal"
    with mnemic.open(url) as memory:
        made = memory._driver.run(ApiKeys(memory._async).create("phone", "acme/alice", ["read"]))
    with serving(url, clock=demo_store.DemoClock()) as client:
        with Visit(browser, str(client.base_url).rstrip("/"), 390) as visit:
            page = visit.open("recall")
            expect(page.get_by_role("heading", name="Sign in to Mnemic")).to_be_visible()
            visit.check_faults()
            visit.expect_faults = ["401"]
            visit.check_accessibility()
            visit.check_width()
            page.get_by_label("API key").fill(made.secret[:-1])
            page.get_by_role("button", name="Sign in").click()
            expect(page.get_by_role("alert")).to_have_text("This key is not known, or no longer valid.")
            page.get_by_label("API key").fill(made.secret)
            page.keyboard.press("Enter")
            page.get_by_role("searchbox", name="Question").fill("who is allergic?")
            expect(page.get_by_role("list", name="Ranking A").get_by_role("listitem").first).to_be_visible()
            page.reload()
            visit.settle()
            page.get_by_role("button", name="Menu").click()
            names = page.get_by_role("navigation").get_by_role("link").all_inner_texts()
            assert names == [name.title() if name != "recall" else "Recall lab" for name in PAGES[:6]]
            expect(page.get_by_role("combobox", name="Scope")).to_have_value("acme/alice")
            page.get_by_role("button", name="Sign out phone").click()
            expect(page.get_by_role("heading", name="Sign in to Mnemic")).to_be_visible()
            assert visit.context.cookies() == []
