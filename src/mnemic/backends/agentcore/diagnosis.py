"""Diagnoses an AgentCore memory."""

from __future__ import annotations

from botocore.exceptions import ClientError

from ...errors import UnreadableStoreError
from ...store.diagnosis import Diagnosis
from ...store.registry import StoreURL
from .. import aws
from .store import memory_id, open_store


async def diagnose(url: StoreURL) -> Diagnosis:
    """Return the diagnosis of a memory; raises a StoreError if the service does not answer."""
    found = Diagnosis(engine="AgentCore Memory")
    control = await aws.Requests.open("bedrock-agentcore-control", url)
    try:
        memory = (await control.send("get_memory", memoryId=memory_id(url)))["memory"]
    except ClientError as error:
        if aws.code_of(error) != "ResourceNotFoundException":
            found.warn("unknown_settings", str(aws.explain(error, url)), "allow bedrock-agentcore:GetMemory")
            memory = {}
        else:
            text = "there is no such memory in this region"
            found.error("missing_memory", text, "aws bedrock-agentcore-control create-memory, or name another region")
            return found
    finally:
        await control.close()
    status, days = memory.get("status", "ACTIVE"), memory.get("eventExpiryDuration")
    found.facts |= {"status": status, "event_expiry_days": days}
    if status not in ("ACTIVE", "UPDATING"):
        reason = memory.get("failureReason") or "no reason is given"
        found.error("not_active", f"the memory is {status}: {reason}", "wait, or create another memory")
    try:
        found.store = await open_store(url)
    except UnreadableStoreError as error:
        found.error("unreadable", str(error), "create another memory")
    return found
