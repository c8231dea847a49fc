"""Secrets in URLs are in no error, however a URL is mistyped, whoever raises it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from click.testing import CliRunner

import mnemic
from mnemic.cli import main
from mnemic.errors import InvalidValueError, MnemicError
from mnemic.store.registry import StoreURL, masked

ONE, TWO = "Zq1x", "Xw9z"
"""The halves of a password, between which stands what ought to be encoded."""
HOST = "127.0.0.1:1"

STORES = [
    f"postgresql://u:{ONE}@{HOST}/db?connect_timeout=1",
    f"postgresql://u:{ONE}/{TWO}@{HOST}/db",
    f"postgresql://u:{ONE}?{TWO}@{HOST}/db",
    f"postgresql://u:{ONE}?x={TWO}@{HOST}/db",
    f"postgresql://u:{ONE}#{TWO}@{HOST}/db",
    f"postgresql://u:{ONE}@{TWO}@{HOST}/db?connect_timeout=1",
    f"postgresql://u:{ONE}@{TWO}/{TWO}@{HOST}/db",
    f"postgresql://u:12/{ONE}@{HOST}/db",
    f"postgresql://u:[{ONE}@{HOST}/db",
    f"postgresql://u:\N{DOUBLE-STRUCK CAPITAL C}{ONE}\N{CARE OF}@{HOST}/db",
    f"postgresql://u:{ONE}",
    f"postgresql:///u:{ONE}@{HOST}/db",
    f"postgresql://{HOST}/db?password={ONE}",
    f"postgresql://{HOST}/db?sslpassword={ONE}",
    f"postgresql://{HOST}/db?passwd={ONE}",
    f"postgresql://{HOST}/db?{ONE}",
    f"postgresql://u:%zz{ONE}@{HOST}/db",
    f"postgresql://u:{ONE}@{HOST}/db?pool_max={TWO}@x",
    f"postgresql:/u:{ONE}@{HOST}/db",
    f"u:{ONE}@{HOST}/db",
    f"{HOST}/db?password={ONE}",
    f"redis://u:{ONE}@{HOST}/0",
    f"redis://:{ONE}/{TWO}@{HOST}/0",
    f"redis://:{ONE}#{TWO}@{HOST}/0",
    f"redis://:{ONE}?{TWO}@{HOST}/0",
    f"redis://:{ONE}",
    f"redis://{ONE}@{HOST}/x",
    f"redis://{HOST}?password={ONE}",
    f"redis://{HOST}?password={ONE}&{TWO}",
    f"redis://{HOST}?{ONE}",
    f"rediss://u:{ONE}@{HOST}/0?ssl_ca_certs={TWO}",
    f"redis+cluster://u:{ONE}@{HOST},127.0.0.1:x",
    f"http://:{ONE}@{HOST}",
    f"http://:{ONE}/{TWO}@{HOST}/",
    f"http://{ONE}@{HOST}/",
    f"http://{HOST}/?key={ONE}",
    f"http://{HOST}/?api_key_env={ONE}",
    f"https://u:{ONE}@{HOST}/?ssl_ca_certs={TWO}",
    f"dynamodb://table?endpoint=http://u:{ONE}@{HOST}&region=eu-west-1",
    f"dynamodb://table?endpoint=http://{HOST}/?token={ONE}&region=eu-west-1",
    f"dynamodb://u:{ONE}@table",
    f"s3://bucket?endpoint=http://u:{ONE}@{HOST}&region=eu-west-1",
    f"s3://bucket?secret_access_key={ONE}",
    f"s3://key:{ONE}/{TWO}@bucket",
    f"agentcore://support-a1B2c3D4e5?endpoint=http://u:{ONE}@{HOST}",
    f"agentcore://u:{ONE}@support",
    f"sqlite://u:{ONE}@host/file.db",
    f"sqlite:///memory.db?key={ONE}",
    f"memory://x?password={ONE}",
    f"nowhere://u:{ONE}@host",
    f"{'x' * 5000}://u:{ONE}@host",
]
# Those that cannot be reached are in test_companions.py.
COMPANIONS = [
    f"qdrant://{HOST}/notes?api_key={ONE}",
    f"qdrant://:{ONE}/{TWO}@{HOST}/notes",
    f"qdrant://u:{ONE}",
    f"milvus://root:{ONE}#{TWO}@{HOST}/notes",
    f"milvus://{HOST}/notes?token={ONE}",
    f"lancedb://u:{ONE}@host/x",
    f"nowhere://u:{ONE}@host",
]

pytestmark = [
    pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection"),
    pytest.mark.usefixtures("_credentials"),
]


@pytest.fixture
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "for-tests")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")


def check(text: str) -> None:
    assert ONE not in text
    assert TWO not in text


def check_chain(error: BaseException | None) -> None:
    while error is not None:
        check(f"{error} {error!r}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@pytest.mark.parametrize("url", [*STORES, *COMPANIONS])
def test_a_url_shows_no_secret(url: str) -> None:
    check(masked(url))
    try:
        parsed = StoreURL.parse(url)
    except InvalidValueError as error:
        check_chain(error)
    else:
        check(f"{parsed} {parsed!r} {parsed.__rich_repr__()}")


@pytest.mark.parametrize("url", STORES)
def test_an_error_of_a_store_shows_no_secret(url: str) -> None:
    with pytest.raises(MnemicError) as raised:
        mnemic.open(url)
    check_chain(raised.value)


@pytest.mark.parametrize("url", COMPANIONS)
def test_an_error_of_a_companion_index_shows_no_secret(url: str) -> None:
    with pytest.raises(MnemicError) as raised:
        mnemic.open("memory://", index=url)
    check_chain(raised.value)


@pytest.mark.parametrize("url", [STORES[1], STORES[22], STORES[27], STORES[32]])
def test_an_error_of_what_opens_a_second_store_shows_no_secret(url: str) -> None:
    with pytest.raises(MnemicError) as raised:
        mnemic.open("memory://", audit=url)
    check_chain(raised.value)
    with mnemic.open("memory://") as memory, pytest.raises(MnemicError) as raised:
        memory.scope("a").forget(older_than=timedelta(days=1), archive=url)
    check_chain(raised.value)
    for command in (["copy", url, "memory://"], ["copy", "memory://", url], ["migrate", "--store", url]):
        shown = CliRunner().invoke(main, command)
        assert shown.exit_code == 1
        check(shown.output)


def test_bytes_for_a_url_are_not_shown() -> None:
    with pytest.raises(InvalidValueError, match="a value of the type bytes") as raised:
        StoreURL.parse(f"redis://:{ONE}@h".encode())  # type: ignore[arg-type]
    check_chain(raised.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:p@h1:5432,h2:5433/db?schema=x", "postgresql://***@h1:5432,h2:5433/db?schema=x"),
        ("redis://[::1]:6379/0?timeout=3&prefix=p", "redis://[::1]:6379/0?timeout=3&prefix=p"),
        ("sqlite:///me@home/memory.db?synchronous=normal", "sqlite:///me@home/memory.db?synchronous=normal"),
        ("sqlite:////tmp/memory.db?busy_timeout=", "sqlite:////tmp/memory.db?busy_timeout="),
        ("s3://bucket/a@b?region=eu-west-1", "s3://***@b?region=eu-west-1"),
        (
            "agentcore://arn:aws:bedrock-agentcore:eu-west-1:123456789012:memory/a-a1B2c3D4e5",
            "agentcore://arn:aws:bedrock-agentcore:eu-west-1:123456789012:memory/a-a1B2c3D4e5",
        ),
        ("s3://b?endpoint=http://127.0.0.1:9000", "s3://b?endpoint=http://127.0.0.1:9000"),
        ("memory://", "memory://"),
    ],
)
def test_what_is_no_secret_is_shown(url: str, shown: str) -> None:
    assert str(StoreURL.parse(url)) == shown


def test_what_must_be_encoded_is_said() -> None:
    with pytest.raises(InvalidValueError, match="'/' as %2F"):
        mnemic.open("redis://:pass/word@localhost")
