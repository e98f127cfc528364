"""Where the files are that come with dra-kit and are no Python: the project template and the chart."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dra_kit.errors import InternalError

_PACKAGE: Final = Path(__file__).parents[1]


def template() -> Path:
    """Return the folder of the project template, with its copier.yml."""
    return _find("templates/driver")


def chart() -> Path:
    """Return the folder of the helm chart."""
    return _find("charts/dra-driver")


def _find(name: str) -> Path:
    # in an installed wheel beside the code, in a checkout of the sources beside the package
    for found in (_PACKAGE / "share" / name, _PACKAGE.parent / name):
        if found.is_dir():
            return found
    raise InternalError(f"{name} is missing in this installation of dra-kit; install it again")
