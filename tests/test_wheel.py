"""What a user gets: the built wheel in a fresh environment, with the README and the tour pasted there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from sysconfig import get_path
from typing import Any

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

ROOT = Path(__file__).parent.parent
MOST_PACKAGES, MOST_MEGABYTES = 16, 150
"""Limits of a fresh install, without bytecode."""


def run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def pip(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)


def examples(document: str) -> list[str]:
    """The Python examples of a document."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text(), re.S | re.M)


def megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20


def paste(python: Path, texts: list[str], folder: Path) -> None:
    """Type texts into an interactive interpreter, which goes on after an error: there must be none."""
    folder.mkdir()
    typed = "\n\n".join(texts) + "\n\nprint('all', 'done')\n"
    done = run(python, "-i", "-q", input=typed, cwd=folder, env=clean_environment())
    assert "all done" in done.stdout
    said = re.sub(r"(>>> |\.\.\. )+", "", done.stderr)
    assert said.strip() == "", said


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def run_cells(python: Path, texts: list[str], folder: Path) -> None:
    """Run texts as the cells of one notebook."""
    spec = {"display_name": "fresh", "language": "python", "argv": [str(python), "-m", "ipykernel_launcher"]}
    spec["argv"] = [*spec["argv"], "-f", "{connection_file}"]
    (folder / "specs" / "fresh").mkdir(parents=True)
    (folder / "specs" / "fresh" / "kernel.json").write_text(json.dumps(spec))
    specs = KernelSpecManager(kernel_dirs=[str(folder / "specs")])
    manager = KernelManager(kernel_name="fresh", kernel_spec_manager=specs, connection_file=str(folder / "kernel.json"))
    manager.start_kernel(cwd=str(folder), env=clean_environment())
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=240)
        for text in texts:
            shown: list[Any] = []
            reply = client.execute_interactive(text, timeout=240, output_hook=shown.append)
            assert reply["content"]["status"] == "ok", (text, shown[-1]["content"])
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def test_a_fresh_install_is_small_and_runs_the_readme_in_an_interpreter_and_a_notebook(tmp_path: Path) -> None:
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "fresh")
    python = tmp_path / "fresh" / "bin" / "python"
    pip("--python", python, "install", "--no-compile", wheel)

    library = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())
    installed = sorted(path.name for path in library.glob("*.dist-info"))
    assert len(installed) <= MOST_PACKAGES, installed
    assert megabytes(library) <= MOST_MEGABYTES

    dashboard = Path("server/dashboard")
    there = {path.relative_to(library / "mnemic" / dashboard) for path in (library / "mnemic" / dashboard).rglob("*.*")}
    source = ROOT / "src" / "mnemic" / dashboard
    assert there == {path.relative_to(source) for path in source.rglob("*.*")}

    mnemic = tmp_path / "fresh" / "bin" / "mnemic"
    told = run(mnemic, "demo", tmp_path / "demo.db", env=clean_environment()).stdout.splitlines()
    assert told[-2] == "The dashboard needs more: pip install 'mnemic[server]'"
    assert told[-1] == f"See it in a browser: mnemic serve --open --store {tmp_path / 'demo.db'}"
    refused = subprocess.run([mnemic, "serve"], capture_output=True, text=True, env=clean_environment())
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.endswith("pip install 'mnemic[server]'\n")

    readme = examples("README.md")
    assert len(readme) >= 5
    plain = [text for text in readme if "mnemic.agents" not in text and "encryption_key" not in text]
    paste(python, plain, tmp_path / "typed")

    # What the extras and the notebook need lies behind what was installed, and never in place of it.
    (library / "development.pth").write_text(get_path("purelib"))
    where = run(python, "-c", "import mnemic; print(mnemic.__file__)", env=clean_environment()).stdout
    assert where.startswith(str(library))
    # A notebook has an event loop already: there one writes `await main()`.
    cells = [text.replace("asyncio.run(main())", "(await main())") for text in readme]
    run_cells(python, [*cells, *examples("docs/tour.md")], tmp_path)
