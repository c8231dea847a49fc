"""Coding agents and desktop clients: entries in their configuration, and what their hooks do."""
