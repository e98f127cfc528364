"""Small kinds: namespaces, nodes, ConfigMaps, Secrets, Leases, Events, and kinds that are only stored.

No network is closed.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final

from typing_extensions import override

from dra_kit.apiserver.kinds.kind import DnsLabelNameStrategy, Kind, StatusStrategy, Strategy, StrategyContext, readers
from dra_kit.apiserver.kinds.pods import LOST_NODE
from dra_kit.apiserver.selectors import flag, reader
from dra_kit.apiserver.tables import AGE, NAME, NONE, UNKNOWN, Column, count_cell, number_cell, selector_cell, text_cell
from dra_kit.kubernetes.release import KubernetesVersion
from dra_kit.kubernetes.resource import names
from dra_kit.kubernetes.resource.field_errors import (
    NOT_NEGATIVE,
    FieldError,
    duplicate,
    forbidden,
    invalid,
    required,
    too_long,
    unsupported,
)
from dra_kit.kubernetes.resource.new_object import set_defaults, validate_new_object
from dra_kit.kubernetes.values.json import Object
from dra_kit.kubernetes.values.quantity import Quantity

_IMMORTAL: Final = {"default", "kube-public", "kube-system"}


class NamespaceStrategy(DnsLabelNameStrategy):
    """A namespace has a finalizer in its spec, which is removed when its contents are deleted."""

    metadata_with_status: ClassVar[tuple[str, ...]] = ("labels", "annotations")

    @override
    def prepare_for_create(self, obj: Object, context: StrategyContext) -> None:
        """Set the phase Active, with the finalizer and the label of its name."""
        obj["spec"] = {"finalizers": ["kubernetes"]}
        obj["status"] = {"phase": "Active"}
        _label_with_name(obj)

    @override
    def prepare_for_update(self, obj: Object, old: Object, context: StrategyContext) -> None:
        """Keep spec and status: both have subresources of their own."""
        obj["spec"], obj["status"] = old.get("spec") or {}, old.get("status") or {}
        _label_with_name(obj)

    @override
    def undeletable(self, name: str) -> str:
        """Return why a first namespace of a cluster cannot be deleted; that of the Leases of nodes can."""
        return "this namespace may not be deleted" if name in _IMMORTAL else ""

    @override
    def deleting(self, obj: Object) -> Object:
        """Set the phase of a namespace that is being deleted; it has no grace period."""
        metadata = {name: value for name, value in obj["metadata"].items() if name != "deletionGracePeriodSeconds"}
        return {**obj, "metadata": metadata, "status": {**(obj.get("status") or {}), "phase": "Terminating"}}

    @override
    def removable(self, obj: Object) -> bool:
        """Return whether its contents are gone."""
        return not (obj.get("spec") or {}).get("finalizers")


def _label_with_name(obj: Object) -> None:
    labels = obj["metadata"].setdefault("labels", {})
    labels["kubernetes.io/metadata.name"] = obj["metadata"].get("name", "")


class ConfigMapStrategy(Strategy):
    """ConfigMap: keys have a fixed syntax, and ``immutable`` ones do not change."""

    @override
    def validate(self, obj: Object, context: StrategyContext) -> list[FieldError]:
        """Check the syntax of the keys, and that no key is in both maps."""
        errors: list[FieldError] = []
        data, binary = obj.get("data") or {}, obj.get("binaryData") or {}
        for field, keys in (("data", data), ("binaryData", binary)):
            for key in sorted(keys):
                errors += [invalid(f"{field}[{key}]", key, text) for text in _config_key(key)]
        errors += [
            invalid(f"data[{key}]", key, "duplicate of key present in binaryData") for key in data if key in binary
        ]
        size = sum(len(value.encode()) for value in data.values()) + sum(
            _decoded_size(value) for value in binary.values()
        )
        return errors + ([too_long("[]", "", _CONFIG_SIZE_MAX)] if size > _CONFIG_SIZE_MAX else [])

    @override
    def validate_update(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        """Check that immutable data does not change."""
        return [*_changed_immutable(obj, old, "data", "binaryData"), *self.validate(obj, context)]


def _changed_immutable(obj: Object, old: Object, *fields: str) -> list[FieldError]:
    """Return the errors of fields that changed although they are immutable."""
    if not old.get("immutable"):
        return []
    detail = "field is immutable when `immutable` is set"
    return [
        forbidden(field, detail)
        for field in ("immutable", *fields)
        if (obj.get(field) or None) != (old.get(field) or None)
    ]


_CONFIG_SIZE_MAX: Final = 1024 * 1024
_CONFIG_KEY_TEXT: Final = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  "
    "or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)


def _config_key(key: str) -> list[str]:
    problems = [] if len(key) <= 253 else ["must be no more than 253 characters"]
    if not key or not all(char.isascii() and (char.isalnum() or char in "-_.") for char in key):
        problems.append(_CONFIG_KEY_TEXT)
    elif key == ".":
        problems.append("must not be '.'")
    elif key.startswith(".."):
        problems.append("must not be '..'" if key == ".." else "must not start with '..'")
    return problems


class LeaseStrategy(Strategy):
    """Lease: no negative numbers."""

    @override
    def validate(self, obj: Object, context: StrategyContext) -> list[FieldError]:
        """Check that the duration and the number of transitions are not negative."""
        spec = obj.get("spec") or {}
        errors = []
        if (duration := spec.get("leaseDurationSeconds")) is not None and duration <= 0:
            errors.append(invalid("spec.leaseDurationSeconds", duration, "must be greater than 0"))
        if (transitions := spec.get("leaseTransitions")) is not None and transitions < 0:
            errors.append(invalid("spec.leaseTransitions", transitions, "must be greater than or equal to 0"))
        return errors


_SECRET_KEYS: Final = {
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}
"""The keys that Secrets of a type must have."""


class SecretStrategy(Strategy):
    """Secret: ``stringData`` is merged into ``data``, whose keys have a fixed syntax."""

    @override
    def prepare_for_create(self, obj: Object, context: StrategyContext) -> None:
        _merge_string_data(obj)

    @override
    def prepare_for_update(self, obj: Object, old: Object, context: StrategyContext) -> None:
        _merge_string_data(obj)

    @override
    def validate(self, obj: Object, context: StrategyContext) -> list[FieldError]:
        """Check the syntax of the keys, the size, and that the keys of its type are there."""
        data: Object = obj.get("data") or {}
        errors = [invalid(f"data[{key}]", key, text) for key in sorted(data) for text in _config_key(key)]
        if sum(_decoded_size(value) for value in data.values()) > _CONFIG_SIZE_MAX:
            errors.append(too_long("data", "", _CONFIG_SIZE_MAX))
        return errors + [
            required(f"data[{key}]") for key in _SECRET_KEYS.get(obj.get("type", ""), ()) if key not in data
        ]

    @override
    def validate_update(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        """Check that the type does not change, nor immutable data."""
        errors = []
        if obj.get("type") != old.get("type"):
            errors.append(invalid("type", obj.get("type", ""), "field is immutable"))
        return [*errors, *_changed_immutable(obj, old, "data"), *self.validate(obj, context)]


def _decoded_size(value: str) -> int:
    """Return the length of the bytes in a base64 text."""
    return len(value) * 3 // 4 - value[-2:].count("=")


def _merge_string_data(obj: Object) -> None:
    texts = obj.pop("stringData", None) or {}
    if texts:
        obj["data"] = (obj.get("data") or {}) | {
            key: base64.b64encode(text.encode()).decode() for key, text in texts.items()
        }


def _config_count(obj: Object) -> int:
    return len(obj.get("data") or ()) + len(obj.get("binaryData") or ())


CORE_KINDS: Final = (
    Kind("", "namespaces", "Namespace", False, {"v1": "core/v1.Namespace"}, NamespaceStrategy(), status=True,
         collection_deletion=False, short_names=("ns",), fields=readers("status.phase"),
         columns=(NAME, Column("Status", text_cell("status.phase")), AGE)),
    Kind("", "configmaps", "ConfigMap", True, {"v1": "core/v1.ConfigMap"}, ConfigMapStrategy(), short_names=("cm",),
         deletion_status=True,
         columns=(NAME, Column("Data", _config_count), AGE)),
    Kind("", "secrets", "Secret", True, {"v1": "core/v1.Secret"}, SecretStrategy(), fields=readers("type"),
         deletion_status=True,
         columns=(NAME, Column("Type", text_cell("type")), Column("Data", count_cell("data")), AGE)),
    Kind("", "serviceaccounts", "ServiceAccount", True, {"v1": "core/v1.ServiceAccount"}, short_names=("sa",),
         columns=(NAME, AGE)),
    Kind("coordination.k8s.io", "leases", "Lease", True, {"v1": "coordination/v1.Lease"}, LeaseStrategy(),
         unconditional_update=False, create_on_update=True, deletion_status=True,
         columns=(NAME, Column("Holder", text_cell("spec.holderIdentity")), AGE)),
)  # fmt: skip


class NetworkPolicyStrategy(Strategy):
    """NetworkPolicy: the types follow from the rules."""

    @override
    def default(self, obj: Object, context: StrategyContext) -> None:
        """Set the policy types: always Ingress, and Egress if it has rules."""
        spec = obj.get("spec")
        if spec is not None and not spec.get("policyTypes"):
            spec["policyTypes"] = ["Ingress", *(["Egress"] if spec.get("egress") else [])]


def _quota(prefix: str) -> Callable[[Object], str]:
    """Return ``resource: used/hard`` of limits, or of everything else."""

    def read(obj: Object) -> str:
        status = obj.get("status") or {}
        used = status.get("used") or {}
        parts = [f"{name}: {used.get(name, '0')}/{hard}" for name, hard in sorted((status.get("hard") or {}).items())
                 if name.startswith("limits.") == (prefix == "limits.")]  # fmt: skip
        return ", ".join(parts)

    return read


class EndpointSliceStrategy(Strategy):
    """EndpointSlice: the type of its addresses is required and does not change; the addresses are not validated."""

    @override
    def validate(self, obj: Object, context: StrategyContext) -> list[FieldError]:
        """Check the type of the addresses."""
        given = obj.get("addressType") or ""
        if given in _ADDRESS_TYPES:
            return []
        return [unsupported("addressType", given, _ADDRESS_TYPES) if given else required("addressType")]

    @override
    def validate_update(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        """Check that the type of the addresses does not change."""
        given, before = obj.get("addressType"), old.get("addressType")
        return [] if given == before else [invalid("addressType", given, "field is immutable")]


_ADDRESS_TYPES: Final = ("FQDN", "IPv4", "IPv6")
_SHOWN: Final = 3  # items of a list in a cell


def _listed(items: Sequence[str], empty: str) -> str:
    text = ",".join(items[:_SHOWN])
    return f"{text} + {len(items) - _SHOWN} more..." if len(items) > _SHOWN else text or empty


def _slice_ports(obj: Object) -> str:
    return _listed([str(port.get("port") or port.get("name") or "*") for port in obj.get("ports") or ()], "<unset>")


def _slice_addresses(obj: Object) -> str:
    found = [address for item in obj.get("endpoints") or () for address in item.get("addresses") or ()]
    return _listed(found, "<unset>")


def _subset_addresses(obj: Object) -> str:
    found = []
    for subset in obj.get("subsets") or ():
        ports = [f":{port.get('port')}" for port in subset.get("ports") or ()] or [""]
        found += [f"{item['ip']}{port}" for port in ports for item in subset.get("addresses") or ()]
    return _listed(found, NONE)


ENDPOINT_KINDS: Final = (
    Kind("discovery.k8s.io", "endpointslices", "EndpointSlice", True, {"v1": "discovery/v1.EndpointSlice"},
         EndpointSliceStrategy(), generation=True, deletion_status=True,
         columns=(NAME, Column("AddressType", text_cell("addressType")), Column("Ports", _slice_ports),
                  Column("Endpoints", _slice_addresses), AGE)),
    Kind("", "endpoints", "Endpoints", True, {"v1": "core/v1.Endpoints"}, short_names=("ep",), create_on_update=True,
         deletion_status=True, list_kind="EndpointsList", singular_name="endpoints",
         deprecated={"v1": "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"},
         columns=(NAME, Column("Endpoints", _subset_addresses), AGE)),
)  # fmt: skip


_INTEGERS: Final = frozenset(
    {
        "configmaps",
        "persistentvolumeclaims",
        "pods",
        "replicationcontrollers",
        "resourcequotas",
        "secrets",
        "services",
        "services.loadbalancers",
        "services.nodeports",
    }
)
_OF_PODS: Final = frozenset({"pods", "cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"})
_OF_QUOTAS: Final = (
    _INTEGERS
    | _OF_PODS
    | {"ephemeral-storage", "limits.ephemeral-storage", "requests.ephemeral-storage", "requests.storage"}
)
_OF_SCOPES: Final = {
    "BestEffort": frozenset({"pods"}),
    **dict.fromkeys(
        ("NotBestEffort", "Terminating", "NotTerminating", "PriorityClass", "CrossNamespacePodAffinity"), _OF_PODS
    ),
    "VolumeAttributesClass": frozenset({"persistentvolumeclaims", "requests.storage"}),
}
"""The resources of quotas that each scope permits, of those without a domain."""
_CHOOSING: Final = ("PriorityClass", "VolumeAttributesClass")
_UNFIT: Final = "unsupported scope applied to resource"
_CONFLICTS: Final = ({"BestEffort", "NotBestEffort"}, {"Terminating", "NotTerminating"})


class ResourceQuotaStrategy(StatusStrategy):
    """A quota has known resources, amounts that are possible, and scopes that fit them.

    Source: Kubernetes 1.37 ``pkg/apis/core/validation``, ``ValidateResourceQuotaSpec``.
    """

    @override
    def validate(self, obj: Object, context: StrategyContext) -> list[FieldError]:
        spec = obj.get("spec") or {}
        hard = spec.get("hard") or {}
        errors = [error for name in sorted(hard) for error in _limit_errors(name, hard[name], context.release.version)]
        scopes = spec.get("scopes") or []
        for scope in scopes:
            if scope not in _OF_SCOPES:
                errors.append(invalid("spec.scopes", scopes, "unsupported scope"))
            errors += [invalid("spec.scopes", scopes, _UNFIT)] * _unfit(scope, hard)
        errors += _conflicts(scopes, scopes)
        selector = spec.get("scopeSelector") or {}
        path, wanted = "spec.scopeSelector.matchExpressions", selector.get("matchExpressions") or []
        for item in wanted:
            name = item.get("scopeName") or ""
            if name not in _OF_SCOPES:
                errors.append(invalid(f"{path}.scopeName", name, "unsupported scope"))
            errors += [invalid(path, selector, _UNFIT)] * _unfit(name, hard)
            errors += _requirement_errors(path, item)
        return errors + _conflicts([item.get("scopeName") for item in wanted], scopes)

    @override
    def validate_update(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        """Check also that the scopes are the same."""
        errors = self.validate(obj, context)
        scopes = (obj.get("spec") or {}).get("scopes") or []
        if set(scopes) != set((old.get("spec") or {}).get("scopes") or []):
            errors.append(invalid("spec.scopes", scopes, "field is immutable"))
        return errors


def _limit_errors(name: str, text: Any, version: KubernetesVersion) -> Iterator[FieldError]:
    path = names.key_path("spec.hard", name)
    problems = names.label_key(name)
    yield from (invalid(path, name, problem) for problem in problems)
    if "/" not in name and name not in _OF_QUOTAS and not _is_huge(name):
        if not problems and name != "storage":
            yield invalid(path, name, "must be a standard resource type or fully qualified")
        yield invalid(path, name, "must be a standard resource for quota")
    quantity = Quantity(str(text or 0), version)
    if quantity.sign < 0:
        yield invalid(path, quantity, NOT_NEGATIVE)
    is_extended = "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")
    if not quantity.is_whole and (name in _INTEGERS or (is_extended and not names.label_key(f"requests.{name}"))):
        yield invalid(path, quantity, "must be an integer")


def _is_huge(name: str) -> bool:
    return name.startswith(("hugepages-", "requests.hugepages-"))


def _unfit(scope: str, hard: Object) -> int:
    """Return the number of resources without a domain that a known scope does not permit."""
    permitted = _OF_SCOPES.get(scope, hard)
    return sum(name not in permitted and (name in _OF_QUOTAS or _is_huge(name)) for name in hard)


def _requirement_errors(path: str, item: Object) -> Iterator[FieldError]:
    operator, values, scope = item.get("operator") or "", item.get("values") or [], item.get("scopeName")
    if scope in _OF_SCOPES and scope not in _CHOOSING and operator != "Exists":
        detail = (
            "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, "
            "ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or "
            "ResourceQuotaScopeCrossNamespacePodAffinity"
        )
        yield invalid(f"{path}.operator", operator, detail)
    if operator in {"In", "NotIn"}:
        if not values:
            detail = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
            yield required(f"{path}.values", detail)
    elif operator not in {"Exists", "DoesNotExist"}:
        yield invalid(f"{path}.operator", operator, "not a valid selector operator")
    elif values:
        detail = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
        yield invalid(f"{path}.values", values, detail)


def _conflicts(scopes: Sequence[str | None], shown: list[str]) -> list[FieldError]:
    return [invalid("spec.scopes", shown, "conflicting scopes") for pair in _CONFLICTS if pair <= set(scopes)]


STORED_KINDS: Final = (
    Kind("networking.k8s.io", "networkpolicies", "NetworkPolicy", True, {"v1": "networking/v1.NetworkPolicy"},
         NetworkPolicyStrategy(), short_names=("netpol",), generation=True, deletion_status=True,
         columns=(NAME, Column("Pod-Selector", selector_cell("spec.podSelector")), AGE)),
    Kind("scheduling.k8s.io", "priorityclasses", "PriorityClass", False, {"v1": "scheduling/v1.PriorityClass"},
         short_names=("pc",), generation=True, deletion_status=True,
         columns=(NAME, Column("Value", number_cell("value"), type="integer"),
                  Column("Global-Default", lambda obj: bool(obj.get("globalDefault")), type="boolean"), AGE,
                  Column("PreemptionPolicy", text_cell("preemptionPolicy")))),
    Kind("policy", "poddisruptionbudgets", "PodDisruptionBudget", True, {"v1": "policy/v1.PodDisruptionBudget"},
         StatusStrategy(), short_names=("pdb",), status=True, generation=True, deletion_status=True,
         columns=(NAME, Column("Min Available", text_cell("spec.minAvailable", "N/A")),
                  Column("Max Unavailable", text_cell("spec.maxUnavailable", "N/A")),
                  Column("Allowed Disruptions", number_cell("status.disruptionsAllowed"), type="integer"), AGE)),
    Kind("", "resourcequotas", "ResourceQuota", True, {"v1": "core/v1.ResourceQuota"},
         ResourceQuotaStrategy(),
         short_names=("quota",), status=True,
         columns=(NAME, Column("Request", _quota("requests.")), Column("Limit", _quota("limits.")), AGE)),
    Kind("node.k8s.io", "runtimeclasses", "RuntimeClass", False, {"v1": "node/v1.RuntimeClass"}, deletion_status=True,
         columns=(NAME, Column("Handler", text_cell("handler")), AGE)),
)  # fmt: skip


class NodeStrategy(Strategy):
    """New nodes are not ready until a client reports them ready."""

    metadata_with_status: ClassVar[tuple[str, ...]] = ("labels", "annotations")

    @override
    def admit(self, obj: Object, old: Object | None, context: StrategyContext, subresource: str) -> None:
        """Taint a new node, as the TaintNodesByCondition plugin does."""
        if old is None:
            taints = obj.setdefault("spec", {}).setdefault("taints", [])
            if not any((item.get("key"), item.get("effect")) == (LOST_NODE[0], "NoSchedule") for item in taints):
                taints.append({"key": LOST_NODE[0], "effect": "NoSchedule"})

    @override
    def default(self, obj: Object, context: StrategyContext) -> None:
        """Set the missing allocatable resources to the capacity."""
        set_defaults(obj, "Node", context.api_version, context.now)

    @override
    def prepare_for_update(self, obj: Object, old: Object, context: StrategyContext) -> None:
        obj["status"] = old.get("status") or {}

    @override
    def validate(self, obj: Object, context: StrategyContext) -> list[FieldError]:
        return validate_new_object(obj, "Node", context.release)

    @override
    def validate_update(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        """Check the taints, and that the provider's ID does not change."""
        given, before = ((item.get("spec") or {}).get("providerID") or "" for item in (obj, old))
        errors = self.validate(obj, context)
        if before and given != before:
            errors.append(invalid("spec.providerID", None, "field cannot be modified once set"))
        return errors

    @override
    def validate_status(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
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
    return ",".join(found) or NONE


def _address(type_: str) -> Callable[[Object], str]:
    def read(node: Object) -> str:
        addresses = (node.get("status") or {}).get("addresses") or ()
        return next((str(item["address"]) for item in addresses if item.get("type") == type_), NONE)

    return read


NODE_KINDS: Final = (
    Kind("", "nodes", "Node", False, {"v1": "core/v1.Node"}, NodeStrategy(), short_names=("no",), status=True,
         deletion_status=True, fields={"spec.unschedulable": flag("spec.unschedulable")},
         columns=(NAME, Column("Status", _node_status), Column("Roles", _roles), AGE,
                  Column("Version", text_cell("status.nodeInfo.kubeletVersion")),
                  Column("Internal-IP", _address("InternalIP"), priority=1),
                  Column("External-IP", _address("ExternalIP"), priority=1),
                  *(Column(name, text_cell(f"status.nodeInfo.{field}", UNKNOWN), priority=1) for name, field in (
                      ("OS-Image", "osImage"), ("Kernel-Version", "kernelVersion"),
                      ("Container-Runtime", "containerRuntimeVersion"))))),
)  # fmt: skip


_NEW: Final = "events.k8s.io/v1"
_RENAMED: Final = {
    "note": "message", "regarding": "involvedObject", "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp", "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count", "reportingController": "reportingComponent",
}  # fmt: skip
_OLD_NAMES: Final = {old: new for new, old in _RENAMED.items()}
_TYPES: Final = {"Normal", "Warning"}
_OLD: Final = ("firstTimestamp", "lastTimestamp", "count", "source")
_FIXED: Final = (
    "involvedObject", "reason", "message", "source", "firstTimestamp", "lastTimestamp", "count", "type", "eventTime",
    "action", "related", "reportingComponent", "reportingInstance",
)  # fmt: skip
_LENGTH_MAX: Final = {"reportingInstance": 128, "action": 128, "reason": 128, "message": 1024}
_OPTIONAL: Final = {"message"}


def _problems(obj: Object, context: StrategyContext) -> list[FieldError]:
    """Check the namespace, or for events of the new form (with an ``eventTime``) the reporter."""
    if not obj.get("eventTime"):
        namespace, about = obj["metadata"].get("namespace"), (obj.get("involvedObject") or {}).get("namespace", "")
        if about == namespace or (not about and namespace == "default"):
            return []
        return [invalid("involvedObject.namespace", about, "does not match event.namespace")]
    errors: list[FieldError] = []
    path = "reportingController" if context.api_version == _NEW else "reportingComponent"
    component = obj.get("reportingComponent", "")
    if not component:
        errors.append(required(path))
    errors += [invalid(path, component, text) for text in names.label_key(component)]
    for name, limit in _LENGTH_MAX.items():
        value = obj.get(name) or ""
        if not value and name not in _OPTIONAL:
            errors.append(required(name))
        if len(value.encode()) > limit:
            errors.append(invalid(name, "", f"can have at most {limit} characters"))
    return errors


def _series(obj: Object) -> list[FieldError]:
    series = obj.get("series")
    if series is None:
        return []
    errors = [] if (series.get("count") or 0) > 1 else [invalid("series.count", "", "should be at least 2")]
    return errors + ([] if series.get("lastObservedTime") else [required("series.lastObservedTime")])


class EventStrategy(Strategy):
    """Translates between ``events.k8s.io/v1`` and the stored ``v1``."""

    @override
    def validate(self, obj: Object, context: StrategyContext) -> list[FieldError]:
        """Check the namespace and the reporter; through events.k8s.io also the other fields."""
        errors = _problems(obj, context)
        if context.api_version != _NEW:
            return errors
        errors += _series(obj)
        if not obj.get("eventTime"):
            errors.append(required("eventTime"))
        if obj.get("type") not in _TYPES:
            errors.append(invalid("type", "", f"has invalid value: {obj.get('type', '')}"))
        errors += [invalid(name, "", "needs to be unset") for name in _OLD if obj.get(name)]
        return errors

    @override
    def validate_update(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        """Check it like a new one; through events.k8s.io only the series may change."""
        errors = _problems(obj, context)
        if context.api_version != _NEW:
            return errors
        errors += _series(obj)
        errors += [
            invalid(
                "reportingController" if name == "reportingComponent" else name, obj.get(name), "field is immutable"
            )
            for name in _FIXED
            if (obj.get(name) or None) != (old.get(name) or None)
        ]
        return errors

    @override
    def to_storage(self, obj: Object, api_version: str) -> Object:
        return {_RENAMED.get(name, name): value for name, value in obj.items()} if api_version == _NEW else obj

    @override
    def from_storage(self, obj: Object, api_version: str) -> Object:
        return {_OLD_NAMES.get(name, name): value for name, value in obj.items()} if api_version == _NEW else obj


_OBJECT_FIELDS: Final = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_COMMON: Final = {"reason": reader("reason"), "type": reader("type")}
_CORE_FIELDS: Final = {
    **{f"involvedObject.{name}": reader(f"involvedObject.{name}") for name in _OBJECT_FIELDS},
    **_COMMON,
    "reportingComponent": reader("reportingComponent"),
    "source": lambda obj: (obj.get("source") or {}).get("component") or obj.get("reportingComponent") or "",
}
_NEW_FIELDS: Final = {
    **{f"regarding.{name}": reader(f"involvedObject.{name}") for name in _OBJECT_FIELDS},
    **_COMMON,
    "reportingController": reader("reportingComponent"),
}


def _object(event: Object) -> str:
    about = event.get("involvedObject") or {}
    kind, name = about.get("kind", "").lower(), about.get("name", "")
    return f"{kind}/{name}" if name else kind


def _source(event: Object) -> str:
    source = event.get("source") or {}
    component = source.get("component") or event.get("reportingComponent") or ""
    host = source.get("host") or event.get("reportingInstance") or ""
    return f"{component}, {host}" if host else component


def _first_seen(event: Object) -> Any:
    return event.get("firstTimestamp") or event.get("eventTime")


def _last_seen(event: Object) -> Any:
    series = event.get("series") or {}
    return series.get("lastObservedTime") or event.get("lastTimestamp") or _first_seen(event)


def _occurrences(event: Object) -> int:
    return int((event.get("series") or {}).get("count") or event.get("count") or 1)


_COLUMNS: Final = (
    Column("Last Seen", _last_seen, type="age"),
    Column("Type", lambda event: event.get("type") or ""),
    Column("Reason", lambda event: event.get("reason") or ""),
    Column("Object", _object),
    Column("Subobject", lambda event: (event.get("involvedObject") or {}).get("fieldPath") or "", priority=1),
    Column("Source", _source, priority=1),
    Column("Message", lambda event: (event.get("message") or "").strip()),
    Column("First Seen", _first_seen, priority=1, type="age"),
    Column("Count", _occurrences, priority=1),
    Column("Name", lambda event: event["metadata"].get("name", ""), priority=1, format="name"),
)
_STRATEGY: Final = EventStrategy()
EVENT_KINDS: Final = (
    Kind("", "events", "Event", True, {"v1": "core/v1.Event"}, _STRATEGY, short_names=("ev",), deletion_status=True,
         create_on_update=True, fields=_CORE_FIELDS, columns=_COLUMNS, stored_as="events"),
    Kind("events.k8s.io", "events", "Event", True, {"v1": "events/v1.Event"}, _STRATEGY, storage="v1",
         storage_type="core/v1.Event", short_names=("ev",), deletion_status=True, create_on_update=True,
         fields=_NEW_FIELDS, columns=_COLUMNS, stored_as="events"),
)  # fmt: skip
