"""Kinds that charts and manifests of drivers bring along: they are stored and listed, and nothing here acts on them.

No network is closed, no quota counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from typing_extensions import override

from dra_kit.apiserver.kinds.columns import number, selector, text
from dra_kit.apiserver.kinds.kind import AGE, NAME, Column, Kind
from dra_kit.apiserver.kinds.strategy import Context, StatusStrategy, Strategy
from dra_kit.kubernetes.values.json import Object


class NetworkPolicyStrategy(Strategy):
    """Its types follow from what it has rules for."""

    @override
    def default(self, obj: Object, context: Context) -> None:
        """Set the policy types: always Ingress, Egress where there are rules for it."""
        spec = obj.get("spec")
        if spec is not None and not spec.get("policyTypes"):
            spec["policyTypes"] = ["Ingress", *(["Egress"] if spec.get("egress") else [])]


def _limit(path: str) -> Callable[[Object], str]:
    read = text(path)
    return lambda obj: read(obj) or "N/A"


def _quota(prefix: str) -> Callable[[Object], str]:
    """Return ``resource: used/hard`` of limits, or of everything else."""

    def read(obj: Object) -> str:
        status = obj.get("status") or {}
        used = status.get("used") or {}
        parts = [f"{name}: {used.get(name, '0')}/{hard}" for name, hard in sorted((status.get("hard") or {}).items())
                 if name.startswith("limits.") == (prefix == "limits.")]  # fmt: skip
        return ", ".join(parts)

    return read


KINDS: Final = (
    Kind("networking.k8s.io", "networkpolicies", "NetworkPolicy", True, {"v1": "networking/v1.NetworkPolicy"},
         NetworkPolicyStrategy(), short_names=("netpol",), generation=True, deletion_status=True,
         columns=(NAME, Column("Pod-Selector", selector("spec.podSelector")), AGE)),
    Kind("scheduling.k8s.io", "priorityclasses", "PriorityClass", False, {"v1": "scheduling/v1.PriorityClass"},
         short_names=("pc",), generation=True, deletion_status=True,
         columns=(NAME, Column("Value", number("value"), type="integer"),
                  Column("Global-Default", lambda obj: bool(obj.get("globalDefault")), type="boolean"), AGE,
                  Column("PreemptionPolicy", text("preemptionPolicy")))),
    Kind("policy", "poddisruptionbudgets", "PodDisruptionBudget", True, {"v1": "policy/v1.PodDisruptionBudget"},
         StatusStrategy(), short_names=("pdb",), status=True, generation=True, deletion_status=True,
         columns=(NAME, Column("Min Available", _limit("spec.minAvailable")),
                  Column("Max Unavailable", _limit("spec.maxUnavailable")),
                  Column("Allowed Disruptions", number("status.disruptionsAllowed"), type="integer"), AGE)),
    Kind("", "resourcequotas", "ResourceQuota", True, {"v1": "core/v1.ResourceQuota"}, StatusStrategy(),
         short_names=("quota",), status=True,
         columns=(NAME, Column("Request", _quota("requests.")), Column("Limit", _quota("limits.")), AGE)),
    Kind("node.k8s.io", "runtimeclasses", "RuntimeClass", False, {"v1": "node/v1.RuntimeClass"}, deletion_status=True,
         columns=(NAME, Column("Handler", text("handler")), AGE)),
)  # fmt: skip
