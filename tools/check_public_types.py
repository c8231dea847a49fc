"""Check that every public name has a type: `tools/check_public_types.py [MODULE…]`.

With modules, only their names are checked, such as those of adapters whose frameworks are installed, and a type may be
inferred, as that of a method that overrides a framework's; without, all but those of adapters.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ADAPTERS = "mnemic.adapters."


def problems(modules: list[str]) -> list[str]:
    """Return the public names without a type, and why."""
    command = [sys.executable, "-m", "basedpyright", "--verifytypes", "mnemic", "--ignoreexternal", "--outputjson"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    ran = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True)  # noqa: S603
    symbols = json.loads(ran.stdout)["typeCompleteness"]["symbols"]
    return [
        "\n    ".join([symbol["name"], *(found["message"] for found in symbol["diagnostics"])])
        for symbol in symbols
        if symbol["isExported"] and not (modules and symbol["isTypeAmbiguous"])
        if not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]
        if _is_of(symbol["name"], modules) and not all(map(_is_of_base, symbol["diagnostics"]))
    ]


def _is_of(name: str, modules: list[str]) -> bool:
    if not modules:
        return not name.startswith(ADAPTERS)
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _is_of_base(found: dict[str, str]) -> bool:
    """Return whether a problem is about a base class, which some frameworks have without types."""
    return found["message"].startswith(("Type of metaclass", "Type of base class", "Return type is partially unknown"))


if __name__ == "__main__":
    found = problems(sys.argv[1:])
    print("\n".join(found) or "Every public name has a type.")
    sys.exit(bool(found))
