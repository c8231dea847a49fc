"""The environment of each framework: those with requirements that exclude one another are installed apart."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
PAGES = HERE.parent.parent / "docs" / "adapters"
MODULES = HERE.parent.parent / "src" / "mnemic" / "adapters"

APART = {"older": ("crewai", "fence", "litellm", "opper", "tframex"), "hermes": ("hermes",), "marsys": ("marsys",)}
"""By environment: the frameworks in it. All others are in `frameworks`."""
WITHOUT_REQUIREMENTS = {"marsys": ("marsys==0.2.1",)}
"""By environment: packages that declare a newer Python than they need, installed after the requirements."""
ENVIRONMENTS = ("frameworks", *APART)
EVERYWHERE = ("index", "foreign")
"""Pages, modules and tests that need no framework."""


def environment_of(name: str) -> str:
    """Return the environment of a framework, by the name of its page, module or test."""
    return next((place for place, names in APART.items() if name in names), "frameworks")


def tests_of(environment: str) -> list[Path]:
    """Return the files of tests that belong to an environment; `test_pages.py` belongs to each."""
    found = sorted(HERE.glob("test_*.py"))
    return [path for path in found if path.stem == "test_pages" or _is_in(path.stem[5:], environment)]


def pages_of(environment: str) -> list[Path]:
    """Return the pages of the documentation whose examples run in an environment."""
    return [path for path in sorted(PAGES.glob("*.md")) if _is_in(path.stem, environment)]


def modules_of(environment: str) -> list[Path]:
    """Return the adapters that belong to an environment."""
    return [path for path in sorted(MODULES.glob("*.py")) if _is_in(path.stem, environment)]


def _is_in(name: str, environment: str) -> bool:
    if name in EVERYWHERE:
        return environment == ENVIRONMENTS[0]
    return environment_of(name) == environment
