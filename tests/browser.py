"""The dashboard in a real browser: Debian's headless chromium, driven by Playwright, and pages that accept no fault.

from browser import Dashboard

def test_the_page(dashboard: Dashboard) -> None:
    with dashboard.visit() as visit:
        page = visit.open("notes", scope="acme/alice")
        page.get_by_role("button", name="New note").click()
        visit.check_accessibility()
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal
from urllib.parse import urlencode

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    Response,
    expect,
    sync_playwright,
)

AXE = Path(sys.prefix) / "npm" / "node_modules" / "axe-core" / "axe.min.js"
Theme = Literal["light", "dark"]
SIZES = {1280: 800, 390: 844}
"""Widths that the dashboard is made for, and their heights."""
PATIENCE = 60_000
"""Milliseconds after which what a test waits for will not come."""
SETTLED = """(patience) => new Promise((done, fail) => {
    const end = performance.now() + patience;
    const any = (selector) => document.querySelector(selector);
    const still = () => any("main h1, main .state") && !any("html[data-busy], .skeleton");
    const look = (times) => {
        if (performance.now() > end) fail(new Error("the page still loads"));
        else if (times === 3) done();
        else requestAnimationFrame(() => look(still() ? times + 1 : 0));
    };
    look(0);
})"""
"""Waits until nothing loads in three frames."""
expect.set_options(timeout=PATIENCE)
PROGRAMS = ("chromium-headless-shell", "chrome-headless-shell", "chromium", "google-chrome")
MISSING = "chromium-headless-shell is not installed: run `make setup` as root, or apt install chromium-headless-shell"


def find_chromium() -> str | None:
    """Return the program, or None."""
    path = f"{os.environ.get('PATH', '')}:/usr/bin"
    return next(filter(None, (shutil.which(name, path=path) for name in PROGRAMS)), None)


@contextmanager
def launched() -> Iterator[Browser]:
    """Start a browser; the test is skipped where there is none, but never in CI."""
    program = find_chromium()
    if program is None:
        if os.environ.get("CI"):
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=2 * PATIENCE)
        yield browser
        browser.close()


class Dashboard:
    """A server with the demo store, and a browser: `visit` opens a window."""

    def __init__(self, browser: Browser, address: str) -> None:
        self.browser = browser
        self.address = address

    def visit(self, width: int = 1280, theme: Theme = "light") -> Visit:
        """Open a window with its own cookies and storage."""
        return Visit(self.browser, self.address, width, theme)


class Visit:
    """A window with a page of the dashboard; every console error, CSP violation and failed request is a fault.

    `expect_faults` names texts of faults that the test provokes. Used with `with`: the faults are checked at the end.
    """

    def __init__(self, browser: Browser, address: str, width: int = 1280, theme: Theme = "light") -> None:
        self.address = address
        self.context: BrowserContext = browser.new_context(
            viewport={"width": width, "height": SIZES[width]}, color_scheme=theme, timezone_id="UTC", locale="en-US",
            accept_downloads=True, reduced_motion="reduce",
        )  # fmt: skip
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.faults: list[str] = []
        self.expect_faults: list[str] = []
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("requestfailed", self._failed)
        self.page.on("response", self._answered)

    def open(self, path: str = "", **query: str) -> Page:
        """Open a page such as "recall" with parameters, and wait until it has loaded what it shows."""
        self.page.goto(f"{self.address}/dashboard/#/{path}{'?' + urlencode(query) if query else ''}")
        self.settle()
        return self.page

    def settle(self) -> None:
        """Wait until nothing loads any more, and what was loaded is drawn."""
        self.page.evaluate(SETTLED, PATIENCE)

    def theme(self, name: Theme) -> None:
        """Change what the system prefers."""
        self.page.emulate_media(color_scheme=name, reduced_motion="reduce")

    def check_accessibility(self) -> None:
        """Run axe-core on what is shown, in both themes, and fail on anything that it finds."""
        # The debugger's evaluation is not bound by the page's policy, an added script would be.
        if not self.page.evaluate("() => 'axe' in window"):
            self.page.evaluate(AXE.read_text())
        before = self.page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
        for name in ("light", "dark"):
            self.theme(name)
            found: dict[str, Any] = self.page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
            told = [
                f"{violation['id']}: {node['html'][:160]} {node.get('failureSummary', '')[:300]}"
                for violation in found["violations"]
                for node in violation["nodes"][:3]
            ]
            assert not told, f"{name}, {self.page.url}:\n" + "\n".join(told)
        self.theme("dark" if before else "light")

    def check_width(self) -> None:
        """Fail if the page is wider than the window."""
        wide = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{self.page.url} is {wide} px too wide"

    def picture(self, path: Path, *, whole: bool = False) -> Path:
        """Write a screenshot; with `whole`, of the whole page and not of the window alone."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=path, full_page=whole)
        return path

    def check_faults(self) -> None:
        """Fail on everything that went wrong so far, but for what the test expects."""
        told = [fault for fault in self.faults if not any(text in fault for text in self.expect_faults)]
        assert not told, "\n".join(told)

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.context.close()
        if kind is None:
            self.check_faults()
        elif error is not None and self.faults:
            error.add_note("\n".join(self.faults))

    def _console(self, message: ConsoleMessage) -> None:
        # The browser renders WebGL in software, and says that this is slow.
        if message.type in ("error", "warning") and "GL Driver Message" not in message.text:
            self.faults.append(f"console {message.type}: {message.text}")

    def _failed(self, request: Request) -> None:
        # A page cancels requests whose answer it no longer needs.
        if request.failure != "net::ERR_ABORTED":
            self.faults.append(f"request: {request.method} {request.url}: {request.failure}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400:
            self.faults.append(f"answer {response.status}: {response.request.method} {response.url}")
