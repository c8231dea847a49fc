"""The HTTP server: API, MCP and dashboard in one process."""
