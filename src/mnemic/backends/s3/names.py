"""Object names that sort like the tenants, whatever characters those have."""

from __future__ import annotations

from urllib.parse import quote

LONGEST = 150
"""Maximum size of a prefix; a tenant takes up to 800 bytes, an id 32, and S3 allows 1,024."""


class Names:
    """Names of a store's objects, all with its prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = f"{prefix}/" if prefix else ""
        self.marker: str = f"{self._prefix}mnemic"
        self.manifests: str = f"{self._prefix}manifests/"
        self.segments: str = f"{self._prefix}segments/"
        self.notes: str = f"{self._prefix}notes/"

    # UTF-8 sorts like its text. The underscore keeps names such as '..' from being folders.

    def manifest(self, tenant: str) -> str:
        """Return the name of a tenant's manifest."""
        return f"{self.manifests}_{tenant}"

    def tenant(self, manifest: str) -> str:
        """Return the tenant of a manifest's name."""
        return manifest[len(self.manifests) + 1 :]

    def segment(self, tenant: str, id: str) -> str:
        """Return the name of a segment."""
        return f"{self.segments}_{tenant}/{id}"

    def owner(self, segment: str) -> tuple[str, str]:
        """Return the tenant and the id in a segment's name."""
        tenant, _, id = segment[len(self.segments) + 1 :].rpartition("/")
        return tenant, id

    def note(self, key: str) -> str:
        """Return the name of a journal entry."""
        return self.notes + quote(key, safe="")
