"""Companion indexes: vector databases beside a store, selected by URL scheme."""
