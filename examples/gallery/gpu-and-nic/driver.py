"""Pairs of a GPU and a NIC on one PCIe root, made of the devices of two other drivers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

from pydantic import BaseModel

import dra_kit as dra

NAME = "pair.example.com"
API = "resource.k8s.io/v1"
CLAIMS = "resourceclaims"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
PAIR_LABEL = f"{NAME}/claim"  # on what the controller creates: a reservation's claim (its UID), or "all" for a taint


class Settings(BaseModel):
    """The drivers whose devices are paired."""

    gpu_driver: str = "gpu.example.com"
    nic_driver: str = "nic.example.com"


class Pair(dra.Device):
    """A GPU and a NIC. The pod does not start before both are reserved for it."""

    binds_to_node: bool | None = True
    binding_conditions: Sequence[str] = (f"{NAME}/reserved",)
    binding_failure_conditions: Sequence[str] = (f"{NAME}/taken",)


class Part(BaseModel, frozen=True):
    """A device of another driver."""

    driver: str
    pool: str
    device: str


class Pairs(dra.DeviceProvider[Pair, None, Settings], scope="cluster"):
    """Reads the ResourceSlices of both drivers, and publishes a pool for each node. Runs in the controller."""

    parts: dict[tuple[str, str], tuple[Part, Part]] = {}  # by pool and device, as last found; the binder reads them

    def discover(self) -> Iterator[dra.Inventory[Pair]]:
        """Read everything again every two seconds (``rescan_every``)."""
        found, seconds = self.find(), 0 if self.parts else 30  # the other drivers may be starting, too
        while not found and seconds and not self.context.stopping.blocking_sleep(1):
            found, seconds = self.find(), seconds - 1
        self.taint({part for pair in found.values() for part in pair})  # before a pair is published
        taken = {part for part, claim in allocated(self.context.cluster) if not is_ours(claim)}
        pools: dict[str, list[Pair]] = {}
        for (node, device), pair in found.items():
            if not taken & {*pair}:
                pools.setdefault(f"pairs-{node}", []).append(Pair(name=device, node_name=node))
        Pairs.parts = {(f"pairs-{node}", device): pair for (node, device), pair in found.items()}
        offered = [dra.Pool(name=name, per_device_node_selection=True, devices=pools[name]) for name in sorted(pools)]
        yield dra.Inventory(pools=offered)

    def find(self) -> dict[tuple[str, str], tuple[Part, Part]]:
        """Return the pairs by node and name: the first GPU of a PCIe root with the first NIC, and so on."""
        roots: dict[tuple[str, str], dict[str, list[Part]]] = {}
        for item in self.context.cluster.list(API, "resourceslices").result():
            spec = item["spec"]
            for device in spec.get("devices") or []:
                root = (device.get("attributes") or {}).get(PCIE_ROOT, {}).get("string")
                if root and "nodeName" in spec:
                    part = Part(driver=spec["driver"], pool=spec["pool"]["name"], device=device["name"])
                    roots.setdefault((spec["nodeName"], root), {}).setdefault(part.driver, []).append(part)
        kinds = self.context.settings.gpu_driver, self.context.settings.nic_driver
        return {  # no name of a device is longer than 63; that of the GPU makes it unique
            (node, f"{gpu.device}-{nic.device}"[:63].rstrip("-")): (gpu, nic)
            for (node, _), of_root in sorted(roots.items())
            for gpu, nic in zip(*(of_root.get(kind, []) for kind in kinds), strict=False)
        }

    def taint(self, parts: Iterable[Part]) -> None:
        """Taint the parts of pairs, so that the scheduler does not give them to other claims; remove other taints."""
        cluster = self.context.cluster  # below: pools have names with slashes, which no object can have
        wanted = {f"part-{uuid5(NAMESPACE_DNS, part.model_dump_json())}": part for part in parts}
        rules = cluster.list(API, "devicetaintrules", label_selector=f"{PAIR_LABEL}=all").result()
        known = {rule["metadata"]["name"] for rule in rules}
        taint = {"key": f"{NAME}/part", "effect": "NoSchedule"}
        for name in sorted(wanted.keys() - known):
            spec = {"deviceSelector": wanted[name].model_dump(), "taint": taint}
            manifest = {"kind": "DeviceTaintRule", "metadata": {"name": name, "labels": {PAIR_LABEL: "all"}}}
            cluster.apply("devicetaintrules", {"apiVersion": API, **manifest, "spec": spec}).result()
        for name in known - wanted.keys():
            cluster.delete(API, "devicetaintrules", name).result()


def allocated(cluster: dra.ClusterApi) -> Iterator[tuple[Part, Mapping[str, Any]]]:
    """Yield which device is allocated to which claim, in the whole cluster."""
    for claim in cluster.list(API, CLAIMS).result():
        allocation = (claim.get("status") or {}).get("allocation") or {}
        for result in allocation.get("devices", {}).get("results", []):
            if not result.get("adminAccess"):
                yield Part(driver=result["driver"], pool=result["pool"], device=result["device"]), claim


def is_ours(claim: Mapping[str, Any]) -> bool:
    """Return whether a claim is a reservation of this driver."""
    return PAIR_LABEL in (claim["metadata"].get("labels") or {})


def reservation(claim_uid: str, device: str) -> str:
    """Return the name of the claim that reserves the parts of a pair."""
    return f"{claim_uid}-{device}"


class Reserver(dra.DeviceBinder[Settings]):
    """Creates a second claim to which the parts are allocated: both drivers prepare it, and the scheduler counts it."""

    def bind(self, claim: dra.ObservedClaim, device: dra.ObservedDevice) -> None:
        """Reserve both parts, unless another claim has one of them: then the scheduler takes another pair."""
        cluster, pair = self.context.cluster, Pairs.parts.get((device.pool, device.name))
        if pair is None:
            raise dra.NotYet(f"the slices of the other drivers do not have the parts of {device.name}")
        name = reservation(claim.uid, device.name)
        place = {"name": name, "namespace": claim.namespace}
        owner = {"apiVersion": API, "kind": "ResourceClaim", "name": claim.name, "uid": claim.uid}
        metadata = {**place, "labels": {PAIR_LABEL: claim.uid}, "ownerReferences": [owner]}
        requests = [{"name": f"part-{n}", "exactly": {"deviceClassName": NAME}} for n in range(len(pair))]
        results = [{"request": f"part-{n}", **part.model_dump()} for n, part in enumerate(pair)]
        manifest = {"apiVersion": API, "kind": "ResourceClaim"}
        spec, status = {"devices": {"requests": requests}}, {"allocation": {"devices": {"results": results}}}
        cluster.apply(CLAIMS, {**manifest, "metadata": metadata, "spec": spec}).result()
        cluster.apply(CLAIMS, {**manifest, "metadata": place, "status": status}, subresource="status").result()
        for part, other in allocated(cluster):  # now that the scheduler sees the reservation
            if part in pair and (at := other["metadata"])["name"] != name:
                self.release(claim, device)
                self.context.rescan()
                raise dra.PermanentError(f"{part.device} of {part.driver} has claim {at['namespace']}/{at['name']}")

    def release(self, claim: dra.ObservedClaim, device: dra.ObservedDevice) -> None:
        """Delete the reservation: the drivers have released it, when the kubelet released the pair."""
        self.context.cluster.delete(API, CLAIMS, reservation(claim.uid, device.name), claim.namespace).result()

    def resume(self, held: Sequence[tuple[dra.ObservedClaim, dra.ObservedDevice]]) -> None:
        """Delete the reservations of claims that were released while no controller ran."""
        needed = {reservation(claim.uid, device.name) for claim, device in held}
        for item in filter(is_ours, self.context.cluster.list(API, CLAIMS).result()):
            if (name := item["metadata"]["name"]) not in needed:
                self.context.cluster.delete(API, CLAIMS, name, item["metadata"]["namespace"]).result()


class PreparedPart(dra.Effect[list[str]], id="prepared-part"):
    """A reservation that another driver has prepared; its outcome is what a container gets, as CDI devices."""

    driver: str
    namespace: str
    name: str
    uid: str

    def keys(self) -> Iterable[str]:
        """Return driver and reservation."""
        return [f"{self.driver}/{self.uid}"]

    def apply(self, previous: list[str] | None) -> list[str]:
        """Call NodePrepareResources of the other driver; it does nothing if it did so before."""
        claim = dra.ClaimReference(self.namespace, self.name, self.uid)
        devices = self.context.other_driver(self.driver).prepare(claim).result()
        return [name for device in devices for name in device.cdi_devices]

    def revert(self, outcome: list[str] | None) -> None:
        """Call NodeUnprepareResources; until it succeeds, the pair is not released."""
        claim = dra.ClaimReference(self.namespace, self.name, self.uid)
        self.context.other_driver(self.driver).unprepare(claim).result()


class Joiner(dra.Preparer[dra.NoConfig, dra.Device, None, Settings]):
    """Has both drivers prepare the reservation. Runs on the node."""

    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        """Return the CDI devices of both."""
        name = reservation(claim.uid, device.name)
        found = self.context.api.get(API, CLAIMS, name, claim.namespace).result()
        if found is None:
            raise dra.TransientError(f"the reservation of {device.name} is gone: claim {claim.namespace}/{name}")
        names: list[str] = []
        for driver in (self.context.settings.gpu_driver, self.context.settings.nic_driver):
            part = PreparedPart(driver=driver, namespace=claim.namespace, name=name, uid=found["metadata"]["uid"])
            names += device.ensure(part).result()
        return dra.Prepared(cdi_devices=names)


driver = dra.Driver(
    NAME,
    cluster_provider=Pairs(),
    binder=Reserver(),
    preparer=Joiner(),
    effects=[PreparedPart],
    settings=Settings,
    reads=[dra.Reads(API, CLAIMS)],
    rescan_every=2,
)
