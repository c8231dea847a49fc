"""Settings of the server: which source wins, where each value came from, and that nothing misspelt is ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mnemic import InvalidValueError, NotFoundError
from mnemic.cli.serve import _text
from mnemic.server.settings import Settings, fields, load


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_anything_all_are_defaults() -> None:
    found = load({}, {"PATH": "/bin", "MNEMIC_SCOPE": "a", "MNEMIC_TEST_ALL": "1", "MNEMIC_API_KEY": "secret"})
    assert found.settings == Settings()
    assert set(found.origins.values()) == {"default"}


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_file(folder: Path) -> None:
    (folder / "mnemic.toml").write_text("port = 1\nrate = 1.0\nmax_queued = 1\nallowed_hosts = ['a', 'b']\n")
    found = load({"port": "3"}, {"MNEMIC_PORT": "2", "MNEMIC_RATE": "2"})
    assert (found.settings.port, found.settings.rate, found.settings.max_queued) == (3, 2.0, 1)
    assert found.settings.allowed_hosts == ("a", "b")
    origins = {name: origin for name, origin in found.origins.items() if origin != "default"}
    assert origins == {
        "port": "flag --port",
        "rate": "variable MNEMIC_RATE",
        "max_queued": "file mnemic.toml",
        "allowed_hosts": "file mnemic.toml",
    }


def test_a_file_is_named_by_a_flag_or_else_by_a_variable(folder: Path) -> None:
    (folder / "a.toml").write_text("port = 1")
    (folder / "b.toml").write_text("port = 2")
    assert load({}, {"MNEMIC_CONFIG": "a.toml"}).settings.port == 1
    assert load({}, {"MNEMIC_CONFIG": "a.toml"}, "b.toml").settings.port == 2


def test_texts_become_values() -> None:
    given = {"MNEMIC_AUDIT": "false", "MNEMIC_ALLOWED_ORIGINS": "https://a, https://b", "MNEMIC_WRITE_SECONDS": "1.5"}
    found = load({}, given).settings
    assert (found.audit, found.allowed_origins, found.write_seconds) == (False, ("https://a", "https://b"), 1.5)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"MNEMIC_REQUIRE_KEYS": "true"}, "unknown variable MNEMIC_REQUIRE_KEYS; did you mean MNEMIC_REQUIRE_KEY?"),
        ({"mnemic_port": "1"}, "unknown variable mnemic_port; did you mean MNEMIC_PORT?"),
        ({"MNEMIC_REQUIRE_KEY": ""}, "MNEMIC_REQUIRE_KEY is empty"),
        ({"MNEMIC_REQUIRE_KEY": "perhaps"}, "MNEMIC_REQUIRE_KEY has a bad value 'perhaps'"),
        ({"MNEMIC_PORT": "65536"}, "MNEMIC_PORT has a bad value '65536'"),
        ({"MNEMIC_LOG_FORMAT": "xml"}, "MNEMIC_LOG_FORMAT has a bad value 'xml'"),
        ({"MNEMIC_JWT_ISSUER": "https://a"}, "jwt_audience and jwt_jwks are not set"),
    ],
)
def test_an_unknown_or_bad_variable_is_an_error(environ: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidValueError) as error:
        load({}, environ)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("prot = 1", "mnemic.toml has an unknown setting 'prot'; did you mean port?"),
        ("max-queued = 1", "unknown setting 'max-queued'; did you mean max_queued?"),
        ("[server]\nport = 1", "unknown setting 'server'"),
        ("port = '1'", "port in mnemic.toml has a bad value '1': Expected `int`"),
        ("port = ", "mnemic.toml is not valid TOML"),
        ("\xff", "mnemic.toml is not valid TOML"),
    ],
)
def test_an_unknown_or_bad_setting_in_the_file_is_an_error(folder: Path, content: str, said: str) -> None:
    (folder / "mnemic.toml").write_bytes(content.encode("latin-1"))
    with pytest.raises(InvalidValueError) as error:
        load({}, {})
    assert said in str(error.value)


def test_a_file_that_was_named_must_be_there() -> None:
    with pytest.raises(NotFoundError, match=r"no settings file missing.toml"):
        load({}, {}, "missing.toml")


def test_secrets_are_never_shown() -> None:
    found = load({}, {"MNEMIC_STORE": "postgresql://me:hunter2@db/x", "MNEMIC_INDEX": "qdrant://h?api_key=hunter2"})
    assert "hunter2" in str(found.settings.store)
    assert "hunter2" not in str(found.shown())


def test_every_setting_says_what_it_is() -> None:
    for field in fields().values():
        assert field.about
        assert field.flag == f"--{field.name.replace('_', '-')}"


def test_the_page_lists_every_setting_with_its_default() -> None:
    page = (Path(__file__).parent.parent / "docs" / "server.md").read_text()
    table = page.partition("\n## Settings")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    shown = {name: f"`{text}`" if (text := _text(field.default)) else "" for name, field in fields().items()}
    assert rows == [f"| `{field.name}` | {shown[field.name]} | {field.about} |" for field in fields().values()]


def test_the_example_of_the_page_is_valid(folder: Path) -> None:
    page = (Path(__file__).parent.parent / "docs" / "server.md").read_text()
    (folder / "mnemic.toml").write_text(page.partition("```toml\n")[2].partition("```")[0])
    assert load({}, {}).settings.exposed


@pytest.mark.parametrize(
    ("given", "exposed"),
    [
        ({}, False),
        ({"host": "localhost"}, False),
        ({"host": "::1"}, False),
        ({"host": "0.0.0.0"}, True),
        ({"host": "db.example.com"}, True),
        ({"host": "localhost.example.com"}, True),
        ({"allowed_hosts": ["memory.example.com"]}, True),
        ({"trusted_proxies": ["10.0.0.1"]}, True),
    ],
)
def test_a_server_that_others_may_reach_is_exposed(given: dict[str, Any], exposed: bool) -> None:
    assert load(given, {}).settings.exposed is exposed
