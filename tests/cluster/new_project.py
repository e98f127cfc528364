"""A project of ``dra-kit new`` on the real node, by the commands of its own Makefile; only Docker is another."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.cluster.deployed import KUBELET_DIR
from tests.cluster.find import Found
from tests.cluster.image import BUILD, fill_wheelhouse, load_built, make_base_image, run
from tests.cluster.plane import Plane
from tests.cluster.processes import DRA_KIT

NAME: Final = "led-driver"
DRIVER: Final = f"{NAME}.example.com"
_DOCKER: Final = f"""#!/bin/sh -eu
command=$1
shift
STORAGE_DRIVER=${{STORAGE_DRIVER:-overlay}} exec buildah "$command" {" ".join(BUILD)} "$@"
"""


@dataclass(frozen=True)
class NewProject:
    """A project that nobody has touched.

    Attributes:
        plane: where it is deployed.
        folder: of the project.
        environment: stands for its virtual environment: dra-kit of these sources, and nothing to install.
    """

    plane: Plane
    folder: Path
    environment: Path

    def make(self, *arguments: str) -> None:
        """``make`` in the project, with the plane as the current cluster."""
        words = ["make", "--directory", str(self.folder), *arguments]
        variables = {
            **{name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL"}},
            "VIRTUAL_ENV": str(self.environment),
            "KUBECONFIG": str(self.plane.kubeconfig),
            "PATH": f"{self.plane.binaries}:{os.environ['PATH']}",
        }
        result = subprocess.run(words, env=variables, capture_output=True, text=True, check=False, timeout=600)
        if result.returncode:
            place = ("--namespace", NAME)
            told = [self.plane.kubectl(*words, *place, check=False).stdout for words in (("get", "pods"), ("events",))]
            raise AssertionError("\n".join([" ".join(words), result.stdout, result.stderr, *told]))

    def image(self, found: Found) -> None:
        """``make image``, and what stands for ``make kind-load``."""
        make_base_image(found)
        wheelhouse = self.folder / "wheelhouse"
        fill_wheelhouse(wheelhouse)
        docker = self.environment / "bin" / "docker"
        docker.write_text(_DOCKER)
        docker.chmod(0o755)
        self.make("image", f"DOCKER={docker}")
        # the name that Docker gives it, and containerd looks for
        full = f"docker.io/library/{NAME}:0.1.0"
        load_built(found, self.plane.kubeconfig.parent, f"localhost/{NAME}:0.1.0", full, self.environment)
        shutil.rmtree(wheelhouse)


@contextmanager
def new_project(plane: Plane, directory: Path) -> Iterator[NewProject]:
    """A new project with all defaults; what was deployed of it is gone in the end."""
    run(DRA_KIT, "new", NAME, "--defaults", "--directory", directory / NAME)
    tools = directory / "environment" / "bin"
    tools.mkdir(parents=True)
    (tools / "dra-kit").symlink_to(DRA_KIT)
    (tools / f".{NAME}").touch()  # `make install` has nothing to do
    project = NewProject(plane, directory / NAME, directory / "environment")
    try:
        yield project
    finally:
        plane.kubectl("delete", "--ignore-not-found", "-f", str(project.folder / "demo" / "pod.yaml"))
        helm = [str(plane.binaries / "helm"), "--kubeconfig", str(plane.kubeconfig), "--namespace", NAME]
        run(*helm, "uninstall", NAME, "--ignore-not-found", "--cascade", "foreground", "--wait", "--timeout", "120s")
        plane.kubectl("delete", "namespace", NAME, "--ignore-not-found")
        # sooner than the kubelet does
        plane.kubectl("delete", "resourceslices", "--field-selector", f"spec.driver={DRIVER}")
        shutil.rmtree(KUBELET_DIR / "plugins" / DRIVER, ignore_errors=True)
