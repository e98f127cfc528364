"""Files of a running driver, which may disappear while they are read."""

from __future__ import annotations

import os
from pathlib import Path


def files_below(*tops: Path) -> set[Path]:
    """All files and sockets in these directories and below them; ``rglob`` fails on a directory that is removed."""
    return {Path(directory, name) for top in tops for directory, _, names in os.walk(top) for name in names}
