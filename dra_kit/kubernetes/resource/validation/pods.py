"""Rules for pods that matter for drivers' manifests and claims, and for taints of nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from dra_kit.kubernetes.release import Release
from dra_kit.kubernetes.resource import names
from dra_kit.kubernetes.resource.field_errors import (
    FieldError,
    GoStruct,
    duplicate,
    forbidden,
    invalid,
    not_found,
    required,
    unsupported,
)
from dra_kit.kubernetes.resource.v1 import NodeSelector, NodeSelectorTerm
from dra_kit.kubernetes.resource.validation.fields import (
    label_selector_errors,
    require_one_of,
    validate_labels,
    validate_node_selector,
    validate_node_selector_term,
)
from dra_kit.kubernetes.values.json import Object
from dra_kit.kubernetes.values.quantity import Quantity

_RESTART_POLICIES: Final = ("Always", "OnFailure", "Never")
_PULL_POLICIES: Final = ("Always", "IfNotPresent", "Never")
_DNS_POLICIES: Final = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_RESOURCES: Final = {"cpu", "memory", "ephemeral-storage"}
_COUNTED: Final = {
    "storage", "pods", "services", "replicationcontrollers", "resourcequotas", "secrets", "configmaps",
    "persistentvolumeclaims", "services.nodeports", "services.loadbalancers", "requests.cpu", "requests.memory",
    "requests.storage", "requests.ephemeral-storage", "limits.cpu", "limits.memory", "limits.ephemeral-storage",
}  # fmt: skip
"""Standard resources of quotas and volumes, which containers cannot request."""
_HUGE: Final = "hugepages-"
_PORT_MAX: Final = 65535
_SECONDS_MAX: Final = 2**31 - 1
_WEIGHT_MAX: Final = 100


def validate_volumes(volumes: list[Object], path: str) -> Iterator[FieldError]:
    """Yield the names of the volumes of a pod; their sources are not checked."""
    seen: set[str] = set()
    for i, volume in enumerate(volumes):
        where, name = f"{path}[{i}].name", volume.get("name", "")
        if not name:
            yield required(where)
            continue
        problems = names.dns_label(name)
        yield from (invalid(where, name, text) for text in problems)
        if name in seen:
            yield duplicate(where, name)
        seen.add(name)


def validate_container_fields(
    container: Object, volumes: set[str], path: str, release: Release
) -> Iterator[FieldError]:
    """Check a container except its names and claims."""
    image: str = container.get("image", "")
    if image.strip() != image:
        yield invalid(f"{path}.image", image, "must not have leading or trailing whitespace")
    for i, port in enumerate(container.get("ports") or ()):
        number = port.get("containerPort", 0)
        if number and not 1 <= number <= _PORT_MAX:
            yield invalid(f"{path}.ports[{i}].containerPort", number, "must be between 1 and 65535, inclusive")
    for i, variable in enumerate(container.get("env") or ()):
        yield from _variable(variable, f"{path}.env[{i}]")
    yield from _mounts(container.get("volumeMounts") or [], volumes, f"{path}.volumeMounts")
    policy = container.get("imagePullPolicy")
    if policy and policy not in _PULL_POLICIES:
        yield unsupported(f"{path}.imagePullPolicy", policy, _PULL_POLICIES, in_order=True)
    yield from _resources(container.get("resources") or {}, f"{path}.resources", release)


def _variable(variable: Object, path: str) -> Iterator[FieldError]:
    name, source = variable.get("name", ""), variable.get("valueFrom")
    if not name:
        yield required(f"{path}.name")
    elif not all(" " <= char <= "~" and char != "=" for char in name):
        detail = "a valid environment variable name must consist only of printable ASCII characters other than '='"
        yield invalid(f"{path}.name", name, detail)
    if source is None:
        return
    given = [field for field, value in source.items() if value is not None]
    detail = ""
    if not given:
        known = "`fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        detail = f"must specify one of: {known}"
    elif variable.get("value"):
        detail = "may not be specified when `value` is not empty"
    elif len(given) > 1:
        detail = "may not have more than one field specified at a time"
    if detail:
        yield invalid(f"{path}.valueFrom", "", detail)


def _mounts(mounts: list[Object], volumes: set[str], path: str) -> Iterator[FieldError]:
    seen: set[str] = set()
    for i, mount in enumerate(mounts):
        name, where = mount.get("name", ""), mount.get("mountPath", "")
        if not name:
            yield required(f"{path}[{i}].name")
        if name not in volumes:
            yield not_found(f"{path}[{i}].name", name)
        if not where:
            yield required(f"{path}[{i}].mountPath")
        if where in seen:
            yield invalid(f"{path}[{i}].mountPath", where, "must be unique")
        seen.add(where)


def _resources(resources: Object, path: str, release: Release) -> Iterator[FieldError]:
    limits, requests = (_quantities(resources.get(field), release) for field in ("limits", "requests"))
    for name, quantity in limits.items():
        yield from _quantity(name, quantity, f"{path}.limits[{name}]")
    for name, quantity in requests.items():
        yield from _quantity(name, quantity, f"{path}.requests[{name}]")
        limit, shared = limits.get(name), _overcommitted(name)
        if limit is None:
            if not shared:
                yield required(f"{path}.limits", "Limit must be set for non overcommitable resources")
        elif not shared and quantity != limit:
            yield invalid(f"{path}.requests", quantity, f"must be equal to {name} limit of {limit}")
        elif quantity > limit:
            yield invalid(f"{path}.requests", quantity, f"must be less than or equal to {name} limit of {limit}")
    used = limits.keys() | requests.keys()
    if any(name.startswith(_HUGE) for name in used) and not used & {"cpu", "memory"}:
        yield forbidden(path, "HugePages require cpu or memory")


def _quantities(values: Mapping[str, Any] | None, release: Release) -> dict[str, Quantity]:
    return {name: Quantity(str(value), release.version) for name, value in sorted((values or {}).items())}


def _native(name: str) -> bool:
    return "/" not in name or "kubernetes.io/" in name


def _overcommitted(name: str) -> bool:
    """Return whether limits may exceed requests; not for extended resources and huge pages."""
    return _native(name) and not name.startswith(_HUGE)


def _quantity(name: str, quantity: Quantity, path: str) -> Iterator[FieldError]:
    yield from (invalid(path, name, text) for text in names.label_key(name))
    if "/" not in name and name not in _RESOURCES and not name.startswith(_HUGE):
        if name not in _COUNTED:
            yield invalid(path, name, "must be a standard resource type or fully qualified")
        yield invalid(path, name, "must be a standard resource for containers")
    extended = not _native(name)
    if extended and (name.startswith("requests.") or names.label_key(f"requests.{name}")):
        yield invalid(path, name, "doesn't follow extended resource name standard")
    if quantity.sign < 0:
        yield invalid(path, quantity, "must be greater than or equal to 0")
    if extended and not quantity.is_whole:
        yield invalid(path, quantity, "must be an integer")


def validate_pod_fields(spec: Object, path: str) -> Iterator[FieldError]:
    """Check the fields of a pod's spec except volumes, claims and containers."""
    for field, choices in (("restartPolicy", _RESTART_POLICIES), ("dnsPolicy", _DNS_POLICIES)):
        if spec.get(field) and spec[field] not in choices:
            yield unsupported(f"{path}.{field}", spec[field], choices, in_order=True)
    yield from validate_labels(spec.get("nodeSelector"), f"{path}.nodeSelector")
    yield from _affinity(spec.get("affinity") or {}, f"{path}.affinity")
    yield from _gates(spec, path)
    if node := spec.get("nodeName"):
        yield from (invalid(f"{path}.nodeName", node, text) for text in names.dns_subdomain(node))
    seconds = spec.get("activeDeadlineSeconds")
    if seconds is not None and not 1 <= seconds <= _SECONDS_MAX:
        yield invalid(f"{path}.activeDeadlineSeconds", seconds, f"must be between 1 and {_SECONDS_MAX}, inclusive")
    if host := spec.get("hostname"):
        yield from (invalid(f"{path}.hostname", host, text) for text in names.dns_label(host))
    for i, toleration in enumerate(spec.get("tolerations") or ()):
        yield from _toleration(toleration, f"{path}.tolerations[{i}]")
    if (group := spec.get("schedulingGroup")) is not None:
        where, name = f"{path}.schedulingGroup.podGroupName", group.get("podGroupName")
        if name is None:
            yield invalid(where, None, "must specify one of: `podGroupName`")
        else:
            yield from (invalid(where, name, text) for text in names.dns_subdomain(name))


_REQUIRED_AFFINITY: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED_AFFINITY: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def _affinity(affinity: Object, path: str) -> Iterator[FieldError]:
    """Check the affinity of a pod to nodes, and to other pods."""
    to_nodes, where = affinity.get("nodeAffinity") or {}, f"{path}.nodeAffinity"
    if (selector := to_nodes.get(_REQUIRED_AFFINITY)) is not None:
        yield from validate_node_selector(NodeSelector.model_validate(selector), f"{where}.{_REQUIRED_AFFINITY}")
    for item, at in _weighted(to_nodes, where):
        yield from _weight(item, at)
        term = NodeSelectorTerm.model_validate(item.get("preference") or {})
        yield from validate_node_selector_term(term, f"{at}.preference", check_values=False)
    for field in ("podAffinity", "podAntiAffinity"):
        to_pods, where = affinity.get(field) or {}, f"{path}.{field}"
        for i, required_term in enumerate(to_pods.get(_REQUIRED_AFFINITY) or ()):
            yield from _affinity_term(required_term, f"{where}.{_REQUIRED_AFFINITY}[{i}]")
        for item, at in _weighted(to_pods, where):
            yield from _weight(item, at)
            yield from _affinity_term(item.get("podAffinityTerm") or {}, f"{at}.podAffinityTerm")


def _weighted(affinity: Object, path: str) -> Iterator[tuple[Object, str]]:
    for i, item in enumerate(affinity.get(_PREFERRED_AFFINITY) or ()):
        yield item, f"{path}.{_PREFERRED_AFFINITY}[{i}]"


def _weight(item: Object, path: str) -> Iterator[FieldError]:
    weight = item.get("weight", 0)
    if not 1 <= weight <= _WEIGHT_MAX:
        yield invalid(f"{path}.weight", weight, f"must be in the range 1-{_WEIGHT_MAX}")


def _affinity_term(term: Object, path: str) -> Iterator[FieldError]:
    for field in ("labelSelector", "namespaceSelector"):
        yield from label_selector_errors(term.get(field) or {}, f"{path}.{field}")
    for name in term.get("namespaces") or ():
        yield from (invalid(f"{path}.namespace", name, text) for text in names.dns_label(name))
    yield from _label_keys(term, path)
    key = term.get("topologyKey", "")
    if not key:
        yield required(f"{path}.topologyKey", "can not be empty")
    yield from (invalid(f"{path}.topologyKey", key, text) for text in names.label_key(key))


def _label_keys(term: Object, path: str) -> Iterator[FieldError]:
    """Check ``matchLabelKeys`` and ``mismatchLabelKeys``; in the selector, they are added to the expressions."""
    selector, unwanted = term.get("labelSelector"), term.get("mismatchLabelKeys") or ()
    wanted: Sequence[str] = term.get("matchLabelKeys") or ()
    for field, keys in (("matchLabelKeys", wanted), ("mismatchLabelKeys", unwanted)):
        if keys and selector is None:
            yield forbidden(f"{path}.{field}", "must not be specified when labelSelector is not set")
            continue
        for i, key in enumerate(keys):
            yield from (invalid(f"{path}.{field}[{i}]", key, text) for text in names.label_key(key))
    positions = {key: i for i, key in enumerate(wanted)}
    seen = set((selector or {}).get("matchLabels") or ())
    for expression in (selector or {}).get("matchExpressions") or ():
        key = expression.get("key", "")
        if key in positions and key in seen:
            yield invalid(f"{path}[{positions[key]}]", key, "exists in both matchLabelKeys and labelSelector")
        seen.add(key)
    for i, key in enumerate(wanted):
        if key in unwanted:
            yield invalid(f"{path}.matchLabelKeys[{i}]", key, "exists in both matchLabelKeys and mismatchLabelKeys")


def _gates(spec: Object, path: str) -> Iterator[FieldError]:
    seen: set[str] = set()
    for i, gate in enumerate(spec.get("schedulingGates") or ()):
        where, name = f"{path}.schedulingGates[{i}]", gate.get("name", "")
        yield from (invalid(where, name, text) for text in names.label_key(name))
        if name in seen:
            yield duplicate(where, name)
        seen.add(name)


def _toleration(toleration: Object, path: str) -> Iterator[FieldError]:
    key, value = toleration.get("key") or "", toleration.get("value") or ""
    operator, effect = toleration.get("operator") or "", toleration.get("effect") or ""
    if key:
        yield from (invalid(f"{path}.key", key, text) for text in names.label_key(key))
    elif operator != "Exists":
        detail = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        yield invalid(f"{path}.operator", operator, detail)
    if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        yield invalid(f"{path}.effect", effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
    match operator:
        case "" | "Equal":
            if problems := names.label_value(value):
                yield invalid(f"{path}.operator", value, ";".join(problems))
        case "Exists":
            if value:
                yield invalid(f"{path}.operator", value, "value must be empty when `operator` is 'Exists'")
        case _:
            yield unsupported(f"{path}.operator", operator, ("Equal", "Exists"))
    if effect and effect not in _EFFECTS:
        yield unsupported(f"{path}.effect", effect, _EFFECTS, in_order=True)


_SOURCES: Final = ("resourceClaimName", "resourceClaimTemplateName")
_BOTH: Final = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
_NEITHER: Final = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
_UNKNOWN_RESOURCE: Final = (
    "must match one of the container's resource claims as 'claim:<claimName>/<requestName>' when "
    "container.resources.claims[*].request is set or 'claim:<claimName>' when it is empty"
)


def validate_pod_spec(spec: Object, release: Release, path: str = "spec") -> list[FieldError]:
    """Check the volumes, claims, containers and other fields of a pod.

    Args:
        spec: values of the right types.
        release: of the API server.
        path: path of the spec, which differs in pod templates.
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
            errors += [
                *_container(container, known, where),
                *validate_container_fields(container, mounted, where, release),
            ]
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
    """Check the claims of a container: whole claims or single requests, without duplicates."""
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


def validate_node_taints(taints: Sequence[dict[str, Any]]) -> list[FieldError]:
    """Check keys, values and effects, and that pairs of key and effect are unique, with the API server's path."""
    errors: list[FieldError] = []
    seen: set[tuple[str, str]] = set()
    for i, taint in enumerate(taints):
        path = f"metadata.taints[{i}]"
        key, value, effect = (taint.get(name) or "" for name in ("key", "value", "effect"))
        errors += [invalid(f"{path}.key", key, text) for text in names.label_key(key)]
        errors += [invalid(f"{path}.value", value, text) for text in names.label_value(value)]
        errors += require_one_of(effect, _EFFECTS, f"{path}.effect", in_order=True)
        if (key, effect) in seen:
            shown = GoStruct(Key=key, Value=value, Effect=effect, TimeAdded=taint.get("timeAdded"))
            errors.append(duplicate(path, shown, "taints must be unique by key and effect pair"))
        seen.add((key, effect))
    return errors
