"""The deployed GPU driver, with fake GPUs on the real node."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.cluster.access import Access
from tests.cluster.deployed import KUBELET_DIR, wait_until
from tests.cluster.find import REPOSITORY
from tests.cluster.node_driver import NodeDriver, RealCluster
from tests.cluster.plane import Plane
from tests.cluster.release import Release, release

PROJECT: Final = REPOSITORY / "examples" / "gpu-driver"
PACKAGES: Final = ("nvidia-ml-py",)
DRIVER: Final = "gpu.nvidia.com"
MPS_ROOT: Final = Path("/run/gpu.nvidia.com")
_PLUGIN_DIR: Final = KUBELET_DIR / "plugins" / DRIVER
_NO_SUCH_NODE: Final = "dra-kit.example/no-such-node"
_COMMAND: Final = re.compile(r"^\$ dra-kit sandbox \. --story stories/(\S+) --fake-gpus (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class FakeGpus:
    """The settings of the driver's fake GPUs.

    Attributes:
        profile: the GPUs that it pretends to have.
        settings: others of its own.
    """

    profile: str
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """For a folder."""
        return "-".join([self.profile, *self.settings])


def fake_gpus_of(story: str) -> FakeGpus:
    """What the command in a story's README tells it."""
    readme = (PROJECT / "stories" / story / "README.md").read_text(encoding="utf-8")
    [(_, told)] = _COMMAND.findall(readme)
    profile, *words = shlex.split(told)
    settings: dict[str, object] = {}
    for word in words:
        if word.startswith("--"):
            settings[word.removeprefix("--").replace("-", "_")] = True
        else:
            settings[list(settings)[-1]] = word
    return FakeGpus(profile, settings)


@dataclass
class GpuNode:
    """The node with the driver on it.

    Attributes:
        release: of the chart, with the values that the project brings along.
        image: of the driver.
        told: what it pretends to have.
    """

    release: Release
    image: str
    told: FakeGpus = FakeGpus("")

    @property
    def plane(self) -> Plane:
        """The cluster."""
        return self.release.plane

    @property
    def state_dir(self) -> Path:
        """One for each: GPUs that were there before would be missed."""
        return _PLUGIN_DIR / self.told.label

    @property
    def files(self) -> Mapping[str, Path]:
        """Where stories look: what is done to the GPUs, and the logs of MPS."""
        return {
            "fake_folder": self.state_dir / "author" / "fake-gpus",
            "fake_folder/mps": MPS_ROOT / "mps",
        }

    def values(self) -> Mapping[str, Any]:
        """What differs from the project's own values."""
        node = {
            "stateDir": str(self.state_dir),
            "settings": {"fake_gpus": self.told.profile, "dynamic_mig": False, **self.told.settings},
            "minReadySeconds": 0,
        }
        repository, _, tag = self.image.rpartition(":")
        image = {"repository": repository, "tag": tag}
        one = {"replicas": 1}  # with two, a drain would wait for another node
        none = {"enabled": False}
        return {"image": image, "logging": {"format": "text"}, "node": node, "controller": one, "webhook": none}

    def pretend(self, told: FakeGpus) -> None:
        """Have the GPUs of a profile, if it has not yet.

        The former driver ends first: with another state directory, neither of two processes would know of the other,
        and both would publish their GPUs.
        """
        if told == self.told:
            return
        if self.release.pods("node"):
            self._install(nodeSelector={_NO_SUCH_NODE: "true"})
            wait_until("the driver's pod to go", lambda: not self.release.pods("node"))
            self.plane.delete_slices(DRIVER)
        self.told = told
        self.apply()

    def apply(self, **node: object) -> None:
        """Install or upgrade it, and wait until the new pod serves alone and has published its devices."""
        self._install(**node)
        self.release.rolled_out("daemonset", "node")
        wait_until("one pod of the driver", lambda: len(self.release.pods("node")) == 1)
        wait_until("GPUs", lambda: bool(self.slices()))

    def _install(self, **node: object) -> None:
        values = self.values()
        self.release.apply({**values, "node": {**values["node"], **node}})

    def lose_state(self) -> None:
        """The driver's database goes while no process has it open: one that runs would write it again."""
        self._ask_of_nodes("true")
        wait_until("the driver's pod to go", lambda: not self.release.pods("node"))
        for file in self.state_dir.glob("state.sqlite*"):
            file.unlink()
        self._ask_of_nodes(None)
        self.release.rolled_out("daemonset", "node")

    def _ask_of_nodes(self, value: str | None) -> None:
        """Let the driver run on no node, or again on all."""
        patch = {"spec": {"template": {"spec": {"nodeSelector": {_NO_SUCH_NODE: value}}}}}
        name = f"{self.release.name}-node"
        self.release.kubectl("patch", "daemonset", name, "--type=merge", "--patch", json.dumps(patch))

    def slices(self) -> list[Any]:
        """Its ResourceSlices."""
        return self.plane.slices(DRIVER)

    def metrics(self) -> str:
        """What the node role tells Prometheus, asked through the API server."""
        (pod,) = self.release.pods("node")
        place = f"/api/v1/namespaces/{self.release.namespace}/pods/{pod['metadata']['name']}:8081"
        return self.plane.kubectl("get", "--raw", f"{place}/proxy/metrics").stdout

    @asynccontextmanager
    async def cluster(self, log: Path) -> AsyncIterator[RealCluster]:
        """The cluster as stories see it."""
        access = Access(self.plane, self.release.name, self.release.namespace)
        with self.release.followed_log("node", log) as process:
            driver = NodeDriver(self.plane, access, DRIVER, process, self.state_dir, files=self.files)
            async with driver.cluster() as cluster:
                yield cluster


@contextmanager
def shared_mps_root() -> Iterator[None]:
    """Let the host see what the driver mounts in its container, as systemd does for all of a host."""
    MPS_ROOT.mkdir(exist_ok=True)
    for words in (("--bind", str(MPS_ROOT), str(MPS_ROOT)), ("--make-shared", str(MPS_ROOT))):
        subprocess.run(["/bin/mount", *words], check=True)
    try:
        yield
    finally:
        subprocess.run(["/bin/umount", "--lazy", str(MPS_ROOT)], check=True)
        shutil.rmtree(MPS_ROOT, ignore_errors=True)


@contextmanager
def gpu_node(plane: Plane, image: str) -> Iterator[GpuNode]:
    """The chart's release with the values of the project; nothing is installed yet."""
    files = [PROJECT / "values.yaml", PROJECT / "kind" / "values.yaml"]
    flags = [word for file in files for word in ("--values", file)]
    try:
        with release(plane, "gpu", {}, flags) as made:
            yield GpuNode(made, image)
    finally:
        plane.delete_slices(DRIVER)
        shutil.rmtree(_PLUGIN_DIR, ignore_errors=True)
