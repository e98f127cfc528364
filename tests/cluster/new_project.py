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

import yaml

from dra_kit.project.rendering import Answers
from tests.cluster.deployed import KUBELET_DIR
from tests.cluster.find import Found
from tests.cluster.image import BUILD, load_built, run
from tests.cluster.plane import Plane
from tests.cluster.processes import DRA_KIT

_DOCKER: Final = f"""#!/bin/sh -eu
command=$1
shift
STORAGE_DRIVER=${{STORAGE_DRIVER:-overlay}} exec buildah "$command" {" ".join(BUILD)} "$@"
"""


@dataclass(frozen=True)
class NewProject:
    """A new, unchanged project.

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

    def make(self, *arguments: str) -> str:
        """What ``make`` says in the project, with the plane as the current cluster."""
        words = ["make", "--directory", str(self.folder), "KUBE_CONTEXT=", *arguments]  # the current one
        variables = {
            **os.environ,
            "VIRTUAL_ENV": str(self.environment),
            "KUBECONFIG": str(self._kubeconfig()),
            "PATH": f"{self.plane.binaries}:{os.environ['PATH']}",
        }
        result = subprocess.run(words, env=variables, capture_output=True, text=True, check=False, timeout=600)
        if result.returncode:
            place = ("--namespace", self.answers.project)
            told = [self.plane.kubectl(*words, *place, check=False).stdout for words in (("get", "pods"), ("events",))]
            raise AssertionError("\n".join([" ".join(words), result.stdout, result.stderr, *told]))
        return result.stdout

    @property
    def namespace(self) -> str:
        """Where the demo runs: other tests run theirs in the default namespace at the same time."""
        return f"{self.answers.project}-demo"

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl in the namespace of the demo."""
        return self.plane.kubectl("--namespace", self.namespace, *arguments, stdin=stdin, check=check)

    def _kubeconfig(self) -> Path:
        """Return a kubeconfig for the plane whose current namespace is that of the demo."""
        content = yaml.safe_load(self.plane.kubeconfig.read_text())
        for context in content["contexts"]:
            context["context"]["namespace"] = self.namespace
        path = self.environment / "kubeconfig"
        path.write_text(yaml.safe_dump(content))
        return path

    def image(self, found: Found, wheels: Path) -> None:
        """``make image`` of wheels that are there, and what stands for ``make kind-load``."""
        wheelhouse = Path(shutil.copytree(wheels, self.folder / "wheelhouse", copy_function=os.link))
        docker = self.environment / "bin" / "docker"
        docker.write_text(_DOCKER)
        docker.chmod(0o755)
        self.make("image", f"DOCKER={docker}")
        # the name that Docker gives it, and containerd looks for
        image = f"{self.answers.project}:0.1.0"
        full = f"docker.io/library/{image}"
        load_built(found, self.plane.kubeconfig.parent, f"localhost/{image}", full, self.environment)
        shutil.rmtree(wheelhouse)


def new_project(plane: Plane, answers: Answers, directory: Path) -> NewProject:
    """A new project below a folder."""
    name, folder = answers.project, directory / answers.project
    webhook = "--webhook" if answers.webhook else "--no-webhook"
    run(DRA_KIT, "new", name, "--kind", answers.kind, webhook, "--directory", folder)
    tools = directory / "environment" / "bin"
    tools.mkdir(parents=True)
    (tools / "dra-kit").symlink_to(DRA_KIT)
    (tools / f".{name}").touch()  # `make install` has nothing to do
    return NewProject(plane, answers, folder, directory / "environment")


@contextmanager
def demonstrated(project: NewProject) -> Iterator[str]:
    """What ``make kind-demo`` of a project says whose image is built; what was deployed is gone in the end."""
    plane, name, driver = project.plane, project.answers.project, project.answers.driver
    plane.kubectl("create", "namespace", project.namespace)
    try:
        yield project.make("--silent", "kind-demo")
    finally:
        project.kubectl("delete", "--ignore-not-found", "-f", str(project.folder / "demo" / "pod.yaml"))
        helm = [str(plane.binaries / "helm"), "--kubeconfig", str(plane.kubeconfig), "--namespace", name]
        run(*helm, "uninstall", name, "--ignore-not-found", "--cascade", "foreground", "--wait", "--timeout", "120s")
        plane.kubectl("delete", "namespace", name, project.namespace, "--ignore-not-found", "--wait=false")
        plane.delete_slices(driver)
        shutil.rmtree(KUBELET_DIR / "plugins" / driver, ignore_errors=True)
