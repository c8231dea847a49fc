"""The window of a session: the messages that fit into a prompt."""

from __future__ import annotations

from msgspec.structs import replace

from ..checks import check_count, check_text
from ..records import Message, Record, Ref, ScopePath
from ..store.protocol import Store, scan_all
from ..store.query import Condition, Scan
from ..tokens import TokenCounter, count_message
from .messages import MESSAGE, decode, tokens_of
from .overflow import LATELY
from .summary import SUMMARY, SUMMARY_ID, SUMMARY_KEY, summary_message
from .turns import Entry, Window, spoken


async def read_window(
    store: Store, scope: ScopePath, tokens: TokenCounter, max_tokens: int, *, interrupted: str | None, partial: bool
) -> list[Message]:
    """Return the newest messages of a session that fit, as `AsyncSession.window` does; raises BudgetError."""

    def to_entry(record: Record) -> Entry:
        return Entry(record.key, record.seq, decode(record), tokens_of(record, tokens))

    def weighed(key: str, message: Message) -> Entry:
        return Entry(key, 0, message, count_message(message, tokens))

    stand_in = None
    if interrupted is not None:
        said = check_text(interrupted, "interrupted")
        stand_in = weighed("@interrupted", Message("tool", said, metadata={"interrupted": True}))
    window = Window(check_count(max_tokens, "max_tokens", least=1), stand_in, partial=partial)
    required = [to_entry(record) for record in await system_records(store, scope)]
    scan = Scan(scope=scope, kinds=(MESSAGE,), reverse=True, limit=LATELY)
    page = await store.scan(scan)
    newest = [to_entry(record) for record in page.items]
    required += [entry for entry in newest if spoken(entry.message)][:1]
    present = {entry.key for entry in required}
    required = window.require(required)
    if (text := await read_summary(store, scope)) is not None:
        summary = weighed(SUMMARY_ID, summary_message(text))
        required += window.require([summary]) if summary.tokens <= window.left else []
    while True:
        for entry in newest:
            if entry.key not in present and not window.full:
                window.offer(entry)
        if window.full or page.cursor is None:
            return window.messages(required)
        page = await store.scan(replace(scan, cursor=page.cursor))
        newest = [to_entry(record) for record in page.items]


async def read_summary(store: Store, scope: ScopePath) -> str | None:
    """Return the running summary of a session, if it has one."""
    (record,) = await store.read([Ref(scope, SUMMARY, SUMMARY_KEY)])
    return record.text if record is not None else None


async def system_records(store: Store, scope: ScopePath) -> list[Record]:
    """Return the system messages of a session as records, oldest first."""
    where = (Condition("labels.role", "eq", "system"),)
    return [record async for record in scan_all(store, Scan(scope=scope, kinds=(MESSAGE,), where=where))]
