"""ResourceQuotas: what a namespace uses of what it may, and the rejection of objects that exceed it.

The usage in the status of a quota changes with each object at once. In Kubernetes, admission adds to it, and the quota
controller finds out what was deleted some seconds later. Of a quota that was saved with its status, the status counts:
it has objects that were not saved. Not counted are the storage of PersistentVolumeClaims and the ports of Services.

Sources: k8s.io/apiserver 0.37 ``pkg/admission/plugin/resourcequota``, Kubernetes 1.37 ``pkg/quota/v1/evaluator/core``
and ``pkg/controller/resourcequota``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from dra_kit.apiserver.api import AdmissionAttributes, Api
from dra_kit.apiserver.status_errors import forbidden_object
from dra_kit.apiserver.storage import StorageChange, StoredObject
from dra_kit.client.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS, RESOURCE_QUOTAS
from dra_kit.kubernetes.release import OLDEST, Change, KubernetesVersion
from dra_kit.kubernetes.resource.objects import containers, init_containers, is_sidecar, is_terminal
from dra_kit.kubernetes.resource.validation.claim_status import RESULTS_MAX
from dra_kit.kubernetes.scheduler.claims import EXTENDED_CLAIM_ANNOTATION, IMPLICIT_RESOURCE
from dra_kit.kubernetes.values.json import Object, ObjectView
from dra_kit.kubernetes.values.quantity import InvalidQuantity, Quantity

QUOTAS: Final = RESOURCE_QUOTAS.full_name
_IGNORED: Final = frozenset({"events", "events.events.k8s.io", "bindings"})
_ALIASES: Final = frozenset(
    {"configmaps", "persistentvolumeclaims", "replicationcontrollers", "resourcequotas", "secrets", "services"}
)
"""Resources that are counted by their plural alone, too; pods are, as long as they have not ended."""
_REQUESTS: Final = "requests."
_COMPUTE: Final = ("cpu", "memory", "ephemeral-storage")
_DEMANDED: Final = frozenset({"cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"})
"""What each container must specify if a quota limits it."""
_HUGE_PAGES: Final = "hugepages-"
_OF_CLASS: Final = ".deviceclass.resource.k8s.io/devices"
_Place: TypeAlias = tuple[str, str]  # the resource of an object, and its key


class QuotaAdmission:
    """Counts the objects of namespaces with quotas from now on, and rejects those that exceed one."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._version = api.release.version
        self._none = Quantity(0, self._version)
        self._extended: dict[str, dict[_Place, dict[str, Quantity]]] = {}
        """By quota, what each object uses of extended resources, as it is counted: it depends on other objects, too."""
        self._claims: dict[str, set[str]] = {}  # those that stand for extended resources of a pod, by its key
        storage = api.storage
        for key, stored in storage.items(RESOURCE_CLAIMS.full_name):
            if owner := _owner_key(stored.object):
                self._claims.setdefault(owner, set()).add(key)
        for key, stored in list(storage.items(QUOTAS)):
            self._recount(key, stored.object, trust=True)
        storage.listen("*", self._changed)

    def review(self, write: AdmissionAttributes) -> None:
        """Reject an object that exceeds a quota of its namespace.

        Raises:
            StatusError: 403; the message is that of kube-apiserver.
        """
        kind, obj, old, target = write.kind, write.obj, write.old, write.request.target
        if obj is None or not kind.namespaced or target.subresource or kind.resource in _IGNORED:
            return
        if old is not None and not _changes_usage(kind.resource, obj, old):
            return
        concerned = [
            (quota, counted)
            for _, quota in self._quotas(target.namespace)
            if (counted := self._counted(kind.resource, quota)) and _matches(kind.resource, quota, obj)
        ]
        if not concerned:
            return
        usage = self._usage(kind.resource, obj)
        problems = [
            f"failed quota: {quota['metadata']['name']}: {missing}"
            for quota, counted in concerned
            if (missing := _missing_amounts(kind.resource, counted, obj, self._version))
        ]  # of all quotas, before the amounts of any
        for quota, counted in concerned:
            delta = usage
            if old is not None and _matches(kind.resource, quota, old):
                delta = _minus(usage, self._usage(kind.resource, old))
            problems.append(_excess(quota, {name: delta[name] for name in counted if name in delta}, self._version))
        if problem := next(filter(None, problems), ""):
            raise forbidden_object(kind.group, kind.plural, obj["metadata"]["name"], problem)

    # --- usage

    def _changed(self, change: StorageChange) -> None:
        obj = change.stored.object
        namespace = obj["metadata"].get("namespace", "")
        previous = None if change.previous is None else change.previous.object
        if change.resource == DEVICE_CLASSES.full_name:
            self._class_changed(previous, obj if change.type != "DELETED" else None)
        if not namespace or change.resource in _IGNORED:
            return
        if change.resource == RESOURCE_CLAIMS.full_name:
            self._index(change)
        is_new = previous is None or previous.get("spec") != obj.get("spec")
        recounted = ""
        if change.resource == QUOTAS and change.type != "DELETED" and is_new:
            recounted = change.key
            self._recount(change.key, obj)
        elif change.resource == QUOTAS and change.type == "DELETED":
            self._extended.pop(change.key, None)
        for key, quota in list(self._quotas(namespace)):
            counted = self._counted(change.resource, quota)
            if counted and key != recounted:
                self._account(key, quota, counted, change)

    def _account(self, key: str, quota: Object, counted: list[str], change: StorageChange) -> None:
        """Add to the usage what an object uses more than before, or take from it."""
        used = _amounts_of(quota, "status", "used", self._version)
        changed = dict(used)
        lost = self._usage_in(quota, change.resource, change.previous)
        gained = self._usage_in(quota, change.resource, change.stored if change.type != "DELETED" else None)
        for name in counted:
            if not self._is_extended(name):
                amount = used.get(name, self._none) - lost.get(name, self._none) + gained.get(name, self._none)
                changed[name] = max(amount, self._none)
        if any(map(self._is_extended, counted)):
            places = [(change.resource, change.key)]
            if change.resource == PODS.full_name:
                places += [(RESOURCE_CLAIMS.full_name, claim) for claim in self._claims.get(change.key, ())]
            changed |= self._recount_extended(key, quota, places)
        if changed != used:
            self._store(key, quota, changed)

    def _recount_extended(self, key: str, quota: Object, places: Iterable[_Place]) -> dict[str, Quantity]:
        """Return the usage of extended resources after these objects, or what their usage depends on, have changed."""
        used, counted = _amounts_of(quota, "status", "used", self._version), self._extended.setdefault(key, {})
        changed: dict[str, Quantity] = {}
        for place in places:
            before, after = counted.pop(place, {}), self._extended_usage(quota, *place)
            if after:
                counted[place] = after
            for name in before.keys() | after.keys():
                amount = changed.get(name, used.get(name, self._none))
                changed[name] = amount - before.get(name, self._none) + after.get(name, self._none)
        return {name: max(amount, self._none) for name, amount in changed.items()}

    def _extended_usage(self, quota: Object, resource: str, key: str) -> dict[str, Quantity]:
        obj = self._api.lookup(resource, key)
        if obj is None or not _matches(resource, quota, obj):
            return {}
        hard = _amounts_of(quota, "spec", "hard", self._version)
        used = self._usage(resource, obj)
        return {name: amount for name, amount in used.items() if name in hard and self._is_extended(name)}

    def _index(self, change: StorageChange) -> None:
        """Know the claims that stand for extended resources of pods."""
        if change.previous is not None:
            owner = _owner_key(change.previous.object)
            known = self._claims.get(owner, set())
            known.discard(change.key)
            if not known:
                self._claims.pop(owner, None)
        if change.type != "DELETED" and (owner := _owner_key(change.stored.object)):
            self._claims.setdefault(owner, set()).add(change.key)

    def _class_changed(self, before: ObjectView | None, after: ObjectView | None) -> None:
        """Count claims again if their devices stand for another extended resource now."""
        if _extended_name(before) == _extended_name(after):
            return
        for key, stored in list(self._api.storage.items(QUOTAS)):
            quota = stored.object
            if changed := self._recount_extended(key, quota, self._places(quota, RESOURCE_CLAIMS.full_name)):
                self._store(key, quota, _amounts_of(quota, "status", "used", self._version) | changed)

    def _places(self, quota: Object, resource: str) -> list[_Place]:
        prefix = f"{quota['metadata']['namespace']}/"
        return [(resource, f"{prefix}{obj['metadata']['name']}") for obj in self._api.listed(resource, prefix)]

    def _recount(self, key: str, quota: Object, *, trust: bool = False) -> None:
        """Count the usage of a quota; with ``trust`` only what its status lacks."""
        known = _amounts_of(quota, "status", "used", self._version)
        used = {}
        self._extended[key] = {}
        if any(map(self._is_extended, _amounts_of(quota, "spec", "hard", self._version))):
            for resource in (PODS.full_name, RESOURCE_CLAIMS.full_name):
                self._recount_extended(key, quota, self._places(quota, resource))
        for name in _amounts_of(quota, "spec", "hard", self._version):
            if name in known and (trust or not self._is_counted(name)):
                used[name] = known[name]
            elif self._is_counted(name):
                used[name] = self._total(key, quota, name)
        self._store(key, quota, used)

    def _store(self, key: str, quota: Object, used: Mapping[str, Quantity]) -> None:
        hard = (quota.get("spec") or {}).get("hard") or {}
        status = {"hard": hard, "used": {name: str(amount) for name, amount in sorted(used.items())}}
        if quota.get("status") != status:
            self._api.storage.update(QUOTAS, key, {**quota, "status": status})

    def _total(self, key: str, quota: Object, name: str) -> Quantity:
        """Return the usage of one resource in the namespace of a quota."""
        total, namespace = self._none, quota["metadata"]["namespace"]
        if self._is_extended(name):
            for amounts in self._extended[key].values():
                total += amounts.get(name, self._none)
            return total
        for resource in self._resources_of(name):
            for obj in self._api.listed(resource, f"{namespace}/"):
                if _matches(resource, quota, obj):
                    total += self._usage(resource, obj).get(name, self._none)
        return total

    def _resources_of(self, name: str) -> Iterator[str]:
        """Yield the resources whose objects use a resource of a quota."""
        if name.startswith("count/"):
            yield name.removeprefix("count/")
        elif name in _ALIASES:
            yield name
        elif name.endswith(_OF_CLASS):
            yield RESOURCE_CLAIMS.full_name
        else:
            yield PODS.full_name
            if self._is_extended(name):
                yield RESOURCE_CLAIMS.full_name

    def _quotas(self, namespace: str) -> Iterator[tuple[str, Object]]:
        return ((key, stored.object) for key, stored in self._api.storage.items(QUOTAS, f"{namespace}/"))

    # --- what counts

    def _counted(self, resource: str, quota: Object) -> list[str]:
        """Return the resources of a quota that objects of a resource use."""
        hard = _amounts_of(quota, "spec", "hard", self._version)
        return sorted(name for name in hard if self._is_counted(name) and resource in self._resources_of(name))

    def _is_counted(self, name: str) -> bool:
        plain = name.removeprefix(_REQUESTS).removeprefix("limits.")
        return (
            name.startswith("count/")
            or name in _ALIASES
            or name.endswith(_OF_CLASS)
            or name == PODS.plural
            or plain in _COMPUTE
            or plain.startswith(_HUGE_PAGES)
            or self._is_extended(name)
        )

    def _is_extended(self, name: str) -> bool:
        """Return whether a resource of a quota is an extended resource, which claims may stand for."""
        plain = name.removeprefix(_REQUESTS)
        return plain != name and _is_extended(plain)

    def _usage_in(self, quota: Object, resource: str, stored: StoredObject | None) -> dict[str, Quantity]:
        """Return what an object uses of a quota; nothing if there is none, or in another scope."""
        if stored is None or not _matches(resource, quota, stored.object):
            return {}
        return self._usage(resource, stored.object)

    def _usage(self, resource: str, obj: ObjectView) -> dict[str, Quantity]:
        one = Quantity(1, self._version)
        used = {f"count/{resource}": one}
        if resource in _ALIASES:
            used[resource] = one
        elif resource == PODS.full_name:
            used |= _usage_of_pod(obj, self._version)
        elif resource == RESOURCE_CLAIMS.full_name:
            used |= self._usage_of_claim(obj)
        return used

    def _usage_of_claim(self, claim: ObjectView) -> dict[str, Quantity]:
        """Return the devices that a claim may get, by class, and the extended resources that they stand for.

        What the pod of a claim uses itself is not counted twice.
        """
        classes: dict[str, int] = {}
        for request in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ():
            most: dict[str, int] = {}
            exactly = request.get("exactly")
            for each in request.get("firstAvailable") or ([exactly] if exactly else ()):
                name = each.get("deviceClassName", "")
                most[name] = max(most.get(name, 0), _devices(each))
            for name, number in most.items():
                classes[name] = classes.get(name, 0) + number
        used = {f"{name}{_OF_CLASS}": Quantity(number, self._version) for name, number in classes.items()}
        release = self._api.release
        if "DRAExtendedResource" in release and release.has(Change.QUOTAS_COUNT_EXTENDED_RESOURCES):
            extended: dict[str, Quantity] = {}
            for name, number in classes.items():
                resource = self._extended_resource(name)
                for plain in (f"{IMPLICIT_RESOURCE}{name}", resource) if resource else ():
                    extended[f"{_REQUESTS}{plain}"] = Quantity(number, self._version)
            more = _minus(extended, self._usage_of_owner(claim))
            used |= {name: amount for name, amount in more.items() if amount.sign > 0}
        return used

    def _extended_resource(self, device_class: str) -> str:
        return _extended_name(self._api.lookup(DEVICE_CLASSES.full_name, device_class))

    def _usage_of_owner(self, claim: ObjectView) -> Mapping[str, Quantity]:
        """Return what the pod uses whose extended resources a claim stands for; nothing if there is none."""
        metadata, owner = claim["metadata"], _owner(claim)
        pod = self._api.lookup(PODS.full_name, _owner_key(claim)) if owner else None
        if pod is None or pod["metadata"]["uid"] != owner.get("uid"):
            return {}
        named = ((pod.get("status") or {}).get("extendedResourceClaimStatus") or {}).get("resourceClaimName")
        return _usage_of_pod(pod, self._version) if named in {None, "", metadata.get("name")} else {}


def _owner(claim: ObjectView) -> ObjectView:
    """Return the reference of a claim for extended resources to its pod; an empty one if it has none."""
    metadata = claim["metadata"]
    if (metadata.get("annotations") or {}).get(EXTENDED_CLAIM_ANNOTATION) != "true":
        return {}
    owner: ObjectView = next((item for item in metadata.get("ownerReferences") or () if item.get("controller")), {})
    return owner if (owner.get("apiVersion"), owner.get("kind")) == ("v1", PODS.kind) else {}


def _owner_key(claim: ObjectView) -> str:
    owner = _owner(claim)
    return f"{claim['metadata'].get('namespace')}/{owner.get('name')}" if owner else ""


def _extended_name(device_class: ObjectView | None) -> str:
    return str(((device_class or {}).get("spec") or {}).get("extendedResourceName") or "")


def _changes_usage(resource: str, obj: ObjectView, old: ObjectView) -> bool:
    """Return whether an update may change what an object uses."""
    if resource == PODS.full_name:
        return _is_terminating(obj) != _is_terminating(old)
    return resource == RESOURCE_CLAIMS.full_name


def _excess(quota: ObjectView, requested: Mapping[str, Quantity], version: KubernetesVersion) -> str:
    """Return what of a request exceeds a quota; empty if nothing does."""
    hard, used = (_amounts_of(quota, *place, version) for place in (("spec", "hard"), ("status", "used")))
    exceeded = [name for name, amount in requested.items() if amount.sign and _plus(used, requested)[name] > hard[name]]
    if not exceeded:
        return ""

    def shown(amounts: Mapping[str, Quantity]) -> str:
        return ",".join(f"{name}={amounts.get(name, 0)}" for name in sorted(exceeded))

    name = quota["metadata"]["name"]
    return f"exceeded quota: {name}, requested: {shown(requested)}, used: {shown(used)}, limited: {shown(hard)}"


def _missing_amounts(resource: str, counted: list[str], obj: ObjectView, version: KubernetesVersion) -> str:
    """Return which cpu and memory the containers of a pod must specify, because a quota limits them."""
    demanded = _DEMANDED.intersection(counted)
    if resource != PODS.full_name or not demanded or _is_set(obj["spec"]):
        return ""
    missing: dict[str, set[str]] = {}
    for container in (*containers(obj), *init_containers(obj)):
        for name in (
            demanded - _compute(*(_amounts(container, field, version) for field in ("requests", "limits"))).keys()
        ):
            missing.setdefault(name, set()).add(container.get("name", ""))
    texts = [f"{name} for: {','.join(sorted(names))}" for name, names in sorted(missing.items())]
    return f"must specify {'; '.join(texts)}" if texts else ""


def _is_set(spec: ObjectView) -> bool:
    """Return whether a pod has resources of its own, not only its containers."""
    resources = spec.get("resources") or {}
    return bool(resources.get("requests") or resources.get("limits"))


def _devices(request: ObjectView) -> int:
    match request.get("allocationMode"):
        case "ExactCount":
            return int(request.get("count") or 0)
        case "All":
            return RESULTS_MAX  # as many as it may get
        case _:
            return 0


def _usage_of_pod(pod: ObjectView, version: KubernetesVersion) -> dict[str, Quantity]:
    """Return what a pod uses; nothing after its end."""
    if is_terminal(pod):
        return {}
    requests, limits = (_pod_amounts(pod, field, version) for field in ("requests", "limits"))
    return {PODS.plural: Quantity(1, version), **_compute(requests, limits)}


def _compute(requests: Mapping[str, Quantity], limits: Mapping[str, Quantity]) -> dict[str, Quantity]:
    used: dict[str, Quantity] = {}
    for name, amount in requests.items():
        if name in _COMPUTE or name.startswith(_HUGE_PAGES):
            used[name] = used[f"{_REQUESTS}{name}"] = amount
        elif _is_extended(name):
            used[f"{_REQUESTS}{name}"] = amount
    return used | {f"limits.{name}": amount for name, amount in limits.items() if name in _COMPUTE}


def _is_extended(name: str) -> bool:
    return name.startswith(IMPLICIT_RESOURCE) or ("/" in name and "kubernetes.io/" not in name)


def _pod_amounts(pod: ObjectView, field: str, version: KubernetesVersion) -> dict[str, Quantity]:
    """Return the requests or limits of a pod: those of its containers and sidecars, or of an init container if larger.

    Those of the pod itself take precedence. Its overhead is added; to limits, only where there are some.
    """
    peak: dict[str, Quantity] = {}
    sidecars: dict[str, Quantity] = {}
    for container in init_containers(pod):
        needs = _amounts(container, field, version)
        if is_sidecar(container):
            sidecars = needs = _plus(sidecars, needs)
        else:
            needs = _plus(sidecars, needs)
        peak = _largest(peak, needs)
    total = sidecars
    for container in containers(pod):
        total = _plus(total, _amounts(container, field, version))
    total = _largest(total, peak) | _amounts(pod["spec"], field, version)
    overhead = _quantities(pod["spec"].get("overhead"), version)
    if field == "limits":
        overhead = {name: amount for name, amount in overhead.items() if name in total}
    return _plus(total, overhead)


def _amounts(holder: ObjectView, field: str, version: KubernetesVersion) -> dict[str, Quantity]:
    return _quantities((holder.get("resources") or {}).get(field), version)


def _amounts_of(quota: ObjectView, part: str, field: str, version: KubernetesVersion) -> dict[str, Quantity]:
    return _quantities((quota.get(part) or {}).get(field), version)


def _quantities(document: Any, version: KubernetesVersion) -> dict[str, Quantity]:
    """Return quantities by name, without invalid ones, which a saved object may have."""
    found: dict[str, Quantity] = {}
    for name, text in (document or {}).items():
        try:
            found[name] = Quantity(text, version)
        except InvalidQuantity:
            continue
    return found


def _plus(first: Mapping[str, Quantity], second: Mapping[str, Quantity]) -> dict[str, Quantity]:
    return {**first, **{name: first[name] + amount if name in first else amount for name, amount in second.items()}}


def _minus(first: Mapping[str, Quantity], second: Mapping[str, Quantity]) -> dict[str, Quantity]:
    left = {name: amount - second[name] if name in second else amount for name, amount in first.items()}
    return {name: amount if amount.sign > 0 else amount - amount for name, amount in left.items()}


def _largest(first: Mapping[str, Quantity], second: Mapping[str, Quantity]) -> dict[str, Quantity]:
    return {**first, **{name: max(first[name], amount) if name in first else amount for name, amount in second.items()}}


# --- scopes


def _matches(resource: str, quota: ObjectView, obj: ObjectView) -> bool:
    """Return whether an object is in all scopes of a quota; only pods are in any."""
    spec = quota.get("spec") or {}
    wanted = [{"scopeName": name, "operator": "Exists"} for name in spec.get("scopes") or ()]
    wanted += (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    return all(resource == PODS.full_name and _in_scope(item, obj) for item in wanted)


def _in_scope(selector: ObjectView, pod: ObjectView) -> bool:
    name = selector.get("scopeName")
    if name == "PriorityClass":
        given, values = pod["spec"].get("priorityClassName") or "", selector.get("values") or ()
        match selector.get("operator"):
            case "Exists":
                return bool(given)
            case "DoesNotExist":
                return not given
            case "In":
                return given in values
            case _:
                return given not in values
    scope = _SCOPES.get(str(name))
    return scope is not None and scope(pod)


def _is_terminating(pod: ObjectView) -> bool:
    return (pod["spec"].get("activeDeadlineSeconds") or -1) >= 0


def _is_best_effort(pod: ObjectView) -> bool:
    holders = [pod["spec"], *containers(pod), *init_containers(pod)]
    return not any(
        amount.sign > 0 and name in {"cpu", "memory"}
        for holder in holders
        for field in ("requests", "limits")
        for name, amount in _amounts(holder, field, OLDEST).items()  # the sign is the same in all releases
    )


def _crosses_namespaces(pod: ObjectView) -> bool:
    affinity = pod["spec"].get("affinity") or {}
    rules = [affinity.get(kind) or {} for kind in ("podAffinity", "podAntiAffinity")]
    terms = [term for rule in rules for term in rule.get("requiredDuringSchedulingIgnoredDuringExecution") or ()]
    terms += [
        item.get("podAffinityTerm") or {}
        for rule in rules
        for item in rule.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    ]
    return any(term.get("namespaces") or term.get("namespaceSelector") is not None for term in terms)


_SCOPES: Final[Mapping[str, Callable[[ObjectView], bool]]] = {
    "Terminating": _is_terminating,
    "NotTerminating": lambda pod: not _is_terminating(pod),
    "BestEffort": _is_best_effort,
    "NotBestEffort": lambda pod: not _is_best_effort(pod),
    "CrossNamespacePodAffinity": _crosses_namespaces,
}
