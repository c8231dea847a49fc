"""Layers between the features and a back-end: each is a store that wraps a store."""
