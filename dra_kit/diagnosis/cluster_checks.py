"""Which feature gates of resource.k8s.io are on: a slice with a field of each is created in a dry run."""

from __future__ import annotations

from typing import Any, Final

from dra_kit.client.api import Client
from dra_kit.client.resources import RESOURCE_SLICES
from dra_kit.errors import Forbidden, KubeError
from dra_kit.operation.checks.finding import Finding, ok, warn

_DRIVER: Final = "gates.check.dra-kit.example"
_NODE: Final = "dra-kit-check"
_WHAT: Final = "feature gates"

_WHOLE: Final[dict[str, dict[str, Any]]] = {
    "DRADeviceTaints": {"taints": [{"key": "dra-kit.example/check", "effect": "NoSchedule"}]},
    "DRADeviceBindingConditions": {
        "bindingConditions": ["dra-kit.example/check"],
        "bindingFailureConditions": ["dra-kit.example/failed"],
    },
    "DRAConsumableCapacity": {"allowMultipleAllocations": True},
}
"""A device's field that is stored where the gate is on (Kubernetes 1.37, resourceslice/strategy.go)."""

_COUNTERS: Final = "DRAPartitionableDevices"


async def check_gates(client: Client, *, separate_counters: bool) -> Finding:
    """Return which gates are on and off: which of them a driver needs, only its own slices say.

    Args:
        client: of the API server.
        separate_counters: counter sets stand in slices of their own (Kubernetes 1.35 and newer).
    """
    on: list[str] = []
    off: list[str] = []
    unknown: dict[str, str] = {}
    for gate, body in _probes(separate_counters=separate_counters).items():
        try:
            stored = await client.create(RESOURCE_SLICES, body, dry_run=True)
        except Forbidden as error:
            return warn(
                _WHAT, f"not known: {error}",
                "run this as somebody who may create ResourceSlices; nothing is stored, it is a dry run",
            )  # fmt: skip
        except KubeError as error:
            unknown[gate] = str(error)
            continue
        (on if _is_stored(body["spec"], stored.get("spec") or {}) else off).append(gate)
    if unknown:
        gate, why = next(iter(unknown.items()))
        return warn(_WHAT, f"{gate} is not known: {why}", "an admission policy may refuse what nobody's driver writes")
    text = "; ".join(f"{state}: {', '.join(gates)}" for state, gates in (("on", on), ("off", off)) if gates)
    if off:
        return warn(_WHAT, text, "drivers that need one of those say so; kube-apiserver drops their fields silently")
    return ok(_WHAT, text)


def _probes(*, separate_counters: bool) -> dict[str, dict[str, Any]]:
    probes = {gate: _slice({"devices": [{"name": "check", **field}]}) for gate, field in _WHOLE.items()}
    sets = [{"name": "set", "counters": {"slots": {"value": "1"}}}]
    if separate_counters:
        probes[_COUNTERS] = _slice({"sharedCounters": sets})
    else:
        probes[_COUNTERS] = _slice({"sharedCounters": sets, "devices": [{"name": "check"}]})
    return probes


def _slice(spec: dict[str, Any]) -> dict[str, Any]:
    pool = {"name": _NODE, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": RESOURCE_SLICES.api_version,
        "kind": RESOURCE_SLICES.kind,
        "metadata": {"generateName": "dra-kit-check-"},
        "spec": {"driver": _DRIVER, "nodeName": _NODE, "pool": pool, **spec},
    }


def _is_stored(sent: dict[str, Any], stored: dict[str, Any]) -> bool:
    if "sharedCounters" in sent:
        return bool(stored.get("sharedCounters"))
    [device], [found] = sent["devices"], stored.get("devices") or [{}]
    return all(found.get(key) for key in device)
