"""A realistic store for tests, benchmarks and pictures: two tenants, five users, half a year.

`python tests/demo_store.py demo.db` writes one that ends today; `--records 100000` makes it large.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import mnemic
from mnemic import Audit, MemoryItem, Message, Summarize, ToolCall
from mnemic.features.fact_items import Fact, to_record
from mnemic.records import TITLE, Record
from mnemic.store.query import Put, Write

NOW = datetime(2026, 5, 14, 9, 30, tzinfo=UTC)
"""When the demo ends, unless it is given a time."""
DAYS = 180
"""How many days before that it begins."""
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)

USERS = {"acme": ("alice", "bob", "carla"), "globex": ("dan", "erin")}
CITIES = ("Lisbon", "Oslo", "Lyon", "Kyoto", "Porto", "Turin", "Bergen", "Ghent")

HOSTILE = (
    "<img src=x onerror=\"document.title='hacked'\">",
    "<script>document.title='hacked'</script>",
    "\u202eesrever ni si siht\u202c and then not",
    "مرحبا، هذه رسالة من اليمين إلى اليسار with English inside",
    "👩‍👩‍👧‍👦 🏳️‍🌈 𝕊𝕠𝕞𝕖 ﷽ z̸͔͝a̷l̵g̶o̷ \u200b\u200d text",
    "x" * 10_000,
    "word " * 2_000,
    "javascript:alert(1) [a](javascript:alert(1)) {{7*7}} ${7*7}",
)
"""Texts that a page must show as text, and that must not break its layout."""


class DemoClock:
    """A clock that is set by hand, for `mnemic.open(clock=…)`."""

    def __init__(self, now: datetime = NOW) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def advance(self, **by: float) -> datetime:
        """Set the clock forward, by `seconds=…`, `hours=…` and so on."""
        self.now += timedelta(**by)
        return self.now


def _trip(user: str, city: str, chance: random.Random) -> tuple[str, list[Message]]:
    nights, price = chance.randint(2, 6), chance.randint(70, 160)
    found = {"hotels": [{"name": f"Casa {city}", "price": price}, {"name": f"{city} Central", "price": price + 35}]}
    return f"Trip to {city}", [
        Message("user", f"I would like to go to {city} for {nights} nights. Where could I stay near the river?"),
        _call("search_hotels", {"city": city, "nights": nights, "near": "river"}),
        _result(found),
        Message("assistant", f"Casa {city} is right by the river, {price} euros a night. Shall I hold a room?"),
        Message("user", "Yes please. And no seafood restaurants: my sister is allergic to shellfish."),
        Message("assistant", f"Noted. I have held a room at Casa {city} for {nights} nights."),
        Message("user", "Can I get there by train? I do not like to fly."),
        _call("search_trains", {"to": city, "class": "second"}),
        _result({"trains": [{"leaves": "08:12", "arrives": "15:40", "changes": chance.randint(0, 2)}]}),
        Message("assistant", f"There is a train at 08:12 that arrives in {city} at 15:40."),
        Message("user", f"Perfect. Send the tickets to {user}@example.org."),
        Message("assistant", "Done. You find them in your inbox."),
    ]


def _parcel(user: str, city: str, chance: random.Random) -> tuple[str, list[Message]]:
    order = chance.randint(4000, 9000)
    return f"Order {order} is missing", [
        Message("user", f"Parcel {order} has not arrived. It should have been here on Monday."),
        _call("find_parcel", {"order": order}),
        _result({"order": order, "state": "lost", "last_seen": city}),
        Message("assistant", f"I am sorry: it was last seen in {city}, and counts as lost. A new one is on its way."),
        Message("user", "Here is a photo of the empty mailbox.", images=[PIXEL]),
        Message("assistant", "Thank you, I have added it to the claim."),
        Message("user", "How long will the new one take?"),
        Message("assistant", f"Three working days. It is sent to your address in {chance.choice(CITIES)}."),
    ]


def _deploy(user: str, city: str, chance: random.Random) -> tuple[str, list[Message]]:
    build, seconds = chance.randint(300, 999), chance.randint(40, 300)
    log = "\n".join(f"step {n}/6 {what}" for n, what in enumerate(("lint", "types", "unit", "build", "push"), 1))
    return f"Build {build} fails on ARM", [
        Message("user", f"Build {build} fails on ARM since yesterday. Can you look at the log?"),
        _call("read_log", {"build": build, "lines": 200}),
        _result(f"{log}\nstep 6/6 deploy: timeout after {seconds} s waiting for region {city.lower()}-1"),
        Message(
            "assistant", f"It is the deployment: region {city.lower()}-1 does not answer within {seconds} seconds."
        ),
        Message("user", "Raise the timeout to ten minutes and run it again."),
        _call("set_timeout", {"build": build, "seconds": 600}),
        _result({"ok": True}),
        Message("assistant", "The timeout is ten minutes now, and the build is running again."),
        Message("user", "We never deploy on a Friday, please remember that."),
        Message("assistant", "I will: no deployments on Fridays."),
    ]


def _review(user: str, city: str, chance: random.Random) -> tuple[str, list[Message]]:
    change = chance.randint(1000, 3000)
    return f"Review of change {change}", [
        Message("user", f"What do you think of change {change}? It moves the cache into its own process."),
        Message("assistant", "It is smaller than it looks. It needs a test for two writers, and a name for the lock."),
        Message("user", "The lock is called `lease`, as everywhere else. Which test do you have in mind?"),
        Message("assistant", "Two processes that renew at the same moment: exactly one of them may win.\n\n"
                "```python\nassert sorted([first.renew(), second.renew()]) == [False, True]\n```"),
        Message("user", "Good idea. I prefer tests without sleeps, so let us give it a clock."),
        Message("assistant", "Agreed. With a clock it runs in four milliseconds."),
    ]  # fmt: skip


SCRIPTS = {"acme": (_trip, _parcel), "globex": (_deploy, _review)}

MEMORIES = {
    "alice": (
        ("Alice's sister Ines is allergic to shellfish", 9, True),
        ("Alice prefers trains to planes", 7, False),
        ("Alice wants a room near the river", 4, False),
        ("Alice's passport expires in August", 8, False),
        ("The wifi password of Alice's hotel was tram28", 1, False),
        ("Alice asked about umbrellas once", 0.5, False),
    ),
    "bob": (
        ("Bob wants to be called by his first name", 3, False),
        ("Bob's parcels go to the neighbor on the second floor", 6, False),
        ("Bob had a refund of 40 euros for order 4410", 2, False),
        ("Bob dislikes phone calls; write to him", 5, True),
    ),
    "carla": (
        ("Carla travels for work every other week", 5, False),
        ("Carla's company pays up to 120 euros a night", 6, False),
        ("Carla needs invoices in French", 8, False),
    ),
    "dan": (
        ("Dan's team never deploys on a Friday", 9, True),
        ("Dan prefers tests without sleeps", 6, False),
        ("The ARM runners need a timeout of ten minutes", 4, False),
        ("Dan was on vacation in week 12", 1, False),
    ),
    "erin": (
        ("Erin reviews changes in the morning", 3, False),
        ("Erin calls the lock `lease`", 4, False),
        ("Erin is on call every third week", 7, False),
    ),
}

NOTES: dict[str, tuple[str, Any, str]] = {
    "acme": ("support/tone", "Friendly, short, no exclamation marks.", "How the assistant writes"),
    "acme/alice": ("preferences", {"unit": "celsius", "budget": 120, "diet": ["no shellfish"]}, "What Alice likes"),
    "acme/bob": ("address", {"street": "Rua da Prata 12", "city": "Lisbon"}, "Where parcels go"),
    "globex": ("runbooks/deploy", "1. lint\n2. tests\n3. canary for an hour\n4. everyone", "How a deployment goes"),
    "globex/dan": ("build/flags", {"arm": True, "timeout_s": 600}, "Flags of the nightly build"),
}

FACTS = (
    ("acme/alice", "Alice", "lives_in", ("Rome", "Oslo", "Lisbon")),
    ("acme/alice", "Alice", "sister_of", ("Ines",)),
    ("acme/alice", "Ines", "allergic_to", ("shellfish",)),
    ("acme/alice", "Alice", "works_for", ("Acme",)),
    ("acme/bob", "Bob", "lives_in", ("Lyon", "Porto")),
    ("acme/bob", "Bob", "neighbor_of", ("Mrs. Duarte",)),
    ("acme/carla", "Carla", "works_for", ("Initech", "Acme")),
    ("acme/carla", "Carla", "speaks", ("French",)),
    ("globex/dan", "Dan", "leads", ("Platform",)),
    ("globex/dan", "Platform", "owns", ("cache", "deployment")),
    ("globex/dan", "deployment", "runs_in", ("turin-1", "ghent-1")),
    ("globex/erin", "Erin", "member_of", ("Platform",)),
    ("globex/erin", "Erin", "reviews", ("cache",)),
)


ASKED = (
    (60, "alice", "what is Ines allergic to?"),
    (35, "alice", "train or plane?"),
    (20, "alice", "when does the passport expire?"),
    (12, "bob", "where do parcels go?"),
    (4, "carla", "invoices in which language?"),
)
"""Days before the end, users and questions: recall counts as a use of what it finds."""


def _call(name: str, arguments: dict[str, Any]) -> Message:
    return Message("assistant", None, tool_calls=[ToolCall("call", name, json.dumps(arguments))])


def _result(value: Any) -> Message:
    text = value if isinstance(value, str) else json.dumps(value)
    return Message("tool", text, tool_call_id="call")


def _numbered(messages: list[Message], session: str, start: datetime, chance: random.Random) -> Iterator[Message]:
    """Yield messages with ids, call ids and times of their own."""
    time, call = start, ""
    for n, message in enumerate(messages):
        fields = message.to_dict() | {"id": f"{session}-{n}", "timestamp": time.isoformat()}
        if message.tool_calls:
            call = f"call-{session}-{n}"
            fields["tool_calls"] = [{"id": call, "name": c.name, "arguments": c.arguments} for c in message.tool_calls]
        elif message.role == "tool":
            fields["tool_call_id"] = call
        yield Message.from_dict(fields)
        time += timedelta(seconds=chance.randint(2, 90))


async def fill(memory: mnemic.AsyncMemory, clock: DemoClock, *, records: int = 0, hostile: bool = False) -> None:
    """Write half a year that ends at the clock's time; `records` adds sessions up to about that many records.

    The clock is set back, moved through the time, and is where it was at the end. The same clock gives the same
    content.
    """
    now, chance = clock.now, random.Random(7)
    await _remember(memory, clock, now, chance)
    people = [(tenant, user) for tenant, users in USERS.items() for user in users]
    visits = sorted((chance.random() ** 0.7 * (DAYS - 1), *chance.choice(people)) for _ in range(44))
    for number, (day, tenant, user) in enumerate(visits):
        clock.now = now - timedelta(days=DAYS - day, minutes=chance.randint(0, 600))
        with memory.acting(actor=f"{tenant}-assistant", address="10.0.0.7", session=f"visit-{number:02}"):
            await _converse(memory, tenant, user, number, clock, chance)
    await _state_facts(memory, clock, now)
    clock.now = now - timedelta(days=3)
    for path, (key, value, description) in NOTES.items():
        with memory.acting(actor="erin" if path.startswith("globex") else "carla", address="10.0.0.21"):
            await memory.scope(*path.split("/")).notes.write(key, value, description=description)
            clock.advance(hours=2)
    with memory.acting(actor="carla", address="10.0.0.21"):
        await memory.scope("acme", "alice").notes.write("preferences", {**NOTES["acme/alice"][1], "budget": 140})
    for day, user, question in ASKED:
        clock.now = now - timedelta(days=day)
        await memory.scope("acme", user).recall(question, k=2)
    clock.now = now
    if hostile:
        await add_hostile(memory)
    if records:
        await add_bulk(memory, records, now)


async def _remember(memory: mnemic.AsyncMemory, clock: DemoClock, now: datetime, chance: random.Random) -> None:
    people = [(tenant, user) for tenant, users in USERS.items() for user in users]
    told = [(chance.random() * DAYS, tenant, user, n) for tenant, user in people for n in range(len(MEMORIES[user]))]
    for day, tenant, user, n in sorted(told):
        text, importance, pinned = MEMORIES[user][n]
        clock.now = now - timedelta(days=DAYS - day)
        with memory.acting(actor=f"{tenant}-assistant", address="10.0.0.7"):
            await memory.scope(tenant, user).remember(
                text,
                id=f"{user}-{n}",
                importance=importance,
                pinned=pinned,
                source=f"visit-{n:02}",
                metadata={"topic": text.split()[1]},
            )


async def _converse(
    memory: mnemic.AsyncMemory, tenant: str, user: str, number: int, clock: DemoClock, chance: random.Random
) -> None:
    scope = memory.scope(tenant, user)
    name = f"visit-{number:02}"
    title, messages = chance.choice(SCRIPTS[tenant])(user, chance.choice(CITIES), chance)
    if number % 3 == 0:  # a long one: the earlier part is archived, and sometimes summarized
        chat = scope.session(name, max_messages=14, overflow=Summarize() if number % 2 == 0 else "archive")
        for _ in range(2):
            messages += chance.choice(SCRIPTS[tenant])(user, chance.choice(CITIES), chance)[1]
    else:
        chat = scope.session(name)
    await chat.set_system(f"You are the assistant of {tenant.title()}. Be brief.")
    for message in _numbered(messages, name, clock.now, chance):
        clock.now = max(clock.now, message.timestamp)
        await chat.add(message)
    if number % 5 != 4:
        record = Record(scope=chat.scope, kind=TITLE, key=TITLE, title=title)
        await memory._store.write(Write((Put(record),)))


async def _state_facts(memory: mnemic.AsyncMemory, clock: DemoClock, now: datetime) -> None:
    for n, (path, subject, predicate, objects) in enumerate(FACTS):
        scope = memory.scope(*path.split("/"))
        single = predicate in ("lives_in", "works_for", "runs_in")
        for step, thing in enumerate(objects):
            clock.now = now - timedelta(days=DAYS * (len(objects) - step) / (len(objects) + 1) - n)
            with memory.acting(actor=f"{path.split('/')[0]}-assistant", address="10.0.0.7"):
                await scope.facts.add(subject, predicate, thing, single=single, source="visit-00", confidence=0.9)


async def add_hostile(memory: mnemic.AsyncMemory) -> None:
    """Add a user whose every text, name and key is hostile to a page that shows it."""
    scope = memory.scope("acme", "<b>mallory")
    chat = scope.session('"><img src=x onerror=alert(1)>')
    for n, text in enumerate(HOSTILE):
        await chat.add("user" if n % 2 else "assistant", text, id=f"<i>{n}</i>", metadata={text[:80]: text})
        await scope.remember(text, id=f"h{n}", importance=n, source=text[:100])
        await scope.facts.add(text[:150], "<u>says</u>", f"{text[:100]} {n}")
        await scope.notes.write(f"notes/{text[:60]}", {"value": text}, description=text[:200])


async def add_bulk(memory: mnemic.AsyncMemory, records: int, now: datetime) -> None:
    """Add about so many records over the last two years: messages of many users, and a tenth of memories and facts."""
    chance = random.Random(11)
    users = [f"user-{n:03}" for n in range(max(1, min(200, records // 200)))]
    per_user = records // len(users)
    for user in users:
        scope = memory.scope("bulk", user)
        facts, memories = per_user // 20, per_user // 12
        items = [
            MemoryItem(
                f"{user} mentioned {chance.choice(CITIES)} and item {n}",
                id=f"m{n}",
                importance=round(chance.expovariate(0.4), 2),
                created=now - timedelta(days=chance.random() * 730),
            )
            for n in range(memories)
        ]
        await scope.remember_many(items)
        stated = [
            Fact(subject=f"{user}-{n % 17}", predicate="visited", object=f"{chance.choice(CITIES)} {n}",
                 valid_from=now - timedelta(days=chance.random() * 730))
            for n in range(facts)
        ]  # fmt: skip
        if stated:
            await memory._store.write(Write(tuple(Put(to_record(fact, scope.path)) for fact in stated)))
        left = range(per_user - facts - memories)
        for number, some in enumerate(left[first : first + 60] for first in range(0, len(left), 60)):
            start = now - timedelta(days=chance.random() * 729)
            said = [
                Message(
                    ("user", "assistant")[n % 2],
                    f"Message {n} of {user} about {chance.choice(CITIES)}: {chance.choice(HOMELY)}",
                    id=f"c{number}-{n}",
                    timestamp=start + timedelta(minutes=n - some[0]),
                )
                for n in some
            ]
            await scope.session(f"chat-{number:03}").add_many(said)


HOMELY = (
    "what is the weather like this week, and do I need an umbrella?",
    "my sister visits on Thursday, and the cake must not have peanuts in it.",
    "please remind me to call the dentist before the meeting with the new client.",
    "the second invoice was paid twice; could you ask for the money back?",
)


def build(url: str, *, now: datetime = NOW, records: int = 0, hostile: bool = False, audit: bool = True) -> None:
    """Write the demo to an empty store."""

    async def write() -> None:
        clock = DemoClock(now)
        log = Audit(actor="demo") if audit else None
        async with mnemic.open_async(url, clock=clock, audit=log) as memory:
            await fill(memory, clock, records=records, hostile=hostile)

    asyncio.run(write())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="the SQLite file to write")
    parser.add_argument("--records", type=int, default=0, help="about how many records to add")
    parser.add_argument("--hostile", action="store_true", help="add texts that are hostile to a page")
    given = parser.parse_args()
    build(
        f"sqlite:///{given.file}?synchronous=normal",
        now=datetime.now(UTC),
        records=given.records,
        hostile=given.hostile,
        audit=given.records == 0,
    )
