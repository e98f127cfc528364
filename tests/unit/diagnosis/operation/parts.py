"""A driver that has every part which needs rights of its own, and an API server to read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

import dra_kit as dra
from dra_kit.apiserver.server import run_in_thread
from dra_kit.kubernetes.release import Release


class Warehouse(dra.DeviceProvider, scope="cluster"):
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield []


class Courier(dra.DeviceBinder):
    def bind(self, claim: dra.ObservedClaim, device: dra.ObservedDevice) -> None:
        """Bound at once."""


class Recall(dra.TaintRuleSource):
    def rules(self) -> Iterator[Sequence[dra.TaintRule]]:
        yield []


class Menu(dra.DevicePolicy, watches=dra.WatchedObject(group="kitchen.example", version="v1", plural="nodemenus")):
    def advertise(self, device: dra.Device, watched: Mapping[str, Any] | None) -> dra.Device:
        return device


class Waiter(dra.Preparer):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        return dra.Prepared()


class Bell(dra.ClusterObject, id="bell", api_version="kitchen.example/v1", kind="Bell", plural="bells"):
    def body(self) -> Mapping[str, Any]:
        return {"spec": {"rings": 1}}

    @classmethod
    def rules(cls) -> list[dict[str, list[str]]]:
        return [{"apiGroups": ["kitchen.example"], "resources": ["bells"], "verbs": ["get"]}]

    @classmethod
    def namespaces(cls, settings: Any) -> list[str]:
        return ["kitchen"]


def whole(name: str) -> dra.Driver[Any, Any]:
    """With all of them."""
    return dra.Driver(
        name,
        preparer=Waiter(),
        cluster_provider=Warehouse(),
        binder=Courier(),
        taint_rules=Recall(),
        policy=Menu(),
        effects=[Bell],
    )


@contextmanager
def api_server(folder: Path, gates: Release | None = None) -> Iterator[Path]:
    """The sandbox's API server, by its kubeconfig."""
    with run_in_thread(release=gates) as server:
        config = folder / "kubeconfig"
        config.write_text(yaml.safe_dump(server.kubeconfig()))
        yield config
