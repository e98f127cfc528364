"""kubectl and helm, as a user calls them, against an embedded API server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from dra_kit.apiserver.server import ApiServer
from tests.cluster.find import NotFound, find


@cache
def program(name: str) -> str:
    """The program that belongs to a control plane; another release of it behaves in another way."""
    try:
        found = find()
    except NotFound as error:
        pytest.skip(f"{name} is not tested: {error}")
    assets = found.assets
    if assets is None:
        assert found.tool is not None
        unpacked = subprocess.run([found.tool, "assets"], capture_output=True, text=True, check=True, timeout=240)
        assets = Path(unpacked.stdout.strip())
    path = shutil.which(name, path=str(assets))
    if path is None:
        pytest.skip(f"{name} is not tested: there is none in {assets}")
    return path


class User:
    """A user with programs such as kubectl.

    Args:
        home: folder for the kubeconfig and files of programs.
        server: that the kubeconfig names.
    """

    def __init__(self, home: Path, server: ApiServer) -> None:
        config = home / "kubeconfig"
        config.write_text(json.dumps(server.kubeconfig()))
        self.server = server
        self.home = home
        self.environment = {"KUBECONFIG": str(config), "HOME": str(home), "PATH": os.environ["PATH"]}

    def attempt(
        self, name: str, *arguments: str, stdin: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program and return its result, also if it fails."""
        return subprocess.run(
            [program(name), *arguments], input=stdin, env=self.environment | environment, capture_output=True,
            text=True, timeout=240, check=False,
        )  # fmt: skip

    def run(self, name: str, *arguments: str, stdin: str = "", **environment: str) -> str:
        """Run a program that must succeed and return its output."""
        done = self.attempt(name, *arguments, stdin=stdin, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def kubectl(self, *arguments: str, stdin: str = "", **environment: str) -> str:
        """Run kubectl, which must succeed, and return its output."""
        return self.run("kubectl", *arguments, stdin=stdin, **environment)
