"""Pods that use ResourceClaims: what their spec and status may say about them.

Source: Kubernetes 1.37 ``pkg/apis/core/validation/validation.go``.
"""

from __future__ import annotations

from collections.abc import Iterator

from dra_kit.apiserver.kinds.strategy import Object
from dra_kit.resource import names
from dra_kit.resource.fielderror import FieldError, GoStruct, duplicate, invalid, not_found, required

_EITHER = "one of `resourceClaimName` or `resourceClaimTemplateName`"
_UNKNOWN_RESOURCE = (
    "must match one of the container's resource claims as 'claim:<claimName>/<requestName>' when "
    "container.resources.claims[*].request is set or 'claim:<claimName>' when it is empty"
)


def validate_spec(spec: Object) -> list[FieldError]:
    """The claims of a pod, and those that its containers use."""
    errors: list[FieldError] = []
    seen: set[str] = set()
    for i, claim in enumerate(spec.get("resourceClaims") or ()):
        path, name = f"spec.resourceClaims[{i}]", claim.get("name", "")
        if not name:
            errors.append(required(f"{path}.name"))
        elif name in seen:
            errors.append(duplicate(f"{path}.name", name))
        else:
            errors += [invalid(f"{path}.name", name, text) for text in names.dns_label(name)]
        seen.add(name)
        errors += _source(claim, path)
    for field in ("initContainers", "containers"):
        for i, container in enumerate(spec.get(field) or ()):
            path = f"spec.{field}[{i}].resources.claims"
            errors += _container(((container.get("resources") or {}).get("claims")) or [], seen, path)
    return errors


def _source(claim: Object, path: str) -> Iterator[FieldError]:
    sources = [claim.get("resourceClaimName"), claim.get("resourceClaimTemplateName")]
    given = [name for name in sources if name is not None]
    if len(given) != 1:
        value = GoStruct(
            zip(
                ("Name", "ResourceClaimName", "ResourceClaimTemplateName"),
                (claim.get("name", ""), *sources),
                strict=True,
            )
        )
        yield invalid(
            path, value, f"{'at most' if given else 'must specify'} {_EITHER}{' may be specified' if given else ''}"
        )
    for field in ("resourceClaimName", "resourceClaimTemplateName"):
        if claim.get(field) is not None:
            yield from (invalid(f"{path}.{field}", claim[field], text) for text in names.dns_subdomain(claim[field]))


def _container(claims: list[Object], known: set[str], path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    used: set[tuple[str, str]] = set()
    for i, claim in enumerate(claims):
        name, request = claim.get("name", ""), claim.get("request", "")
        if not name:
            errors.append(required(f"{path}[{i}]"))
            continue
        if request:
            errors += [invalid(f"{path}[{i}].request", request, text) for text in names.dns_label(request)]
        if (name, request) in used or (name, "") in used or (not request and any(one == name for one, _ in used)):
            errors.append(duplicate(f"{path}[{i}]", f"{name}/{request}" if request else name))
        if name not in known:
            errors.append(not_found(f"{path}[{i}]", name))
        used.add((name, request))
    return errors


def validate_status(status: Object, spec: Object) -> list[FieldError]:
    """The claims that a pod got, and the health of its containers' devices."""
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
