"""Objects of the entry points in `mnemic.trials`: an empty store on each server."""

from __future__ import annotations

from functools import partial

from ...store.registry import Trial
from . import aws, postgres, redis, valkey

POSTGRESQL = Trial("postgresql", postgres.empty_database)
POSTGRESQL_PLAIN = Trial("postgresql", partial(postgres.empty_database, extensions=False))
VALKEY = Trial("redis", valkey.empty_keyspace)
VALKEY_CLUSTER = Trial("redis+cluster", valkey.empty_cluster_keyspace)
REDIS7 = Trial("redis", redis.empty_keyspace)
REDIS8 = Trial("redis", partial(redis.empty_keyspace, server=redis.server8))
DYNAMODB = Trial("dynamodb", aws.empty_table)
DYNAMODB_HASH = Trial("dynamodb", partial(aws.empty_table, layout="hash"))
DYNAMODB_MOTO = Trial("dynamodb", partial(aws.empty_table, emulator=aws.moto))
S3 = Trial("s3", aws.empty_prefix)
S3_MOTO = Trial("s3", partial(aws.empty_prefix, emulator=aws.moto))
AGENTCORE = Trial("agentcore", aws.empty_memory)
