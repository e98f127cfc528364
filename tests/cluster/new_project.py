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

from dra_kit.scaffold.answers import Answers
from tests.cluster.deployed import KUBELET_DIR
from tests.cluster.find import Found
from tests.cluster.image import BUILD, fill_wheelhouse, load_built, make_base_image, run
from tests.cluster.plane import Plane
from tests.cluster.processes import DRA_KIT

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
        answers: that it was made with.
        folder: of the project.
        environment: stands for its virtual environment: dra-kit of these sources, and nothing to install.
    """

    plane: Plane
    answers: Answers
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
            place = ("--namespace", self.answers.project)
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
        image = f"{self.answers.project}:0.1.0"
        full = f"docker.io/library/{image}"
        load_built(found, self.plane.kubeconfig.parent, f"localhost/{image}", full, self.environment)
        shutil.rmtree(wheelhouse)


@contextmanager
def new_project(plane: Plane, answers: Answers, directory: Path) -> Iterator[NewProject]:
    """A new project; what was deployed of it is gone in the end."""
    name, folder = answers.project, directory / answers.project
    webhook = "--webhook" if answers.webhook else "--no-webhook"
    run(DRA_KIT, "new", name, "--kind", answers.kind, webhook, "--directory", folder)
    tools = directory / "environment" / "bin"
    tools.mkdir(parents=True)
    (tools / "dra-kit").symlink_to(DRA_KIT)
    (tools / f".{name}").touch()  # `make install` has nothing to do
    project = NewProject(plane, answers, folder, directory / "environment")
    try:
        yield project
    finally:
        plane.kubectl("delete", "--ignore-not-found", "-f", str(folder / "demo" / "pod.yaml"))
        helm = [str(plane.binaries / "helm"), "--kubeconfig", str(plane.kubeconfig), "--namespace", name]
        run(*helm, "uninstall", name, "--ignore-not-found", "--cascade", "foreground", "--wait", "--timeout", "120s")
        plane.kubectl("delete", "namespace", name, "--ignore-not-found")
        # sooner than the kubelet does
        plane.kubectl("delete", "resourceslices", "--field-selector", f"spec.driver={answers.driver}")
        shutil.rmtree(KUBELET_DIR / "plugins" / answers.driver, ignore_errors=True)
