"""Made-up worlds that only change when a pod is created, one after the other.

Every object of a world has the world's name in its own, its devices have drivers of that name, and its pods select its
nodes. Many worlds can thus be in one cluster without meeting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, TypeAlias

from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.release import Change, Release
from dra_kit.kubernetes.values.json import ObjectView

Document: TypeAlias = dict[str, Any]

_RESOURCE: Final = "resource.k8s.io/v1"
_TIME: Final = "2024-01-02T03:04:05Z"
_BROKEN: Final = "example.com/broken"
_LABEL: Final = "example.com/world"
_ZONE: Final = "topology.kubernetes.io/zone"
_VERSIONS: Final = ("1.2.0", "1.2.0", "1.3.0", "1.2.0+b1", "1.2.0-rc.1")
_COUNTS: Final = (0, 2, 3, 4, 4, 6)
_LINKS: Final = (["a"], ["a", "b"], ["b", "c"], ["c"])
# nodes without a kubelet get these
_UNREACHABLE: Final = [
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists"} for key in ("not-ready", "unreachable")
]


@dataclass
class StillWorld:
    """A world.

    Attributes:
        name: in the names of all its objects; the name of its namespace, too.
        namespace: may allow admin access.
        shared: objects without a namespace, in the order in which they are created.
        own: objects of its namespace, but for pods.
        pods: in the order in which they are created.
    """

    name: str
    namespace: Document = field(default_factory=dict)
    shared: list[Document] = field(default_factory=list)
    own: list[Document] = field(default_factory=list)
    pods: list[Document] = field(default_factory=list)

    def owns(self, document: ObjectView) -> bool:
        """Whether an object of the cluster is one of this world."""
        metadata: ObjectView = document["metadata"]
        return bool(metadata.get("namespace") == self.name or metadata["name"].partition("-")[0] == self.name)


def still_world(seed: int, number: int, name: str, release: Release) -> StillWorld:
    """Return a world; the same seed, number and release give the same one, but for its name.

    An older allocator goes through pools and slices in a random order. There, worlds leave out what fails an attempt
    only if it comes before a solution: pools with duplicate devices, and selectors with errors.

    Args:
        seed: of a run.
        number: of the world.
        name: of the world, without hyphen.
        release: of the cluster.
    """
    return _Maker(Random(f"{seed}/{number}"), name, release).make()  # noqa: S311 - to be repeated


class _Maker:
    def __init__(self, random: Random, name: str, release: Release) -> None:
        self._random = random
        self._alpha = "DRAListTypeAttributes" in release
        self._beside = not release.has(Change.SLICES_HAVE_DEVICES_OR_COUNTERS)
        self._ordered = AllocatorRules.of(release).variant.ordered
        labels = {"resource.kubernetes.io/admin-access": "true"} if self._one_in(2) else {}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        self._world = StillWorld(name, namespace)
        self._drivers = [f"{name}.example.com", f"b.{name}.example.com"]
        self._nodes: list[str] = []
        self._counted = self._one_in(3)

    def _one_in(self, number: int) -> bool:
        return self._random.randrange(number) == 0

    def _named(self, name: str, **metadata: Any) -> Document:
        return {"name": f"{self._world.name}-{name}", **metadata}

    def make(self) -> StillWorld:
        for number in range(self._random.choice((1, 2, 2, 3))):
            self._node(f"n{number}")
        for driver in self._drivers[: self._random.choice((1, 1, 2))]:
            self._pools(driver)
        self._classes()
        specs = [self._spec() for _ in range(4)]
        kinds = [self._random.choice(("claim", "claim", "template")) for _ in specs]
        for number, (kind, spec) in enumerate(zip(kinds, specs, strict=True)):
            self._world.own.append(self._claim(f"{kind}{number}", spec, template=kind == "template"))
        for number in range(self._random.randint(2, 5)):
            self._pod(f"p{number}", [f"{kind}{each}" for each, kind in enumerate(kinds)])
        return self._world

    # --- nodes and slices

    def _node(self, name: str) -> None:
        zone = self._random.choice("ab")
        full = f"{self._world.name}-{name}"
        self._nodes.append(full)
        size = {"cpu": self._random.choice(("1", "8", "8")), "memory": "16Gi", "pods": "110"}
        spec: Document = {}
        if self._one_in(8):
            spec["taints"] = [{"key": "example.com/dedicated", "value": "yes", "effect": "NoSchedule"}]
        if self._one_in(16):
            spec["unschedulable"] = True
        labels = {"kubernetes.io/hostname": full, _ZONE: zone, _LABEL: self._world.name}
        self._world.shared.append({
            "apiVersion": "v1", "kind": "Node", "metadata": self._named(name, labels=labels), "spec": spec,
            "status": {"capacity": size, "allocatable": size},
        })  # fmt: skip

    def _pools(self, driver: str) -> None:
        for node in self._nodes:
            if not self._one_in(6):
                self._pool(driver, node, {"nodeName": node})
        if self._one_in(3):
            hosts = [{"key": _LABEL, "operator": "In", "values": [self._world.name]}]
            if self._one_in(2):
                hosts.append({"key": _ZONE, "operator": "In", "values": ["a"]})
            selector = {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": hosts}]}}
            each = {"perDeviceNodeSelection": True}
            self._pool(driver, "net", self._random.choice((selector, selector, each)))

    def _pool(self, driver: str, name: str, scope: Document) -> None:
        letter = driver[0] if driver != self._drivers[0] else "a"
        each = "perDeviceNodeSelection" in scope
        counted = self._counted and self._one_in(2)
        parts = [self._devices(0, counted=counted, each=each)]
        if self._one_in(4):
            parts.append(self._devices(len(parts[0]), counted=counted and self._beside, each=each))
        if len(parts) > 1 and parts[0] and parts[1] and self._one_in(4) and self._ordered:
            parts[1][0]["name"] = parts[0][0]["name"]  # an invalid pool
        sets = [{"name": "card", "counters": {"units": {"value": "3"}, "memory": {"value": "24Gi"}}}] if counted else []
        contents: list[Document] = [{"devices": part} for part in parts]
        if sets and self._beside:
            contents[0]["sharedCounters"] = sets
            if len(contents) > 1:
                for device in contents[1]["devices"]:
                    device.pop("consumesCounters", None)
        elif sets:
            contents.append({"sharedCounters": sets})
        generation = 1
        if self._one_in(10):
            generation = 2
            old = {"devices": self._devices(0, counted=False, each=each)}
            former = {"name": name, "generation": 1, "resourceSliceCount": 1}
            self._slice(f"{letter}-{name.rpartition('-')[2]}-old", {"driver": driver, "pool": former, **scope, **old})
        # sometimes, one slice is missing
        pool = {"name": name, "generation": generation, "resourceSliceCount": len(contents) + self._one_in(14)}
        for number, content in enumerate(contents):
            spec = {"driver": driver, "pool": pool, **scope, **content}
            self._slice(f"{letter}-{name.rpartition('-')[2]}-{number}", spec)

    def _slice(self, name: str, spec: Document) -> None:
        body = {"apiVersion": _RESOURCE, "kind": "ResourceSlice", "metadata": self._named(name), "spec": spec}
        self._world.shared.append(body)

    def _devices(self, first: int, *, counted: bool, each: bool) -> list[Document]:
        count = self._random.choice(_COUNTS)
        return [self._device(first + index, counted=counted, each=each) for index in range(count)]

    def _device(self, index: int, *, counted: bool, each: bool) -> Document:
        random = self._random
        memory: Document = {"value": random.choice(("8Gi", "16Gi"))}
        device: Document = {
            "name": f"gpu-{index}", "attributes": self._attributes(index), "capacity": {"memory": memory}
        }  # fmt: skip
        if self._one_in(3):
            device["allowMultipleAllocations"] = True
            memory |= self._policy(memory["value"])
        if counted:
            units = {"units": {"value": str(random.randint(1, 3))}, "memory": {"value": random.choice(("8Gi", "12Gi"))}}
            device["consumesCounters"] = [{"counterSet": "card", "counters": units}]
        if self._one_in(7):
            effect = random.choice(("NoSchedule", "NoExecute"))
            device["taints"] = [{"key": _BROKEN, "value": "yes", "effect": effect, "timeAdded": _TIME}]
        if self._one_in(10):
            device["bindsToNode"] = True
        return device | self._scope() if each else device

    def _attributes(self, index: int) -> Document:
        random = self._random
        attributes: Document = {"index": {"int": index}}
        if model := random.choice(("large", "large", "small", "")):
            attributes["model"] = {"string": model}
        if self._one_in(2):
            attributes["numa"] = {"int": random.randint(0, 1)}
        if self._one_in(2):
            attributes["version"] = {"version": random.choice(_VERSIONS)}
        if self._one_in(4):
            attributes["dra.net/rdma"] = {"bool": self._one_in(2)}
        if self._alpha and self._one_in(2):
            attributes["links"] = {"strings": random.choice(_LINKS)}
        return attributes

    def _policy(self, size: str) -> Document:
        """Return what a request for a share of a device's memory may be."""
        steps = {"default": "4Gi", "validRange": {"min": "2Gi", "step": "2Gi", "max": size}}
        values = {"default": "4Gi", "validValues": ["4Gi", "8Gi"]}
        policy: Document = self._random.choice((steps, steps, values, {}))
        return {"requestPolicy": policy} if policy else {}

    def _scope(self) -> Document:
        """Return the nodes of a single device."""
        zone = {"key": _ZONE, "operator": "In", "values": ["b"]}
        scope: Document = self._random.choice((
            {"nodeName": self._random.choice(self._nodes)},
            {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [zone, self._own_nodes()]}]}},
            {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [self._own_nodes()]}]}},
        ))  # fmt: skip
        return scope

    def _own_nodes(self) -> Document:
        return {"key": _LABEL, "operator": "In", "values": [self._world.name]}

    # --- classes, claims and pods

    def _classes(self) -> None:
        first, second = self._drivers
        large = f"device.attributes['{first}'].?model.orValue('') == 'large'"
        extended = {"extendedResourceName": f"{first}/gpu"} if self._one_in(2) else {}
        for name, conditions, more in (
            ("all", [f"device.driver == '{first}'"], extended),
            ("large", [f"device.driver == '{first}'", large], {}),
            ("any", [f"device.driver in ['{first}', '{second}']"], {}),
        ):
            selectors = [{"cel": {"expression": condition}} for condition in conditions]
            self._world.shared.append({
                "apiVersion": _RESOURCE, "kind": "DeviceClass", "metadata": self._named(name),
                "spec": {"selectors": selectors, **more},
            })  # fmt: skip

    def _claim(self, name: str, spec: Document, *, template: bool) -> Document:
        kind = "ResourceClaimTemplate" if template else "ResourceClaim"
        body = {"spec": spec} if template else spec
        return {"apiVersion": _RESOURCE, "kind": kind, "metadata": {"name": name}, "spec": body}

    def _spec(self) -> Document:
        requests = [self._request(f"r{number}") for number in range(self._random.choice((1, 1, 2, 3)))]
        devices: Document = {"requests": requests}
        kinds = [kind for kind in ("matchAttribute", "distinctAttribute") if self._one_in(4)]
        names = ["model", "numa", "version", "version", *(["links", "links"] if self._alpha else [])]
        names.append(self._random.choice(("index", "index", "absent")))
        if kinds:
            devices["constraints"] = [self._constraint(kind, names, requests) for kind in kinds]
        return {"devices": devices}

    def _constraint(self, kind: str, names: Sequence[str], requests: Sequence[Document]) -> Document:
        found = {kind: f"{self._drivers[0]}/{self._random.choice(names)}"}
        some = [request["name"] for request in requests if not self._one_in(3)]
        return found if self._one_in(2) or not some else {**found, "requests": some}

    def _request(self, name: str) -> Document:
        if self._one_in(5):
            count = self._random.randint(1, 3)
            return {"name": name, "firstAvailable": [{"name": f"s{each}", **self._wish()} for each in range(count)]}
        wish = self._wish()
        if self._one_in(8) and (self._world.namespace["metadata"]["labels"] or self._one_in(6)):
            wish["adminAccess"] = True
        return {"name": name, "exactly": wish}

    def _wish(self) -> Document:
        random = self._random
        name = random.choice(("all", "all", "all", "large", "large", "any", "any", "missing"))
        if name == "missing" and not self._one_in(6):
            name = "all"
        wish: Document = {"deviceClassName": f"{self._world.name}-{name}"}
        amount = random.choice((1, 1, 1, 1, 1, 2, 2, 3, "All"))
        wish |= {"allocationMode": "All"} if amount == "All" else {"allocationMode": "ExactCount", "count": amount}
        if self._one_in(4):
            wish["selectors"] = [{"cel": {"expression": random.choice(list(self._selectors()))}}]
        if self._one_in(3):
            wish["tolerations"] = [random.choice(_TOLERATIONS)]
        if self._one_in(5):
            wish["capacity"] = {"requests": {"memory": random.choice(("2Gi", "3Gi", "6Gi", "8Gi", "12Gi", "40Gi"))}}
        return wish

    def _selectors(self) -> Iterator[str]:
        own = f"device.attributes['{self._drivers[0]}']"
        if self._ordered:
            yield f"{own}.model == 'large'"  # an error where it is missing
            yield f"{own}.index > 0"
            yield f"device.capacity['{self._drivers[0]}'].memory.compareTo(quantity('10Gi')) >= 0"
        yield f"{own}.?model.orValue('') != 'small'"
        yield f"{own}.?index.orValue(0) > 0"
        yield f"'numa' in {own} && {own}.numa == 1"
        yield f"has({own}.version) && {own}.version.compareTo(semver('1.2.0')) >= 0"
        memory = f"device.capacity['{self._drivers[0]}'].?memory"
        yield f"{memory}.orValue(quantity('0')).compareTo(quantity('10Gi')) >= 0"
        yield "device.attributes['dra.net'].?rdma.orValue(false)"
        yield "device.allowMultipleAllocations == true"
        yield f"device.driver == '{self._drivers[1]}'"
        if self._alpha:
            if self._ordered:
                yield f"{own}.links.includes('a')"
            yield f"'links' in {own} && 'b' in {own}.links"

    def _pod(self, name: str, sources: Sequence[str]) -> None:
        random = self._random
        container: Document = {"name": "main", "image": "example.com/app:1", "resources": {}}
        selector = {_LABEL: self._world.name}
        if self._one_in(4):
            selector["kubernetes.io/hostname"] = random.choice(self._nodes)
        elif self._one_in(8):
            selector[_ZONE] = random.choice("ab")
        tolerations: list[Document] = [*_UNREACHABLE]
        if self._one_in(2):
            tolerations.append({"key": "example.com/dedicated", "operator": "Exists"})
        spec: Document = {
            "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0, "containers": [container],
            "nodeSelector": selector, "tolerations": tolerations,
        }  # fmt: skip
        if self._one_in(4):
            container["resources"]["requests"] = {"cpu": random.choice(("400m", "2"))}
        if self._one_in(7):
            resource = random.choice((
                f"{self._drivers[0]}/gpu", f"deviceclass.resource.kubernetes.io/{self._world.name}-large"
            ))  # fmt: skip
            amount = {resource: str(random.randint(1, 2))}
            requests = {**container["resources"].get("requests", {}), **amount}
            container["resources"] |= {"requests": requests, "limits": amount}
        else:
            used = random.sample(sources, random.choice((1, 1, 1, 2)))
            fields = ["resourceClaimTemplateName" if "template" in each else "resourceClaimName" for each in used]
            spec["resourceClaims"] = [
                {"name": f"c{number}", field: source}
                for number, (field, source) in enumerate(zip(fields, used, strict=True))
            ]
            container["resources"]["claims"] = [{"name": claim["name"]} for claim in spec["resourceClaims"]]
        self._world.pods.append({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


_TOLERATIONS: Final = (
    {"operator": "Exists"},
    {"key": _BROKEN, "operator": "Exists", "effect": "NoExecute"},
    {"key": _BROKEN, "operator": "Equal", "value": "yes", "effect": "NoSchedule"},
)
