"""Validation of the kinds of resource.k8s.io, with the API server's rules, paths and texts.

Source: Kubernetes 1.37 ``pkg/apis/resource/validation``, held against recorded answers of its API server.
"""

from dra_kit.resource.validation.claims.device_status import validate_device_statuses
from dra_kit.resource.validation.slices.devices import validate_device
from dra_kit.resource.validation.slices.pools import validate_pool
from dra_kit.resource.validation.slices.slices import max_devices, validate_slice

__all__ = ["max_devices", "validate_device", "validate_device_statuses", "validate_pool", "validate_slice"]
