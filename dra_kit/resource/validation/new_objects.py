"""New objects: the one place that knows which rules are those of which kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dra_kit.resource import v1
from dra_kit.resource.fielderror import FieldError, forbidden
from dra_kit.resource.gates import FeatureGates
from dra_kit.resource.validation.claims.claims import validate_claim_spec
from dra_kit.resource.validation.claims.templates import validate_template
from dra_kit.resource.validation.classes import validate_class
from dra_kit.resource.validation.pods.node_taints import validate_node_taints
from dra_kit.resource.validation.pods.pods import validate_pod_spec
from dra_kit.resource.validation.pool_status import validate_pool_status_request
from dra_kit.resource.validation.slices.slices import validate_slice
from dra_kit.resource.validation.taint_rules import validate_taint_rule
from dra_kit.values.json import Object
from dra_kit.values.paths import value_at

POD_SPECS: Final[Mapping[str, tuple[str, ...]]] = {
    "Pod": ("spec",),
    "PodTemplate": ("template", "spec"),
    **dict.fromkeys(
        ("DaemonSet", "Deployment", "Job", "ReplicaSet", "ReplicationController", "StatefulSet"),
        ("spec", "template", "spec"),
    ),
    "CronJob": ("spec", "jobTemplate", "spec", "template", "spec"),
}
"""Where the spec of a pod is, by kind."""


def validate_new(obj: Object, kind: str, gates: FeatureGates) -> list[FieldError]:
    """Check all rules of the API server (Kubernetes 1.37) for a new object, except metadata and admission.

    Args:
        obj: values of the right types, with defaults; an object of resource.k8s.io is in v1, and fields of gates that
            are off have been dropped from it.
        kind: its kind, of resource.k8s.io, Node, or one of ``POD_SPECS``; of others there are no rules.
        gates: of the API server.
    """
    whole = {**obj, "spec": obj.get("spec") or {}}
    match kind:
        case "DeviceClass":
            return validate_class(v1.DeviceClass.model_validate(whole), gates=gates)
        case "DeviceTaintRule":
            return validate_taint_rule(v1.DeviceTaintRule.model_validate(whole))
        case "ResourceClaim":
            return validate_claim_spec(v1.ResourceClaimSpec.model_validate(whole["spec"]), gates)
        case "ResourceClaimTemplate":
            return validate_template(v1.ResourceClaimTemplate.model_validate(whole), gates)
        case "ResourcePoolStatusRequest":
            from dra_kit.resource import v1alpha3  # an alpha kind, which hardly any cluster serves

            return validate_pool_status_request(v1alpha3.ResourcePoolStatusRequest.model_validate(whole))
        case "ResourceSlice":
            fractional = "DRAFractionalCapacityRange" in gates
            return validate_slice(v1.ResourceSlice.model_validate(whole), fractional_ranges=fractional)
        case "Node":
            return validate_node_taints(whole["spec"].get("taints") or ())
        case "Pod":
            return _pod(whole["spec"])
        case _ if kind in POD_SPECS:
            path = POD_SPECS[kind]
            return validate_pod_spec(value_at(obj, path) or {}, ".".join(path))
        case _:
            return []


def _pod(spec: Object) -> list[FieldError]:
    """Check its containers and claims, and that a pod with scheduling gates has no node yet."""
    errors = validate_pod_spec(spec)
    if spec.get("schedulingGates") and spec.get("nodeName"):
        errors.append(forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared"))
    return errors
