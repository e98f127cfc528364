"""Compiles dra_kit: an installed wheel and a driver's image contain bytecode, a checkout may not."""

from __future__ import annotations

import compileall
from pathlib import Path

import dra_kit


def compile_package() -> None:
    """Compile changed modules, so that no measured process compiles them."""
    compileall.compile_dir(Path(dra_kit.__file__).parent, quiet=1)
