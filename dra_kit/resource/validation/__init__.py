"""Validation of the kinds of resource.k8s.io, with the API server's rules, paths and texts.

Source: Kubernetes 1.37 ``pkg/apis/resource/validation``, held against recorded answers of its API server.
"""

from dra_kit.resource.validation.devices import validate_device
from dra_kit.resource.validation.pools import validate_pool
from dra_kit.resource.validation.slices import max_devices, validate_slice
from dra_kit.resource.validation.status import validate_device_statuses

__all__ = ["max_devices", "validate_device", "validate_device_statuses", "validate_pool", "validate_slice"]
