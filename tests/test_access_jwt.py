"""JWTs of an issuer: what they allow, every flaw for which one is refused, and the issuer's public keys."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hmac import new as hmac
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from http_server import serving
from mnemic.errors import InvalidValueError
from mnemic.records import ScopePath
from mnemic.server import jwt_tokens
from mnemic.server.jwt_tokens import check_template, fill_template, parse_jwks, rights_of
from mnemic.server.serving import serve
from mnemic.server.settings import Settings

NOTES = "/api/v1/notes"
STATS = "/api/v1/stats"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'memory.db'}?synchronous=normal"


def bearer(credential: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {credential}"}


RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ISSUER, AUDIENCE = "https://login.example.com/", "mnemic"


def jwks(**keys: Any) -> str:
    """Return public keys by their ids as a JWKS."""
    listed = []
    for id, key in keys.items():
        algorithm = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
        listed.append({**algorithm.to_jwk(key.public_key(), as_dict=True), "kid": id, "use": "sig"})
    return json.dumps({"keys": listed})


def token(key: Any = RSA_KEY, kid: str | None = "a", alg: str = "RS256", **claims: Any) -> str:
    given = {
        "iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "org": "acme", "scope": "openid mnemic:read mnemic:write",
        "exp": datetime.now(UTC) + timedelta(minutes=5), **claims,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    return jwt.encode(given, key, alg, headers={"kid": kid} if kid is not None else None)


@pytest.fixture
def jwt_client(tmp_path: Path, url: str) -> Iterator[httpx.Client]:
    file = tmp_path / "jwks.json"
    file.write_text(jwks(a=RSA_KEY, b=EC_KEY))
    settings = Settings(
        jwt_issuer=ISSUER,
        jwt_audience=AUDIENCE,
        jwt_jwks=str(file),
        jwt_scope="t/{org}/{sub}",
        jwt_rights_claim="scope",
    )
    with serving(url, settings=settings) as client:
        yield client


def test_a_jwt_has_the_scope_and_rights_of_its_claims(jwt_client: httpx.Client) -> None:
    for given in (token(), token(EC_KEY, "b", "ES256"), token(alg="PS512")):
        found = jwt_client.get(STATS, headers=bearer(given))
        assert (found.status_code, found.json()["scope"]) == (200, "t/acme/alice")
    headers = bearer(token())
    assert jwt_client.put(f"{NOTES}/a", json={"value": 1}, headers=headers).status_code == 201
    assert jwt_client.get(f"{NOTES}/a", headers=headers, params={"scope": "t/acme/bob"}).status_code == 404
    refused = jwt_client.put(f"{NOTES}/a", json={"value": 1}, headers=headers, params={"scope": "t/acme/bob"})
    assert refused.status_code == 403
    assert jwt_client.post("/api/v1/erase", json={}, headers=headers).status_code == 403
    assert jwt_client.get("/api/v1/keys", headers=headers).status_code == 403
    assert jwt_client.get(STATS).status_code == 401


def forged(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    parts = [json.dumps(header, default=str).encode(), json.dumps(claims, default=str).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def test_a_jwt_with_any_flaw_is_refused(jwt_client: httpx.Client) -> None:
    now = datetime.now(UTC)
    pem = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    good = jwt.decode(token(), options={"verify_signature": False})
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    hmac_key = hmac(pem, b"", "sha256").digest()
    flawed = {
        "expired": token(exp=now - timedelta(minutes=1)),
        "no expiry": token(exp=None),
        "odd expiry": forged({"alg": "RS256", "kid": "a"}, {**good, "exp": "soon"}),
        "not yet valid": token(nbf=now + timedelta(minutes=5)),
        "issuer": token(iss="https://login.example.com"),
        "no issuer": token(iss=None),
        "audience": token(aud="other"),
        "no audience": token(aud=None),
        "another key": token(other),
        "unknown kid": token(kid="c"),
        "no kid among several": token(kid=None),
        "kid of another type": token(kid="b"),
        "alg none": forged({"alg": "none", "kid": "a"}, good),
        "alg None": forged({"alg": "None", "kid": "a"}, good),
        "no alg": forged({"kid": "a"}, good),
        "public key as secret": forged({"alg": "HS256", "kid": "a"}, good, hmac_key),
        "crit": jwt.encode(good, RSA_KEY, "RS256", headers={"kid": "a", "crit": ["x"], "x": 1}),
        "no scope claim": token(org=None),
        "scope claim with a slash": token(org="acme/bob"),
        "scope claim that is a list": token(org=["acme"]),
        "empty scope claim": token(org=""),
        "control characters": token(org="a\nb"),
        "no rights": token(scope="openid"),
        "no rights claim": token(scope=None),
        "unknown right": token(scope="mnemic:read mnemic:everything"),
        "odd rights": token(scope={"read": True}),
        "too long": token(filler="x" * 20_000),
        "not a JWT": "a.b.c",
    }
    refused = jwt_client.get(STATS, headers=bearer(f"mnk_{'0' * 16}_{'0' * 64}"))
    for flaw, given in flawed.items():
        found = jwt_client.get(STATS, headers=bearer(given))
        assert (flaw, found.status_code, found.content) == (flaw, 401, refused.content)


def test_public_keys_are_read_again_for_an_unknown_one_but_not_too_often(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    served = [jwks(a=RSA_KEY)]

    class Issuer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200 if served[0] else 500)
            self.end_headers()
            self.wfile.write(served[0].encode())

        def log_message(self, *arguments: Any) -> None:
            pass

    issuer = HTTPServer(("127.0.0.1", 0), Issuer)
    thread = Thread(target=issuer.serve_forever)
    thread.start()
    moment = [1000.0]
    monkeypatch.setattr(jwt_tokens, "monotonic", lambda: moment[0])
    settings = Settings(
        jwt_issuer=ISSUER, jwt_audience=AUDIENCE, jwt_jwks=f"http://127.0.0.1:{issuer.server_port}/jwks",
        jwt_scope="{sub}", jwt_rights_claim="scope",
    )  # fmt: skip

    def status(given: str) -> int:
        return client.get(STATS, headers=bearer(given)).status_code

    try:
        with serving(url, settings=settings) as client:
            assert [status(token()) for _ in range(3)] == [200] * 3
            assert len(asked) == 1
            served[0] = jwks(b=EC_KEY)
            new = token(EC_KEY, "b", "ES256")
            assert [status(new) for _ in range(5)] == [401] * 5  # it was just read
            moment[0] += jwt_tokens.REFETCH_SECONDS + 1
            assert (status(new), len(asked)) == (200, 2)
            assert [status(token(kid=f"x{n}")) for n in range(20)] == [401] * 20
            assert len(asked) == 2
            moment[0] += jwt_tokens.VERIFIED_SECONDS + 1
            assert status(token()) == 401  # its public key is gone
            served[0] = ""
            moment[0] += jwt_tokens.FRESH_SECONDS + 1
            assert status(new) == 200  # the issuer is down for a while
            moment[0] += jwt_tokens.STALE_SECONDS
            assert status(new) == 503
    finally:
        issuer.shutdown()
        issuer.server_close()
        thread.join()


def test_a_server_does_not_start_without_the_public_keys(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mnemic.server.serving.configure_logging", lambda settings: None)
    for location, complaint in ((str(tmp_path / "none.json"), "cannot be read"), ("http://a.example/jwks", "https://")):
        settings = Settings(jwt_issuer=ISSUER, jwt_audience=AUDIENCE, jwt_jwks=location, port=0, metrics=False)
        with pytest.raises(InvalidValueError, match=complaint):
            serve(settings, url, None, print, None)


def test_templates_of_scopes() -> None:
    claims = {"sub": "alice", "org": "acme", "path": "a/b", "up": "../x", "n": 3}
    assert fill_template("t/{org}/{sub}", claims) == ScopePath("t/acme/alice")
    assert fill_template("u-{sub}", claims) == ScopePath("u-alice")
    assert fill_template("t/{path:path}/c", claims) == ScopePath("t/a/b/c")
    for template in ("{path}", "{none}", "{n}", "{up}", "u-{path:path}", "{none:path}"):
        with pytest.raises(InvalidValueError, match="claim"):
            fill_template(template, claims)
    for template in ("", "acme", "{}", "a//{sub}", "{sub}/", "{sub", "{a}{"):
        with pytest.raises(InvalidValueError):
            check_template(template)


def test_rights_of_claims() -> None:
    assert rights_of({"r": ["read", "erase"]}, "r") == {"read", "erase"}
    assert rights_of({"scp": "email mnemic:admin read"}, "scp") == {"admin"}
    for given in (None, "", [], "reed", ["read", 3], {"read": 1}, "read everything"):
        with pytest.raises(jwt_tokens.TokenError):
            rights_of({"r": given}, "r")


def test_only_public_keys_for_signatures_are_taken() -> None:
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "s"}
    own = json.loads(jwks(a=RSA_KEY))["keys"][0]
    assert set(parse_jwks(json.dumps({"keys": [secret, own, {**own, "kid": "e", "use": "enc"}]}).encode())) == {
        "a",
        None,
    }
    unnamed = {name: value for name, value in own.items() if name != "kid"}
    for several, ids in (
        ([own, unnamed], {"a"}),
        ([unnamed, unnamed], set()),
        ([{**own, "alg": "RSA-OAEP"}, own], {"a", None}),
    ):
        assert set(parse_jwks(json.dumps({"keys": several}).encode())) == ids
    for content in (b"", b"[]", b"{}", b'{"keys": 1}', json.dumps({"keys": [secret]}).encode(), b" " * 2_000_000):
        with pytest.raises(ValueError, match=r"JWKS|JSON"):
            parse_jwks(content)
