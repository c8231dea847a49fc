"""Signing keys and signed documents."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mnemic
from layered import KEY
from mnemic import SigningKey, verify_signature
from mnemic.errors import InvalidValueError, SignatureError
from mnemic.layers.layer import Layer

DOCUMENT: dict[str, Any] = {"what": "Ünicode", "count": 3, "nested": {"b": [1, None], "a": True}}


def test_a_signed_document_verifies_in_any_order_of_names() -> None:
    key = SigningKey(KEY)
    signed = key.sign(DOCUMENT)
    assert verify_signature(signed) == key.fingerprint
    shuffled = {name: signed[name] for name in reversed(signed)}
    assert verify_signature(shuffled, [key.fingerprint.upper()]) == verify_signature(shuffled, [key.public_key])
    assert signed == SigningKey(KEY).sign(signed), "signing again changes nothing"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"count": 4}, "was changed"),
        ({"more": 1}, "was changed"),
        ({"signature": None}, "no signature"),
        ({"signature": {"algorithm": "none"}}, "algorithm"),
        ({"signature": {"algorithm": "ed25519", "public_key": "x", "value": "y"}}, "not readable"),
        ({"signature": {"algorithm": "ed25519"}}, "not readable"),
    ],
)
def test_a_changed_document_is_refused(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SignatureError, match=complaint):
        verify_signature(SigningKey(KEY).sign(DOCUMENT) | change)


def test_another_key_is_not_trusted() -> None:
    signed = SigningKey.generate().sign(DOCUMENT)
    verify_signature(signed)
    with pytest.raises(SignatureError, match="not trusted"):
        verify_signature(signed, [SigningKey(KEY).fingerprint])
    for nobody in ([], [""]):
        with pytest.raises(SignatureError, match="not trusted"):
            verify_signature(signed, nobody)


def test_keys_come_from_bytes_files_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = SigningKey(KEY)
    pem = Ed25519PrivateKey.from_private_bytes(KEY).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for content in (KEY, key.secret_text().encode() + b"\n", pem):
        (path := tmp_path / "key").write_bytes(content)
        assert SigningKey.from_file(path).fingerprint == key.fingerprint
    monkeypatch.setenv("SIGNING", key.secret_text())
    assert SigningKey.from_environment("SIGNING").fingerprint == key.fingerprint
    for form in (path, f"file:{path}", "env:SIGNING"):
        with mnemic.open("memory://", signing_key=[os.urandom(32), form]) as memory:
            assert memory.signing_keys()[1].fingerprint == key.fingerprint
    for wrong, said in (("env:NO_SUCH", "NO_SUCH is not set"), (f"file:{path}.no", "cannot read the key file")):
        with pytest.raises(InvalidValueError, match=said):
            SigningKey(wrong)
    for value in (b"short", "x" * 44, 7, b"-----BEGIN PRIVATE KEY-----\nx"):
        with pytest.raises(InvalidValueError) as caught:
            SigningKey(value)  # type: ignore[arg-type]
        assert "short" not in str(caught.value)
    with pytest.raises(InvalidValueError, match="empty list"):
        mnemic.open("memory://", signing_key=[])


@pytest.mark.parametrize("encryption_key", [None, KEY])
def test_a_key_is_kept_in_the_store_unless_one_is_given(
    file_url: str, encryption_key: bytes | None, tmp_path: Path
) -> None:
    def fingerprint(**options: Any) -> str:
        with mnemic.open(file_url, encryption_key=encryption_key, **options) as memory:
            layer = memory._async._store
            assert isinstance(layer, Layer)
            assert layer.signing is not None
            key = memory._driver.run(layer.signing.key())
            memory.scope().erase()
            assert memory.scope().export_to(tmp_path / "all.jsonl").records == 0
            return key.fingerprint

    assert fingerprint() == fingerprint()
    assert fingerprint(signing_key=KEY) == SigningKey(KEY).fingerprint != fingerprint()


def test_without_cryptography_it_says_what_is_missing() -> None:
    code = """
import sys
sys.modules["cryptography"] = None
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "cryptography" else found(name, *rest)
import mnemic
with mnemic.open("memory://", audit=True, embedder=None) as memory:
    memory.scope("a").notes.write("x", 1)
    assert len(memory.audit_trail()) == 1
try:
    mnemic.SigningKey(bytes(32)).sign({})
except mnemic.MissingExtraError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.stdout.strip() == "signing needs cryptography: pip install 'mnemic[encryption]'", done.stderr
