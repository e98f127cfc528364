"""Pods: what the server sets and checks, resources at pod level, and the columns of ``kubectl get pods``.

``PodStrategy`` has the rules of writes, ``POD_KINDS`` at its end the columns; ``tables.py`` has what a column can be.

Sources: Kubernetes 1.37 ``pkg/printers/internalversion``, ``printPod``; ``pkg/apis/core/v1/defaults.go`` and
``pkg/apis/core/v1/helper/qos``; resources at pod level are measured on kube-apiserver 1.37.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Final

from msgspec import Struct
from typing_extensions import override

from dra_kit.apiserver.authentication import EXTENDED_SECONDS
from dra_kit.apiserver.kinds.kind import Kind, Strategy, StrategyContext, generated_name, readers
from dra_kit.apiserver.node_authorization import MIRROR, spec_references
from dra_kit.apiserver.selectors import flag
from dra_kit.apiserver.status_errors import forbidden_object as not_permitted
from dra_kit.apiserver.tables import AGE, NAME, NONE, Column, format_age, text_cell, true_condition
from dra_kit.kubernetes.release import Change, KubernetesVersion, Release
from dra_kit.kubernetes.resource.field_errors import (
    FieldError,
    duplicate,
    forbidden,
    invalid,
    not_found,
    required,
    unsupported,
)
from dra_kit.kubernetes.resource.names import dns_label
from dra_kit.kubernetes.resource.new_object import set_pod_defaults, validate_new_object
from dra_kit.kubernetes.resource.validation.pods import validate_pod_status
from dra_kit.kubernetes.values.json import Object
from dra_kit.kubernetes.values.quantity import Quantity

LOST_NODE: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_LOST_NODE_SECONDS: Final = 300
_TERMINAL: Final = {"Succeeded", "Failed"}
_CONTAINER_STATUSES: Final = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
_DEVICE_HEALTH: Final = "allocatedResourcesStatus"
_SYSTEM_CLASSES: Final = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}
_ACCOUNT_PATH: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
_ACCOUNT_VOLUME: Final = "kube-api-access-"
_CONTAINERS: Final = ("initContainers", "containers", "ephemeralContainers")
_MUTABLE: Final = {"activeDeadlineSeconds", "terminationGracePeriodSeconds", "tolerations", "schedulingGates"}


class PodStrategy(Strategy):
    """Pod: defaults of the API and of admission plugins, the initial status, and validation of changes."""

    metadata_with_status: ClassVar[tuple[str, ...]] = ("labels", "annotations")
    graceful = True

    @override
    def default(self, obj: Object, context: StrategyContext) -> None:
        """Set ``imagePullPolicy`` by the image tag, requests from limits, and the ports of the node that it is on."""
        set_pod_defaults(obj)
        spec = obj.get("spec") or {}
        if (spec.get("terminationGracePeriodSeconds") or 0) < 0:
            spec["terminationGracePeriodSeconds"] = 1
        default_pod_resources(spec, context.release.version)

    @override
    def admit(self, obj: Object, old: Object | None, context: StrategyContext, subresource: str) -> None:
        """Set service account, priority, and the tolerations for lost nodes."""
        spec = obj.setdefault("spec", {})
        if not subresource:
            _tolerate_lost_nodes(spec)
        if old is not None:
            return
        if MIRROR in (obj["metadata"].get("annotations") or {}):
            _check_mirror_pod(obj)
        else:
            spec["serviceAccountName"] = spec.get("serviceAccountName") or spec.get("serviceAccount") or "default"
            spec["serviceAccount"] = spec["serviceAccountName"]
            _take_service_account(obj, context)
        _set_priority(obj, context)

    @override
    def prepare_for_create(self, obj: Object, context: StrategyContext) -> None:
        """Set the phase Pending and the quality of service, and complete the selectors of its affinity."""
        _merge_label_keys(obj)
        drop_gated_fields(obj["spec"], {}, context.release)
        status: Object = {"phase": "Pending", "qosClass": quality_of_service(obj["spec"], context.release.version)}
        obj["status"] = status
        if obj["spec"].get("schedulingGates"):
            condition = {
                "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
                "lastTransitionTime": context.now,
            }  # fmt: skip
            status["conditions"] = [condition]

    @override
    def prepare_for_update(self, obj: Object, old: Object, context: StrategyContext) -> None:
        drop_gated_fields(obj["spec"], old["spec"], context.release)
        obj["status"] = old.get("status") or {}

    @override
    def prepare_for_status(self, obj: Object, old: Object, context: StrategyContext) -> None:
        """Keep the quality of service, and drop the health of devices without its gate."""
        status, before = obj.get("status") or {}, old.get("status") or {}
        if "ResourceHealthStatus" not in context.release and not (
            _has_device_health(before) and context.release.has(Change.HEALTH_IN_USE_STAYS)
        ):
            obj["status"] = status = _without_device_health(status)
        if quality := before.get("qosClass"):
            obj["status"] = {**status, "qosClass": status.get("qosClass") or quality}

    @override
    def validate(self, obj: Object, context: StrategyContext) -> list[FieldError]:
        """Check containers, claims and resources, and that a pod with scheduling gates has no node."""
        errors = validate_new_object(obj, "Pod", context.release)
        errors = [*errors, *pod_resource_errors(obj.get("spec") or {}, context.release.version)]
        if (obj.get("spec") or {}).get("ephemeralContainers"):
            errors.append(forbidden("spec.ephemeralContainers", "cannot be set on create"))
        return errors

    @override
    def validate_status(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        """Check the statuses of claims."""
        return validate_pod_status(obj.get("status") or {}, obj["spec"], context.release)

    @override
    def validate_update(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        """Check that only images, tolerations, deadlines and gates change."""
        new_spec, old_spec = obj["spec"], old["spec"]
        if len(new_spec.get("containers") or ()) != len(old_spec["containers"]):
            return [forbidden("spec.containers", "pod updates may not add or remove containers")]
        errors = _new_gates(new_spec, old_spec)
        if _fixed(new_spec) != _fixed(old_spec):
            whole = context.release.has(Change.ALL_CHANGEABLE_FIELDS_ARE_NAMED)
            fields = ",".join((*_CHANGEABLE, *_CHANGEABLE_WITH_GATES) if whole else _CHANGEABLE)
            errors.append(forbidden("spec", f"pod updates may not change fields other than {fields}"))
        return errors

    @override
    def grace_period(self, obj: Object, requested: int | None) -> int:
        """Return the requested grace period or the pod's own; 0 for pods that no kubelet runs."""
        phase = (obj.get("status") or {}).get("phase")
        if not obj["spec"].get("nodeName") or phase in _TERMINAL:
            return 0
        if requested is not None:
            return requested if requested >= 0 else 1
        own: int = obj["spec"].get("terminationGracePeriodSeconds", 30)
        return own


def _has_device_health(status: Object) -> bool:
    """Return whether the status of a pod has the health of a container's devices."""
    return any(item.get(_DEVICE_HEALTH) for name in _CONTAINER_STATUSES for item in status.get(name) or ())


def _without_device_health(status: Object) -> Object:
    """Return the status of a pod without the health of its containers' devices."""
    lists = {
        name: [{key: value for key, value in item.items() if key != _DEVICE_HEALTH} for item in found]
        for name in _CONTAINER_STATUSES
        if (found := status.get(name))
    }
    return {**status, **lists}


_CHANGEABLE: Final = (
    "`spec.containers[*].image`",
    "`spec.initContainers[*].image`",
    "`spec.activeDeadlineSeconds`",
    "`spec.tolerations` (only additions to existing tolerations)",
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
)
"""What may change in the spec of a pod, as errors name it."""
_CHANGEABLE_WITH_GATES: Final = (
    "`spec.schedulingGates` (only deletions of existing scheduling gates)",
    "`spec.nodeSelector` (only additions, and only while the pod has scheduling gates)",
    "`spec.affinity.nodeAffinity` (only while the pod has scheduling gates)",
)


class EphemeralContainersStrategy(PodStrategy):
    """The subresource ``ephemeralcontainers``: containers that are added to a running pod, as by ``kubectl debug``."""

    @override
    def prepare_for_update(self, obj: Object, old: Object, context: StrategyContext) -> None:
        """Retain everything else."""
        added = (obj.get("spec") or {}).get("ephemeralContainers")
        obj["spec"] = {**old["spec"], **({"ephemeralContainers": added} if added else {})}
        if not added:
            obj["spec"].pop("ephemeralContainers", None)
        for field in _WITH_SPEC:
            obj["metadata"].pop(field, None)
            if field in old["metadata"]:
                obj["metadata"][field] = old["metadata"][field]
        super().prepare_for_update(obj, old, context)

    @override
    def validate_update(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        """Check the containers that are added, and that none is changed or removed."""
        if MIRROR in (old["metadata"].get("annotations") or {}):
            return [forbidden("", "static pods do not support ephemeral containers")]
        spec, path = obj["spec"], "spec.ephemeralContainers"
        errors = [*_ephemeral_errors(spec, path)]
        found = {item.get("name", ""): item for item in spec.get("ephemeralContainers") or ()}
        for item in old["spec"].get("ephemeralContainers") or ():
            name = item["name"]
            if name not in found:
                errors.append(forbidden(path, f'existing ephemeral containers "{name}" may not be removed\n'))
            elif _without_empty(found[name]) != _without_empty(item):
                errors.append(forbidden(path, f'existing ephemeral containers "{name}" may not be changed\n'))
        return errors


_WITH_SPEC: Final = ("labels", "annotations", "finalizers", "ownerReferences")
_OF_REGULAR: Final = ("ports", "resources", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle",
                      "resizePolicy", "restartPolicy", "restartPolicyRules")  # fmt: skip
"""Fields that ephemeral containers may not have."""


def _ephemeral_errors(spec: Object, path: str) -> Iterator[FieldError]:
    others = {item["name"] for field in ("containers", "initContainers") for item in spec.get(field) or ()}
    seen: set[str] = set()
    for place, item in enumerate(spec.get("ephemeralContainers") or ()):
        at, name, target = f"{path}[{place}]", item.get("name", ""), item.get("targetContainerName", "")
        if not name:
            yield required(f"{at}.name")
        else:
            yield from (invalid(f"{at}.name", name, problem) for problem in dns_label(name))
        if not item.get("image"):
            yield required(f"{at}.image")
        if name in others | seen:
            yield duplicate(f"{at}.name", name)
        seen.add(name)
        if target and target not in others:
            yield not_found(f"{at}.targetContainerName", target)
        for field in _OF_REGULAR:
            if item.get(field):
                yield forbidden(f"{at}.{field}", "cannot be set for an Ephemeral Container")
        for number, mount in enumerate(item.get("volumeMounts") or ()):
            for field in ("subPath", "subPathExpr"):
                if mount.get(field):
                    below = f"{at}.volumeMounts[{number}].{field}"
                    yield forbidden(below, "cannot be set for an Ephemeral Container")


def _tolerate_lost_nodes(spec: Object) -> None:
    """Add tolerations as the DefaultTolerationSeconds plugin does, at every write."""
    tolerations = spec["tolerations"] = spec.get("tolerations") or []
    for key in LOST_NODE:
        if not any(
            item.get("key") in {key, None, ""} and item.get("effect") in {"NoExecute", None, ""} for item in tolerations
        ):
            tolerations.append(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _LOST_NODE_SECONDS}
            )


def _check_mirror_pod(pod: Object) -> None:
    """Reject a mirror pod that would give its kubelet access to a service account or a Secret.

    Source: Kubernetes 1.37 ``plugin/pkg/admission/serviceaccount``.
    """
    spec = pod["spec"]
    projected = [volume["projected"] for volume in spec.get("volumes") or () if volume.get("projected")]
    sources = [source for volume in projected for source in volume.get("sources") or ()]
    cause = ""
    if spec.get("serviceAccountName"):
        cause = "a mirror pod may not reference service accounts"
    elif any(plural == "secrets" for plural, _ in spec_references(spec, "")):
        cause = "a mirror pod may not reference secrets"
    elif any(source.get("serviceAccountToken") is not None for source in sources):
        cause = "a mirror pod may not use ServiceAccountToken volume projections"
    if cause:
        raise not_permitted("", "pods", _asked_name(pod), cause)


def _take_service_account(pod: Object, context: StrategyContext) -> None:
    """Reject missing accounts, mount the account's token, and copy its image pull secrets to a pod without any."""
    namespace, name = pod["metadata"].get("namespace", ""), pod["spec"]["serviceAccountName"]
    account = context.lookup("serviceaccounts", f"{namespace}/{name}")
    if account is None:
        cause = f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'
        raise not_permitted("", "pods", _asked_name(pod), cause)
    automount = pod["spec"].get("automountServiceAccountToken")
    if automount is None:
        automount = account.get("automountServiceAccountToken")
    if automount is not False:
        _mount_token(pod["spec"])
    if account.get("imagePullSecrets") and not pod["spec"].get("imagePullSecrets"):
        pod["spec"]["imagePullSecrets"] = [dict(item) for item in account["imagePullSecrets"]]


def _mount_token(spec: Object) -> None:
    """Mount a volume with a token, the authority of the API server and the namespace into the containers.

    A container that has another volume at the same path keeps that. Source: Kubernetes 1.37
    ``plugin/pkg/admission/serviceaccount``.
    """
    volumes = spec.get("volumes") or []
    name = next((item["name"] for item in volumes if str(item.get("name", "")).startswith(_ACCOUNT_VOLUME)), "")
    mount = {"name": name or generated_name(_ACCOUNT_VOLUME), "mountPath": _ACCOUNT_PATH, "readOnly": True}
    without = [
        container
        for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
        if all(item.get("mountPath") != _ACCOUNT_PATH for item in container.get("volumeMounts") or ())
    ]
    for container in without:
        container["volumeMounts"] = [*(container.get("volumeMounts") or ()), dict(mount)]
    if without and not name:
        namespace = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
        authority = {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
        sources = [
            {"serviceAccountToken": {"expirationSeconds": EXTENDED_SECONDS, "path": "token"}},
            {"configMap": authority},
            {"downwardAPI": {"items": [namespace]}},
        ]
        volume = {"name": mount["name"], "projected": {"sources": sources, "defaultMode": 0o644}}
        spec["volumes"] = [*volumes, volume]


def _asked_name(pod: Object) -> str:
    """Return the name of a pod for errors; it may not have its name yet."""
    return pod["metadata"].get("name") or pod["metadata"].get("generateName") or ""


def priority_class(spec: Object, context: StrategyContext, asked: tuple[str, str, str]) -> Object:
    """Return the PriorityClass of a pod or PodGroup, which may be the default one; then set its name.

    Args:
        spec: of the new object.
        context: of the request.
        asked: group, plural and name of the object, for errors.

    Raises:
        StatusError: the class does not exist.
    """
    name = spec.get("priorityClassName") or ""
    found: Object | None = {"value": 0}
    if name:
        stored = context.lookup("priorityclasses.scheduling.k8s.io", name)
        found = stored or ({"value": _SYSTEM_CLASSES[name]} if name in _SYSTEM_CLASSES else None)
    else:
        defaults = [item for item in context.listed("priorityclasses.scheduling.k8s.io") if item.get("globalDefault")]
        if defaults:
            found = min(defaults, key=lambda item: item.get("value", 0))
            spec["priorityClassName"] = found["metadata"]["name"]
    if found is None:
        raise not_permitted(*asked, f"no PriorityClass with name {name} was found")
    return found


def _set_priority(pod: Object, context: StrategyContext) -> None:
    """Set priority and preemption policy of the pod's class; the pod may not set other ones."""
    spec, pod_name = pod["spec"], _asked_name(pod)
    found = priority_class(spec, context, ("", "pods", pod_name))
    computed = (
        ("priority", "the integer value of priority", found.get("value", 0)),
        ("preemptionPolicy", "the string value of PreemptionPolicy",
         found.get("preemptionPolicy") or "PreemptLowerPriority"),
    )  # fmt: skip
    for field, what, value in computed:
        if spec.get(field) not in {None, value}:
            cause = (
                f"{what} ({spec[field]}) must not be provided in pod spec; priority admission controller computed "
                f"{value} from the given PriorityClass name"
            )
            raise not_permitted("", "pods", pod_name, cause)
        spec[field] = value


def _merge_label_keys(pod: Object) -> None:
    """Add the pod's labels in ``matchLabelKeys`` and ``mismatchLabelKeys`` to the selectors of its affinity."""
    labels = pod["metadata"].get("labels") or {}
    affinity = pod["spec"].get("affinity") or {}
    for field in ("podAffinity", "podAntiAffinity"):
        terms = affinity.get(field) or {}
        weighted = terms.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
        preferred = [item.get("podAffinityTerm") or {} for item in weighted]
        for term in (*preferred, *(terms.get("requiredDuringSchedulingIgnoredDuringExecution") or ())):
            selector = term.get("labelSelector")
            wanted = [("In", key) for key in term.get("matchLabelKeys") or ()]
            unwanted = [("NotIn", key) for key in term.get("mismatchLabelKeys") or ()]
            added = [
                {"key": key, "operator": operator, "values": [labels[key]]}
                for operator, key in (*wanted, *unwanted)
                if key in labels
            ]
            if selector is not None and added:
                selector["matchExpressions"] = [*(selector.get("matchExpressions") or ()), *added]


def _new_gates(new: Object, old: Object) -> list[FieldError]:
    """Check that no scheduling gate is added."""
    known = {gate.get("name") for gate in old.get("schedulingGates") or ()}
    return [
        forbidden(
            f"spec.schedulingGates[{i}].name",
            f"only deletion is allowed, but found new scheduling gate '{gate.get('name', '')}'",
        )
        for i, gate in enumerate(new.get("schedulingGates") or ())
        if gate.get("name") not in known
    ]


def _fixed(spec: Object) -> Object:
    immutable = {name: value for name, value in spec.items() if name not in _MUTABLE}
    for field in ("containers", "initContainers"):
        immutable[field] = [
            {name: value for name, value in item.items() if name != "image"} for item in immutable.get(field) or ()
        ]
    fixed: Object = _without_empty(immutable)
    return fixed


def _without_empty(value: Any) -> Any:
    """Return the same without empty fields: Go types do not distinguish them from fields that are not set."""
    if isinstance(value, dict):
        whole = {name: _without_empty(item) for name, item in value.items()}
        return {name: item for name, item in whole.items() if item not in (None, [], {}, "")}
    return [_without_empty(item) for item in value] if isinstance(value, list) else value


def drop_gated_fields(spec: Object, old: Object, release: Release) -> None:
    """Remove the fields of a pod spec whose features are off, unless the old one has them too, in place."""
    if "GenericWorkload" not in release and "schedulingGroup" not in old:
        spec.pop("schedulingGroup", None)
    if "ContainerStopSignals" in release or any("stopSignal" in item for item in _lifecycles(old)):
        return
    for field in _CONTAINERS:
        for container in spec.get(field) or ():
            lifecycle = container.get("lifecycle") or {}
            if lifecycle.pop("stopSignal", None) is not None and not lifecycle:
                del container["lifecycle"]


def _lifecycles(spec: Object) -> list[Object]:
    return [item.get("lifecycle") or {} for field in _CONTAINERS for item in spec.get(field) or ()]


class _Summary(Struct, frozen=True):
    """The printed state of a pod.

    Attributes:
        state: the word.
        ready: how many containers are, sidecars included.
        counted: the containers whose restarts count.
    """

    state: str
    ready: int
    counted: tuple[Object, ...]


def _summary(pod: Object) -> _Summary:
    status = pod.get("status") or {}
    state = status.get("reason") or status.get("phase") or ""
    conditions = status.get("conditions") or ()
    if any((item.get("type"), item.get("reason")) == ("PodScheduled", "SchedulingGated") for item in conditions):
        state = "SchedulingGated"
    initial: list[Object] = status.get("initContainerStatuses") or []
    sidecars = _sidecars(pod)
    initializing, ready, looked_at = "", 0, 0
    for i, item in enumerate(initial):
        looked_at = i + 1
        is_started = item.get("name") in sidecars and item.get("started")
        ended = (item.get("state") or {}).get("terminated")
        if not is_started and (ended is None or ended.get("exitCode")):
            initializing = _initial_state(item, i, len(pod["spec"].get("initContainers") or ()))
            break
        ready += bool(is_started and item.get("ready") and not ended)
    counted = tuple(initial[:looked_at])
    state = initializing or state
    if not initializing or true_condition(pod, "Initialized"):
        own: list[Object] = status.get("containerStatuses") or []
        counted = (*(item for item in counted if item.get("name") in sidecars), *own)
        running = [item for item in own if item.get("ready") and _running(item)]
        ready += len(running)
        state = next(filter(None, map(_own_state, own)), state)
        if state == "Completed" and running:
            state = "Running" if true_condition(pod, "Ready") else "NotReady"
    if "deletionTimestamp" in pod["metadata"]:
        if status.get("reason") == "NodeLost":
            state = "Unknown"
        elif status.get("phase") not in {"Succeeded", "Failed"}:
            state = "Terminating"
    return _Summary(state, ready, counted)


def _sidecars(pod: Object) -> set[str]:
    """Return the init containers that keep running."""
    initial = pod["spec"].get("initContainers") or ()
    return {item.get("name", "") for item in initial if item.get("restartPolicy") == "Always"}


def _initial_state(item: Object, index: int, count: int) -> str:
    state = item.get("state") or {}
    if ended := state.get("terminated"):
        return f"Init:{_ended(ended)}"
    reason = (state.get("waiting") or {}).get("reason")
    return f"Init:{reason}" if reason and reason != "PodInitializing" else f"Init:{index}/{count}"


def _own_state(item: Object) -> str:
    """Return why a container waits, or how it exited."""
    state = item.get("state") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated")
    return str(waiting.get("reason") or (_ended(ended) if ended is not None else ""))


def _running(item: Object) -> bool:
    return not _own_state(item) and (item.get("state") or {}).get("running") is not None


def _ended(ended: Object) -> str:
    if ended.get("reason"):
        return str(ended["reason"])
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"


def ready(pod: Object) -> str:
    """Return the ready ones of the long-running containers, such as ``1/2``."""
    return f"{_summary(pod).ready}/{len(pod['spec'].get('containers') or ()) + len(_sidecars(pod))}"


def state(pod: Object) -> str:
    """Return the state, such as ``Running``, ``Init:0/1`` or ``CrashLoopBackOff``."""
    return _summary(pod).state


def restarts(pod: Object) -> str:
    """Return the number of restarts and the time of the last, such as ``2 (19s ago)``."""
    counted = _summary(pod).counted
    count = sum(item.get("restartCount", 0) for item in counted)
    ends = [((item.get("lastState") or {}).get("terminated") or {}).get("finishedAt") for item in counted]
    last = max(filter(None, ends), default="")
    return f"{count} ({format_age(last, datetime.now(UTC))} ago)" if count and last else str(count)


def readiness_gates(pod: Object) -> str:
    """Return how many readiness gates of a pod are true."""
    gates = pod["spec"].get("readinessGates") or ()
    true = sum(true_condition(pod, gate.get("conditionType", "")) is not None for gate in gates)
    return f"{true}/{len(gates)}" if gates else NONE


_HUGE_PAGES: Final = "hugepages-"
_SUPPORTED: Final = ("cpu", _HUGE_PAGES, "memory")


def default_pod_resources(spec: Object, version: KubernetesVersion) -> None:
    """Fill in what the containers and the other half imply, in place; only if a pod has such resources at all."""
    resources = spec.get("resources") or {}
    if not _is_set(resources):
        return
    limits, requests = dict(resources.get("limits") or {}), dict(resources.get("requests") or {})
    for name, total in _of_containers(spec, "limits", version).items():
        everywhere = all(name in _amounts(item, "limits") for item in _containers(spec))
        if name not in limits and (name.startswith(_HUGE_PAGES) or (everywhere and _is_supported(name))):
            limits[name] = str(total)
    for name, total in _of_containers(spec, "requests", version).items():
        if name in {"cpu", "memory"} and name not in requests:
            requests[name] = str(total)
    requests = {**{name: limits[name] for name in limits if _is_supported(name)}, **requests}
    for field, amounts in (("limits", limits), ("requests", requests)):
        if amounts:
            resources[field] = dict(sorted(amounts.items()))


def pod_resource_errors(spec: Object, version: KubernetesVersion) -> Iterator[FieldError]:
    """Yield what is wrong with the resources of a pod, compared with those of its containers."""
    read = partial(Quantity, version=version)
    resources = spec.get("resources") or {}
    path = "spec.resources"
    limits, requests = _amounts(spec, "limits"), _amounts(spec, "requests")
    for field, amounts in (("limits", limits), ("requests", requests)):
        for name in sorted(amounts):
            if not _is_supported(name):
                yield unsupported(f"{path}.{field}[{name}]", name, _SUPPORTED)
    for name in sorted(requests):
        if name in limits and read(requests[name]) > read(limits[name]):
            yield invalid(
                f"{path}.requests", requests[name], f"must be less than or equal to {name} limit of {limits[name]}"
            )
    if resources.get("claims"):
        yield forbidden(f"{path}.claims", "claims may not be set for Resources at pod-level")
    for name, total in sorted(_of_containers(spec, "requests", version).items()):
        if name in requests and total > read(requests[name]):
            detail = f"must be greater than or equal to aggregate container requests of {total}"
            yield invalid(f"{path}.requests[{name}]", requests[name], detail)
    for i, container in enumerate(spec.get("containers") or ()):
        for name, amount in sorted(_amounts(container, "limits").items()):
            if name in limits and read(amount) > read(limits[name]):
                detail = f"must be less than or equal to pod limits of {limits[name]}"
                yield invalid(f"{path}.containers[{i}][{name}].limits", amount, detail)


def quality_of_service(spec: Object, version: KubernetesVersion) -> str:
    """Return ``qosClass``: Guaranteed, Burstable or BestEffort, by the resources of the pod or else its containers."""
    guaranteed, anything = True, False
    for owner in [spec] if _is_set(spec.get("resources") or {}) else _containers(spec):
        limits, requests = _amounts(owner, "limits"), _amounts(owner, "requests")
        for name in ("cpu", "memory"):
            limit, request = (Quantity(str(values.get(name, "0")), version) for values in (limits, requests))
            anything = anything or limit.sign > 0 or request.sign > 0
            guaranteed = guaranteed and limit.sign > 0 and limit == request
    return "Guaranteed" if guaranteed and anything else "Burstable" if anything else "BestEffort"


def _is_set(resources: Object) -> bool:
    return bool(resources.get("limits") or resources.get("requests"))


def _is_supported(name: str) -> bool:
    return name in _SUPPORTED or name.startswith(_HUGE_PAGES)


def _containers(spec: Object) -> list[Object]:
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def _amounts(owner: Object, field: str) -> dict[str, Any]:
    return (owner.get("resources") or {}).get(field) or {}


def _of_containers(spec: Object, field: str, version: KubernetesVersion) -> dict[str, Quantity]:
    """Return what the containers need at the same time; init containers run one after the other, sidecars go on."""
    zero = Quantity(0, version)
    running: dict[str, Quantity] = {}
    highest: dict[str, Quantity] = {}
    for container in spec.get("initContainers") or ():
        for name, amount in _amounts(container, field).items():
            needed = running.get(name, zero) + Quantity(str(amount), version)
            highest[name] = max(highest.get(name, zero), needed)
            if container.get("restartPolicy") == "Always":
                running[name] = needed
    for container in spec.get("containers") or ():
        for name, amount in _amounts(container, field).items():
            running[name] = running.get(name, zero) + Quantity(str(amount), version)
    return {name: max(running.get(name, zero), highest.get(name, zero)) for name in {**highest, **running}}


POD_KINDS: Final = (
    Kind("", "pods", "Pod", True, {"v1": "core/v1.Pod"}, PodStrategy(), short_names=("po",), categories=("all",),
         status=True, generation=True,
         fields=readers("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
                        "status.phase", "status.podIP", "status.nominatedNodeName")
         | {"spec.hostNetwork": flag("spec.hostNetwork")},
         columns=(NAME, Column("Ready", ready), Column("Status", state),
                  Column("Restarts", restarts), AGE,
                  Column("IP", text_cell("status.podIP", NONE), priority=1),
                  Column("Node", text_cell("spec.nodeName", NONE), priority=1),
                  Column("Nominated Node", text_cell("status.nominatedNodeName", NONE), priority=1),
                  Column("Readiness Gates", readiness_gates, priority=1))),
)  # fmt: skip
