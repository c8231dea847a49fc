"""`s3://bucket/prefix`: records in objects of a bucket, as an archive."""

from .store import BACKEND, collect

__all__ = ["BACKEND", "collect"]
