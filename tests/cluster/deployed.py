"""The example driver as it is deployed: image, chart and real node, under a name of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.access import Access
from tests.cluster.node_driver import CDI_DIR, NodeDriver
from tests.cluster.pizza import PROJECT
from tests.cluster.plane import Plane
from tests.cluster.release import Release, release
from tests.cluster.renamed import renamed_manifests
from tests.life.switches import until
from tests.support.files import files_below

KUBELET_DIR = Path("/var/lib/kubelet")
DEADLINE_SECONDS = 180
POLL_SECONDS = 0.5
"""A look by kubectl takes a tenth of a second of a processor, which others wait for."""
_CODE_DIR = "/etc/kitchen"
_CODE = """
import dra_kit as dra
from pizza_driver.driver import HeatOven, Kitchen, KitchenSettings, Waiter

driver = dra.Driver({name!r}, provider=Kitchen(), preparer=Waiter(), effects=[HeatOven], settings=KitchenSettings)
"""


@dataclass(frozen=True)
class Deployed:
    """A driver that the chart deployed.

    Attributes:
        name: of the driver.
        release: of the chart.
        directory: on the node, for its menu and its oven.
    """

    name: str
    release: Release
    directory: Path

    @property
    def plugin_dir(self) -> Path:
        """Its sockets and its durable state."""
        return KUBELET_DIR / "plugins" / self.name

    def sockets(self) -> list[Path]:
        """All its sockets that lie on the node."""
        registry = (KUBELET_DIR / "plugins_registry").glob(f"{self.name}*")
        return sorted([*self.plugin_dir.glob("*.sock"), *registry])

    def cdi_files(self) -> list[Path]:
        """Its CDI files."""
        return sorted(path for path in files_below(CDI_DIR) if self.name in path.name)

    def slices(self) -> list[Any]:
        """Its ResourceSlices."""
        return self.release.plane.slices(self.name)

    def devices(self) -> list[str]:
        """Names of all devices that it publishes."""
        return [device["name"] for item in self.slices() for device in item["spec"].get("devices", [])]

    @contextmanager
    def node_driver(self, log: Path) -> Iterator[NodeDriver]:
        """The client of stories, and the log of the node's pod while it runs."""
        plane = self.release.plane
        access = Access(plane, self.release.name, self.release.namespace)
        files = {"menu": self.directory / "menu" / "menu.yaml"}
        with self.release.followed_log("node", log) as process:
            yield NodeDriver(plane, access, self.name, process, self.plugin_dir, self.directory / "oven", files)


@contextmanager
def deployed(plane: Plane, image: str, name: str) -> Iterator[Deployed]:
    """Install the chart for the kitchen under another name, with its DeviceClasses, until its pizzas are published."""
    assert plane.node is not None
    directory = plane.directory / name
    for part in ("menu", "oven"):
        (directory / part).mkdir(parents=True)
    shutil.copy(PROJECT / "menu.yaml", directory / "menu")
    classes = renamed_manifests((PROJECT / "deviceclasses.yaml").read_text(encoding="utf-8"), name)
    try:
        with release(plane, name.split(".", maxsplit=1)[0], _values(plane.node, image, name, directory)) as made:
            driver = Deployed(name, made, directory)
            plane.kubectl("apply", "-f", "-", stdin=classes)
            plane.kubectl("apply", "-f", "-", stdin=json.dumps(_code(name, made.namespace)))
            made.apply()
            made.rolled_out("daemonset", "node")
            wait_until(f"pizzas of {name}", lambda: bool(driver.devices()))
            yield driver
    finally:
        plane.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=classes)
        plane.delete_slices(name)
        # by intention the chart leaves it: the state is for the driver that comes back
        shutil.rmtree(KUBELET_DIR / "plugins" / name, ignore_errors=True)
        shutil.rmtree(directory)


def wait_until(what: str, ready: Callable[[], object]) -> None:
    """Wait until something is true.

    Raises:
        AssertionError: it is not, in the end.
    """
    until(what, ready, within=DEADLINE_SECONDS, longest_poll=POLL_SECONDS)


def wait_for(question: Callable[[], object], answer: object) -> None:
    """Wait until a question has an answer.

    Raises:
        AssertionError: it has another one, in the end.
    """
    until(f"{answer}", lambda: question() == answer, lambda: f"it is {question()}", DEADLINE_SECONDS, POLL_SECONDS)


def _code(name: str, namespace: str) -> dict[str, Any]:
    """The module with the driver's name in it; the image has that of the original."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "kitchen", "namespace": namespace},
        "data": {"kitchen.py": _CODE.format(name=name)},
    }


def _values(node: str, image: str, name: str, directory: Path) -> dict[str, Any]:
    repository, _, tag = image.rpartition(":")
    code = {"name": "code", "configMap": {"name": "kitchen"}}
    code_mount = {"name": "code", "mountPath": _CODE_DIR}
    here = {"kubernetes.io/hostname": node}
    hardware = {"name": "hardware", "hostPath": {"path": str(directory), "type": "Directory"}}
    return {
        "driverName": name,
        "image": {"repository": repository, "tag": tag},
        "target": f"{_CODE_DIR}/kitchen.py",
        "logging": {"format": "text"},
        "node": {
            "nodeSelector": here,
            "settings": {"menu": str(directory / "menu" / "menu.yaml"), "hardware_dir": str(directory / "oven")},
            "extraVolumes": [code, hardware],
            "extraVolumeMounts": [code_mount, {"name": "hardware", "mountPath": str(directory)}],
        },
        "controller": {"nodeSelector": here, "extraVolumes": [code], "extraVolumeMounts": [code_mount]},
    }
