"""The examples and a new project in a real cluster of kind, by the lines of their READMEs: ``make test-kind``.

``docker`` and ``kind`` of the PATH are used. If one is missing, a ``docker-in-netns`` tool is used, which
``DRA_KIT_KIND`` or ``../shared/kind`` has. Without either, the tests are skipped.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.cluster.find import find
from tests.cluster.image import BASE_IMAGE, CannotBuild, fill_wheelhouse, make_base_image

ROOT: Final = Path(__file__).parents[2]
BASE: Final = "python:3.13-slim"
_MORE_PACKAGES: Final = {"gpu-driver": ["nvidia-ml-py"], "nic-driver": ["pyroute2"]}
"""What the images of examples contain beside dra-kit and its dependencies."""
_TOOL: Final = Path(os.environ.get("DRA_KIT_KIND", ROOT.parent / "shared" / "kind")) / "docker-in-netns"

_CPU_AND_NIC: Final = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: cpu}
spec:
  devices: {requests: [{name: cpu, exactly: {deviceClassName: dra.cpu}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: nic}
spec:
  devices:
    requests: [{name: nic, exactly: {deviceClassName: nic.example.com}}]
    config:
      - opaque:
          driver: nic.example.com
          parameters:
            {apiVersion: nic.example.com/v1, kind: NicConfig, name: net1, addresses: [10.1.2.3/24]}
---
apiVersion: v1
kind: Pod
metadata: {name: both}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: busybox:stable
      command: [sh, -c, "grep Cpus_allowed_list /proc/self/status; ip address show dev net1; exec sleep 3600"]
      resources: {claims: [{name: cpu}, {name: nic}]}
  resourceClaims:
    - {name: cpu, resourceClaimName: cpu}
    - {name: nic, resourceClaimName: nic}
"""

pytestmark = pytest.mark.timeout(1800)


@dataclass(frozen=True)
class Machine:
    """Where nodes of kind start.

    Attributes:
        environment: variables of its commands.
        offline: images are built of what is in the wheelhouse.
    """

    environment: dict[str, str]
    offline: bool

    def run(self, *command: str | Path, where: Path = ROOT) -> str:
        """Return what a command printed; it must succeed."""
        words = list(map(str, command))
        result = subprocess.run(
            words, cwd=where, env=self.environment, capture_output=True, text=True, check=False, timeout=1200
        )
        assert result.returncode == 0, f"{shlex.join(words)}\n{result.stdout[-3000:]}\n{result.stderr[-3000:]}"
        return result.stdout

    def fill(self, project: Path) -> None:
        """Give a project the wheels that its image is made of."""
        wheelhouse = project / "wheelhouse"
        shutil.rmtree(wheelhouse, ignore_errors=True)
        if self.offline:
            fill_wheelhouse(wheelhouse, _MORE_PACKAGES.get(project.name, ()))
        else:
            self.run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", wheelhouse, ROOT)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    if shutil.which("docker") and shutil.which("kind"):
        yield Machine({**os.environ}, offline=False)
        return
    if not _TOOL.exists():
        pytest.skip("NOT tested in kind: install docker and kind")
    try:
        make_base_image(find())
    except CannotBuild as error:
        pytest.skip(f"NOT tested in kind: {error}")
    subprocess.run([_TOOL, "up"], check=True, timeout=600)
    try:
        lines = subprocess.run([_TOOL, "env"], capture_output=True, text=True, check=True).stdout
        shell = subprocess.run(["/bin/bash", "-c", f"{lines} env -0"], capture_output=True, text=True, check=True)
        found = Machine(dict(item.split("=", 1) for item in shell.stdout.split("\0") if item), offline=True)
        # the API server is reached from the tool's network only
        programs = tmp_path_factory.mktemp("bin")
        helm = programs / "helm"
        helm.write_text(f'#!/bin/sh\nexec {_TOOL} run {found.environment["KIND_WORK"]}/bin/helm "$@"\n')
        helm.chmod(0o755)
        found.environment["PATH"] = f"{programs}:{found.environment['PATH']}"
        subprocess.run([_TOOL.with_name("build-node-image")], check=True, timeout=1200)
        archive = Path(found.environment["KIND_WORK"]) / "base.tar"
        archive.unlink(missing_ok=True)
        found.run("buildah", "push", "--quiet", BASE_IMAGE, f"docker-archive:{archive}:docker.io/library/{BASE}")
        found.run("docker", "load", "--quiet", "--input", archive)
        yield found
    finally:
        subprocess.run([_TOOL, "down"], check=True, timeout=600)


@dataclass(frozen=True)
class KindCluster:
    """A cluster of kind in which a project was deployed, with the name of the project."""

    machine: Machine
    project: Path

    @property
    def name(self) -> str:
        """Its name."""
        return self.project.name

    def make(self, *targets: str, project: Path | None = None) -> str:
        """Return what ``make`` printed in its project, or in another one for this cluster."""
        base = ["BASE_IMAGE=" + BASE] if self.machine.offline else []
        where = project or self.project
        variables = (f"VIRTUAL_ENV={self._environment(where)}", f"CLUSTER={self.name}")
        return self.machine.run("make", *targets, *variables, *base, where=where)

    def _environment(self, project: Path) -> Path:
        """Return what stands for a virtual environment in which `make install` has nothing to do."""
        programs = project.parent / f"{project.name}-environment" / "bin"
        if not programs.exists():
            programs.mkdir(parents=True)
            for name in ("python", "dra-kit"):
                wrapper = programs / name
                program = Path(sys.executable).with_name(name)
                # as if the project were installed
                path = f'PYTHONPATH="{project}/src${{PYTHONPATH:+:$PYTHONPATH}}"'
                wrapper.write_text(f'#!/bin/sh\n{path} exec {program} "$@"\n')
                wrapper.chmod(0o755)
        (programs / f".{project.name}").touch()
        return programs.parent

    def kubectl(self, *words: str) -> str:
        """Return what kubectl printed in this cluster."""
        return self.machine.run("kubectl", "--context", f"kind-{self.name}", *words)

    def get(self, *words: str) -> Any:
        """Return objects of this cluster."""
        return json.loads(self.kubectl("get", *words, "--output", "json"))

    def nodes_with_slices(self) -> set[str]:
        """Return the names of the nodes that publish devices."""
        return {item["spec"]["nodeName"] for item in self.get("resourceslices")["items"]}

    def drivers(self) -> set[str]:
        """Return the names of the drivers that publish devices."""
        return {item["spec"]["driver"] for item in self.get("resourceslices")["items"] if item["spec"].get("devices")}

    def wait_until(self, what: str, check: Callable[[], bool], seconds: float = 300) -> None:
        """Wait until a check is true."""
        end = time.monotonic() + seconds
        while not check():
            if time.monotonic() > end:
                raise AssertionError(f"not within {seconds:.0f} s: {what}")
            time.sleep(1)

    def report(self) -> str:
        """Return what may explain a failure: nodes, pods, slices, Events, and logs of drivers, as far as available."""
        parts: list[str] = []
        with suppress(AssertionError, subprocess.TimeoutExpired):
            parts.append(self.kubectl("get", "nodes,pods,resourceslices", "-A", "--output=wide"))
            parts.append(self.kubectl("get", "events", "-A", "--sort-by=.metadata.creationTimestamp")[-6000:])
            for pod in self.get("pods", "-A", "--selector=app.kubernetes.io/component")["items"]:
                name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
                with suppress(AssertionError):
                    log = self.kubectl("logs", "--namespace", namespace, name, "--all-containers", "--tail=40")
                    parts.append(f"{namespace}/{name}\n{log}")
        return "\n".join(parts)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the checkout, so that nothing is left in this one."""
    copy = tmp_path / "checkout"
    ignored = shutil.ignore_patterns(".git", ".venv", "build", "dist", "*cache*", "wheelhouse")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=ignored)  # in the sysfs trees of the gallery, links form circles
    return copy


@contextmanager
def kind_cluster(machine: Machine, project: Path) -> Iterator[KindCluster]:
    """The cluster of a project while a test runs. After a failure, the cluster's report is printed."""
    machine.fill(project)
    cluster = KindCluster(machine, project)
    try:
        yield cluster
    except BaseException:
        print(cluster.report())
        raise
    finally:
        cluster.make("kind-down")


@pytest.mark.parametrize("example", ["pizza-driver", "gpu-driver"])
def test_the_lines_of_an_examples_readme(machine: Machine, checkout: Path, example: str) -> None:
    with kind_cluster(machine, checkout / "examples" / example) as cluster:
        printed = cluster.make("kind-up", "image", "kind-load", "kind-demo")
        assert "pod/demo condition met" in printed
        assert cluster.nodes_with_slices() == {f"{example}-worker"}


def test_a_pod_gets_a_cpu_and_an_interface_from_two_drivers_with_hooks(
    machine: Machine, checkout: Path, tmp_path: Path
) -> None:
    cpu, nic = (checkout / "examples" / name for name in ("cpu-driver", "nic-driver"))
    machine.fill(nic)

    def on_node(*command: str) -> str:
        return machine.run("docker", "exec", "cpu-driver-worker", *command)

    with kind_cluster(machine, cpu) as cluster:
        cluster.make("kind-up", "image", "kind-load")
        cluster.make("image", "kind-load", project=nic)
        on_node("ip", "link", "add", "offered", "type", "veth", "peer", "offered-peer")
        into_kind = (f"KUBE_CONTEXT=kind-{cluster.name}", "VALUES=kind/values.yaml")
        cluster.make("deploy", *into_kind)
        cluster.make("deploy", *into_kind, "SET=--set node.settings.interfaces=offered", project=nic)
        cluster.wait_until("both drivers publish", lambda: {"dra.cpu", "nic.example.com"} == cluster.drivers())
        manifest = tmp_path / "pod.yaml"
        manifest.write_text(_CPU_AND_NIC)
        cluster.kubectl("apply", "--filename", str(manifest))
        cluster.kubectl("wait", "--for=condition=Ready", "--timeout=120s", "pod/both")

        printed = cluster.kubectl("logs", "both")
        assert re.search(r"Cpus_allowed_list:\s+\d+\n", printed)
        assert "inet 10.1.2.3/24" in printed
        [device] = cluster.get("resourceclaim", "nic")["status"]["devices"]
        assert device["networkData"]["ips"] == ["10.1.2.3/24"]
        assert " offered@" not in on_node("ip", "-oneline", "link", "show")
        cluster.kubectl("delete", "pod", "both", "--timeout=120s")
        cluster.wait_until("the interface is back", lambda: " offered@" in on_node("ip", "-oneline", "link", "show"))


def test_a_new_project_on_three_nodes_survives_the_loss_of_one(machine: Machine, tmp_path: Path) -> None:
    project = tmp_path / "led-driver"
    machine.run(Path(sys.executable).with_name("dra-kit"), "new", "led-driver", "--defaults", "--directory", project)
    config = project / "kind" / "cluster.yaml"
    config.write_text(config.read_text() + "  - role: worker\n")
    workers = {"led-driver-worker", "led-driver-worker2"}
    with kind_cluster(machine, project) as cluster:
        assert "pod/demo condition met" in cluster.make("kind-up", "image", "kind-load", "kind-demo")
        cluster.wait_until("both workers publish", lambda: cluster.nodes_with_slices() == workers)

        lost = cluster.get("pod", "demo")["spec"]["nodeName"]
        (other,) = workers - {lost}
        machine.run("docker", "kill", lost)
        replacement = tmp_path / "replacement.yaml"
        documents = list(yaml.safe_load_all((project / "demo" / "pod.yaml").read_text()))
        (pod,) = [document for document in documents if document["kind"] == "Pod"]
        pod["metadata"]["name"] = "replacement"
        pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": other}
        replacement.write_text(yaml.safe_dump(pod))
        cluster.kubectl("apply", "--filename", str(replacement))
        cluster.kubectl("wait", "--for=condition=Ready", "--timeout=120s", "pod/replacement")

        machine.run("docker", "start", lost)
        cluster.wait_until("the lost node is back", lambda: _is_ready(cluster.get("node", lost)))
        cluster.wait_until("its devices are published", lambda: cluster.nodes_with_slices() == workers)
        cluster.kubectl("delete", "pod", "demo", "replacement", "--timeout=120s")
        pod["metadata"]["name"] = "again"
        pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": lost}
        replacement.write_text(yaml.safe_dump(pod))
        cluster.kubectl("apply", "--filename", str(replacement))
        cluster.kubectl("wait", "--for=condition=Ready", "--timeout=180s", "pod/again")


def _is_ready(node: dict[str, Any]) -> bool:
    return any(item["type"] == "Ready" and item["status"] == "True" for item in node["status"]["conditions"])
