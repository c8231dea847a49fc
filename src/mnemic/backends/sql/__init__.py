"""Shared by SQLite and PostgreSQL: schema, statements, reads and migrations."""
