"""Nodes: not ready, with a taint that says so, until a kubelet says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from typing_extensions import override

from dra_kit.apiserver.kinds.core.pods import LOST_NODE
from dra_kit.apiserver.kinds.kind import AGE, NAME, Column, Kind
from dra_kit.apiserver.kinds.strategy import Context, Strategy
from dra_kit.apiserver.selectors.fields import flag
from dra_kit.kubernetes.resource.defaulting import set_defaults
from dra_kit.kubernetes.resource.field_errors import FieldError, duplicate, invalid
from dra_kit.kubernetes.resource.new_object import validate_new_object
from dra_kit.kubernetes.values.json import Object


class NodeStrategy(Strategy):
    """New nodes are not ready until somebody says so."""

    metadata_with_status: ClassVar[tuple[str, ...]] = ("labels", "annotations")

    @override
    def admit(self, obj: Object, old: Object | None, context: Context, subresource: str) -> None:
        """Taint a new node, as the TaintNodesByCondition plugin does."""
        if old is None:
            taints = obj.setdefault("spec", {}).setdefault("taints", [])
            if not any((item.get("key"), item.get("effect")) == (LOST_NODE[0], "NoSchedule") for item in taints):
                taints.append({"key": LOST_NODE[0], "effect": "NoSchedule"})

    @override
    def default(self, obj: Object, context: Context) -> None:
        """Make everything allocatable unless something else is given."""
        set_defaults(obj, "Node", context.api_version, context.now)

    @override
    def prepare_for_update(self, obj: Object, old: Object, context: Context) -> None:
        """Keep the status."""
        obj["status"] = old.get("status") or {}

    @override
    def validate(self, obj: Object, context: Context) -> list[FieldError]:
        """Check its taints."""
        return validate_new_object(obj, "Node", context.gates)

    @override
    def validate_update(self, obj: Object, old: Object, context: Context) -> list[FieldError]:
        """Check its taints, and that its provider's ID stays."""
        given, before = ((item.get("spec") or {}).get("providerID") or "" for item in (obj, old))
        errors = self.validate(obj, context)
        if before and given != before:
            errors.append(invalid("spec.providerID", None, "field cannot be modified once set"))
        return errors

    @override
    def validate_status(self, obj: Object, old: Object, context: Context) -> list[FieldError]:
        """Check that declared features are a sorted set."""
        errors: list[FieldError] = []
        features = (obj.get("status") or {}).get("declaredFeatures") or []
        for i, feature in enumerate(features[1:], start=1):
            path = f"status.declaredFeatures[{i}]"
            if feature in features[:i]:
                errors.append(duplicate(path, feature))
            elif feature < features[i - 1]:
                errors.append(invalid(path, feature, "list must be sorted alphabetically"))
        return errors


def _node_status(node: Object) -> str:
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = next((item.get("status") for item in conditions if item.get("type") == "Ready"), None)
    shown = {"True": "Ready", "False": "NotReady"}.get(str(ready), "Unknown")
    return shown + (",SchedulingDisabled" if (node.get("spec") or {}).get("unschedulable") else "")


def _roles(node: Object) -> str:
    prefix = "node-role.kubernetes.io/"
    found = sorted(key.removeprefix(prefix) for key in node["metadata"].get("labels") or () if key.startswith(prefix))
    return ",".join(found) or "<none>"


def _node_info(name: str, missing: str = "<unknown>") -> Callable[[Object], str]:
    return lambda node: str(((node.get("status") or {}).get("nodeInfo") or {}).get(name) or missing)


def _address(type_: str) -> Callable[[Object], str]:
    def read(node: Object) -> str:
        addresses = (node.get("status") or {}).get("addresses") or ()
        return next((str(item["address"]) for item in addresses if item.get("type") == type_), "<none>")

    return read


KINDS: Final = (
    Kind("", "nodes", "Node", False, {"v1": "core/v1.Node"}, NodeStrategy(), short_names=("no",), status=True,
         deletion_status=True, fields={"spec.unschedulable": flag("spec.unschedulable")},
         columns=(NAME, Column("Status", _node_status), Column("Roles", _roles), AGE,
                  Column("Version", _node_info("kubeletVersion", "")),
                  Column("Internal-IP", _address("InternalIP"), priority=1),
                  Column("External-IP", _address("ExternalIP"), priority=1),
                  Column("OS-Image", _node_info("osImage"), priority=1),
                  Column("Kernel-Version", _node_info("kernelVersion"), priority=1),
                  Column("Container-Runtime", _node_info("containerRuntimeVersion"), priority=1))),
)  # fmt: skip
