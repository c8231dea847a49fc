"""Who may use the server: keys, JWTs, logins, host names and origins; everything else is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import pytest

import mnemic
from http_server import serving
from mnemic.errors import InvalidValueError
from mnemic.server import access, access_middleware, logins
from mnemic.server.access import RIGHTS, Authenticator
from mnemic.server.access_middleware import AccessMiddleware
from mnemic.server.api_keys import ApiKeys, NewKey, parse_key
from mnemic.server.app import build_app
from mnemic.server.serving import serve
from mnemic.server.settings import Settings, load

NOTES = "/api/v1/notes"
STATS = "/api/v1/stats"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'memory.db'}?synchronous=normal"


def make_key(url: str, scope: str = "", rights: Sequence[str] = RIGHTS, **options: Any) -> NewKey:
    """Create a key as `mnemic keys create` does."""
    with mnemic.open(url) as memory:
        return memory._driver.run(ApiKeys(memory._async).create("bot", scope, rights, **options))


def change_key(url: str, change: str, *arguments: Any) -> None:
    with mnemic.open(url) as memory:
        memory._driver.run(getattr(ApiKeys(memory._async), change)(*arguments))


def bearer(credential: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {credential}"}


# ------------------------------------------------------------ the open loopback


def test_without_keys_loopback_is_open_and_closes_with_the_first_key(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "CACHED_SECONDS", -1.0)
    with serving(url) as client:
        assert client.put(f"{NOTES}/a", json={"value": 1}).status_code == 201
        assert client.get(f"{NOTES}/a", headers={"Authorization": "Token m0-anything"}).status_code == 200
        made = make_key(url)
        refused = client.get(f"{NOTES}/a")
        assert (refused.status_code, refused.headers["WWW-Authenticate"]) == (401, 'Bearer realm="mnemic"')
        assert client.get(f"{NOTES}/a", headers=bearer(made.secret)).json()["value"] == 1
        change_key(url, "revoke", made.key.id)
        assert client.get(f"{NOTES}/a").status_code == 401
    with serving(url) as client:  # revoked keys keep it closed
        assert client.get(f"{NOTES}/a").status_code == 401
        change_key(url, "delete", made.key.id)
        assert client.get(f"{NOTES}/a").status_code == 401
    with serving(url) as client:  # without any record of one it is as before
        assert client.get(f"{NOTES}/a").status_code == 200


@pytest.mark.parametrize(
    "settings", [Settings(require_key=True), Settings(host="0.0.0.0"), Settings(allowed_hosts=("a",))]
)
def test_a_server_that_needs_keys_is_closed_without_any(settings: Settings) -> None:
    with serving(settings=settings) as client:
        assert client.get(STATS).status_code == 401
        assert client.post("/api/v1/keys", json={"name": "a", "rights": list(RIGHTS)}).status_code == 401
        assert client.get("/live").status_code == client.get("/ready").status_code == 200


def test_a_request_that_a_proxy_forwards_is_not_from_this_machine() -> None:
    with serving() as client:
        for header in (
            "CF-Connecting-IP", "Forwarded", "True-Client-IP", "Via", "X-Client-IP", "X-Forwarded-For",
            "X-Forwarded-Host", "X-Forwarded-Port", "X-Forwarded-Proto", "X-Real-IP",
        ):  # fmt: skip
            assert client.get(STATS, headers={header: "127.0.0.1"}).status_code == 401


def test_another_machine_needs_a_key_however_the_server_listens() -> None:
    async def ask(host: str) -> int:
        async with mnemic.open_async("memory://") as memory:
            transport = httpx.ASGITransport(build_app(memory, Settings()), client=(host, 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return (await client.get(STATS)).status_code

    assert [asyncio.run(ask(host)) for host in ("127.0.0.1", "::1", "10.0.0.7")] == [200, 200, 401]


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_server_for_others_does_not_start_without_valid_keys(
    url: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mnemic.server.serving.configure_logging", lambda settings: None)
    old = make_key(url, expires=datetime.now(UTC) + timedelta(days=1))
    change_key(url, "expire", old.key.id, datetime.now(UTC))
    change_key(url, "revoke", make_key(url).key.id)
    with pytest.raises(InvalidValueError, match="no valid keys"):
        serve(Settings(host=host, port=0, metrics=False), url, None, print, None)


def test_a_misspelt_setting_opens_no_door() -> None:
    for variable in ("MNEMIC_REQUIRE_KEYS", "MNEMIC_JWT_ISSUERS", "MNEMIC_ALLOW_ORIGINS"):
        with pytest.raises(InvalidValueError, match="unknown variable"):
            load({}, {variable: "x"})
    with pytest.raises(InvalidValueError, match="MNEMIC_REQUIRE_KEY"):
        load({}, {"MNEMIC_REQUIRE_KEY": "maybe"})


# ------------------------------------------------------------ keys


def test_a_key_is_sent_in_any_of_three_ways(url: str) -> None:
    secret = make_key(url).secret
    with serving(url) as client:
        for headers in (bearer(secret), {"Authorization": f"token {secret}"}, {"X-API-Key": secret}):
            assert client.get(STATS, headers=headers).status_code == 200


def test_every_invalid_credential_has_the_same_answer(url: str) -> None:
    expired = make_key(url, expires=datetime.now(UTC) + timedelta(days=1))
    change_key(url, "expire", expired.key.id, datetime.now(UTC))
    revoked, valid = make_key(url), make_key(url)
    change_key(url, "revoke", revoked.key.id)
    secret = valid.secret
    wrong = [
        expired.secret,
        revoked.secret,
        secret[:-1] + ("0" if secret[-1] != "0" else "1"),
        secret[:-1],
        secret + "0",
        secret.upper(),
        secret.replace("mnk_", "mnk-"),
        f"mnk_{'0' * 16}_{'0' * 64}",
        f"mnk_{valid.key.id}_{'0' * 64}",
        "x" * 5000,
        "a.b.c",
        "../../etc/passwd",
    ]
    with serving(url) as client:
        answers = {
            (found.status_code, found.content, found.headers["WWW-Authenticate"])
            for credential in wrong
            for headers in (bearer(credential), {"X-API-Key": credential})
            for found in [client.get(STATS, headers=headers)]
        }
        assert len(answers) == 1
        assert next(iter(answers))[0] == 401
        for header in ("Basic YTpi", "Bearer", secret, f"Bearer {secret} {secret}"):
            assert client.get(STATS, headers={"Authorization": header}).status_code == 401


def test_the_store_has_no_key_and_nothing_else_shows_it(url: str, tmp_path: Path) -> None:
    made = make_key(url, "acme")
    secret = made.secret.rpartition("_")[2]
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert secret.encode() not in content
    with mnemic.open(url, audit=True) as memory:
        assert memory.stats().items == 0
        assert memory.scope().erase(dry_run=True).records == 0
        memory.scope().erase()
        memory.scope("acme").erase()
        memory.export_to(tmp_path / "all.jsonl")
        assert "api-key" not in (tmp_path / "all.jsonl").read_text()
        assert [key.id for key in memory._driver.run(ApiKeys(memory._async).list())] == [made.key.id]
    copied = f"sqlite:///{tmp_path / 'copy.db'}"
    with mnemic.open(url) as memory:
        memory.scope("acme").remember("tea")
    mnemic.copy(url, copied, scope="acme")
    with mnemic.open(copied) as memory:
        assert memory._driver.run(ApiKeys(memory._async).list()) == []
    mnemic.copy(url, f"{copied}2")
    with mnemic.open(f"{copied}2") as memory:
        assert [key.id for key in memory._driver.run(ApiKeys(memory._async).list())] == [made.key.id]


def test_a_key_that_is_revoked_elsewhere_stops_within_seconds(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert access.CACHED_SECONDS <= 5
    made = make_key(url)
    moment = [0.0]
    monkeypatch.setattr(access, "monotonic", lambda: moment[0])
    with serving(url) as client:
        assert client.get(STATS, headers=bearer(made.secret)).status_code == 200
        change_key(url, "revoke", made.key.id)
        moment[0] += access.CACHED_SECONDS
        assert client.get(STATS, headers=bearer(made.secret)).status_code == 401


def test_a_key_that_is_revoked_on_the_server_stops_at_once(url: str) -> None:
    admin, other = make_key(url), make_key(url, "acme", ["read"])
    with serving(url) as client:
        assert client.get(STATS, headers=bearer(other.secret)).status_code == 200
        soon = {"expires": (datetime.now(UTC) - timedelta(seconds=1)).isoformat()}
        path = f"/api/v1/keys/{other.key.id}"
        assert client.patch(path, json=soon, headers=bearer(admin.secret)).status_code == 200
        assert client.get(STATS, headers=bearer(other.secret)).status_code == 401
        assert client.patch(path, json={"expires": None}, headers=bearer(admin.secret)).status_code == 200
        assert client.get(STATS, headers=bearer(other.secret)).status_code == 200
        assert client.delete(path, headers=bearer(admin.secret)).status_code == 204
        assert client.get(STATS, headers=bearer(other.secret)).status_code == 401
        assert client.patch(path, json={"expires": None}, headers=bearer(admin.secret)).status_code == 422
        listed = client.get("/api/v1/keys", headers=bearer(admin.secret)).json()["items"]
        assert [key["id"] for key in listed] == [admin.key.id]
        listed = client.get("/api/v1/keys?revoked=true", headers=bearer(admin.secret)).json()["items"]
        assert {key["id"] for key in listed} == {admin.key.id, other.key.id}


def test_a_stream_ends_with_the_key_that_it_was_begun_with(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (access, access_middleware):
        monkeypatch.setattr(module, "CACHED_SECONDS", -1.0)
    sent: list[dict[str, Any]] = []

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"x", "more_body": True})

    async def main() -> None:
        async with mnemic.open_async("memory://") as memory:
            known = Authenticator(memory, Settings(require_key=True))
            made = await known.keys.create("bot", "acme", ["read"])
            headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {made.secret}".encode())]
            scope = {"type": "http", "method": "GET", "path": "/x", "headers": headers, "client": ("127.0.0.1", 1)}

            async def send(message: Any) -> None:
                sent.append(message)
                if len(sent) == 4:
                    await known.keys.revoke(made.key.id)
                assert len(sent) < 9

            await AccessMiddleware(endless, known, Settings(), ())(scope, None, send)  # type: ignore[arg-type]

    asyncio.run(main())
    assert [message.get("body") for message in sent] == [None, b"x", b"x", b"x", b""]
    assert sent[-1]["more_body"] is False


def test_an_admin_of_a_scope_only_has_the_keys_of_that_scope(url: str) -> None:
    root, mine = make_key(url), make_key(url, "acme", ["read", "admin"])
    below, beside = make_key(url, "acme/alice", ["read"]), make_key(url, "acme2", ["read"])
    with serving(url) as client:
        client.headers.update(bearer(mine.secret))
        listed = client.get("/api/v1/keys").json()["items"]
        assert {key["id"] for key in listed} == {mine.key.id, below.key.id}
        assert "secret" not in listed[0]
        assert "hash" not in listed[0]
        missing = client.delete(f"/api/v1/keys/{'0' * 16}")
        for key in (root, beside):
            for answer in (
                client.delete(f"/api/v1/keys/{key.key.id}"),
                client.patch(f"/api/v1/keys/{key.key.id}", json={"expires": None}),
            ):
                assert answer.status_code == 404
                assert answer.text.replace(key.key.id, "0" * 16) == missing.text
        for body in (
            {"scope": "", "rights": ["read"]},
            {"scope": "acme2", "rights": ["read"]},
            {"scope": "acme", "rights": ["read", "write"]},
            {"scope": "acme/alice", "rights": ["erase"]},
        ):
            assert client.post("/api/v1/keys", json={"name": "x", **body}).status_code == 403
        wrong: dict[str, Any]
        for wrong in ({"rights": []}, {"rights": ["reed"]}, {}, {"rights": ["read"], "more": 1}):
            assert client.post("/api/v1/keys", json={"name": "x", **wrong}).status_code == 400
        made = client.post("/api/v1/keys", json={"name": "x", "rights": ["read"]}).json()
        assert (made["scope"], made["rights"]) == ("acme", ["read"])
        assert client.get(STATS, headers=bearer(made["secret"])).status_code == 200
        assert client.get("/api/v1/keys", headers=bearer(made["secret"])).status_code == 403


def test_an_admin_changes_no_key_that_has_more_rights(url: str) -> None:
    weak = make_key(url, "acme", ("read", "admin"))
    strong, wide = make_key(url, "acme"), make_key(url)
    equal = make_key(url, "acme/alice", ("admin",))
    later = {"expires": "2099-01-01T00:00:00Z"}
    with serving(url) as client:
        client.headers.update(bearer(weak.secret))
        for key, status in ((strong, 403), (wide, 404)):
            path = f"/api/v1/keys/{key.key.id}"
            assert client.patch(path, json=later).status_code == client.delete(path).status_code == status
            assert client.get(STATS, headers=bearer(key.secret)).status_code == 200
        path = f"/api/v1/keys/{equal.key.id}"
        assert (client.patch(path, json=later).status_code, client.delete(path).status_code) == (200, 204)
        assert client.delete(f"/api/v1/keys/{weak.key.id}").status_code == 204
        assert client.get(STATS).status_code == 401


def test_a_key_that_expires_makes_and_prolongs_none_beyond_that(url: str) -> None:
    ends = datetime.now(UTC).replace(microsecond=0) + timedelta(days=7)
    admin, other = make_key(url, expires=ends), make_key(url, expires=ends + timedelta(days=9))
    earlier, equal, longer = ({"expires": (ends + timedelta(days=days)).isoformat()} for days in (-1, 0, 8))
    never = {"expires": None}
    with serving(url) as client:
        client.headers.update(bearer(admin.secret))
        made = [
            client.post("/api/v1/keys", json={"name": "a", "rights": ["read"], **given}).status_code
            for given in (earlier, equal, longer, never, {})
        ]
        assert made == [201, 201, 403, 403, 403]
        for key, statuses in ((other, [403, 200, 200]), (admin, [403, 403, 200])):
            path = f"/api/v1/keys/{key.key.id}"
            assert [client.patch(path, json=given).status_code for given in (never, longer, equal)] == statuses


def test_the_last_use_is_stored_to_the_hour_and_without_audit_entries(url: str) -> None:
    made = make_key(url)
    with serving(url, audit=True) as client:
        found = None
        while found is None:  # it is stored in the background
            found = client.get("/api/v1/keys", headers=bearer(made.secret)).json()["items"][0]["last_used"]
    used = datetime.fromisoformat(found)
    assert (used.minute, used.second, used.microsecond) == (0, 0, 0)
    with mnemic.open(url, audit=True) as memory:
        assert memory.audit_trail() == []


def test_the_audit_log_has_the_name_of_the_key_and_the_address(url: str) -> None:
    made = make_key(url)
    with serving(url, audit=True) as client:
        client.put(f"{NOTES}/a", json={"value": 1}, headers=bearer(made.secret))
    with mnemic.open(url, audit=True) as memory:
        (entry,) = memory.audit_trail()
    assert (entry.actor, entry.address, entry.key) == ("bot", "127.0.0.1", "a")


def test_a_key_has_a_form_of_its_own() -> None:
    id, secret = "0123456789abcdef", "f" * 64
    found = parse_key(f"mnk_{id}_{secret}")
    assert found is not None
    assert found[0] == id
    assert secret.encode() not in found[1]
    assert parse_key(f"mnk_{id}_{secret}\n") is None


# ------------------------------------------------------------ where requests come from


def test_a_name_that_is_not_the_servers_is_refused() -> None:
    with serving() as client:
        port = client.base_url.port
        for host in ("localhost", f"127.0.0.1:{port}", "[::1]:80", "LOCALHOST:1"):
            assert client.get(STATS, headers={"Host": host}).status_code == 200
        for host in (
            "evil.example",
            f"evil.example:{port}",
            "127.0.0.1.evil.example",
            "192.168.1.5",
            "",
            "localhost.evil",
        ):
            assert client.get(STATS, headers={"Host": host}).status_code == 421
            assert client.get("/dashboard/", headers={"Host": host}).status_code == 421
        assert client.get("/live", headers={"Host": "10.0.0.7"}).status_code == 200


def test_a_header_that_is_there_twice_is_refused() -> None:
    with serving() as client:
        for name, values in (("Authorization", ("Bearer a", "Bearer b")), ("Origin", (str(client.base_url), "null"))):
            assert client.get(STATS, headers=[(name, value) for value in values]).status_code == 400


def test_allowed_hosts_are_served(url: str) -> None:
    made = make_key(url)
    with serving(url, settings=Settings(host="0.0.0.0", allowed_hosts=("memory.example.com",))) as client:
        client.headers.update(bearer(made.secret))
        for host, status in (("memory.example.com", 200), ("192.168.1.5:7676", 200), ("evil.example", 421)):
            assert client.get(STATS, headers={"Host": host}).status_code == status


def test_pages_of_other_origins_are_refused() -> None:
    with serving() as client:
        own = str(client.base_url).rstrip("/")
        for headers in (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": own.replace("http", "http") + "1"},
            {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
            {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
        ):
            assert client.post("/api/v1/recall", json={"query": "x"}, headers=headers).status_code == 403
            assert client.get(STATS, headers=headers).status_code == 403
        for headers in (
            {"Origin": own},
            {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"},
            {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
        ):
            found = client.get(STATS, headers=headers)
            assert (found.status_code, found.headers.get("Access-Control-Allow-Origin")) == (200, None)
        preflight = {"Origin": "https://evil.example", "Access-Control-Request-Method": "GET"}
        assert client.options(STATS, headers=preflight).status_code == 403


def test_an_allowed_origin_can_call_the_api_without_the_cookie() -> None:
    app = "https://app.example.com"
    with serving(settings=Settings(allowed_origins=(app,))) as client:
        found = client.get(STATS, headers={"Origin": app})
        assert (found.status_code, found.headers["Access-Control-Allow-Origin"]) == (200, app)
        assert "Access-Control-Allow-Credentials" not in found.headers
        asked = {"Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "authorization"}
        assert client.options(STATS, headers={"Origin": app, **asked}).status_code == 200
        assert client.get(STATS, headers={"Origin": f"{app}.evil"}).status_code == 403
    with mnemic.open("memory://") as memory:
        for origin in ("*", "app.example.com", "https://a/b", "null"):
            with pytest.raises(InvalidValueError, match="allowed_origins"):
                build_app(memory._async, Settings(allowed_origins=(origin,)))


# ------------------------------------------------------------ logins of the dashboard


def log_in(client: httpx.Client, key: str) -> str:
    """Log in; return the CSRF token."""
    answer = client.post("/dashboard/login", json={"key": key})
    assert answer.status_code == 204, answer.text
    token: str = client.get("/dashboard/session").json()["csrf"]
    return token


def test_a_login_changes_a_key_for_a_cookie_that_scripts_cannot_read(url: str) -> None:
    made = make_key(url, "acme", ["read", "write"])
    with serving(url) as client:
        told = client.get("/dashboard/session")
        assert (told.status_code, told.json()) == (200, {"signed_in": False})
        assert client.get("/dashboard/").status_code == 200
        assert client.post("/dashboard/login", json={"key": made.secret[:-1]}).status_code == 401
        answer = client.post("/dashboard/login", json={"key": made.secret})
        cookie = answer.headers["Set-Cookie"].lower()
        assert all(part in cookie for part in ("httponly", "samesite=strict", "max-age=43200", "path=/"))
        assert "secure" not in cookie
        assert made.secret not in cookie
        told = client.get("/dashboard/session").json()
        assert told == {
            "signed_in": True, "id": made.key.id, "name": "bot", "scope": "acme", "rights": ["read", "write"],
            "csrf": told["csrf"],
        }  # fmt: skip
        assert client.get(STATS).json()["scope"] == "acme"


def test_a_change_with_a_cookie_needs_the_csrf_token(url: str) -> None:
    made = make_key(url)
    with serving(url) as client:
        token = log_in(client, made.secret)
        write = {"json": {"value": 1}}
        for headers in ({}, {"X-CSRF-Token": ""}, {"X-CSRF-Token": "é".encode()}, {"X-CSRF-Token": token[:-1]}):
            assert client.put(f"{NOTES}/a", **write, headers=headers).status_code == 403  # type: ignore[arg-type]
        assert client.put(f"{NOTES}/a", **write, headers={"X-CSRF-Token": token}).status_code == 201  # type: ignore[arg-type]
        assert client.post("/dashboard/logout").status_code == 403
        assert client.post("/dashboard/logout", headers={"X-CSRF-Token": token}).status_code == 204
        assert client.get(STATS).status_code == 401


def test_a_login_ends_with_its_key_and_its_time(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, admin = make_key(url), make_key(url)
    with serving(url) as client:
        log_in(client, made.secret)
        assert client.get(STATS).status_code == 200
        assert client.delete(f"/api/v1/keys/{made.key.id}", headers=bearer(admin.secret)).status_code == 204
        assert client.get(STATS).status_code == 401
        log_in(client, admin.secret)
        later = monotonic() + logins.HOURS * 3600 + 1
        monkeypatch.setattr(logins, "monotonic", lambda: later)
        assert client.get(STATS).status_code == 401


def test_logins_are_bounded() -> None:
    known = logins.Logins()
    first = known.begin("other")
    mine = [known.begin("mine") for _ in range(3 * logins.MAX_SESSIONS_PER_KEY)]
    assert [known.find(one) is not None for one in mine] == [False] * 40 + [True] * 20
    assert known.find(first) is not None


def test_the_dashboard_goes_on_with_the_first_key_that_it_makes(url: str) -> None:
    with serving(url) as client:
        browser = {"Sec-Fetch-Site": "same-origin"}
        limited = client.post("/api/v1/keys", json={"name": "a", "scope": "acme", "rights": ["read"]}, headers=browser)
        assert (limited.status_code, "first key" in limited.text) == (422, True)
        made = client.post("/api/v1/keys", json={"name": "a", "rights": list(RIGHTS)}, headers=browser)
        assert made.status_code == 201
        assert client.get("/api/v1/keys").json()["items"][0]["name"] == "a"
        token = made.headers["X-CSRF-Token"]
        assert client.put(f"{NOTES}/a", json={"value": 1}, headers={"X-CSRF-Token": token}).status_code == 201
        client.cookies.clear()
        assert client.get(STATS).status_code == 401
        assert client.get(STATS, headers=bearer(made.json()["secret"])).status_code == 200
