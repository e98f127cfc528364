"""dra_kit's bytecode: an installed wheel and the image of a driver have it, a checkout may not."""

from __future__ import annotations

import compileall
from pathlib import Path

import dra_kit


def compile_package() -> None:
    """Compile what has changed, so that no process that is measured compiles it."""
    compileall.compile_dir(Path(dra_kit.__file__).parent, quiet=1)
