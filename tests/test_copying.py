"""Copying between stores: complete, resumable, verified, and never a mixture of embedders."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

import mnemic
from layered import KEY
from mnemic.cli import main
from mnemic.errors import ConflictError, EmbedderError, InvalidValueError, NotFoundError, StoreError
from mnemic.records import Record, Ref, ScopePath
from mnemic.store import registry
from mnemic.store.protocol import Store, scan_all
from mnemic.store.query import Delete, Put, Scan, StreamScan, Write


@pytest.fixture
def source(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'source.db'}?synchronous=normal"
    with mnemic.open(url) as memory:
        for user in ("alice", "bob"):
            space = memory.scope("acme", user)
            chat = space.session("monday", ttl=timedelta(days=30))
            for n in range(250):
                chat.add("user", f"{user} says {n}", metadata={"n": n})
            space.remember(f"{user} likes tea", importance=2.5, metadata={"about": "drink"})
            space.notes.write("note", {"x": [1, 2.5, None, "é"]}, description="a note")
            space.facts.add(user, "works at", "Acme")
    return url


def everything(url: str, scope: ScopePath = ScopePath()) -> list[Any]:  # noqa: B008
    async def read() -> list[Any]:
        parsed, backend = registry.find(url)
        store = await backend.open(parsed)
        try:
            scan = Scan(scope=scope, below=True)
            return [_content(r) async for r in scan_all(store, scan) if r.kind != "embedder"]
        finally:
            await store.close()

    return asyncio.run(read())


def _content(r: Record) -> Any:
    return (
        r.scope, r.kind, r.key, r.text, r.title, r.data, r.meta, r.labels, r.importance, r.weight, r.pinned,
        r.created, r.expires, r.valid_from, r.valid_to,
    )  # fmt: skip


def test_a_copy_holds_the_same_and_finds_the_same(source: str, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path / 'target.db'}"
    seen: list[tuple[int, int]] = []
    copied = mnemic.copy(source, target, progress=lambda done, total: seen.append((done, total)))
    assert copied.records == copied.written == len(everything(source)) > 500
    assert seen[-1] == (copied.records, copied.records)
    assert everything(target) == everything(source)
    with mnemic.open(source) as one, mnemic.open(target) as other:
        hits = [memory.scope("acme", "alice").recall("who likes tea?") for memory in (one, other)]
        assert [hit.record.text for hit in hits[0]] == [hit.record.text for hit in hits[1]]
        (info, _) = other.scope("acme").sessions.list()
        assert info.expires is not None
    again = mnemic.copy(source, target)
    assert (again.records, again.written, again.digest) == (copied.records, 0, copied.digest)


def test_vectors_come_along(source: str) -> None:
    class Counted(mnemic.StaticEmbedder):
        texts = 0

        def embed(self, texts: Any) -> Any:
            Counted.texts += len(texts)
            return super().embed(texts)

    with mnemic.open(source) as memory:
        memory.warm()
    mnemic.copy(source, "memory://vectors-come-along")
    with mnemic.open("memory://vectors-come-along", embedder=Counted()) as memory:
        assert memory.scope("acme", "bob").recall("tea")
    assert Counted.texts == 0  # the question is embedded on its own


def test_one_scope_alone(source: str, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path / 'target.db'}"
    mnemic.copy(source, target, scope="acme/alice")
    assert everything(target) == everything(source, ScopePath("acme/alice"))
    with pytest.raises(InvalidValueError):
        mnemic.copy(source, target, scope="acme//alice")


def test_a_copy_that_is_broken_off_goes_on(source: str, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path / 'target.db'}"

    def interrupt(done: int, total: int) -> None:
        if done >= 400:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mnemic.copy(source, target, progress=interrupt)
    copied = mnemic.copy(source, target)
    assert 0 < copied.written < copied.records
    assert everything(target) == everything(source)


def test_what_has_changed_in_the_source_is_brought_over(source: str, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path / 'target.db'}"
    mnemic.copy(source, target)
    with mnemic.open(source) as memory:
        memory.scope("acme", "alice").notes.write("note", "changed")
        memory.scope("acme", "alice").session("monday").add("user", "one more")
    assert mnemic.copy(source, target).written == 2
    assert everything(target) == everything(source)


def test_what_only_the_target_has_is_not_mixed_in_unasked(source: str, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path / 'target.db'}"
    with mnemic.open(target) as memory:
        memory.scope("acme", "alice").session("monday").add("user", "only here")
    with pytest.raises(ConflictError, match="merge"):
        mnemic.copy(source, target)
    copied = mnemic.copy(source, target, merge=True)
    assert len(everything(target)) == copied.records + 1


def test_embedders_are_not_mixed(source: str, tmp_path: Path) -> None:
    class Other(mnemic.StaticEmbedder):
        id = "other"

    target = f"sqlite:///{tmp_path / 'target.db'}"
    with mnemic.open(source) as memory:
        memory.warm()
    with mnemic.open(target, embedder=Other()) as memory:
        memory.scope("elsewhere").remember("made with another embedder")
    before = everything(target)
    with pytest.raises(EmbedderError, match="reembed"):
        mnemic.copy(source, target)
    assert everything(target) == before


def test_reembedding_on_the_way(source: str, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path / 'target.db'}"
    mnemic.copy(source, target, reembed=True)
    with mnemic.open(target) as memory:
        assert memory.scope("acme", "alice").recall("tea")[0].record.text == "alice likes tea"


class Forgetful:
    """A store that loses what it was given."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, write: Write) -> Any:
        done = await self._store.write(write)
        lost = [op for op in write.ops if isinstance(op, Put) and op.record.key == "note"]
        await self._store.write(Write(tuple(Delete(op.record.ref) for op in lost)))
        return done


def test_a_copy_that_is_not_the_same_is_told(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = f"sqlite:///{tmp_path / 'target.db'}"
    find = registry.find

    def found(url: str) -> Any:
        parsed, backend = find(url)
        if url != target:
            return parsed, backend

        async def open(url: Any) -> Any:
            return Forgetful(await backend.open(url))

        return parsed, registry.Backend(open=open, inline=True)

    monkeypatch.setattr(registry, "find", found)
    with pytest.raises(StoreError, match="differs after 0 records"):
        mnemic.copy(source, target)


COMMANDS = {
    "copy": ["copy", "URL", "TARGET"],
    "reembed": ["reembed", "-s", "URL", "--embedder", "static"],
    "reindex": ["reindex", "-s", "URL", "--index", "lancedb:///TARGET"],
    "rotate": ["rotate", "-s", "URL", "--key-env", "KEY"],
    "migrate": ["migrate", "-s", "URL"],
    "ls": ["ls", "-s", "URL"],
    "show": ["show", "-s", "URL", "acme", "monday"],
    "stats": ["stats", "-s", "URL"],
    "recall": ["recall", "-s", "URL", "acme", "tea"],
    "ping": ["ping", "-s", "URL"],
    "forget": ["forget", "-s", "URL", "acme", "tea"],
    "erase": ["erase", "-s", "URL", "acme", "--yes"],
    "export": ["export", "-s", "URL", "TARGET", "--format", "jsonl"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["mistyped.db", "empty.db", "no/folder.db"])
def test_a_source_that_is_not_there_is_an_error_and_is_not_made(
    command: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", b64encode(KEY).decode())
    (tmp_path / "empty.db").touch()
    url, target = f"sqlite:///{tmp_path / name}", f"sqlite:///{tmp_path / 'target.db'}"
    given = [{"URL": url, "TARGET": target}.get(word, word) for word in COMMANDS[command]]
    shown = CliRunner().invoke(main, given)
    assert shown.exit_code == 1, shown.output
    assert f"there is no store at {url}" in shown.output
    assert [(file.name, file.stat().st_size) for file in tmp_path.iterdir()] == [("empty.db", 0)]


def test_nothing_to_copy_is_an_error(source: str, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path / 'target.db'}"
    shown = CliRunner().invoke(main, ["copy", source, target, "--scope", "acme/alcie"])
    assert shown.exit_code == 1
    assert "there is nothing to copy in the scope 'acme/alcie' of sqlite:///" in shown.output
    with mnemic.open(f"sqlite:///{tmp_path / 'new.db'}") as memory:
        memory.scope("a").remember("x", id="x")
        memory.scope("a").forget("x")
    with pytest.raises(NotFoundError, match="nothing to copy at sqlite:///"):
        mnemic.copy(f"sqlite:///{tmp_path / 'new.db'}", target)
    with pytest.raises(NotFoundError, match="nothing to copy at memory://"):
        mnemic.copy("memory://", target)
    assert not (tmp_path / "target.db").exists()


class Hiding:
    """A store that hides a scope from scans of the root, or from lists of streams."""

    def __init__(self, store: Store, scans: bool) -> None:
        self._store = store
        self._scans = scans

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def scan(self, scan: Scan) -> Any:
        page = await self._store.scan(scan)
        hidden = self._scans and scan.scope == ScopePath()
        return replace(page, items=tuple(r for r in page.items if not hidden or "bob" not in r.scope.path))

    async def streams(self, scan: StreamScan) -> Any:
        page = await self._store.streams(scan)
        return replace(page, items=tuple(s for s in page.items if self._scans or "bob" not in s.scope.path))


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_copy_compares_what_both_stores_show(
    side: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = f"sqlite:///{tmp_path / 'target.db'}"
    find = registry.find

    def found(url: str) -> Any:
        parsed, backend = find(url)
        if url != {"source": source, "target": target}[side]:
            return parsed, backend

        async def open(url: Any) -> Any:
            return Hiding(await backend.open(url), scans=side == "target")

        return parsed, registry.Backend(open=open, inline=True)

    monkeypatch.setattr(registry, "find", found)
    with pytest.raises(StoreError, match=r"acme/bob.* counted after the copy"):
        mnemic.copy(source, target)


def test_a_target_may_hold_more_than_the_source(source: str, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path / 'target.db'}"
    with mnemic.open(target) as memory:
        memory.scope("other").remember("only here")
    copied = mnemic.copy(source, target)
    assert len(everything(target)) == copied.records + 1


def test_on_the_command_line(source: str, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path / 'target.db'}"
    shown = CliRunner().invoke(main, ["copy", source, target, "--scope", "acme/bob"])
    assert shown.exit_code == 0, shown.output
    assert "are the same in both stores" in shown.output
    assert everything(target) == everything(source, ScopePath("acme/bob"))
    shown = CliRunner().invoke(main, ["copy", source, "nowhere://x"])
    assert shown.exit_code == 1
    assert "no installed back-end serves nowhere://" in shown.output
    shown = CliRunner().invoke(main, ["migrate", "--store", target])
    assert shown.exit_code == 0
    assert "is at the newest schema" in shown.output


def test_one_record_of_a_copy_can_be_deleted(source: str, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path / 'target.db'}"
    mnemic.copy(source, target)

    async def delete() -> None:
        parsed, backend = registry.find(target)
        store = await backend.open(parsed)
        await store.write(Write((Delete(Ref(ScopePath("acme/bob"), "note", "note")),)))
        await store.close()

    asyncio.run(delete())
    assert mnemic.copy(source, target).written == 1


def test_a_copy_keeps_when_a_thing_was_last_changed(tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in ("source", "target")]
    with mnemic.open(urls[0]) as memory:
        memory.scope("a").notes.write("plan", 1)
        memory.scope("a").session("chat").add("user", "hello")
    mnemic.copy(*urls)
    found = []
    for url in urls:
        with mnemic.open(url) as memory:
            found.append((memory.scope("a").notes.list(), memory.scope("a").sessions.list()))
    assert found[0] == found[1]


def test_the_settings_of_an_empty_session_are_copied(tmp_path: Path) -> None:
    source, target = (f"sqlite:///{tmp_path / name}" for name in ("source.db", "target.db"))
    with mnemic.open(source) as memory:
        chat = memory.scope("acme").session("monday", max_messages=3)
        chat.add("user", "hello")
        chat.clear()
        memory.scope("acme").remember("tea")
    mnemic.copy(source, target)
    with mnemic.open(target) as memory:
        assert memory.scope("acme").session("monday").settings().max_messages == 3
