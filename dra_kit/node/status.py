"""How the driver is on this node: the document behind ``dra-kit status``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from dra_kit import __version__
from dra_kit.author.devices.device import Device
from dra_kit.author.devices.inventory import Inventory
from dra_kit.errors import DraKitError
from dra_kit.kube.client import Client
from dra_kit.kube.resources import RESOURCE_SLICES
from dra_kit.node.operation.failures import LastFailures
from dra_kit.node.operation.who import PreparedDevices
from dra_kit.node.parts import KubeletRegistration
from dra_kit.node.slices.scope import field_selector
from dra_kit.node.state.records import EffectRecord
from dra_kit.node.state.store import Store
from dra_kit.process.supervisor import Supervisor
from dra_kit.publishing.inventory import CurrentInventory
from dra_kit.publishing.publisher import Publisher

if TYPE_CHECKING:
    from dra_kit.plugin.health import DeviceHealth  # takes memory where a driver has no health source


class NodeView(Struct, frozen=True, kw_only=True):
    """What there is to look at on a node; nothing is changed through it.

    Attributes:
        prepared: devices and who has them.
        store: the durable state.
        in_force: whether an effect is.
        publisher: of slices.
        inventory: the latest one.
        client: of the API server.
        kubelet: the registration with it.
        pod_uid: of the process's pod; empty where it has none.
        health: what the kubelet gets of devices; None where the driver tells nothing.
        supervisor: runs the parts of the process.
        failures: what failed last.
    """

    prepared: PreparedDevices
    store: Store
    in_force: Callable[[EffectRecord], bool]
    publisher: Publisher
    inventory: CurrentInventory
    client: Client
    kubelet: KubeletRegistration
    pod_uid: str
    health: Callable[[], Sequence[DeviceHealth]] | None
    supervisor: Supervisor
    failures: LastFailures


class NodeStatus:
    """Puts the document together.

    Args:
        view: what there is to look at.
    """

    def __init__(self, view: NodeView) -> None:
        self._view = view
        self._began = datetime.now(UTC)

    async def document(self) -> dict[str, Any]:
        """Return all of it; a part that cannot be read says why, and hides no other."""
        view = self._view
        document: dict[str, Any] = {
            "driver": view.prepared.driver,
            "node": view.prepared.node,
            "release": __version__,
            "pid": os.getpid(),
            "podUID": view.pod_uid,
            "started": self._began.isoformat(timespec="seconds"),
            "registration": _registration(view.kubelet),
            "parts": {
                name: {
                    "state": str(part.state),
                    "restarts": part.restarts,
                    "error": part.error,
                    "waitsFor": part.waits_for,
                    "after": list(part.after),
                }
                for name, part in view.supervisor.status().items()
            },
            "failures": [item.to_json() for item in view.failures.all()],
        }
        document["devices"] = await _read(self._devices)
        document["claims"] = await _read(self._claims)
        document["effects"] = await _read(self._effects)
        document["state"] = await _read(self._state)
        document["slices"] = await self._slices()
        if view.health is not None:
            document["health"] = [
                {"pool": item.pool, "device": item.device, "health": item.status, "message": item.message}
                for item in view.health()
            ]
        return document

    async def _devices(self) -> list[Any]:
        return [use.to_json() for use in await self._view.prepared.in_use()]

    async def _claims(self) -> list[Any]:
        return [
            {
                "namespace": record.namespace,
                "name": record.name,
                "uid": record.uid,
                "phase": "preparing" if record.preparing else record.phase,
                "outdated": record.outdated,
            }
            for record in self._view.store.claims()
        ]

    async def _effects(self) -> list[Any]:
        return [
            {
                "effect": record.effect,
                "keys": list(record.keys),
                "state": effect_state(record, in_force=self._view.in_force(record)),
                "claims": [f"{claim.namespace}/{claim.name}" for claim in record.claims],
                "error": record.error,
            }
            for record in self._view.store.effects()
        ]

    async def _state(self) -> dict[str, Any]:
        store = self._view.store
        return {"damaged": [str(item) for item in store.damage()], "incomplete": store.incomplete()}

    async def _slices(self) -> dict[str, Any]:
        view = self._view
        node = view.prepared.node
        found: dict[str, Any] = {
            "wanted": _wanted(view.publisher.wanted, node),
            "lastError": view.publisher.last_error,
            "lastPublished": _time(view.publisher.record.last_success),
            "discoverError": view.inventory.problem,
        }
        try:
            listed = await view.client.list(RESOURCE_SLICES, field_selector=field_selector(view.prepared.driver, node))
        except DraKitError as error:
            return found | {"published": None, "notRead": str(error)}
        return found | {"published": _published(listed.items)}


def effect_state(record: EffectRecord, *, in_force: bool) -> str:
    """One word for an effect: ``in_force``, ``pending``, ``reverting`` or ``revert_failed``."""
    if in_force:
        return "in_force"
    if record.error:
        return "revert_failed"
    return "reverting" if record.phase == "reverting" else "pending"


async def _read(part: Callable[[], Any]) -> Any:
    try:
        return await part()
    except DraKitError as error:
        return {"notRead": str(error), "code": error.code}


def _registration(kubelet: KubeletRegistration) -> dict[str, Any]:
    status = kubelet.status
    if status is not None:
        state = "registered" if status.registered else "refused"
        at = kubelet.status_at
        return {"state": state, "text": status.error, "at": at.isoformat() if at is not None else None}
    if kubelet.is_deferred:
        return {"state": "deferred", "text": kubelet.waits_for()}
    return {"state": "waiting", "text": "no kubelet has come yet"}


def _wanted(inventory: Inventory[Device] | None, node: str) -> list[Any] | None:
    if inventory is None:
        return None
    return [
        {"pool": pool.name or node, "devices": sorted(device.name for device in pool.devices)}
        for pool in inventory.pools
    ]


def _published(slices: Sequence[Mapping[str, Any]]) -> list[Any]:
    pools: dict[str, dict[str, Any]] = {}
    for item in slices:
        spec = item["spec"]
        name, generation = spec["pool"]["name"], spec["pool"]["generation"]
        pool = pools.setdefault(name, {"pool": name, "generation": generation, "slices": 0, "devices": []})
        if generation < pool["generation"]:
            continue  # an older one is on its way out
        if generation > pool["generation"]:
            pool.update(generation=generation, slices=0, devices=[])
        pool["slices"] += 1
        pool["devices"] += [str(device["name"]) for device in spec.get("devices") or ()]
    return [pool | {"devices": sorted(pool["devices"])} for pool in pools.values()]


def _time(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else None
