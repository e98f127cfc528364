"""Validation agrees with the recorded verdicts of a Kubernetes 1.37 API server."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from dra_kit.kubernetes.release import UNMODIFIED, Release
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.conversion import drop_disabled_fields
from dra_kit.kubernetes.resource.validation.claim_status import validate_device_statuses
from dra_kit.kubernetes.resource.validation.slices import validate_slice
from tests.unit.kubernetes.resource.golden_api import sequences

# v1beta2 has the shape and the paths of v1; v1beta1 has its own
_SLICE_PATHS = {f"/apis/resource.k8s.io/{version}/resourceslices" for version in ("v1", "v1beta2")}


def _slice_requests(*statuses: int) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield (id, body, answer) of requests that test a slice's spec, not metadata, raw bytes or the query."""
    requests = []
    for line in sequences("A-slices"):
        step = line["steps"][0]
        other_subject = line["id"].startswith("A/slice/meta") or "query" in step
        if step.get("path") in _SLICE_PATHS and "body" in step and not other_subject and step["status"] in statuses:
            gates = Release.alpha() if line["gates"] == "alpha" else Release.of()
            body = step["body"] if step["status"] == 400 else drop_disabled_fields(step["body"], None, gates)
            requests.append((line["id"], body, step))
    return requests


def _verdict(step: dict[str, Any], prefix: str) -> set[tuple[str, str, str]]:
    causes = step.get("causes", [])
    return {(c["field"], c["reason"], c["message"]) for c in causes if c["field"].startswith(prefix)}


def test_slice_errors_equal_api_server() -> None:
    requests = _slice_requests(201, 422)
    differences = {}
    for name, body, step in requests:
        errors = validate_slice(v1.ResourceSlice.model_validate(body), UNMODIFIED)
        ours = {(error.path, error.kind.value, error.body) for error in errors}
        if ours != (theirs := _verdict(step, "spec")):
            differences[name] = (sorted(theirs - ours), sorted(ours - theirs))
    assert differences == {}
    assert len(requests) == 1050


def test_undecodable_slices_are_rejected() -> None:
    # strict decoding rejects unknown fields, which models preserve
    requests = [item for item in _slice_requests(400) if "strict decoding" not in item[2]["message"]]
    for name, body, _ in requests:
        with pytest.raises(ValidationError):
            pytest.fail(f"{name}: {v1.ResourceSlice.model_validate(body)}")
    assert len(requests) == 120


def test_device_status_errors_equal_api_server() -> None:
    compared, differences = 0, {}
    for line in sequences("A-claimstatus"):
        step = line["steps"][-1]
        if "/v1beta1/" in step["path"] or step["status"] not in {200, 422} or "body" not in step:
            continue
        status = step["body"].get("status") or {}
        devices = [v1.AllocatedDeviceStatus.model_validate(item) for item in status.get("devices") or []]
        allocation = v1.ResourceClaimStatus.model_validate(status).allocation
        errors = validate_device_statuses(devices, allocation.devices.results if allocation else (), UNMODIFIED)
        ours = {(error.path, error.kind.value, error.body) for error in errors}
        theirs = _verdict(step, "status.devices")
        if ours != theirs:
            differences[line["id"]] = (sorted(theirs - ours), sorted(ours - theirs))
        compared += bool(devices)
    assert differences == {}
    assert compared == 103
