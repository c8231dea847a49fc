"""A complete store over a key-value engine."""
