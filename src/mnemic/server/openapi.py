"""The OpenAPI document, made from the declared endpoints."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any

from .endpoint import Call, endpoint


@endpoint("GET", "/openapi.json", right=None, summary="This document", tag="server", scoped=False)
async def openapi(call: Call) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of this server."""
    return document()


@cache
def document() -> dict[str, Any]:
    """Return the document."""
    return {"openapi": "3.1.0", "info": {"title": "Mnemic", "version": version("mnemic")}, "paths": {}}
