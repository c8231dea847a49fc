"""Hostile names of scopes, sessions, notes and memories on every back-end: none is mixed up with another."""

from __future__ import annotations

import random
import unicodedata
from pathlib import Path

import pytest

import mnemic
from attack import seeds
from servers.stores import empty_store

STORES = [
    "memory", "sqlite", "postgresql", "valkey", "valkey-cluster", "dynamodb",
    "dynamodb-hash", "s3", "http", "agentcore",
]  # fmt: skip

HOSTILE = [
    # globs and wildcards, of Redis, SQL, shells and regular expressions
    "*", "a*", "?", "[a-z]", "a[b]", "%", "_", "a_", "a%", "\\", "\\*", ".*", "^a$", "{a}", "{}", "{a}b",
    # SQL, templates, expressions
    "' OR 1=1 --", '"; DROP TABLE mnemic_records; --', "`a`", "$1", ":a", "#a", "@a", "%s", "%2F", "${HOME}", "{{7*7}}",
    # paths and separators
    "..", ".", "~", "a\\b", "C:", "a:b", "a|b", "a;b", "a,b", "a#b", "a.b", "a-b", "a b", "a!", "a0", "a~",
    # white space, and what is seen as none
    " ", "a ", " a", "\u00a0", "\u3000", "\u200b", "a\u200b", "\ufeff", "a\ufeff", "\u2060", "\u2028",
    # prefixes, letter case and what folds into the same
    "a", "A", "aa", "sess1", "sess10", "ß", "ss", "SS", "ẞ", "İ", "i", "I", "ı", "K", "\u212a", "ſ", "s", "ﬁ", "fi",
    # look-alikes and combining marks
    "\u0430", "\u03b1", "é", "e\u0301", "\u1e9b\u0323", "\ufdfa", "a\u0300" + "\u0316" * 50, "Å", "\u212b",
    # the ends of the planes, private use, directions, emoji
    "\ud7ff", "\ue000", "\uffff", "\ufffe", "\ufffd", "\U00010000", "\U0010ffff", "\U0010ffffa", "\u202ea",
    "👩‍👩‍👧", "👩",
    # words that mean something elsewhere
    "null", "None", "true", "0", "00", "-1", "1e3", "con", "__proto__", "constructor", "message", "memory", "once",
    # long ones, which differ in their last letter alone
    "x" * 200, "x" * 199 + "y", "\U0010ffff" * 200, "é" * 200,
]  # fmt: skip


def names(seed: int, count: int) -> list[str]:
    """Return hostile names: neighbours in the list, which are alike, and mixtures of others."""
    rng = random.Random(seed)
    parts = [name for name in HOSTILE if len(name) < 20]
    mixed = {"".join(rng.choices(parts, k=rng.randrange(1, 5)))[:200] for _ in range(10)}
    return list(dict.fromkeys([*rng.sample(HOSTILE, count - 10), *sorted(mixed)]))


def fill(memory: mnemic.Memory, tenant: str, notes: bool) -> None:
    """Write one of everything for a tenant, each under its own name and saying whose it is."""
    home = memory.scope(tenant)
    home.session(tenant).add("user", f"session {tenant}", id=tenant)
    home.remember(f"memory {tenant}", id=tenant, metadata={tenant: tenant}, source=tenant, once=tenant)
    if notes:
        home.notes.write(tenant, f"note {tenant}")


def holds(memory: mnemic.Memory, tenant: str) -> tuple[object, ...]:
    """Return everything that is found for a tenant, by every way to find it."""
    home = memory.scope(tenant)
    chat = home.session(tenant)
    return (
        [(info.name, info.messages) for info in home.sessions.list()],
        [(message.id, message.text) for message in chat.messages()],
        [(item.id, item.text, item.metadata, item.source) for item in home.memories.list()],
        home.notes.read_all(),
        sorted((hit.kind, hit.id) for hit in home.recall(f"session memory note {tenant}", k=10, diverse=False)),
    )


def owned(tenant: str, notes: bool) -> tuple[object, ...]:
    """Return what a tenant that is alone would find."""
    return (
        [(tenant, 1)],
        [(tenant, f"session {tenant}")],
        [(tenant, f"memory {tenant}", {tenant: tenant}, tenant)],
        {tenant: f"note {tenant}"} if notes else {},
        [("memory", tenant), ("message", tenant), ("note", tenant)][: 2 + notes],
    )


@pytest.mark.parametrize("seed", seeds())
@pytest.mark.parametrize("name", STORES)
def test_no_name_is_taken_for_another(name: str, seed: int, tmp_path: Path) -> None:
    notes = name != "agentcore"  # which stores none
    tenants = names(seed, len(HOSTILE) + 10 if name in ("memory", "sqlite") else 20)
    with empty_store(name, tmp_path) as url, mnemic.open(url, embedder=None) as memory:
        for tenant in tenants:
            fill(memory, tenant, notes)
        check(memory, tenants, notes)
        random.Random(seed).shuffle(tenants)
        left = tenants[len(tenants) // 2 :]
        for tenant in tenants[: len(tenants) // 2]:
            assert memory.scope(tenant).erase().records == 2 + notes, f"{tenant!r} has taken something else along"
        check(memory, left, notes)


def check(memory: mnemic.Memory, tenants: list[str], notes: bool) -> None:
    """Compare what each tenant finds, and what is listed, with what was written."""
    for tenant in tenants:
        assert holds(memory, tenant) == owned(tenant, notes), tenant
    listed = {
        stats.scope.path: (stats.sessions, stats.messages, stats.memories, stats.notes) for stats in memory.scopes()
    }
    assert listed == dict.fromkeys(tenants, (1, 1, 1, int(notes)))


def test_the_names_are_what_they_are_meant_to_be() -> None:
    assert len(set(HOSTILE)) == len(HOSTILE)
    assert {
        len({unicodedata.normalize(form, name) for name in HOSTILE}) < len(HOSTILE) for form in ("NFC", "NFKC")
    } == {True}
    assert len({name.casefold() for name in HOSTILE}) < len(HOSTILE)
