"""Commands of the documentation, run as a reader does: word by word."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.cluster.find import REPOSITORY
from tests.cluster.plane import Plane

REMOVAL_PAGE = "docs/how-to/remove-a-driver.md"
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)$", re.MULTILINE)


def commands(page: str, program: str = "") -> list[str]:
    """The commands of a page's console blocks, each as it is written, with its continuation lines.

    Args:
        page: path below the repository.
        program: only those that begin so.
    """
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    found = [command for block in _BLOCK.findall(text) for command in _COMMAND.findall(block)]
    return [command for command in found if command.startswith(program)]


def run_command(plane: Plane, command: str, folder: Path, *, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    """Run a command by the shell, with helm, kubectl and dra-kit on the PATH.

    Args:
        plane: its cluster is the current one.
        command: as a page has it.
        folder: the working directory.
        timeout: seconds.
    """
    path = os.pathsep.join(map(str, (plane.binaries, Path(sys.executable).parent, os.environ["PATH"])))
    environment = {**os.environ, "PATH": path, "KUBECONFIG": str(plane.kubeconfig)}
    return subprocess.run(
        ["/bin/bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False,
        timeout=timeout,
    )  # fmt: skip


def removal_commands(driver: str, namespace: str, release: str) -> tuple[str, str, str]:
    """The commands of the page that remove a driver for good: ``helm upgrade``, ``dra-kit drain``, ``helm uninstall``.

    Args:
        driver: its name, in place of the page's; so are the others.
        namespace: of the release.
        release: its name.
    """
    names = {"kitchen.pizza.example": driver, "pizza-system": namespace, "pizza": release}
    page = commands(REMOVAL_PAGE)
    first = next(index for index, text in enumerate(page) if "node.decommission=true" in text)
    words = re.compile("|".join(rf"(?<= ){re.escape(name)}(?= |$)" for name in names))
    upgrade, drain, uninstall = (words.sub(lambda found: names[found[0]], text) for text in page[first : first + 3])
    made = upgrade, drain, uninstall
    assert all("--wait" not in text or "dra-kit drain" in text for text in made), "helm waits for nothing"
    return made
