"""The MCP server: a scope as tools, resources and prompts, on the official SDK, which only this package imports."""

from .server import PROFILES as PROFILES
from .server import build_server as build_server
from .stdio import serve_stdio as serve_stdio

__all__ = ["PROFILES", "build_server", "serve_stdio"]
