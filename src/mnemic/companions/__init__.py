"""Indexes beside a store, each found by the scheme of its URL."""
