"""Pruned, copied and deleted threads of LangGraph's checkpointer on Mnemic, also while others write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langgraph.checkpoint.base import ChannelVersions

import mnemic
from checkpoints import checkpoint, config, newest, put_one
from mnemic.adapters import langgraph_saver
from mnemic.adapters.langgraph import MnemicSaver


@pytest.fixture
def saver(file_url: str) -> Iterator[MnemicSaver]:
    with MnemicSaver(file_url) as saver:
        yield saver


def test_channels_that_no_checkpoint_needs_are_deleted(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        saver = MnemicSaver(memory)
        for run in ("1", "2"):
            for n in range(3):
                versions: ChannelVersions = {"n": f"{run}{n}", "same": run}
                saver.put(
                    config("", f"{run}{n - 1}" if n else None),
                    checkpoint(f"{run}{n}", {"n": n, "same": run}, versions),
                    {"run_id": run},
                    versions if n == 0 else {"n": f"{run}{n}"},
                )
        state = memory.scope("t%2F1").state
        saver.delete_for_runs(["2", "none"])
        assert sorted(key.rpartition("/")[2] for key in state.keys("langgraph/channel/")) == ["1", "10", "11", "12"]
        found = saver.get_tuple(config())
        assert found is not None
        assert found.checkpoint["channel_values"] == {"n": 2, "same": "1"}
        saver.prune(["t/1", "none"])
        assert sorted(key.rpartition("/")[2] for key in state.keys("langgraph/channel/")) == ["1", "12"]
        state.set("mine", 1)
        saver.delete_thread("t/1")
        assert state.keys() == ["mine"]
        assert saver.get_tuple(config()) is None


def test_a_single_id_is_refused_where_several_are_expected(saver: MnemicSaver) -> None:
    put_one(saver, "1")
    with pytest.raises(mnemic.InvalidValueError, match="thread_ids must be a list, not str: 't/1'"):
        saver.prune("t/1", strategy="delete")
    with pytest.raises(mnemic.InvalidValueError, match="run_ids must be a list, not str: '1'"):
        saver.delete_for_runs("1")
    assert saver.get_tuple(config()) is not None


def test_writes_that_are_there_before_their_checkpoint_stay(saver: MnemicSaver) -> None:
    """A graph may store both at once; whoever deletes others meanwhile does not know to which run the writes belong."""
    deletions: tuple[Callable[[], None], ...] = (lambda: saver.delete_for_runs(["run 1"]), lambda: saver.prune(["t/1"]))
    for delete in deletions:
        put_one(saver, "1")
        put_one(saver, "2")
        saver.put_writes(config("", "0"), [("n", "late")], "task")
        saver.put_writes(config("", "3"), [("n", "early")], "task")
        saver.put_writes(config("child", "0"), [("n", "early")], "task")
        delete()
        put_one(saver, "3")
        found = saver.get_tuple(config())
        assert found is not None
        assert found.pending_writes == [("task", "n", "early")]
        saver.put(config("child"), checkpoint("0", {}, {}), {}, {})
        assert [len(one.pending_writes or ()) for one in saver.list(config("child"))] == [1]
    put_one(saver, "0")
    found = saver.get_tuple(config("", "0"))
    assert found is not None
    assert found.pending_writes == []  # those of a checkpoint that was pruned are gone


def test_a_checkpoint_that_forks_off_a_pruned_one_keeps_its_values(file_url: str) -> None:
    """Another process continues from an old checkpoint while the thread is pruned."""
    with MnemicSaver(file_url) as other, mnemic.open(file_url) as memory:
        saver = MnemicSaver(memory)
        put_one(saver, "1")
        put_one(saver, "2")
        store: Any = saver._memory.scope._store
        scan, scans = store.scan, 0

        async def late(given: Any) -> Any:
            nonlocal scans
            page = await scan(given)
            scans += 1
            if scans == 3:  # the newest, the keys and the checkpoints have been read
                forked = checkpoint("3", {"n": "1", "m": 1}, {"n": "1", "m": "1"})
                other.put(config("", "1"), forked, {}, {"m": "1"})
            return page

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "scan", late)
            saver.prune(["t/1"])
        found = saver.get_tuple(config())
        assert found is not None
        assert found.checkpoint["channel_values"] == {"n": "1", "m": 1}


def test_the_newest_checkpoint_stays_the_newest(file_url: str) -> None:
    """Whatever another process writes between a read and a write of this one."""
    with MnemicSaver(file_url) as other, mnemic.open(file_url) as memory:
        saver = MnemicSaver(memory)
        store: Any = saver._memory.scope._store

        def between(change: Callable[[], object], meanwhile: str) -> None:
            """Make a change, and put a checkpoint before its first write."""
            write, done = store.write, False

            async def late(given: Any) -> Any:
                nonlocal done
                if not done:
                    done = True
                    put_one(other, meanwhile)
                return await write(given)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(store, "write", late)
                change()
            assert done

        between(lambda: put_one(saver, "1"), "2")
        assert newest(other) == "2"
        between(lambda: put_one(saver, "4"), "3")
        assert newest(other) == "4"
        between(lambda: saver.prune(["t/1"]), "5")
        assert newest(other) == "5"
        between(lambda: saver.delete_for_runs(["run 5"]), "6")
        assert newest(other) == "6"
        between(lambda: saver.delete_thread("t/1"), "7")
        assert newest(other) is None
        assert memory.scope("t%2F1").state.list() == []


def test_a_copy_leaves_a_newer_checkpoint_the_newest(saver: MnemicSaver) -> None:
    put_one(saver, "1")
    saver.copy_thread("t/1", "copy")
    assert newest(saver, "copy") == "1"
    put_one(saver, "3", "copy")
    put_one(saver, "2")
    saver.copy_thread("t/1", "copy")
    assert newest(saver, "copy") == "3"
    put_one(saver, "4")
    saver.copy_thread("t/1", "copy")
    assert newest(saver, "copy") == "4"


def test_a_thread_is_deleted_and_copied_in_several_writes(saver: MnemicSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(langgraph_saver, "DELETED", 2)
    monkeypatch.setattr(langgraph_saver, "COPIED", 1)
    for id in ("1", "2", "3"):
        put_one(saver, id)
        saver.put_writes(config("", id), [("n", id)], "task")
    saver.copy_thread("t/1", "copy")
    copied = list(saver.list(config(thread="copy")))
    assert [(one.checkpoint, one.pending_writes) for one in copied] == [
        (one.checkpoint, one.pending_writes) for one in saver.list(config())
    ]
    store: Any = saver._memory.scope._store
    write, writes = store.write, 0

    async def failing(given: Any) -> Any:
        nonlocal writes
        writes += 1
        if writes > 1:
            raise OSError("the connection is lost")
        return await write(given)

    with monkeypatch.context() as patch:
        patch.setattr(store, "write", failing)
        with pytest.raises(OSError, match="lost"):
            saver.delete_thread("copy")
    assert saver.get_tuple(config(thread="copy")) is None  # half of it is there, and none of it is the newest
    saver.delete_thread("copy")
    assert list(saver.list(config(thread="copy"))) == []
    assert store is saver._memory.scope._store
    assert saver._memory.call_sync(lambda scope: scope.scope("copy").state.keys()) == []


def test_pruning_keeps_a_delta_channel_back_to_its_snapshot_alone(saver: MnemicSaver) -> None:
    for n in range(1, 6):
        values = {"log": ["snapshot"]} if n in (1, 3) else {}
        new: ChannelVersions = {"log": f"{n}"}
        metadata: Any = {"counters_since_delta_snapshot": {} if values else {"log": (1, 1)}}
        saver.put(config("", f"{n - 1}"), checkpoint(f"{n}", {**values}, new), metadata, new)
        saver.put_writes(config("", f"{n}"), [("log", [n])], "task")
    before = saver.get_delta_channel_history(config=config(), channels=["log"])
    saver.prune(["t/1"])
    assert [one.checkpoint["id"] for one in saver.list(config())] == ["5", "4", "3"]
    assert saver.get_delta_channel_history(config=config(), channels=["log"]) == before
    assert before["log"] == {"seed": ["snapshot"], "writes": [("task", "log", [3]), ("task", "log", [4])]}


def test_a_namespace_that_is_new_meanwhile_keeps_its_newest(file_url: str) -> None:
    with MnemicSaver(file_url) as other, mnemic.open(file_url) as memory:
        saver = MnemicSaver(memory)
        put_one(saver, "1")
        store: Any = saver._memory.scope._store
        scan, write, scans, writes = store.scan, store.write, 0, 0

        async def scanning(given: Any) -> Any:
            nonlocal scans
            page = await scan(given)
            scans += 1
            if scans == 3:  # threads, checkpoints, and the newest of each namespace have been read
                other.put(config("new"), checkpoint("2", {}, {}), {"run_id": "run 1"}, {})
            return page

        async def writing(given: Any) -> Any:
            nonlocal writes
            writes += 1
            if writes == 1:
                other.put(config("new", "2"), checkpoint("3", {}, {}), {"run_id": "run 3"}, {})
            return await write(given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "scan", scanning)
            patch.setattr(store, "write", writing)
            saver.delete_for_runs(["run 1"])
        assert writes > 1
        found = saver.get_tuple(config("new"))
        assert found is not None
        assert found.checkpoint["id"] == "3"
        assert [one.checkpoint["id"] for one in saver.list(None)] == ["3"]
