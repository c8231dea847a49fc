"""Diagnoses a store on a Mnemic server: the server answers, the key is valid, and what it may do."""

from __future__ import annotations

from importlib.metadata import version

from ...store.diagnosis import Diagnosis
from ...store.protocol import Capability
from ...store.registry import StoreURL, closed_on_error
from ...store.wire import PATH
from .client import HttpClient
from .opening import connection, decode_served
from .store import HttpStore


async def diagnose(url: StoreURL) -> Diagnosis:
    """Return the diagnosis of a server's store; raises a StoreError if it does not answer, or refuses the key."""
    connecting, _ = connection(url)
    client = HttpClient(connecting)
    async with closed_on_error(client):
        served = await client.get(PATH, decode_served)
    found = Diagnosis(engine=f"Mnemic {served.version}", store=HttpStore(client, served))
    found.facts |= {
        "scope": served.scope or "the whole store",
        "rights": ", ".join(served.rights),
        "key": "Authorization" in connecting.headers,
        "durable": Capability.DURABLE.value in served.capabilities,
    }
    if served.version != (ours := version("mnemic")):
        text = f"the server has Mnemic {served.version}, this program {ours}"
        found.warn("other_version", text, "install the same version on both")
    if not found.facts["durable"]:
        found.warn(
            "not_persistent", "the server's store keeps nothing on disk", "mnemic serve --store sqlite:///memory.db"
        )
    for right in ("read", "write"):
        if right not in served.rights:
            found.warn(
                "missing_right",
                f"the key lacks the right {right!r}",
                "mnemic keys create NAME --scope SCOPE --right read --right write",
            )
    return found
