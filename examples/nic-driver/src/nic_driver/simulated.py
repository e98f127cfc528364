"""Simulated interfaces: files in a directory. A profile has them all; a pod's namespace is a file with names."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any, Self

import dra_kit as dra
import yaml
from pydantic import BaseModel

from nic_driver.hardware import Link, Move, Network


class Place(BaseModel):
    """Where an interface is. Hardware returns from a namespace that ends, with its name in the pod."""

    link: Link
    netns: Path | None = None

    @classmethod
    def read(cls, file: Path) -> Self:
        """Return what is in a file."""
        return cls.model_validate_json(file.read_text(encoding="utf-8"))

    def write(self, file: Path) -> None:
        """Replace the file. A kill leaves no incomplete one."""
        new = file.with_name(f".{file.name}")
        new.write_text(self.model_dump_json(), encoding="utf-8")
        new.replace(file)

    def is_on_node(self) -> bool:
        """Return whether no pod has the interface."""
        return self.netns is None or not self.netns.exists()


class SimulatedNetwork(Network):
    """Each interface is a file with its place."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "node"
        self._lock = Lock()  # hooks run in different threads

    def links(self) -> list[Link]:
        return [place.link for place in map(Place.read, self._files()) if place.is_on_node()]

    def attach(self, move: Move, netns: Path) -> dra.NetworkDeviceData:
        if not self._put(move, move.interface, netns, netns):
            raise dra.TransientError(f"interface {move.link.name} is not on the node: it is in another pod")
        names = {*netns.read_text(encoding="utf-8").split(), move.interface}
        netns.write_text("".join(f"{name}\n" for name in sorted(names)), encoding="utf-8")
        return move.network_data(move.link.mac)

    def detach(self, move: Move, netns: Path) -> None:
        self._put(move, move.link.name, None, netns)

    def restore(self, move: Move) -> bool:
        return self._put(move, move.link.name, None, None)

    def _put(self, move: Move, name: str, netns: Path | None, held: Path | None) -> bool:
        """Put the interface of a move into a namespace, if it is on the node or in the one that may hold it."""
        with self._lock:
            for file in self._files():
                place = Place.read(file)
                if place.link.is_same(move.link) and (place.is_on_node() or place.netns == held):
                    Place(link=move.link.model_copy(update={"name": name}), netns=netns).write(file)
                    return True
        return False

    def _files(self) -> list[Path]:
        return sorted(self._directory.glob("[!.]*"))  # without what is being written


def make_tree(profile: str, directory: Path) -> None:
    """Create the sysfs tree, the device files and the interfaces of a profile, if they do not exist."""
    if not (directory / "node").exists():
        made = Path(tempfile.mkdtemp(dir=directory.parent))  # a tree that exists is complete
        _make(made, yaml.safe_load((Path(__file__).parent / "profiles" / f"{profile}.yaml").read_text("utf-8")))
        made.rename(directory)


def _make(place: Path, content: Mapping[str, Any] | str | int) -> None:
    if isinstance(content, Mapping):
        place.mkdir(parents=True, exist_ok=True)
        for name, part in content.items():
            _make(place / name, part)
    elif str(content).startswith("->"):
        place.symlink_to(str(content).removeprefix("->").strip())
    else:
        place.write_text(str(content), encoding="utf-8")
