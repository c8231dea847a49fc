"""The recall engine: index entries, in-memory indexes, and ranking."""
