"""Kinds that are stored as they come, with defaults."""

from __future__ import annotations

import base64
import secrets
from typing import ClassVar, Final

from typing_extensions import override

from dra_kit.apiserver.kinds.columns import count, labels, text
from dra_kit.apiserver.kinds.kind import AGE, NAME, Column, Kind, readers
from dra_kit.apiserver.kinds.strategy import Context, LabelNamed, StatusStrategy, Strategy
from dra_kit.kubernetes.resource.field_errors import FieldError, forbidden, invalid, too_long
from dra_kit.kubernetes.values.json import Object

_IMMORTAL: Final = {"default", "kube-public", "kube-system"}


class NamespaceStrategy(LabelNamed):
    """A namespace carries a finalizer of its own, which goes when its contents are gone."""

    metadata_with_status: ClassVar[tuple[str, ...]] = ("labels", "annotations")

    @override
    def prepare_for_create(self, obj: Object, context: Context) -> None:
        """Set the phase Active, with the finalizer and the label of its name."""
        obj["spec"] = {"finalizers": ["kubernetes"]}
        obj["status"] = {"phase": "Active"}
        _label_with_name(obj)

    @override
    def prepare_for_update(self, obj: Object, old: Object, context: Context) -> None:
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
    """Keys of a certain form; unchangeable once it says so."""

    @override
    def validate(self, obj: Object, context: Context) -> list[FieldError]:
        """Check the form of the keys, and that none is in both maps."""
        errors: list[FieldError] = []
        data, binary = obj.get("data") or {}, obj.get("binaryData") or {}
        for field, keys in (("data", data), ("binaryData", binary)):
            for key in sorted(keys):
                errors += [invalid(f"{field}[{key}]", key, text) for text in _config_key(key)]
        errors += [
            invalid(f"data[{key}]", key, "duplicate of key present in binaryData") for key in data if key in binary
        ]
        size = sum(len(value.encode()) for value in data.values()) + sum(
            len(value) * 3 // 4 for value in binary.values()
        )
        return errors + ([too_long("[]", "", _CONFIG_SIZE_MAX)] if size > _CONFIG_SIZE_MAX else [])

    @override
    def validate_update(self, obj: Object, old: Object, context: Context) -> list[FieldError]:
        """Check that what is immutable stays."""
        errors = []
        if old.get("immutable"):
            detail = "field is immutable when `immutable` is set"
            errors += [
                forbidden(field, detail)
                for field in ("immutable", "data", "binaryData")
                if (obj.get(field) or None) != (old.get(field) or None)
            ]
        return errors + self.validate(obj, context)


_CONFIG_SIZE_MAX: Final = 1024 * 1024
_CONFIG_KEY_TEXT: Final = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  "
    "or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)


def _config_key(key: str) -> list[str]:
    problems = [] if len(key) <= 253 else ["must be no more than 253 bytes"]
    if not key or not all(char.isascii() and (char.isalnum() or char in "-_.") for char in key):
        problems.append(_CONFIG_KEY_TEXT)
    elif key == ".":
        problems.append("must not be '.'")
    elif key.startswith(".."):
        problems.append("must not be '..'" if key == ".." else "must not start with '..'")
    return problems


class LeaseStrategy(Strategy):
    """Who holds what until when."""

    @override
    def validate(self, obj: Object, context: Context) -> list[FieldError]:
        """Check that the duration and the number of transitions are not negative."""
        spec = obj.get("spec") or {}
        errors = []
        if (duration := spec.get("leaseDurationSeconds")) is not None and duration <= 0:
            errors.append(invalid("spec.leaseDurationSeconds", duration, "must be greater than 0"))
        if (transitions := spec.get("leaseTransitions")) is not None and transitions < 0:
            errors.append(invalid("spec.leaseTransitions", transitions, "must be greater than or equal to 0"))
        return errors

    @override
    def validate_update(self, obj: Object, old: Object, context: Context) -> list[FieldError]:
        """Check it as a new one."""
        return self.validate(obj, context)


class SecretStrategy(Strategy):
    """Text of ``stringData`` becomes ``data``."""

    @override
    def prepare_for_create(self, obj: Object, context: Context) -> None:
        """Merge ``stringData``."""
        _merge_string_data(obj)

    @override
    def prepare_for_update(self, obj: Object, old: Object, context: Context) -> None:
        """Merge ``stringData``."""
        _merge_string_data(obj)


def _merge_string_data(obj: Object) -> None:
    texts = obj.pop("stringData", None) or {}
    if texts:
        obj["data"] = (obj.get("data") or {}) | {
            key: base64.b64encode(text.encode()).decode() for key, text in texts.items()
        }


class ServiceStrategy(StatusStrategy):
    """Addresses are made up: nothing routes to them."""

    @override
    def default(self, obj: Object, context: Context) -> None:
        """Set the target of a port that has none: the port itself."""
        for port in (obj.get("spec") or {}).get("ports") or ():
            port.setdefault("targetPort", port.get("port", 0))

    @override
    def prepare_for_create(self, obj: Object, context: Context) -> None:
        """Give it an address."""
        super().prepare_for_create(obj, context)
        spec = obj.setdefault("spec", {})
        if spec.get("type") != "ExternalName":
            address = spec.get("clusterIP") or f"10.96.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}"
            spec |= {"clusterIP": address, "clusterIPs": [address]}
            spec.setdefault("ipFamilies", ["IPv4"])
            spec.setdefault("ipFamilyPolicy", "SingleStack")

    @override
    def prepare_for_update(self, obj: Object, old: Object, context: Context) -> None:
        """Keep the address."""
        super().prepare_for_update(obj, old, context)
        for name in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
            if name in old.get("spec", {}) and not obj["spec"].get(name):
                obj["spec"][name] = old["spec"][name]


def _config_count(obj: Object) -> int:
    return len(obj.get("data") or ()) + len(obj.get("binaryData") or ())


def _external(service: Object) -> str:
    spec = service["spec"]
    if spec.get("type") == "ExternalName":
        return str(spec.get("externalName", ""))
    if spec.get("externalIPs"):
        return ",".join(spec["externalIPs"])
    return "<pending>" if spec.get("type") == "LoadBalancer" else "<none>"


KINDS: Final = (
    Kind("", "namespaces", "Namespace", False, {"v1": "core/v1.Namespace"}, NamespaceStrategy(), status=True,
         collection_deletion=False, short_names=("ns",), fields=readers("status.phase"),
         columns=(NAME, Column("Status", text("status.phase")), AGE)),
    Kind("", "configmaps", "ConfigMap", True, {"v1": "core/v1.ConfigMap"}, ConfigMapStrategy(), short_names=("cm",),
         deletion_status=True,
         columns=(NAME, Column("Data", _config_count), AGE)),
    Kind("", "secrets", "Secret", True, {"v1": "core/v1.Secret"}, SecretStrategy(), fields=readers("type"),
         deletion_status=True,
         columns=(NAME, Column("Type", text("type")), Column("Data", count("data")), AGE)),
    Kind("", "serviceaccounts", "ServiceAccount", True, {"v1": "core/v1.ServiceAccount"}, short_names=("sa",),
         columns=(NAME, AGE)),
    Kind("", "services", "Service", True, {"v1": "core/v1.Service"}, ServiceStrategy(), short_names=("svc",),
         categories=("all",), status=True, create_on_update=True, fields=readers("spec.clusterIP", "spec.type"),
         columns=(NAME, Column("Type", text("spec.type")), Column("Cluster-IP", text("spec.clusterIP")),
                  Column("External-IP", _external),
                  Column("Port(s)", lambda obj: ",".join(
                      f"{port.get('port')}/{port.get('protocol')}" for port in obj["spec"].get("ports") or ())),
                  AGE, Column("Selector", labels("spec.selector"), priority=1))),
    Kind("coordination.k8s.io", "leases", "Lease", True, {"v1": "coordination/v1.Lease"}, LeaseStrategy(),
         unconditional_update=False, create_on_update=True, deletion_status=True,
         columns=(NAME, Column("Holder", text("spec.holderIdentity")), AGE)),
)  # fmt: skip
