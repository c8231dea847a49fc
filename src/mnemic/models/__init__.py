"""Embedding models behind one protocol."""
