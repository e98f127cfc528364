"""Pods: their containers, and what their spec and status may say about ResourceClaims.

Source: Kubernetes 1.37 ``pkg/apis/core/validation/validation.go``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final

from dra_kit.resource import names
from dra_kit.resource.fielderror import FieldError, GoStruct, duplicate, invalid, not_found, required
from dra_kit.resource.validation.pods.pod_fields import validate_container_fields, validate_pod_fields, validate_volumes
from dra_kit.values.json import Object

_SOURCES: Final = ("resourceClaimName", "resourceClaimTemplateName")
_BOTH: Final = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
_NEITHER: Final = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
_UNKNOWN_RESOURCE: Final = (
    "must match one of the container's resource claims as 'claim:<claimName>/<requestName>' when "
    "container.resources.claims[*].request is set or 'claim:<claimName>' when it is empty"
)


def validate_pod_spec(spec: Object, path: str = "spec") -> list[FieldError]:
    """Check the volumes and claims of a pod, its containers, the claims that those use, and its other fields.

    Args:
        spec: values of the right types.
        path: of the spec; templates of pods have it further down.
    """
    entries = spec.get("resourceClaims") or ()
    known = {claim["name"] for claim in entries if claim.get("name")}
    volumes: list[Object] = spec.get("volumes") or []
    mounted = {volume["name"] for volume in volumes if volume.get("name")}
    errors = [*validate_volumes(volumes, f"{path}.volumes"), *_entries(entries, f"{path}.resourceClaims")]
    if not spec.get("containers"):
        errors.append(required(f"{path}.containers"))
    seen: set[str] = set()
    for field in ("containers", "initContainers"):
        for i, container in enumerate(spec.get(field) or ()):
            where = f"{path}.{field}[{i}]"
            errors += [*_container(container, known, where), *validate_container_fields(container, mounted, where)]
            name = container.get("name", "")
            if name in seen:
                errors.append(duplicate(f"{where}.name", name))
            seen.add(name)
    return [*errors, *validate_pod_fields(spec, path)]


def _container(container: Object, known: Collection[str], path: str) -> list[FieldError]:
    name = container.get("name", "")
    errors = [] if name else [required(f"{path}.name")]
    errors += [invalid(f"{path}.name", name, text) for text in (names.dns_label(name) if name else ())]
    if not container.get("image"):
        errors.append(required(f"{path}.image"))
    claims = (container.get("resources") or {}).get("claims") or ()
    return errors + _uses(claims, known, f"{path}.resources.claims")


def _entries(claims: Sequence[Object], path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[str] = set()
    for i, claim in enumerate(claims):
        where, name = f"{path}[{i}]", claim.get("name", "")
        if not name:
            errors.append(required(f"{where}.name"))
        elif name in seen:
            errors.append(duplicate(f"{where}.name", name))
        else:
            errors += [invalid(f"{where}.name", name, text) for text in names.dns_label(name)]
        seen.add(name)
        errors += _source(claim, where)
    return errors


def _source(claim: Object, path: str) -> Iterator[FieldError]:
    sources = [claim.get(field) for field in _SOURCES]
    given = [name for name in sources if name is not None]
    if len(given) != 1:
        go_names = ("Name", "ResourceClaimName", "ResourceClaimTemplateName")
        value = GoStruct(zip(go_names, (claim.get("name", ""), *sources), strict=True))
        yield invalid(path, value, _BOTH if given else _NEITHER)
    for field in _SOURCES:
        if claim.get(field) is not None:
            yield from (invalid(f"{path}.{field}", claim[field], text) for text in names.dns_subdomain(claim[field]))


def _uses(claims: Sequence[Object], known: Collection[str], path: str) -> list[FieldError]:
    """Check the claims of a container: claims as a whole, or single requests of them, and none twice."""
    errors: list[FieldError] = []
    whole: set[str] = set()
    single: set[str] = set()
    for i, claim in enumerate(claims):
        where, name, request = f"{path}[{i}]", claim.get("name", ""), claim.get("request", "")
        if not name:
            errors.append(required(where))
            continue
        if not request:
            if name in whole or any(use.partition("/")[0] == name for use in single):
                errors.append(duplicate(where, name))
            whole.add(name)
        elif name in whole:
            errors.append(duplicate(where, name))
        else:
            errors += [invalid(f"{where}.request", request, text) for text in names.dns_label(request)]
            if (use := f"{name}/{request}") in single:
                errors.append(duplicate(where, use))
            single.add(use)
        if name not in known:
            among = f": {', '.join(sorted(known))}" if known else " which is empty"
            detail = f"must be one of the names in pod.spec.resourceClaims{among}"
            errors.append(replace(not_found(where, name), detail=detail))
    return errors


def validate_pod_status(status: Object, spec: Object) -> list[FieldError]:
    """Check the claims that a pod got, and the health of its containers' devices."""
    errors: list[FieldError] = []
    known = {claim.get("name") for claim in spec.get("resourceClaims") or ()}
    seen: set[str] = set()
    for i, item in enumerate(status.get("resourceClaimStatuses") or ()):
        path, name = f"status.resourceClaimStatuses[{i}]", item.get("name", "")
        if name not in known:
            errors.append(invalid(f"{path}.name", name, "must match the name of an entry in `spec.resourceClaims`"))
        if name in seen:
            errors.append(duplicate(f"{path}.name", name))
        seen.add(name)
        claim = item.get("resourceClaimName")
        errors += [invalid(f"{path}.resourceClaimName", claim, text) for text in names.dns_subdomain(claim or "a")]
    containers = {item.get("name"): item for item in spec.get("containers") or ()}
    for i, item in enumerate(status.get("containerStatuses") or ()):
        claims = ((containers.get(item.get("name")) or {}).get("resources") or {}).get("claims") or ()
        allowed = {f"claim:{one['name']}" + (f"/{one['request']}" if one.get("request") else "") for one in claims}
        for j, resource in enumerate(item.get("allocatedResourcesStatus") or ()):
            if resource.get("name", "").startswith("claim:") and resource["name"] not in allowed:
                path = f"status.containerStatuses[{i}].allocatedResourcesStatus[{j}].name"
                errors.append(invalid(path, resource["name"], _UNKNOWN_RESOURCE))
    return errors
