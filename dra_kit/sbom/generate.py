"""``python -m dra_kit.sbom.generate``: the SBOM of the wheel anew, of what is pinned for images (``make lock``)."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

from dra_kit import __version__
from dra_kit.sbom.component import Component
from dra_kit.sbom.cyclonedx import document, text
from dra_kit.sbom.sources import pinned, required

ROOT: Final = Path(__file__).parents[2]
FILE: Final = ROOT / "requirements" / "dra-kit.cdx.json"


def generated() -> str:
    """Return what the file has to be."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    parts = list(pinned(ROOT / "requirements" / "runtime.txt"))
    names = {part.name for part in parts}
    needed = set(map(required, project["dependencies"]))
    whole = Component("dra-kit", __version__, licence=project["license"], requires=tuple(sorted(needed & names)))
    return text(document(whole, parts))


def main() -> None:
    """Write it."""
    FILE.write_text(generated(), encoding="utf-8")


if __name__ == "__main__":
    main()
