"""Finds personal data and secrets in texts and replaces them; no I/O."""
