"""Opens an AgentCore memory by its URL."""

from __future__ import annotations

import re

from ...errors import InvalidValueError
from ...store.registry import Backend, StoreURL
from .. import aws
from .client import MemoryClient, as_stream
from .store import AgentCoreStore

_MEMORY = re.compile(
    r"(?:arn:aws[a-z-]*:bedrock-agentcore:[a-z0-9-]+:[0-9]{12}:memory/)?[a-zA-Z][a-zA-Z0-9_-]{0,99}-[a-zA-Z0-9]{10}"
)


async def open_store(url: StoreURL) -> AgentCoreStore:
    """Open the memory of a URL; raises a Mnemic error."""
    url.take(**aws.OPTIONS)
    memory = (url.split.netloc + url.split.path).rstrip("/")
    if not _MEMORY.fullmatch(memory):
        raise InvalidValueError(
            f"{url} names no memory: its id is a name, '-' and ten letters or digits, as in "
            "agentcore://support-a1B2c3D4e5?region=eu-central-1"
        )
    client = MemoryClient(await aws.Requests.open("bedrock-agentcore", url, before_send=as_stream), memory)
    try:
        await client.check()
    except BaseException:
        await client.close()
        raise
    return AgentCoreStore(client)


BACKEND = Backend(open=open_store)
