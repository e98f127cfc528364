"""A machine's /dev, /sys and /run below a folder; FIFOs stand for device nodes, which only root may make."""

from __future__ import annotations

import os
from pathlib import Path

from dra_kit.author.no_code.matching import find_devices
from dra_kit.author.no_code.reader import read_globs


class Machine:
    """What is below a folder, and a file of globs beside it."""

    def __init__(self, place: Path) -> None:
        self.root = place / "root"
        self.file = place / "serial.yaml"
        for folder in ("dev", "sys", "run"):
            (self.root / folder).mkdir(parents=True)

    def node(self, *paths: str) -> None:
        """Plug in device nodes."""
        for path in paths:
            file = self.root / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            os.mkfifo(file)

    def says(self, path: str, content: str | bytes) -> None:
        """Write a file of sysfs."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())

    def link(self, path: str, target: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to(target)

    def globs(self, text: str) -> None:
        """Write the file."""
        self.file.write_text(text)

    def found(self, *entries: str) -> list[str]:
        """The paths that entries match."""
        self.globs("driver: serial.example.com\ndevices:\n" + "".join(f"- {entry}\n" for entry in entries))
        return [match.file.path for match in find_devices(read_globs(self.file).devices, self.root)]
