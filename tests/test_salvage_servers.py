"""What is saved of stores on servers, and by the command line."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

import mnemic
from layered import KEY
from mnemic.cli import main
from mnemic.salvage import salvage
from servers import aws, valkey
from servers.stores import empty_store

TEXTS = [f"message {n}" for n in range(40)]


def fill(url: str, **options: Any) -> None:
    with mnemic.open(url, embedder=None, **options) as memory:
        for tenant in ("acme", "beta"):
            memory.scope(tenant).session("s", max_messages=500).add_many(
                [{"role": "user", "content": text} for text in TEXTS]
            )
            memory.scope(tenant).notes.write("plan", "tea")


def texts(url: str, tenant: str = "acme", **options: Any) -> list[str | None]:
    with mnemic.open(url, embedder=None, **options) as memory:
        chat = memory.scope(tenant).session("s")
        assert chat.settings().max_messages == 500
        return [message.text for message in chat.messages()]


def keys_of(url: str) -> list[str]:
    return list(valkey.server().ask("KEYS", f"*{url.partition('prefix=')[2]}*"))


def break_postgresql(url: str, seqs: tuple[int, ...]) -> None:
    with closing(psycopg.connect(url, autocommit=True)) as raw:
        raw.execute(
            "UPDATE mnemic_records SET data = '{' WHERE seq = ANY(%s) AND stream_id IN "
            "(SELECT id FROM mnemic_streams WHERE scope = 'acme/s')",
            [list(seqs)],
        )


def break_valkey(url: str, seqs: tuple[int, ...]) -> None:
    server = valkey.server()
    (key,) = [key for key in keys_of(url) if "acme/s" in key and server.ask("TYPE", key) == "zset"]
    for seq in seqs:
        (stored,) = server.ask("ZRANGEBYSCORE", key, str(seq), str(seq))
        server.ask("ZREM", key, stored)
        server.ask("ZADD", key, str(seq), stored[:-9])


def break_dynamodb(url: str, seqs: tuple[int, ...]) -> None:
    client = aws.client("dynamodb", dict(part.split("=", 1) for part in url.partition("?")[2].split("&")))
    table = url.partition("://")[2].partition("?")[0]
    for item in client.scan(TableName=table)["Items"]:
        if "record" in item and "message" in str(item) and item["seq"]["N"] in map(str, seqs) and "acme" in str(item):
            client.put_item(TableName=table, Item={**item, "record": {"S": item["record"]["S"][:-9]}})


BROKEN: dict[str, Callable[[str, tuple[int, ...]], None]] = {
    "postgresql": break_postgresql,
    "valkey": break_valkey,
    "dynamodb": break_dynamodb,
}


@pytest.mark.parametrize("name", BROKEN)
def test_damaged_records_are_left_out_and_all_others_saved(name: str, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path}/saved.db"
    gone = (1, 7, 8, 10, 38)
    with empty_store(name, tmp_path) as url:
        fill(url)
        BROKEN[name](url, gone)
        done = asyncio.run(salvage(url, target))
        with mnemic.open(url, embedder=None) as memory:
            assert len(memory.scope("beta").session("s").messages()) == 40  # others are not affected
            assert [message.text for message in memory.scope("acme").session("s").messages(2)] == TEXTS[-2:]
    (lost,) = done.lost
    assert (lost.scope.path, lost.kind, lost.records) == ("acme/s", "message", len(gone))
    assert "damaged" in lost.why
    assert texts(target) == [text for n, text in enumerate(TEXTS, 1) if n not in gone]
    assert texts(target, "beta") == TEXTS


def test_streams_whose_state_is_damaged_are_read_nevertheless(tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path}/saved.db"
    server = valkey.server()
    with empty_store("valkey", tmp_path) as url:
        fill(url)
        for key in keys_of(url):
            if "acme/s" in key and server.ask("TYPE", key) == "string":
                server.ask("SET", key, server.ask("GET", key)[:-5])
        with mnemic.open(url, embedder=None) as memory:
            with pytest.raises(mnemic.UnreadableStoreError, match="message stream of 'acme/s' is damaged"):
                memory.scopes()
            assert len(memory.scope("beta").session("s").messages()) == 40
        done = asyncio.run(salvage(url, target))
    assert done.lost == []
    assert any("the state of the message stream of 'acme/s' is damaged" in remark for remark in done.remarks)
    with mnemic.open(target, embedder=None) as memory:
        assert [message.text for message in memory.scope("acme").session("s").messages()] == TEXTS
        assert memory.scope("acme").notes.get("plan").value == "tea"


def test_damaged_objects_of_a_bucket(tmp_path: Path) -> None:
    with empty_store("s3", tmp_path) as url:
        fill(url)
        options = dict(part.split("=", 1) for part in url.partition("?")[2].split("&"))
        client = aws.client("s3", options)
        bucket, _, prefix = url.partition("://")[2].partition("?")[0].partition("/")
        found = client.list_objects_v2(Bucket=bucket, Prefix=prefix)["Contents"]
        (manifest,) = [one["Key"] for one in found if one["Key"].endswith("manifests/_acme/_s")]
        body = client.get_object(Bucket=bucket, Key=manifest)["Body"].read()
        client.put_object(Bucket=bucket, Key=manifest, Body=body[: len(body) // 2])
        with mnemic.open(url, embedder=None) as memory, pytest.raises(mnemic.UnreadableStoreError, match="_acme/_s"):
            memory.scope("acme").session("s").messages()
        done = asyncio.run(salvage(url, f"sqlite:///{tmp_path}/saved.db"))
    (remark,) = done.remarks
    assert "manifests/_acme/_s is damaged" in remark
    assert (done.lost, done.uncounted) == ([], True)  # how many were in there, nobody knows
    assert texts(f"sqlite:///{tmp_path}/saved.db", "beta") == TEXTS
    assert done.records["note"] == 2


def test_an_encrypted_store_stays_encrypted(tmp_path: Path) -> None:
    with empty_store("postgresql", tmp_path) as url:
        fill(url, encryption_key=KEY)
        with closing(psycopg.connect(url, autocommit=True)) as raw:
            raw.execute(
                "UPDATE mnemic_records a SET data = b.data FROM mnemic_records b "
                "WHERE a.stream_id = b.stream_id AND a.seq = 5 AND b.seq = 6"
            )
        blind = asyncio.run(salvage(url, f"sqlite:///{tmp_path}/blind.db"))
        checked = asyncio.run(salvage(url, f"sqlite:///{tmp_path}/checked.db", KEY))
    assert blind.lost == []
    assert [lost.records for lost in checked.lost] == [1, 1]
    assert b"message 3" not in (tmp_path / "checked.db").read_bytes()
    assert texts(f"sqlite:///{tmp_path}/checked.db", encryption_key=KEY) == [*TEXTS[:4], *TEXTS[5:]]
    with mnemic.open(f"sqlite:///{tmp_path}/blind.db", embedder=None, encryption_key=KEY) as memory:
        with pytest.raises(mnemic.DecryptionError):
            memory.scope("acme").session("s").messages()


def test_the_command_line(tmp_path: Path) -> None:
    source, target = tmp_path / "memory.db", tmp_path / "saved.db"
    fill(f"sqlite:///{source}")
    command = ["doctor", "--store", str(source), "--salvage", str(target)]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert "82 records saved in sqlite:///" in done.stdout
    assert "nothing was lost" in done.stdout
    again = CliRunner().invoke(main, command)
    assert again.exit_code == 1
    assert "already: name a new one" in again.output
    target.unlink()
    with closing(sqlite3.connect(source)) as raw, raw:
        raw.execute("UPDATE mnemic_records SET data = '{' WHERE seq = 3")
    done = CliRunner().invoke(main, [*command, "--json"])
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert [(lost["scope"], lost["records"]) for lost in told["lost"]] == [("acme/s", 1), ("beta/s", 1)]
    target.unlink()
    told_lines = CliRunner().invoke(main, command).stdout
    assert "2 records lost:" in told_lines
    target.unlink()
    missing = CliRunner().invoke(main, ["doctor", "--store", f"{tmp_path}/none.db", "--salvage", str(target)])
    assert "there is no store at" in missing.output
    assert missing.exit_code == 1
    assert not target.exists()
