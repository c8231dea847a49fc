"""The scope of a project: which folder is the project, and the name of its scope."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from ..records import ScopePath

PROJECTS = "projects"
"""The scope above those of all projects."""


def current_scope(folder: str = ".") -> ScopePath:
    """Return the scope of the project that a coding agent works in, which a folder is in unless the agent says it."""
    return project_scope(Path(os.environ.get("CLAUDE_PROJECT_DIR") or folder or "."))


def project_scope(folder: Path) -> ScopePath:
    """Return the scope of the project that a folder is in: its name, and a hash of its path.

    The hash tells two projects of the same name apart.
    """
    root = project_folder(folder)
    name = re.sub(r"[^\w.-]+", "-", root.name)[:80].strip("-") or "root"
    digest = hashlib.sha256(str(root).encode(errors="surrogateescape")).hexdigest()[:10]
    return ScopePath.of(PROJECTS, f"{name}-{digest}")


def project_folder(folder: Path) -> Path:
    """Return the repository that a folder is in, of a worktree its main repository; else the folder itself."""
    place = checkout_folder(folder)
    mark = place / ".git"
    return _main_repository(mark) or place if mark.is_file() else place


def checkout_folder(folder: Path) -> Path:
    """Return the root of the repository or worktree that a folder is in; else the folder itself."""
    start = folder.resolve()
    return next((place for place in (start, *start.parents) if (place / ".git").exists()), start)


def _main_repository(mark: Path) -> Path | None:
    """Return the repository of a worktree, whose file `.git` names a folder in it; None for a submodule."""
    try:
        named = mark.read_text(errors="replace").removeprefix("gitdir:").strip()
    except OSError:
        return None
    admin = (mark.parent / named).resolve()
    is_worktree = admin.parent.name == "worktrees" and admin.parent.parent.name == ".git"
    return admin.parent.parent.parent if is_worktree else None
