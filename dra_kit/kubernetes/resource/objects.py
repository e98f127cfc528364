"""Facts about pods, claims and other objects as JSON. No I/O."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from msgspec import Struct

from dra_kit.kubernetes.values.json import ObjectView

DEFAULT_GRACE_SECONDS = 30


class PodReference(Struct, frozen=True):
    """A pod by name and identity."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def pod_reference(pod: ObjectView) -> PodReference:
    """Return the pod by name and identity."""
    metadata = pod["metadata"]
    return PodReference(metadata.get("namespace", ""), metadata["name"], metadata["uid"])


def init_containers(pod: ObjectView) -> list[ObjectView]:
    """Return the init containers, sidecars among them, in the order of the spec."""
    return list(pod["spec"].get("initContainers") or ())


def containers(pod: ObjectView) -> list[ObjectView]:
    """Return the regular containers, in the order of the spec."""
    return list(pod["spec"].get("containers") or ())


def ephemeral_containers(pod: ObjectView) -> list[ObjectView]:
    """Return the containers that were added for debugging, in the order of the spec."""
    return list(pod["spec"].get("ephemeralContainers") or ())


def is_sidecar(init_container: ObjectView) -> bool:
    """Return whether an init container runs next to the regular ones (KEP-753)."""
    return init_container.get("restartPolicy") == "Always"


def should_restart(pod: ObjectView, container: ObjectView, exit_code: int) -> bool:
    """Return whether an exited container is restarted, by its own policy (KEP-5307) or the pod's.

    An init container that is not a sidecar treats ``Always`` as ``OnFailure``.
    """
    for rule in container.get("restartPolicyRules") or ():
        codes = rule.get("exitCodes") or {}
        if (exit_code in (codes.get("values") or ())) == (codes.get("operator") == "In"):
            return bool(rule.get("action") == "Restart")
    policy = container.get("restartPolicy") or pod["spec"].get("restartPolicy", "Always")
    if policy == "Always":
        regular_init = container.get("restartPolicy") != "Always" and any(
            item["name"] == container["name"] for item in init_containers(pod)
        )
        return not regular_init or exit_code != 0
    return bool(policy == "OnFailure") and exit_code != 0


def grace_seconds(pod: ObjectView) -> float:
    """Return the termination grace period of a pod in seconds: that of its deletion, or of its spec."""
    given = pod["metadata"].get("deletionGracePeriodSeconds")
    if given is None:
        given = pod["spec"].get("terminationGracePeriodSeconds")
    return float(DEFAULT_GRACE_SECONDS if given is None else given)


def remaining_seconds(pod: ObjectView, now: dt.datetime) -> float | None:
    """Return the seconds until ``activeDeadlineSeconds`` expires; None without it, or before the pod starts."""
    deadline, start = pod["spec"].get("activeDeadlineSeconds"), (pod.get("status") or {}).get("startTime")
    if deadline is None or not start:
        return None
    return float(deadline) - (now - dt.datetime.fromisoformat(start)).total_seconds()


def is_deleted(pod: ObjectView) -> bool:
    """Return whether its deletion has begun."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def phase(pod: ObjectView) -> str:
    """Return the phase in the pod's status."""
    return str((pod.get("status") or {}).get("phase") or "Pending")


class PodClaim(Struct, frozen=True):
    """An entry of ``spec.resourceClaims`` and the ResourceClaim behind it.

    Attributes:
        name: name of the entry; empty for the claim of the pod's extended resources.
        claim: name of the ResourceClaim; None before it is created.
        generated: it was created for the pod, which must own it.
    """

    name: str
    claim: str | None
    generated: bool


def pod_claims(pod: ObjectView) -> Iterator[PodClaim]:
    """Yield the claims of the pod in the order of its spec, and then that of its extended resources (KEP-5004)."""
    status = pod.get("status") or {}
    made = {item["name"]: item.get("resourceClaimName") for item in status.get("resourceClaimStatuses") or ()}
    for entry in pod["spec"].get("resourceClaims") or ():
        name = entry["name"]
        if entry.get("resourceClaimName"):
            yield PodClaim(name, entry["resourceClaimName"], generated=False)
        elif name not in made:
            yield PodClaim(name, None, generated=True)
        elif made[name]:  # without a name, the pod needs no claim
            yield PodClaim(name, made[name], generated=True)
    extended = status.get("extendedResourceClaimStatus") or {}
    if extended.get("resourceClaimName"):
        yield PodClaim("", extended["resourceClaimName"], generated=True)


class ClaimUse(Struct, frozen=True):
    """A claim, or one of its requests, that a container uses.

    Attributes:
        name: name of the entry in ``spec.resourceClaims``; empty for an extended resource.
        claim: name of the ResourceClaim.
        request: name of the request; empty for the whole claim.
    """

    name: str
    claim: str
    request: str


def claim_uses(pod: ObjectView, container: ObjectView) -> Iterator[ClaimUse]:
    """Yield the claims of the container, in the order of its spec."""
    names = {entry.name: entry.claim for entry in pod_claims(pod)}
    for used in (container.get("resources") or {}).get("claims") or ():
        if claim := names.get(used["name"]):
            yield ClaimUse(used["name"], claim, used.get("request") or "")
    extended = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    for mapping in extended.get("requestMappings") or ():
        if mapping.get("containerName") == container["name"]:
            yield ClaimUse("", extended["resourceClaimName"], mapping["requestName"])


ObjectKey: TypeAlias = tuple[str, str]
"""Namespace (empty for a cluster-scoped object) and name."""


def secret_names(pod: ObjectView) -> Iterator[str]:
    """Yield the names of the Secrets whose data the containers of a pod get, some of them several times."""
    for container in (*containers(pod), *init_containers(pod)):
        sources = [entry.get("secretRef") for entry in container.get("envFrom") or ()]
        sources += [(entry.get("valueFrom") or {}).get("secretKeyRef") for entry in container.get("env") or ()]
        yield from (source["name"] for source in sources if source and source.get("name"))
    for volume in pod["spec"].get("volumes") or ():
        if (secret := volume.get("secret")) and secret.get("secretName"):
            yield secret["secretName"]
        for source in (volume.get("projected") or {}).get("sources") or ():
            if (secret := source.get("secret")) and secret.get("name"):
                yield secret["name"]


def object_key(obj: ObjectView) -> ObjectKey:
    """Return the key of the object in informers."""
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def object_name(obj: ObjectView) -> str:
    """Return ``namespace/name``."""
    namespace, name = object_key(obj)
    return f"{namespace}/{name}"


def is_terminal(pod: ObjectView) -> bool:
    """Return whether the pod has finished."""
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}


def is_done(pod: ObjectView) -> bool:
    """Return whether the pod no longer needs its claims: it finished, or was deleted before it was scheduled."""
    return is_terminal(pod) or ("deletionTimestamp" in pod["metadata"] and not pod["spec"].get("nodeName"))


def owns(pod: ObjectView, obj: ObjectView) -> bool:
    """Return whether the pod is the controlling owner of an object."""
    owners = obj["metadata"].get("ownerReferences", [])
    return any(item.get("controller") and item.get("uid") == pod["metadata"]["uid"] for item in owners)


POD_GROUP_API: Final = "scheduling.k8s.io"
"""API group of PodGroups."""


def pod_group(pod: ObjectView) -> str:
    """Return the name of the pod's PodGroup; empty without one."""
    return str((pod["spec"].get("schedulingGroup") or {}).get("podGroupName") or "")


def is_made_for(claim: ObjectView, pod: ObjectView) -> bool:
    """Return whether the pod, or its PodGroup, is the controlling owner of a claim (KEP-5729)."""
    return owns(pod, claim) or any(
        item.get("controller")
        and item.get("kind") == "PodGroup"
        and item.get("apiVersion", "").partition("/")[0] == POD_GROUP_API
        and item.get("name") == pod_group(pod)
        for item in claim["metadata"].get("ownerReferences", [])
    )


def not_made_for(claim: ObjectView, pod: ObjectView) -> str:
    """Return the message of scheduler and kubelet about a claim that is not :func:`is_made_for` a pod."""
    group = pod_group(pod)
    owner = f"neither Pod nor PodGroup {group} is the owner" if group else "Pod is not owner"
    return f"ResourceClaim {object_name(claim)} was not created for Pod {object_name(pod)} ({owner})"


def is_reserved_for(claim: ObjectView, pod: ObjectView) -> bool:
    """Return whether the claim is reserved for the pod or its PodGroup."""
    return any(is_consumer(item, pod) for item in claim.get("status", {}).get("reservedFor", []))


def is_consumer(item: ObjectView, pod: ObjectView) -> bool:
    """Return whether a consumer of a claim is the pod or its PodGroup, whose UID a pod does not know."""
    return item.get("uid") == pod["metadata"]["uid"] or (is_pod_group(item) and item.get("name") == pod_group(pod))


def is_pod_group(consumer: ObjectView) -> bool:
    """Return whether a consumer of a claim is a PodGroup."""
    return (consumer.get("apiGroup"), consumer.get("resource")) == (POD_GROUP_API, "podgroups")


def finalizer_note(obj: ObjectView) -> str:
    """Return a note on the finalizers of a deleted object, to follow its name; empty without any."""
    finalizers = obj["metadata"].get("finalizers", []) if "deletionTimestamp" in obj["metadata"] else []
    return f" (waits for the finalizer {', '.join(finalizers)})" if finalizers else ""


def format_time(moment: dt.datetime | None = None) -> str:
    """Return a time (default: now) in the format of ``metav1.Time``: RFC 3339, whole seconds, UTC."""
    return (moment or dt.datetime.now(dt.UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_since(text: str) -> float:
    """Return the seconds since a ``metav1.Time``."""
    return (dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(text)).total_seconds()


@dataclass(frozen=True, slots=True)
class ClaimReference:
    """A claim by name and identity, which is still known after its deletion."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def taint_text(taint: ObjectView) -> str:
    """Return a device taint as kubectl writes taints of nodes: ``key=value:effect``."""
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"
