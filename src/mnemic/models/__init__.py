"""The models that Mnemic uses, each behind a protocol, so that any other can take its place."""
