"""Simulated interfaces: files in a directory. A profile names them; a pod's namespace is a file with names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import RLock
from typing import Any
from urllib.parse import quote, unquote

import dra_kit as dra
import yaml
from typing_extensions import override

from nic_driver.links import Link, Move, Network

PROFILES = Path(__file__).parent / "profiles"


class SimulatedNetwork(Network):
    """Each interface is a file, in the folder of the node or of a pod; moving it is one rename."""

    def __init__(self, directory: Path) -> None:
        self._node, self._pods = directory / "node", directory / "pods"
        self._lock = RLock()  # discovery and hooks run in different threads

    @override
    def links(self) -> Iterable[Link]:
        with self._lock:
            for folder in self._pods.glob("*"):  # a namespace that ended: hardware returns with its name in the pod
                if not Path(unquote(folder.name)).exists():
                    for file in folder.iterdir():
                        file.rename(self._node / file.name)
                    folder.rmdir()
            return [_read(file) for file in sorted(self._node.iterdir())]

    @override
    def attach(self, move: Move, netns: Path) -> str:
        folder = self._pods / quote(str(netns), safe="")
        with self._lock:
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / move.interface).exists():
                file = self._file(move)
                if file is None:
                    raise dra.TransientError(f"interface {move.link.name} is not on the node: it is in another pod")
                file.rename(folder / move.interface)
            netns.write_text("".join(f"{file.name}\n" for file in sorted(folder.iterdir())), encoding="utf-8")
        return move.link.mac

    @override
    def detach(self, move: Move, netns: Path) -> None:
        moved = self._pods / quote(str(netns), safe="") / move.interface
        with self._lock:
            if moved.exists():
                moved.rename(self._node / move.link.name)

    @override
    def restore(self, move: Move) -> bool:
        with self._lock:
            file = self._file(move)
            if file is not None:
                file.rename(self._node / move.link.name)
        return file is not None

    def _file(self, move: Move) -> Path | None:
        self.links()
        return next((file for file in self._node.iterdir() if _read(file).is_same(move.link)), None)


def make_tree(profile: str, directory: Path) -> None:
    """Create the sysfs tree, the device files and the interfaces of a profile, if they do not exist.

    A profile is a list of cards. Their keys are ``interface``, ``pci`` and ``root`` (PCIe root), and may be
    ``functions`` (number of virtual functions), ``numa``, ``rdma`` and ``uplink`` (has the default route).
    """
    made, number = directory / "new", 0
    if (directory / "node").exists():
        return
    made.mkdir(parents=True, exist_ok=True)
    for card in yaml.safe_load((PROFILES / f"{profile}.yaml").read_text(encoding="utf-8")):
        for index in range(card.get("functions", 0) + 1):  # 0: the card itself
            name = card["interface"] + (f"v{index - 1}" if index else "")
            address, uplink = f"{card['pci'][:-1]}{index}", not index and "uplink" in card
            link = Link(name=name, mac=f"02:00:00:00:00:{number:02x}", pci=address, in_use=uplink)
            (made / name).write_text(link.model_dump_json(), encoding="utf-8")
            _make_function(directory, card, index, address, f"uverbs{number}")
            number += 1
    made.rename(directory / "node")  # last: a tree with it is complete


def _make_function(directory: Path, card: Mapping[str, Any], index: int, address: str, rdma: str) -> None:
    devices, bus = directory / "sys" / "devices" / card["root"], directory / "sys" / "bus" / "pci" / "devices"
    folder, files = devices / address, directory / "dev" / "infiniband"
    for path in (folder, bus, files):
        path.mkdir(parents=True, exist_ok=True)
    for name, value in {"vendor": "0x15b3", "device": "0x101e", "numa_node": card.get("numa", -1)}.items():
        (folder / name).write_text(f"{value}\n", encoding="utf-8")
    links = {bus / address: folder}
    if index:
        links |= {folder / "physfn": devices / card["pci"], devices / card["pci"] / f"virtfn{index - 1}": folder}
    for link, target in links.items():
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    if card.get("rdma"):
        (folder / "infiniband_verbs" / rdma).mkdir(parents=True, exist_ok=True)
        for name in (rdma, "rdma_cm"):
            (files / name).touch()


def _read(file: Path) -> Link:
    return Link.model_validate_json(file.read_text(encoding="utf-8")).model_copy(update={"name": file.name})
