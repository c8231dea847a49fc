"""A hook of the documentation site: links to pages of the repository become links within the site.

The README is also the project's page elsewhere, so its links are absolute. On the site they lead to its own
pages, and a link to a page that is not there fails the build.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

BASES = (
    "https://github.com/mnemic/mnemic/blob/main/docs/",
    "https://raw.githubusercontent.com/mnemic/mnemic/main/docs/",
)


README = Path(__file__).parent.parent / "README.md"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page's text, the README's where it asks for it, with links into docs/ made relative to the page."""
    markdown = markdown.replace("{{ README }}", README.read_text())
    up = "../" * page.file.src_uri.count("/")
    for base in BASES:
        markdown = markdown.replace(f"]({base}", f"]({up}")
    return markdown
