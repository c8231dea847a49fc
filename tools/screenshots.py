"""Take the pictures of the dashboard for the README and the documentation, from the demo store.

`python tools/screenshots.py` writes docs/images/dashboard-*.png; it needs chromium-headless-shell.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import demo_store  # noqa: E402
from browser import Dashboard, Theme, Visit, launched  # noqa: E402
from http_server import serving  # noqa: E402

IMAGES = ROOT / "docs" / "images"


def recall_lab(visit: Visit) -> None:
    """Compare two settings for a question whose answer is marked."""
    page = visit.open("recall", scope="acme/alice", q="How does Alice like to travel?")
    page.get_by_role("button", name="Compare A and B").click()
    for name, factor in {"lexical": 0.4, "dense": 2, "importance": 3}.items():
        page.get_by_role("slider", name=name, exact=True).fill(str(factor))
    page.locator(".move").first.wait_for()
    page.get_by_role("list", name="Ranking B").get_by_role("button", name="Right").first.click()
    page.locator("[data-figure=mrr-B]", has_text=".").wait_for()


def session(visit: Visit) -> None:
    """Open a long conversation."""
    page = visit.open("sessions", scope="acme/alice")
    page.get_by_role("button", name="Trip to Lyon").click()


def open_page(name: str, **query: str) -> Callable[[Visit], None]:
    """Return what opens a page."""

    def prepare(visit: Visit) -> None:
        visit.open(name, **query)

    return prepare


PICTURES: dict[str, tuple[Callable[[Visit], None], Theme, int]] = {
    "recall": (recall_lab, "light", 800),
    "timeline": (open_page("timeline", scope="acme/alice"), "dark", 1040),
    "sessions": (session, "light", 800),
    "facts": (open_page("facts", scope="acme/alice"), "dark", 800),
}


def main() -> None:
    """Take every picture, or those that are named."""
    names = sys.argv[1:] or list(PICTURES)
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/demo.db?synchronous=normal"
        clock = demo_store.DemoClock(datetime.now(UTC))
        demo_store.build(url, now=clock.now)
        with launched() as browser, serving(url, clock=clock, audit=True) as client:
            dashboard = Dashboard(browser, str(client.base_url).rstrip("/"))
            for name in names:
                prepare, theme, height = PICTURES[name]
                with dashboard.visit(1280, theme) as visit:
                    visit.page.set_viewport_size({"width": 1280, "height": height})
                    prepare(visit)
                    visit.settle()
                    path = visit.picture(IMAGES / f"dashboard-{name}.png")
                    print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
