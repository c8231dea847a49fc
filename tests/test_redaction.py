"""Redaction: nothing that was found reaches the store, and everything else works as without it."""

import json
import logging
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mnemic
from mnemic import Redaction, Vault
from mnemic.redaction import redactor
from mnemic.redaction.config import redactor_of
from mnemic.redaction.redactor import RECOGNIZERS, TOKEN, Redacted, Redactor

KEY = bytes(range(32))
EMAIL, OTHER = "ann.lee@example.com", "bob@example.org"
CARD, PHONE, IBAN = "4111 1111 1111 1111", "+49 30 1234567", "DE89 3704 0044 0532 0130 00"
SECRETS = [EMAIL, OTHER, CARD, PHONE, IBAN, "hunter2hunter2", "Dana Scully"]
IMAGE = "data:image/png;base64,iVBORw0KGgo/4111111111111111+AAA="
CONFIGS = {
    "mask": Redaction(names=["Dana Scully"]),
    "hash": Redaction(action="hash", key=KEY, names=["Dana Scully"]),
    "vault": Redaction(action="hash", key=KEY, names=["Dana Scully"], vault=Vault(KEY[::-1])),
    "drop": Redaction(action="drop", names=["Dana Scully"]),
}


@pytest.fixture(params=CONFIGS)
def redaction(request: pytest.FixtureRequest) -> Redaction:
    return CONFIGS[request.param]


def fill(scope: mnemic.Scope, folder: Path) -> None:
    """Write personal data through every feature."""
    chat = scope.session("monday", max_messages=4, overflow=mnemic.Summarize())
    chat.set_system(f"The user is {EMAIL}.")
    chat.add("user", f"I am Dana Scully, call {PHONE}", metadata={"from": EMAIL, "deep": [{OTHER: [CARD]}]}, name=EMAIL)
    call = mnemic.ToolCall(
        "call-1", "mail", json.dumps({"to": EMAIL, "password": "hunter2hunter2", "n": 4111111111111111})
    )
    chat.add(mnemic.Message("assistant", None, tool_calls=[call]))
    chat.add("tool", {"sent_to": [OTHER], "api_key": "hunter2hunter2"}, tool_call_id="call-1", once="tool-1")
    chat.add("user", [{"type": "text", "text": f"pay {IBAN}"}], once="pay")
    chat.add("user", f"and {CARD}")
    chat.add("user", "and again")
    scope.remember(f"Reach the user at {EMAIL}", source=f"mail:{OTHER}", metadata={"card": 4111111111111111}, once="m")
    scope.remember(f"Reach the user at {EMAIL} ", duplicates="merge")
    scope.notes.write("contact", {"mail": EMAIL, "password": "hunter2hunter2"}, description=f"of {OTHER}")
    scope.facts.add(EMAIL, "pays_with", CARD, source=OTHER)
    scope.facts.add("the user", "mail", EMAIL, single=True)
    scope.facts.add("the user", "mail", OTHER, single=True)
    (folder / "chat.json").write_text(json.dumps([{"role": "user", "content": f"from a file: {PHONE} {EMAIL}"}]))
    scope.scope("imported").import_from(folder / "chat.json")
    scope.recall(f"what does {EMAIL} pay with?")


def test_nothing_that_was_found_is_in_the_store_the_audit_log_or_a_log_line(
    tmp_path: Path, redaction: Redaction, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with mnemic.open(f"sqlite:///{tmp_path}/m.db", redact=redaction, audit=True) as memory:
        fill(memory.scope("acme"), tmp_path)
        (tmp_path / "chat.json").unlink()
        memory.export_to(tmp_path / "all.jsonl")
        entries = "\n".join(str(entry.to_dict()) for entry in memory.audit_trail())
    held = b"".join(path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file())
    said = entries + caplog.text
    for secret in SECRETS:
        for form in (secret, secret.replace(" ", "")):
            assert form.encode() not in held
            assert form not in said


def test_keys_of_facts_are_made_of_the_redacted_words(redaction: Redaction) -> None:
    from mnemic.records import fact_key

    with mnemic.open("memory://", redact=redaction) as memory:
        scope = memory.scope("acme")
        fact = scope.facts.add(EMAIL, "likes", "tea")
        assert not fact.id.startswith(fact_key(EMAIL, "likes", "tea"))
        assert scope.get(fact.id) is not None
        assert [found.subject for found in scope.facts.ask(EMAIL)] == [fact.subject]
        assert scope.facts.ask(EMAIL) == [fact]
        assert scope.facts.neighbors(EMAIL).distances == {fact.subject: 0, "tea": 1}
        assert scope.facts.path(EMAIL, "tea") == [fact]
        assert scope.facts.update(EMAIL, "likes") == 1
        assert scope.facts.delete(EMAIL, "likes", "tea") == 1


def test_a_single_valued_fact_replaces_the_one_before(redaction: Redaction) -> None:
    with mnemic.open("memory://", redact=redaction) as memory:
        facts = memory.scope("acme").facts
        facts.add(EMAIL, "lives_in", "Oslo", single=True)
        facts.add(EMAIL, "lives_in", "Lyon", single=True)
        assert [fact.object for fact in facts.ask(EMAIL, "lives_in")] == ["Lyon"]
        assert [fact.object for fact in facts.ask(EMAIL, "lives_in", history=True)] == ["Oslo", "Lyon"]


def test_a_message_is_returned_as_it_is_stored(redaction: Redaction) -> None:
    with mnemic.open("memory://", redact=redaction) as memory:
        chat = memory.scope("acme").session("monday")
        added = chat.add("user", f"write to {EMAIL}", metadata={"to": EMAIL})
        assert EMAIL not in str(added.to_dict())
        assert chat.messages() == [added]
        assert chat.add(added) == added
        raw = mnemic.Message("user", f"or to {OTHER}")
        once = chat.add(raw, once="1")
        assert chat.add(raw, once="1") == once
        assert chat.add(raw) == once
        assert len(chat.messages()) == 2
        with pytest.raises(mnemic.ConflictError):
            chat.add(mnemic.Message("user", "something else", id=raw.id))


def test_replacing_a_session_by_itself_writes_nothing(redaction: Redaction) -> None:
    with mnemic.open("memory://", redact=redaction) as memory:
        chat = memory.scope("acme").session("monday")
        raw = [mnemic.Message("user", f"{n}: {EMAIL}") for n in range(3)]
        chat.add_many(raw)
        versions = [hit.record.version for hit in memory.scope("acme").recall("user", 10)]
        chat.replace(raw)
        assert [hit.record.version for hit in memory.scope("acme").recall("user", 10)] == versions


def test_a_question_with_an_address_finds_what_is_stored_in_its_place() -> None:
    config = CONFIGS["hash"]
    with mnemic.open("memory://", redact=config) as memory:
        scope = memory.scope("acme")
        scope.remember(f"The owner of the red house is {EMAIL}", metadata={"owner": EMAIL})
        scope.remember(f"The owner of the blue house is {OTHER}", metadata={"owner": OTHER})
        assert "red" in scope.recall(f"what does {EMAIL} own?", 1)[0].text
        assert "blue" in scope.recall(f"what does {OTHER} own?", 1)[0].text
        assert [hit.text for hit in scope.recall("house", metadata={"owner": OTHER})] == [
            hit.text for hit in scope.recall("blue", 1)
        ]
        assert len(scope.memories.similar(f"The owner of the red house is {EMAIL}")) == 1
        assert scope.forget(metadata={"owner": EMAIL}).deleted == 1


def test_equal_values_have_equal_hashes_under_the_same_key() -> None:
    with (
        mnemic.open("memory://", redact=CONFIGS["hash"]) as memory,
        mnemic.open("memory://", redact=CONFIGS["hash"]) as other,
    ):
        one = memory.scope("a").remember(f"mail {EMAIL}").text
        assert other.scope("b").remember(f"mail {EMAIL.upper()}").text == one
        assert memory.scope("a").remember(f"mail {OTHER}").text != one
    changed = Redaction(action="hash", key=KEY[::-1])
    with mnemic.open("memory://", redact=changed) as memory:
        assert memory.scope("a").remember(f"mail {EMAIL}").text != one
        assert TOKEN.fullmatch(one.removeprefix("mail "))


def test_actions_by_recognizer() -> None:
    config = Redaction(actions={"EMAIL": "hash", "PHONE": "drop"}, key=KEY)
    with mnemic.open("memory://", redact=config) as memory:
        text = memory.scope("a").remember(f"{EMAIL}, {PHONE}, {CARD}").text
    assert TOKEN.sub("", text) == ", , "
    assert text.endswith("[PAYMENT_CARD]")
    assert text.startswith("[EMAIL:")


def test_what_the_vault_has_can_be_revealed(tmp_path: Path) -> None:
    def opened(key: bytes, **options: Any) -> mnemic.Memory:
        config = Redaction(action="hash", key=KEY, vault=Vault(key, **options))
        return mnemic.open(f"sqlite:///{tmp_path}/m.db", redact=config)

    with opened(KEY[::-1]) as memory:
        text = memory.scope("acme", "ann").session("monday").add("user", f"mail {EMAIL} or {CARD}").text
        assert text is not None
        assert (
            memory.reveal(f"{text} [EMAIL] [EMAIL:abcdefghijklmn]")
            == f"mail {EMAIL} or {CARD} [EMAIL] [EMAIL:abcdefghijklmn]"
        )
        assert memory.restricted("acme/bob", ("read", "admin")).reveal(text) == text
        with pytest.raises(mnemic.AccessDeniedError):
            memory.restricted("acme", ("read", "write")).reveal(text)
        assert memory.scope("acme", "ann").recall("mail", 10)[0].text == text
    with opened(bytes(32)) as memory, pytest.raises(mnemic.DecryptionError):
        memory.reveal(text)
    with opened(KEY[::-1]) as memory:
        memory.scope("acme", "ann").sessions.delete("monday")
        assert memory.reveal(text) == text
    with opened(KEY[::-1], store=f"sqlite:///{tmp_path}/vault.db") as memory:
        memory.scope("acme", "ann").remember(f"mail {EMAIL}")
        assert memory.reveal("[EMAIL:" + text.partition("[EMAIL:")[2][:15]) == EMAIL
    assert (tmp_path / "vault.db").stat().st_size
    with (
        mnemic.open(f"sqlite:///{tmp_path}/m.db", redact=True) as memory,
        pytest.raises(mnemic.InvalidValueError, match="vault"),
    ):
        memory.reveal(text)


def test_erasing_a_scope_empties_its_vault(tmp_path: Path) -> None:
    with mnemic.open("memory://", redact=CONFIGS["vault"]) as memory:
        text = memory.scope("acme").remember(f"mail {EMAIL}").text
        assert memory.reveal(text) == f"mail {EMAIL}"
        memory.scope("acme").erase()
        assert memory.reveal(text) == text


def test_scopes_and_kinds_are_chosen() -> None:
    config = Redaction(scopes=["acme/private"], kinds=["memory", "message"])
    with mnemic.open("memory://", redact=config) as memory:
        private, public = memory.scope("acme", "private"), memory.scope("acme", "privateer")
        assert private.remember(EMAIL).text == "[EMAIL]"
        assert private.scope("below").session("s").add("user", EMAIL).text == "[EMAIL]"
        assert public.remember(EMAIL).text == EMAIL
        private.notes.write("k", EMAIL)
        assert private.notes.read("k") == EMAIL
        assert {hit.text for hit in memory.scope("acme").recall(f"who is {EMAIL}?", 10)} >= {"[EMAIL]", EMAIL}
        assert public.recall(EMAIL, 1)[0].text == EMAIL


def test_names_with_findings_are_kept_or_refused() -> None:
    with mnemic.open("memory://", redact=True) as memory:
        memory.scope("acme", EMAIL).notes.write(f"of {EMAIL}", 1)
        assert memory.scope("acme", EMAIL).notes.read(f"of {EMAIL}") == 1
    with mnemic.open("memory://", redact=Redaction(keys="refuse")) as memory:
        for write in (
            lambda: memory.scope("acme", EMAIL).remember("tea"),
            lambda: memory.scope("acme").session(EMAIL).add("user", "tea"),
            lambda: memory.scope("acme").notes.write(EMAIL, 1),
            lambda: memory.scope("acme").remember("tea", once=EMAIL),
        ):
            with pytest.raises(mnemic.InvalidValueError, match="EMAIL") as caught:
                write()
            assert EMAIL not in str(caught.value)
        memory.scope("acme").remember("tea")


def test_tool_calls_stay_json_and_keep_their_ids() -> None:
    arguments = json.dumps({"to": f"line\n{EMAIL}", "card": 4111111111111111, "password": "abc"}, indent=1)
    with mnemic.open("memory://", redact=True) as memory:
        chat = memory.scope("acme").session("s")
        id = "call_4111111111111111"
        chat.add(mnemic.Message("assistant", None, tool_calls=[mnemic.ToolCall(id, "send", arguments)]))
        chat.add("tool", f"sent to {EMAIL}", tool_call_id=id)
        call, result = chat.messages()
        assert (call.tool_calls[0].id, result.tool_call_id) == (id, id)
        assert json.loads(call.tool_calls[0].arguments) == {
            "to": "line\n[EMAIL]",
            "card": "[PAYMENT_CARD]",
            "password": "[SECRET]",
        }


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        (
            '{ "a": 1.10, "b":1e5,"c" : 1e400, "a": "x", "\\u0064": "caf\\u00e9",\n"to": "ann@example.com"}',
            '{ "a": 1.10, "b":1e5,"c" : 1e400, "a": "x", "\\u0064": "caf\\u00e9",\n"to": "[EMAIL]"}',
        ),
        ('["a \\"b\\" ann@example.com",  1.0]', '["a \\"b\\" [EMAIL]",  1.0]'),
        ('{"phone":4155552671}', '{"phone":"[PHONE]"}'),
        ('{"phone": [4155552671, 1.50]}', '{"phone": ["[PHONE]", 1.50]}'),
        ('Result: {"phone":4155552671}', 'Result: {"phone":"[PHONE]"}'),
        ('{"ann@example.com": 1, "bob@example.com": 2}', '{"[EMAIL]": 1, "[EMAIL] +": 2}'),
        ('[[{"password": "abcd1234", "n": 1.0}]]', '[[{"password": "[SECRET]", "n": 1.0}]]'),
    ],
)
def test_in_json_only_findings_change(text: str, stored: str) -> None:
    assert Redactor().text(text) == stored


def test_two_names_that_are_masked_alike_stay_two() -> None:
    changed = Redactor().value({EMAIL: 1, OTHER: 2, "[EMAIL]": 3}, Redacted())
    assert sorted(changed.values()) == [1, 2, 3]
    assert not any("@" in name for name in changed)


def test_a_secret_of_one_record_is_not_looked_for_in_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redactor, "MOST_LITERALS", 2)
    with mnemic.open("memory://", redact=True) as memory:
        scope = memory.scope("acme")
        items = [mnemic.MemoryItem(f"a blue car, {n}", metadata={"password": f"secret-{n}"}) for n in range(3)]
        items.append(mnemic.MemoryItem("the blue one", metadata={"password": "blue"}))
        assert [item.text for item in scope.memories.add_many(items)] == [
            *(f"a blue car, {n}" for n in range(3)),
            "the [SECRET] one",
        ]
        given = [mnemic.Message("user", item.text, metadata=dict(item.metadata)) for item in reversed(items)]
        stored = scope.session("monday").add_many(given)
        assert [message.content for message in stored] == ["the [SECRET] one", *(item.text for item in items[2::-1])]


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        (f"{IMAGE} ann@example.com", f"{IMAGE} [EMAIL]"),
        (f"![a]({IMAGE}) {CARD}", f"![a]({IMAGE}) [PAYMENT_CARD]"),
        (json.dumps({"image": IMAGE, "to": EMAIL}), json.dumps({"image": IMAGE, "to": "[EMAIL]"})),
        (f"data:image/png;base64,{EMAIL}", "data:image/png;base64,[EMAIL]"),
        (IMAGE, IMAGE),
    ],
)
def test_of_a_text_with_a_data_url_only_the_url_stays(text: str, stored: str) -> None:
    assert Redactor().text(text) == stored


def test_recognizers_of_the_user() -> None:
    config = Redaction(
        recognizers=["EMAIL"],
        patterns={"TICKET": r"TCK-\d{6}", "COLOUR": lambda text: [(0, 3)] if text.startswith("red") else []},
        names=["Zoë O'Neil", "Li"],
    )
    redactor = redactor_of(config)
    assert redactor.text(f"red TCK-123456 {EMAIL} {PHONE}") == f"[COLOUR] [TICKET] [EMAIL] {PHONE}"
    assert redactor.text("ZOË O'NEIL's hat; Li, Lin, alli, O'Neil") == "[NAME]'s hat; [NAME], Lin, alli, O'Neil"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"recognizers": ["MAIL"]}, "MAIL"),
        ({"action": "hide"}, "hide"),
        ({"actions": {"EMAIL": "hide"}}, "hide"),
        ({"action": "hash"}, "key"),
        ({"action": "hash", "key": b"short"}, "16 bytes"),
        ({"vault": Vault(KEY)}, "hash"),
        ({"patterns": {"X": "("}}, "regular expression"),
        ({"patterns": {"x y": "."}}, "capital letters"),
        ({"patterns": {"X": 3}}, "function"),
        ({"names": "Ann"}, "list"),
        ({"names": ["!"]}, "letters"),
        ({"keys": "drop"}, "keys"),
        ({"scopes": ["a//b"]}, "segment"),
        ({"kinds": ["messages"]}, "messages"),
        ({"actions": {"EMAILS": "drop"}}, "EMAILS"),
    ],
)
def test_a_wrong_configuration_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(mnemic.InvalidValueError, match=said):
        Redaction(**options)


def test_names_of_patterns_can_have_actions() -> None:
    config = Redaction(patterns={"TICKET": r"T\d+"}, names=["Ann"], actions={"TICKET": "drop", "NAME": "drop"})
    assert redactor_of(config).text("Ann has T1") == " has "


@pytest.mark.parametrize("key", [b"x", "short", None, b"x" * 31])
def test_what_cannot_be_the_key_of_a_vault_is_refused_at_once(key: Any) -> None:
    with pytest.raises(mnemic.InvalidValueError, match="32 random bytes"):
        Vault(key)


@pytest.mark.parametrize("returned", [None, 3, [3], [("a", "b")], [(1, 2, 3)]])
def test_a_pattern_function_that_returns_no_places_is_named(returned: Any) -> None:
    with pytest.raises(mnemic.InvalidValueError, match=r"MINE must return \(start, end\) pairs"):
        redactor_of(Redaction(patterns={"MINE": lambda text: returned})).text("tea")


def test_scan_takes_true() -> None:
    with mnemic.open("memory://") as memory:
        memory.scope("acme").remember(EMAIL)
        assert memory.scan(redact=True).matched == memory.scope("acme").scan(redact=True).matched == 1
        with pytest.raises(mnemic.InvalidValueError, match="redact is True or a Redaction"):
            memory.scan(redact="yes")  # type: ignore[arg-type]


def test_a_vault_refuses_another_key_before_it_writes(tmp_path: Path) -> None:
    def opened(key: bytes) -> mnemic.Memory:
        config = Redaction(action="hash", key=KEY, vault=Vault(key))
        return mnemic.open(f"sqlite:///{tmp_path}/m.db", redact=config)

    with opened(KEY[::-1]) as memory:
        memory.scope("acme").remember(f"mail {EMAIL}")
    with opened(bytes(32)) as memory:
        with pytest.raises(mnemic.DecryptionError, match="under another key"):
            memory.scope("globex").remember(f"mail {OTHER}")
        assert memory.scope("globex").memories.list() == []
    with opened(KEY[::-1]) as memory:
        text = memory.scope("globex").remember(f"mail {OTHER}").text
        assert memory.reveal(text) == f"mail {OTHER}"


def test_restoring_a_version_from_before_returns_what_is_stored(tmp_path: Path) -> None:
    url, history = f"sqlite:///{tmp_path}/m.db", timedelta(days=1)
    with mnemic.open(url, history=history) as memory:
        acme = memory.scope("acme")
        note = acme.remember(EMAIL)
        acme.memories.update(note.id, text="tea")
    with mnemic.open(url, history=history, redact=True) as memory:
        acme = memory.scope("acme")
        assert acme.restore(note.id).text == acme.memories.list()[0].text == "[EMAIL]"  # type: ignore[union-attr]


def test_a_configuration_does_not_show_its_keys() -> None:
    config = Redaction(action="hash", key="0123456789abcdef-key", vault=Vault("file:vault-key"))
    assert "key" not in repr(config)
    assert "vault-key" not in repr(config.vault)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from([*SECRETS, " ", ",", "tel ", "password=", "[", "]", "x", "1", "\n", '"', ":", "é"]), max_size=12
    )
)
def test_redacting_twice_changes_nothing(parts: list[str]) -> None:
    for config in CONFIGS.values():
        redactor = redactor_of(config)
        once = redactor.text("".join(parts))
        if config.action != "drop":  # what is left when a finding is dropped can be one
            assert redactor.text(once) == once


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200))
def test_any_text_can_be_redacted(text: str) -> None:
    found = Redactor().find(text)
    assert all(one.start < one.end for one in found)
    assert all(one.end <= other.start for one, other in pairwise(found))
    if not found:
        assert Redactor().text(text) == text


def test_names_of_recognizers_are_unique() -> None:
    assert len({one.name for one in RECOGNIZERS}) == len(RECOGNIZERS)


def test_masks_that_make_one_fact_of_several_are_refused_in_an_import(tmp_path: Path) -> None:
    with mnemic.open("memory://") as memory:
        for name in (EMAIL, OTHER):
            memory.scope("acme").facts.add(name, "likes", "tea")
        memory.export_to(tmp_path / "all.jsonl")
    with (
        mnemic.open("memory://", redact=True) as memory,
        pytest.raises(mnemic.ConflictError, match=r"redaction would make one fact of several.*hash"),
    ):
        memory.import_from(tmp_path / "all.jsonl")
    with mnemic.open("memory://", redact=CONFIGS["hash"]) as memory:
        memory.import_from(tmp_path / "all.jsonl")
        assert memory.import_from(tmp_path / "all.jsonl").written == 0
        assert len(memory.scope("acme").facts.ask(predicate="likes")) == 2
