"""`s3://bucket/prefix`: records in objects of a bucket, as an archive that can be read where it lies."""

from .collecting import collect
from .opening import BACKEND

__all__ = ["BACKEND", "collect"]
