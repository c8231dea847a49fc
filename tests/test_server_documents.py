"""docs/http-api.md: its requests have the answers that it shows, and its tables are those of the server."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import httpx

from http_server import serving
from mnemic.errors import MnemicError
from mnemic.server.app import all_endpoints
from mnemic.server.openapi import document
from mnemic.server.problems import NO_PATH, STATUS, STATUS_NAMES, STATUS_TITLES, TITLES
from mnemic.store.wire import problem_name

PAGE = Path(__file__).parent.parent / "docs" / "http-api.md"
TEXT = PAGE.read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:7676"
VARIABLE = {"created", "updated", "timestamp", "score", "why", "tokens"}
"""Fields whose values differ from run to run, or from version to version."""


def send(client: httpx.Client, command: str, folder: Path) -> httpx.Response:
    """Send the request of a curl command; raises ValueError for an option that is not known here."""
    program, *words = shlex.split(command)
    assert program == "curl"
    method, url, headers, content, output = "", "", {}, None, None
    while words:
        word = words.pop(0)
        if word == "-X":
            method = words.pop(0)
        elif word == "-H":
            name, _, value = words.pop(0).partition(": ")
            headers[name] = value
        elif word == "--json":
            content, headers["Content-Type"] = words.pop(0).encode(), "application/json"
        elif word == "--data-binary":
            content = (folder / words.pop(0).removeprefix("@")).read_bytes()
        elif word == "-o":
            output = folder / words.pop(0)
        elif word.startswith(ADDRESS):
            url = word.removeprefix(ADDRESS)
        else:
            raise ValueError(word)
    answer = client.request(method or ("GET" if content is None else "POST"), url, headers=headers, content=content)
    if output is not None:
        output.write_bytes(answer.content)
    return answer


def steady(value: Any) -> Any:
    """Return an answer without what differs from run to run."""
    if isinstance(value, dict):
        return {name: ... if name in VARIABLE else steady(item) for name, item in value.items()}
    return [steady(item) for item in value] if isinstance(value, list) else value


def test_the_requests_have_the_answers_that_are_shown(tmp_path: Path) -> None:
    shown = re.findall(r"```sh\n(.*?)```\n\n```json\n(.*?)```", TEXT, re.DOTALL)
    assert len(shown) >= 8
    with serving() as client:
        for commands, expected in shown:
            for command in commands.replace("\\\n", " ").strip().splitlines():
                answer = send(client, command, tmp_path)
            assert steady(answer.json()) == steady(json.loads(expected)), commands


def problem_table() -> str:
    """Return the table of problems."""
    rows = {}
    for kind, status in STATUS.items():
        title = next(TITLES[one] for one in kind.__mro__ if one in TITLES and issubclass(one, MnemicError))
        rows[problem_name(kind)] = (status, title)
    rows[NO_PATH] = (404, "The server has no such path")
    for response in document()["components"]["responses"].values():
        example = response["content"]["application/problem+json"]["example"]
        rows.setdefault(example["type"].rpartition("#")[2], (example["status"], example["title"]))
    for status, name in STATUS_NAMES.items():
        rows.setdefault(name, (status, STATUS_TITLES[status]))
    lines = [f'| {status} | <span id="{name}">`#{name}`</span> | {title} |' for name, (status, title) in rows.items()]
    return "\n".join(["| status | type | meaning |", "|---|---|---|", *sorted(lines)])


def shown_path(path: str) -> str:
    """Return a path without the kinds of its parameters."""
    return re.sub(r":\w+}", "}", path)


def endpoint_table() -> str:
    """Return the table of calls."""
    lines = [
        f"| `{one.method} {shown_path(one.path)}` | {one.summary} | {one.right or '–'} |"
        for one in all_endpoints()
        if one.documented
    ]
    return "\n".join(["| call | what it does | right |", "|---|---|---|", *lines])


def table(name: str) -> str:
    """Return a table of the page."""
    return TEXT.partition(f"<!-- {name} -->")[2].partition(f"<!-- /{name} -->")[0].strip()


def rewritten() -> str:
    """Return the page with the tables of the server."""
    text = TEXT
    for name, made in (("problems", problem_table()), ("endpoints", endpoint_table())):
        text = text.replace(table(name), made)
    return text


def test_the_tables_are_those_of_the_server() -> None:
    assert rewritten() == TEXT, "run: python tests/test_server_documents.py"


if __name__ == "__main__":
    PAGE.write_text(rewritten(), encoding="utf-8")
