"""`s3://bucket/prefix`: records in objects of a bucket, as a readable archive."""

from .collecting import collect
from .opening import BACKEND

__all__ = ["BACKEND", "collect"]
