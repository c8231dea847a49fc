"""Storage engines, one package each, loaded by entry point."""
