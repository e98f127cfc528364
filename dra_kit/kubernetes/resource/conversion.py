"""Conversion between v1 and the beta versions of resource.k8s.io."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.field_errors import FieldError, GoStruct, declarative_last
from dra_kit.kubernetes.values.json import Object

V1: Final = "resource.k8s.io/v1"
V1BETA1: Final = "resource.k8s.io/v1beta1"
OUTSIDE_EXACTLY: Final = ("name", "exactly", "firstAvailable")
"""Fields of a v1 request outside of ``exactly``."""
_DEVICE_FIELD: Final = re.compile(r"^(spec\.devices\[\d+\])\.(?!name$)")
_REQUEST_FIELD: Final = re.compile(r"^((?:spec\.)+devices\.requests\[\d+\])\.exactly\b")


def to_v1(obj: Object, kind: str, api_version: str) -> Object:
    """Return an object of any version with the content of v1; its ``apiVersion`` and ``obj`` stay unchanged."""
    return _TO_V1[kind](obj) if api_version == V1BETA1 and kind in _TO_V1 else obj


def from_v1(obj: Object, kind: str, api_version: str) -> Object:
    """Return the reverse of :func:`to_v1`."""
    return _FROM_V1[kind](obj) if api_version == V1BETA1 and kind in _FROM_V1 else obj


def errors_in_version(errors: Iterable[FieldError], api_version: str) -> list[FieldError]:
    """Return errors of a v1 object for a client that sent another version, hand-written rules first."""
    return declarative_last(error_in(error, api_version) for error in errors)


def error_in(error: FieldError, api_version: str) -> FieldError:
    """Return an error of a v1 object as the API server returns it to a client that sent another version.

    Only errors of declarative rules use the field names of that version (measured on kube-apiserver 1.37.1).
    """
    if api_version != V1BETA1 or not error.declarative:
        return error
    path = _DEVICE_FIELD.sub(r"\1.basic.", error.path)
    path = _REQUEST_FIELD.sub(r"\1", path)
    value = error.value
    if isinstance(value, v1.DeviceRequest):
        value = GoStruct(_request_from_v1(value.to_json()))
    return replace(error, path=path, value=value)


def _slice_to_v1(obj: Object) -> Object:
    """Convert a slice: unwrap devices, and remove empty node scopes."""
    spec = dict(obj.get("spec") or {})
    for scope in ("nodeName", "allNodes"):
        if not spec.get(scope):
            spec.pop(scope, None)
    if spec.get("devices"):
        spec["devices"] = [
            {"name": device.get("name", ""), **(device.get("basic") or {})} for device in spec["devices"]
        ]
    return {**obj, "spec": spec}


def _slice_from_v1(obj: Object) -> Object:
    spec = dict(obj["spec"])
    if spec.get("devices"):
        spec["devices"] = [
            {"name": device["name"], "basic": {key: value for key, value in device.items() if key != "name"}}
            for device in spec["devices"]
        ]
    return {**obj, "spec": spec}


def _request_to_v1(request: Object) -> Object:
    """Convert a request: move the fields that describe devices to ``exactly``, if any is set."""
    exactly = {key: value for key, value in request.items() if key not in OUTSIDE_EXACTLY}
    converted: Object = {key: request[key] for key in ("name", "firstAvailable") if key in request}
    if any(map(_is_set, exactly.values())):
        converted["exactly"] = exactly
    return converted


def _is_set(value: Any) -> bool:
    """Return whether a field of a v1beta1 request counts as set: an empty list and ``adminAccess: false`` do."""
    return isinstance(value, bool | list | dict) or bool(value)


def _request_from_v1(request: Object) -> Object:
    exactly = {"deviceClassName": "", **(request.get("exactly") or {})}
    name = {"name": request["name"]} if "name" in request else {}
    return name | exactly | {key: value for key, value in request.items() if key not in ("name", "exactly")}


def _requests(spec: Object, convert: Callable[[Object], Object]) -> Object:
    devices = spec.get("devices") or {}
    if not devices.get("requests"):
        return spec
    return {**spec, "devices": {**devices, "requests": [convert(request) for request in devices["requests"]]}}


def _claim(obj: Object, *, convert: Callable[[Object], Object]) -> Object:
    return {**obj, "spec": _requests(obj.get("spec") or {}, convert)}


def _template(obj: Object, *, convert: Callable[[Object], Object]) -> Object:
    return {**obj, "spec": _claim(obj.get("spec") or {}, convert=convert)}


_TO_V1: Final[Mapping[str, Callable[[Object], Object]]] = {
    "ResourceSlice": _slice_to_v1,
    "ResourceClaim": partial(_claim, convert=_request_to_v1),
    "ResourceClaimTemplate": partial(_template, convert=_request_to_v1),
}
_FROM_V1: Final[Mapping[str, Callable[[Object], Object]]] = {
    "ResourceSlice": _slice_from_v1,
    "ResourceClaim": partial(_claim, convert=_request_from_v1),
    "ResourceClaimTemplate": partial(_template, convert=_request_from_v1),
}
