"""Requests as scenarios write them down."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

Request: TypeAlias = dict[str, Any]

CORE: Final = "v1"
RESOURCE: Final = "resource.k8s.io/v1"
_CORE: Final = {"pods", "nodes", "namespaces"}
_NAMESPACED: Final = {"pods", "resourceclaims", "resourceclaimtemplates"}


def create(plural: str, body: dict[str, Any]) -> Request:
    """POST of an object."""
    return {"method": "POST", "path": path(plural), "body": body}


def delete(plural: str, name: str, *, grace: int | None = None) -> Request:
    """DELETE of an object.

    Args:
        plural: of its kind.
        name: of the object.
        grace: seconds, where they are not left to the object.
    """
    request: Request = {"method": "DELETE", "path": path(plural, name)}
    return request if grace is None else request | {"body": {"gracePeriodSeconds": grace}}


def merge_patch(plural: str, name: str, body: dict[str, Any], *, subresource: str = "") -> Request:
    """PATCH of an object, as JSON merge patch."""
    where = path(plural, name) + (f"/{subresource}" if subresource else "")
    return {"method": "PATCH", "path": where, "contentType": "application/merge-patch+json", "body": body}


def path(plural: str, name: str = "") -> str:
    """Of an object, or of all; namespaced ones live in ``default``."""
    root = "/api/v1" if plural in _CORE else f"/apis/{RESOURCE}"
    place = "/namespaces/default" if plural in _NAMESPACED else ""
    return f"{root}{place}/{plural}" + (f"/{name}" if name else "")
