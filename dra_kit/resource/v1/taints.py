"""``DeviceTaintRule``: a taint that an administrator puts on devices (KEP-5055)."""

from __future__ import annotations

from pydantic import Field

from dra_kit.resource.v1.base import APIModel, ObjectMeta
from dra_kit.resource.v1.devices import DeviceTaint


class DeviceTaintSelector(APIModel, frozen=True):
    """The devices of a rule: those that agree in all fields that are set."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(APIModel, frozen=True):
    """Without ``device_selector`` a rule taints nothing, with an empty one every device."""

    device_selector: DeviceTaintSelector | None = None
    taint: DeviceTaint = Field(default_factory=DeviceTaint)


class DeviceTaintRule(APIModel, frozen=True):
    """One taint for several devices."""

    api_version: str = "resource.k8s.io/v1"
    kind: str = "DeviceTaintRule"
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: DeviceTaintRuleSpec = Field(default_factory=DeviceTaintRuleSpec)
