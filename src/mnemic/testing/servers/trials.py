"""What the entry points of `mnemic.trials` name: an empty store on each server, each time."""

from __future__ import annotations

from functools import partial

from ...store.registry import Trial
from . import postgres, valkey

POSTGRESQL = Trial("postgresql", postgres.empty_database)
POSTGRESQL_PLAIN = Trial("postgresql", partial(postgres.empty_database, extensions=False))
VALKEY = Trial("redis", valkey.empty_keyspace)
VALKEY_CLUSTER = Trial("redis+cluster", valkey.empty_cluster_keyspace)
