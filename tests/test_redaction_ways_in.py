"""Redaction on every way in: command line, server, MCP, mem0's API, copies, and an agent's journal."""

import base64
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import mnemic
from mcp_clients import connected, data, run
from mnemic.agents import Provenance, open_journal
from mnemic.cli import main
from server_process import served
from test_redaction import CONFIGS, EMAIL, IBAN, KEY, SECRETS, fill


def invoke(*arguments: str, code: int = 0, **environment: str) -> str:
    shown = CliRunner().invoke(main, arguments, env=environment)
    assert shown.exit_code == code, shown.output
    return shown.output


def texts(url: str, **options: Any) -> list[str]:
    with mnemic.open(url, **options) as memory:
        return sorted({hit.text for hit in memory.scope().recall("mail", 20, diverse=False)})


def test_the_command_line(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/m.db"
    invoke("remember", "acme", f"mail {EMAIL}", "--store", url, "--redact")
    invoke("remember", "acme", f"mail {IBAN}", "--store", url, MNEMIC_REDACT="true")
    invoke("remember", "acme", f"mail {EMAIL}", "--store", url, "--no-redact", MNEMIC_REDACT="true")
    assert texts(url) == ["mail [EMAIL]", "mail [IBAN]", f"mail {EMAIL}"]
    (tmp_path / "chat.json").write_text(json.dumps([{"role": "user", "content": f"mail: {EMAIL}"}]))
    invoke("import", str(tmp_path / "chat.json"), "--scope", "acme/imported", "--store", url, "--redact")
    assert "mail: [EMAIL]" in texts(url)


def test_a_file_says_what_is_redacted_and_how(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/m.db"
    (tmp_path / "names.txt").write_text("Bob Ross\n\n")
    (tmp_path / "vault.key").write_text(base64.urlsafe_b64encode(KEY).decode())
    file = tmp_path / "redaction.toml"
    file.write_text(
        'action = "hash"\nkey_env = "HASH_KEY"\nrecognizers = ["EMAIL"]\nnames_file = "names.txt"\n'
        'vault_key_file = "vault.key"\nscopes = ["acme"]\n'
        '[actions]\nTICKET = "mask"\n[patterns]\nTICKET = "TCK-[0-9]+"\n'
    )
    said = f"Bob Ross sent TCK-17 and {IBAN} to {EMAIL}"
    key = "0123456789abcdef"
    invoke("remember", "acme", said, "--store", url, "--redact-file", str(file), HASH_KEY=key)
    invoke("remember", "other", said, "--store", url, HASH_KEY=key, MNEMIC_REDACT_FILE=str(file))
    config = mnemic.Redaction(action="hash", key=key, vault=mnemic.Vault(KEY))
    with mnemic.open(url, redact=config) as memory:
        assert memory.scope("other").memories.list()[0].text == said
        text = memory.scope("acme").memories.list()[0].text
        assert f"] sent [TICKET] and {IBAN} to [EMAIL:" in text
        assert memory.reveal(text) == said.replace("TCK-17", "[TICKET]")
    assert "HASH_KEY" in invoke("ls", "--store", url, "--redact-file", str(file), code=1)
    for content, problem in (("x = 1", "'x'"), ("action = 3", "bad value"), ("action = 'hide'", "hide"), ("=", "TOML")):
        file.write_text(content)
        assert problem in invoke("ls", "--store", url, "--redact-file", str(file), code=1)


def test_scan_counts_and_mends_without_printing_values(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/m.db"
    with mnemic.open(url) as memory:
        fill(memory.scope("acme"), tmp_path)
    said = invoke("scan", "acme", "--store", url)
    found = json.loads(invoke("scan", "--mend", "--json", "--store", url))
    assert found["mended"] == found["matched"] > 5
    said += invoke("scan", "acme", "--store", url)
    assert said.splitlines()[-1].startswith("0 of ")
    assert not any(secret in said + str(found) for secret in SECRETS)
    assert "nothing is stored" in invoke("scan", "typo", "--store", url, code=1)


def test_the_server_and_its_access_log(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/m.db"
    with served(url, "--redact", "--access-log") as server:
        body = {"role": "user", "content": f"mail {EMAIL}", "metadata": {"from": EMAIL}}
        assert server.ask("POST", "/api/v1/sessions/monday/messages?scope=acme", body)[0] < 300
        mem0 = {"messages": [{"role": "user", "content": f"mail to {EMAIL}"}], "user_id": "ann", "infer": False}
        assert server.ask("POST", "/memories", mem0)[0] < 300
        again = server.ask("POST", "/memories", mem0)
        assert again[0] < 300
        status, found = server.ask("POST", "/api/v1/recall?scope=acme", {"query": f"who is {EMAIL}?"})
        assert (status, found["hits"][0]["text"]) == (200, "mail [EMAIL]")
        log = server.log
    assert texts(url) == ["mail [EMAIL]", "mail to [EMAIL]"]
    held = b"".join(path.read_bytes() for path in tmp_path.glob("m.db*"))
    assert EMAIL.encode() not in held
    assert EMAIL not in log


def test_a_client_redacts_before_it_sends(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/m.db"
    with served(url) as server:
        with mnemic.open(f"http://127.0.0.1:{server.port}", redact=True) as memory:
            memory.scope("acme").session("s").add("user", f"mail {EMAIL}", once="1")
            assert memory.scope("acme").recall(f"who is {EMAIL}?")[0].text == "mail [EMAIL]"
            assert memory.scan().matched == 0
    assert texts(url) == ["mail [EMAIL]"]


def test_a_server_that_redacts_refuses_clear_text_of_clients(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/m.db"
    with served(url, "--redact") as server:
        address = f"http://127.0.0.1:{server.port}"
        with mnemic.open(address) as memory:
            acme = memory.scope("acme")
            for write in (
                lambda: acme.remember(f"mail {EMAIL}", once="1"),
                lambda: acme.session("s").add("user", f"mail {EMAIL}"),
                lambda: acme.facts.add(EMAIL, "likes", "tea"),
            ):
                with pytest.raises(mnemic.InvalidValueError, match=r"EMAIL.*redact=") as caught:
                    write()
                assert EMAIL not in str(caught.value)
            assert acme.remember("tea", once="2").text == "tea"
        with mnemic.open(address, redact=True) as memory:
            acme = memory.scope("acme")
            first = acme.remember(f"mail {EMAIL}", once="1")
            assert acme.remember(f"mail {EMAIL}", once="1") == first
            assert acme.facts.add(EMAIL, "likes", "tea").subject == "[EMAIL]"
            assert acme.facts.add(EMAIL, "likes", "tea").subject == "[EMAIL]"
        body = {"role": "user", "content": f"mail {EMAIL}"}
        said = server.ask("POST", "/api/v1/sessions/s/messages?scope=acme", body)[1]
        assert "mail [EMAIL]" in str(said)
        assert EMAIL not in str(said)
        fact = {"subject": EMAIL, "predicate": "uses", "object": "tea"}
        assert server.ask("POST", "/api/v1/facts?scope=acme", fact)[1]["subject"] == "[EMAIL]"
        kept = server.ask("POST", "/api/v1/memories?scope=acme", {"text": EMAIL})[1]
        assert "[EMAIL]" in str(kept)
        assert EMAIL not in str(kept)


def test_mcp(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/m.db"

    async def test() -> None:
        async with connected("--store", url, "--redact", "--profile", "default") as client:
            await data(client, "remember", text=f"mail {EMAIL}")

    run(test)
    assert texts(url) == ["mail [EMAIL]"]


@pytest.mark.parametrize("name", ["mask", "hash", "drop"])
def test_a_copy_can_be_redacted(tmp_path: Path, name: str) -> None:
    source, target = f"sqlite:///{tmp_path}/source.db", f"sqlite:///{tmp_path}/m.db"
    with mnemic.open(source) as memory:
        fill(memory.scope("acme"), tmp_path)
    copied = mnemic.copy(source, target, redact=CONFIGS[name])
    assert mnemic.copy(source, target, redact=CONFIGS[name]).written == 0
    assert copied.written == copied.records
    held = (tmp_path / "m.db").read_bytes()
    assert not any(secret.encode() in held for secret in SECRETS)
    with mnemic.open(target, redact=CONFIGS[name]) as memory:
        assert memory.scan().matched == 0
        assert memory.scope("acme").facts.ask("the user", "mail")
    with pytest.raises(mnemic.InvalidValueError, match="vault"):
        mnemic.copy(source, target, redact=CONFIGS["vault"])


@pytest.mark.parametrize(("words", "merge"), [(f"mail {EMAIL}", False), ("mail [EMAIL]", True)])
def test_a_copy_that_would_make_one_fact_of_several_is_refused(tmp_path: Path, words: str, merge: bool) -> None:
    source, target = f"sqlite:///{tmp_path}/source.db", f"sqlite:///{tmp_path}/m.db"
    with mnemic.open(source) as memory:
        memory.scope("acme").facts.add("Ann", "wants", words)
        memory.scope("acme").facts.add("Ann", "wants", "mail bob@example.org")
    with pytest.raises(mnemic.ConflictError, match=r"one fact of several; hashes keep them apart"):
        mnemic.copy(source, target, redact=True, merge=merge)
    mnemic.copy(source, target, redact=CONFIGS["hash"])
    with mnemic.open(target) as memory:
        assert len(memory.scope("acme").facts.ask("Ann", "wants")) == 2


def test_a_copy_of_ciphertext_cannot_be_redacted(tmp_path: Path) -> None:
    source, target = f"sqlite:///{tmp_path}/source.db", f"sqlite:///{tmp_path}/m.db"
    with mnemic.open(source, encryption_key=KEY) as memory:
        memory.scope("acme").remember(EMAIL)
    with pytest.raises(mnemic.DecryptionError):
        mnemic.copy(source, target, redact=True)
    mnemic.copy(source, target, source_key=KEY, redact=True)
    assert texts(target, redact=True) == ["[EMAIL]"]


def test_what_an_agent_wrote_can_be_undone() -> None:
    with mnemic.open("memory://", redact=True) as memory:
        scope = memory.scope("acme")
        journal = open_journal(scope)
        scope.notes.write("contact", f"mail {EMAIL}")
        writer = journal.writer("change", Provenance(agent="bot"))
        writer.notes.write("contact", f"mail {IBAN}")
        assert scope.notes.read("contact") == "mail [IBAN]"
        journal.undo_last()
        assert scope.notes.read("contact") == "mail [EMAIL]"


def test_a_copy_redacts_the_history_too(tmp_path: Path) -> None:
    source, target = f"sqlite:///{tmp_path}/source.db", f"sqlite:///{tmp_path}/m.db"
    with mnemic.open(source, history=timedelta(days=9)) as memory:
        item = memory.scope("acme").remember(f"mail {EMAIL}")
        memory.scope("acme").memories.update(item.id, text=f"mail {IBAN}")
    mnemic.copy(source, target, redact=True)
    held = (tmp_path / "m.db").read_bytes()
    assert EMAIL.encode() not in held
    with mnemic.open(target, history=timedelta(days=9)) as memory:
        assert "[EMAIL]" in str([version.to_dict() for version in memory.scope("acme").history(item.id)])
