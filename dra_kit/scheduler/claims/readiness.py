"""Whether the devices of an allocated claim are ready for their node (binding conditions, KEP-5007). Pure."""

from __future__ import annotations

from typing import Any

from dra_kit.values.json import ObjectView


class BindingFailed(Exception):
    """A driver reports that a device will not become ready; the text is kube-scheduler's."""


def awaited(claim: ObjectView) -> list[Any]:
    """Return the results of a claim's allocation whose devices have binding conditions."""
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return [item for item in results if item.get("bindingConditions")]


def is_ready(claim: ObjectView) -> bool:
    """Whether all binding conditions of a claim's devices are true.

    Raises:
        BindingFailed: one of its devices has failed.
    """
    ready = True
    for result in awaited(claim):
        conditions = _conditions(claim, result)
        for kind in result.get("bindingFailureConditions", []):
            if conditions.get(kind, {}).get("status") == "True":
                reason, message = conditions[kind].get("reason", ""), conditions[kind].get("message", "")
                name = claim["metadata"]["name"]
                raise BindingFailed(f'device binding failed: claim={name}, reason={reason}, message="{message}"')
        ready &= all(conditions.get(kind, {}).get("status") == "True" for kind in result["bindingConditions"])
    return ready


def _conditions(claim: ObjectView, result: ObjectView) -> dict[str, Any]:
    for device in claim.get("status", {}).get("devices", []):
        if all(device.get(name) == result.get(name) for name in ("driver", "pool", "device", "shareID")):
            return {item["type"]: item for item in device.get("conditions", [])}
    return {}
