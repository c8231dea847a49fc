"""Model files of Mnemic's conversation embedder; Mnemic finds them here without importing this package."""
