"""Small worlds: some hardware, some claims and pods, and edits of them, as phases of a scenario.

Nothing in a world is left to chance in Kubernetes itself: where there are two nodes each pod says which one it wants,
as kube-scheduler chooses at random among nodes that are equally good; and each phase after the first makes one edit,
so that nothing depends on which of two things is noticed first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from hypothesis import strategies as st

from tests.cluster.worlds import hardware
from tests.cluster.worlds.requests import CORE, RESOURCE, Request, create, delete, merge_patch

World: TypeAlias = dict[str, Any]
Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]

_EDITS_MAX = 6
_SELECTORS = (
    f"device.attributes['{hardware.DRIVER}'].model == 'large'",
    f"device.attributes['{hardware.DRIVER}'].index > 0",
    f"device.capacity['{hardware.DRIVER}'].memory.compareTo(quantity('10Gi')) >= 0",
    f"device.attributes['{hardware.DRIVER}'].absent == 1",
)
_TOLERATIONS = (
    {"operator": "Exists"},
    {"key": "example.com/broken", "operator": "Exists", "effect": "NoExecute"},
    {"key": "example.com/broken", "operator": "Equal", "value": "yes", "effect": "NoSchedule"},
)


@st.composite
def worlds(draw: Draw) -> World:
    """A scenario without answers."""
    return _World(draw).scenario()


class _World:
    """One world while it is made up; remembers what exists, so that most edits are about something."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._hardware = draw(hardware.stocks())
        self._claims: list[str] = []
        self._pods: list[str] = []
        self._rules = 0
        self._count = 0

    def scenario(self) -> World:
        setup = [*self._hardware.requests(), *classes()]
        phases = [setup, self._claim_and_pod()]
        phases += [self._edit() for _ in range(self._draw(st.integers(0, _EDITS_MAX)))]
        return {"gates": "default", "phases": [{"do": phase, "until": "quiet 2"} for phase in phases]}

    def _edit(self) -> list[Request]:
        edits: list[Callable[[], list[Request]]] = [
            self._claim_and_pod,
            self._claim_and_pod,
            self._rule,
            self._uncordon,
        ]
        if self._pods:
            edits += [self._delete_pod, self._finish_pod]
        if self._claims:
            edits += [self._another_user, self._delete_claim]
        if self._rules:
            edits.append(self._drop_rule)
        if self._hardware.slices:
            edits += [self._taint, self._change_devices, self._withdraw]
        edit: Callable[[], list[Request]] = self._one_of(edits)
        return edit()

    def _one_of(self, items: list[Any]) -> Any:
        return self._draw(st.sampled_from(items))

    # --- claims and pods

    def _claim_and_pod(self) -> list[Request]:
        self._count += 1
        match self._draw(st.sampled_from(("claim", "claim", "template", "extended"))):
            case "claim":
                name = f"claim-{self._count}"
                self._claims.append(name)
                return [claim(name, self._spec()), self._pod({"resourceClaimName": name})]
            case "template":
                name = f"template-{self._count}"
                return [template(name, self._spec()), self._pod({"resourceClaimTemplateName": name})]
        amount = {"example.com/gpu": str(self._draw(st.integers(1, 2)))}
        return [self._pod(None, {"requests": amount, "limits": amount})]

    def _another_user(self) -> list[Request]:
        self._count += 1
        return [self._pod({"resourceClaimName": self._one_of(self._claims)})]

    def _pod(self, source: World | None, resources: World | None = None) -> Request:
        name = f"pod-{self._count}"
        self._pods.append(name)
        nodes = self._hardware.nodes
        return pod(name, source, resources, node=self._one_of(nodes) if len(nodes) > 1 else "")

    def _spec(self) -> World:
        requests = [self._request(f"r{number}") for number in range(self._draw(st.integers(1, 2)))]
        devices: World = {"requests": requests}
        if self._draw(st.integers(0, 3)) == 0:
            kind = self._draw(st.sampled_from(("matchAttribute", "distinctAttribute")))
            devices["constraints"] = [{kind: f"{hardware.DRIVER}/{self._draw(st.sampled_from(('model', 'numa')))}"}]
        if self._draw(st.integers(0, 4)) == 0:
            devices["config"] = [{"opaque": {"driver": hardware.DRIVER, "parameters": {"mode": "fast"}}}]
        return {"devices": devices}

    def _request(self, name: str) -> World:
        if self._draw(st.integers(0, 5)) == 0:
            choices = [{"name": f"s{number}", **self._wish()} for number in range(2)]
            return {"name": name, "firstAvailable": choices}
        return {"name": name, "exactly": self._wish(admin=True)}

    def _wish(self, *, admin: bool = False) -> World:
        draw = self._draw
        wish: World = {"deviceClassName": draw(st.sampled_from(("gpu", "gpu", "large", "missing")))}
        amount = draw(st.sampled_from((1, 1, 1, 2, 3, "All")))
        wish |= {"allocationMode": "All"} if amount == "All" else {"count": amount}
        if draw(st.integers(0, 3)) == 0:
            wish["selectors"] = [{"cel": {"expression": draw(st.sampled_from(_SELECTORS))}}]
        if draw(st.integers(0, 3)) == 0:
            wish["tolerations"] = [draw(st.sampled_from(_TOLERATIONS))]
        if draw(st.integers(0, 3)) == 0:
            wish["capacity"] = {"requests": {"memory": draw(st.sampled_from(("2Gi", "6Gi", "12Gi")))}}
        if admin and draw(st.integers(0, 9)) == 0:
            wish["adminAccess"] = True
        return wish

    def _delete_pod(self) -> list[Request]:
        name = self._one_of(self._pods)
        self._pods.remove(name)
        return [delete("pods", name, grace=0)]

    def _finish_pod(self) -> list[Request]:
        phase = self._draw(st.sampled_from(("Running", "Succeeded", "Failed")))
        return [merge_patch("pods", self._one_of(self._pods), {"status": {"phase": phase}}, subresource="status")]

    def _delete_claim(self) -> list[Request]:
        name = self._one_of(self._claims)
        self._claims.remove(name)
        return [delete("resourceclaims", name)]

    # --- hardware

    def _rule(self) -> list[Request]:
        self._rules += 1
        selector = self._draw(st.sampled_from(({}, {"device": "gpu-0"}, {"pool": "node-1"}, {"driver": "other"})))
        effect = self._draw(st.sampled_from(("NoSchedule", "NoExecute", "None")))
        taint = {"key": "example.com/broken", "value": "yes", "effect": effect}
        rule = {
            "apiVersion": RESOURCE, "kind": "DeviceTaintRule", "metadata": {"name": f"rule-{self._rules}"},
            "spec": {"deviceSelector": selector or {"driver": hardware.DRIVER}, "taint": taint},
        }  # fmt: skip
        return [create("devicetaintrules", rule)]

    def _drop_rule(self) -> list[Request]:
        return [delete("devicetaintrules", f"rule-{self._draw(st.integers(1, self._rules))}")]

    def _uncordon(self) -> list[Request]:
        cordoned = self._draw(st.booleans())
        return [merge_patch("nodes", self._one_of(self._hardware.nodes), {"spec": {"unschedulable": cordoned}})]

    def _taint(self) -> list[Request]:
        effect = self._draw(st.sampled_from(("NoSchedule", "NoExecute")))
        taints = [{"key": "example.com/broken", "value": "yes", "effect": effect}]
        return [self._hardware.patched(self._one_of(self._hardware.slices), taints=taints)]

    def _change_devices(self) -> list[Request]:
        return [self._hardware.replaced(self._one_of(self._hardware.slices), self._draw(hardware.device_lists()))]

    def _withdraw(self) -> list[Request]:
        name = self._one_of(self._hardware.slices)
        self._hardware.slices.remove(name)
        return [delete("resourceslices", name)]


def classes() -> list[Request]:
    """The DeviceClasses of every world."""
    return [
        create("deviceclasses", _class("gpu")),
        create("deviceclasses", _class("large", selector=_SELECTORS[0])),
        create("deviceclasses", _class("whole", extendedResourceName="example.com/gpu")),
    ]


def claim(name: str, spec: World) -> Request:
    """A new ResourceClaim."""
    body = {"apiVersion": RESOURCE, "kind": "ResourceClaim", "metadata": _named(name), "spec": spec}
    return create("resourceclaims", body)


def template(name: str, spec: World) -> Request:
    """A new ResourceClaimTemplate for claims of this spec."""
    body = {"apiVersion": RESOURCE, "kind": "ResourceClaimTemplate", "metadata": _named(name), "spec": {"spec": spec}}
    return create("resourceclaimtemplates", body)


def pod(name: str, source: World | None, resources: World | None = None, *, node: str = "") -> Request:
    """A new Pod.

    Args:
        name: of the pod.
        source: of its claim; None for none.
        resources: of its container, where it has no claim.
        node: that it wants; empty where the scheduler is to choose.
    """
    container: World = {"name": "main", "image": "example.com/app:1"}
    spec: World = {
        "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 30, "containers": [container]
    }  # fmt: skip
    if source is not None:
        container["resources"] = {"claims": [{"name": "gpu"}]}
        spec["resourceClaims"] = [{"name": "gpu", **source}]
    if resources is not None:
        container["resources"] = resources
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return create("pods", {"apiVersion": CORE, "kind": "Pod", "metadata": _named(name), "spec": spec})


def _class(name: str, *, selector: str = "", **spec: Any) -> World:
    expressions = [f"device.driver == '{hardware.DRIVER}'", *([selector] if selector else [])]
    selectors = [{"cel": {"expression": expression}} for expression in expressions]
    spec |= {"selectors": selectors}
    return {"apiVersion": RESOURCE, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def _named(name: str) -> World:
    return {"name": name, "namespace": "default"}
