"""What objects are called: in the order of the tenants, whatever characters those hold."""

from __future__ import annotations

from urllib.parse import quote

LONGEST = 150
"""The most bytes of a prefix; a tenant takes up to 800, an id 32, and S3 allows 1,024 in all."""


class Names:
    """The names of a store's objects, which all begin with its prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = f"{prefix}/" if prefix else ""
        self.marker = f"{self._prefix}mnemic"
        self.manifests = f"{self._prefix}manifests/"
        self.segments = f"{self._prefix}segments/"
        self.notes = f"{self._prefix}notes/"

    # UTF-8 sorts as its text does. The underscore keeps names such as '..' from being those of folders.

    def manifest(self, tenant: str) -> str:
        """Return the name of a tenant's manifest."""
        return f"{self.manifests}_{tenant}"

    def tenant(self, manifest: str) -> str:
        """Return whose manifest has this name."""
        return manifest[len(self.manifests) + 1 :]

    def segment(self, tenant: str, id: str) -> str:
        """Return the name of a segment."""
        return f"{self.segments}_{tenant}/{id}"

    def owner(self, segment: str) -> tuple[str, str]:
        """Return the tenant and the id of the segment of this name."""
        tenant, _, id = segment[len(self.segments) + 1 :].rpartition("/")
        return tenant, id

    def note(self, key: str) -> str:
        """Return the name of a note."""
        return self.notes + quote(key, safe="")
