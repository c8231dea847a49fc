"""Serves the dashboard: static files with a strict content security policy, the same for every user."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from . import logins

FOLDER = Path(__file__).parent / "dashboard"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # A browser keeps the files and asks with their ETag, so that an upgrade shows at the next load.
    "Cache-Control": "no-cache",
}


@cache
def files() -> dict[str, tuple[bytes, str, str]]:
    """Return the content, type and ETag of every file, by path; nothing else is ever served."""
    found = {}
    for path in FOLDER.rglob("*"):
        if path.is_file() and path.suffix in TYPES:
            content = path.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
            found[path.relative_to(FOLDER).as_posix()] = content, TYPES[path.suffix], tag
    return found


async def serve_file(request: Request) -> Response:
    """Answer with a file of the dashboard; 304 if the browser has it."""
    found = files().get(request.path_params["path"] or "index.html")
    if found is None:
        raise HTTPException(404)
    content, type, tag = found
    headers = {**HEADERS, "ETag": tag}
    known = [one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")]
    if tag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(content, headers={**headers, "Content-Type": type})


async def go_to_dashboard(request: Request) -> Response:
    """Lead from the address that a person types to the dashboard."""
    return RedirectResponse("/dashboard/", headers=HEADERS)


ROUTES = [
    Route("/", go_to_dashboard, methods=["GET"]),
    Route("/dashboard", go_to_dashboard, methods=["GET"]),
    *logins.ROUTES,
    Route("/dashboard/{path:path}", serve_file, methods=["GET"]),
]
