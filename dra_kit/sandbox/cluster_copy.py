"""A saved cluster that the sandbox runs: its objects, what is absent from them, and the nodes, which run nothing."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from dra_kit.apiserver.api import Api, RuntimeConfig
from dra_kit.apiserver.bootstrap import restore
from dra_kit.client.api import Client
from dra_kit.client.informer import ObjectChange
from dra_kit.client.resources import POD_GROUPS, PODS
from dra_kit.diagnosis.snapshot import SavedCluster, load_cluster
from dra_kit.errors import ConfigurationError, NotFound
from dra_kit.kubernetes.release import NEWEST, KubernetesVersion, Release
from dra_kit.kubernetes.resource.objects import ObjectKey, is_terminal, object_key
from dra_kit.kubernetes.resource.schema.types import TypeMismatch
from dra_kit.kubernetes.values.json import Object, ObjectView
from dra_kit.sandbox.informers import SharedInformers, WorkQueue
from dra_kit.text import counted

_OTHER_KINDS: Final = ("Namespace", "PriorityClass", "LimitRange", "ResourceQuota", "PodGroup")
"""Kinds that a copy has beside those of a snapshot; controllers would make more of others than there was."""
_SCHEDULER: Final = "default-scheduler"
_SPACE: Final = uuid.UUID("5f6ad0e2-8c2c-4f0e-9a57-0d2f1b6a3c11")
"""Of the UIDs of objects that were saved without one: always the same ones."""


class ClusterCopy(Struct, frozen=True):
    """A saved cluster, checked, as the sandbox runs it.

    Objects are taken as they are, also where an API server would reject them today. Controllers and the garbage
    collector must not act on what was not saved: pods that hold claims, nodes of pods, owners.

    Attributes:
        source: the path that it was read from.
        version: the release of Kubernetes that it was saved from: ``1.36``.
        release: the release that judges the objects, with its default gates and those that the snapshot names.
        node_names: names of its nodes.
        node_uids: UIDs of its nodes.
        absent_nodes: names of nodes that its pods are on and that were not saved.
        absent_consumers: pods and PodGroups that hold claims and were not saved, by resource.
        leaving: UIDs of pods that were being deleted.
        summary: how much there is, as a text.
        notes: what is to be known about it, a sentence each.
        objects: all of them, each once, with a UID.
        kubelets: names of the nodes that the sandbox runs beside it.
    """

    source: str
    version: str
    release: Release
    node_names: frozenset[str]
    node_uids: frozenset[str]
    absent_nodes: frozenset[str]
    absent_consumers: Mapping[str, Mapping[ObjectKey, ObjectView]]
    leaving: frozenset[str]
    summary: str
    notes: tuple[str, ...]
    objects: tuple[Object, ...]
    kubelets: frozenset[str] = frozenset()

    @classmethod
    def read(cls, path: Path, version: KubernetesVersion | None = None) -> ClusterCopy:
        """Read a snapshot, a support bundle, or objects saved with kubectl.

        Args:
            path: of the file or folder.
            version: of the release that is to judge the objects; by default the one they were saved from.

        Raises:
            ConfigurationError: it cannot be read, an object is corrupt, or two objects have the same name or UID.
        """
        saved = load_cluster(path)
        found = saved.documents if version is None else replace(saved.documents, version=str(version))
        found.cluster()  # checks the objects
        release = found.release
        if found.extended_resources:
            release = release.also("DRAExtendedResource")
        others, left_out = _others(saved, release)
        objects = tuple(_distinct(path, [*(item for kind in found.documents.values() for item in kind), *others]))
        by_kind: dict[str, list[Object]] = {}
        for item in objects:
            by_kind.setdefault(item["kind"], []).append(item)
        for item in by_kind.get("ResourceSlice", ()):
            if not (item.get("spec") or {}).get("driver"):
                raise _corrupt(path, item, "it has no spec.driver")
        nodes, pods = by_kind.get("Node", []), by_kind.get("Pod", [])
        names = frozenset(str(node["metadata"]["name"]) for node in nodes)
        on = {str(pod["spec"]["nodeName"]) for pod in pods if pod["spec"].get("nodeName")}
        return cls(
            source=str(path),
            version=saved.documents.version,
            release=release,
            node_names=names,
            node_uids=frozenset(str(node["metadata"]["uid"]) for node in nodes),
            absent_nodes=frozenset(on - names),
            absent_consumers=_absent_consumers(path, by_kind),
            leaving=frozenset(pod["metadata"]["uid"] for pod in pods if "deletionTimestamp" in pod["metadata"]),
            summary=_summary(by_kind),
            notes=(*_judged(saved.documents.version, release.version), *_notes(saved, by_kind), *left_out),
            objects=objects,
        )

    def served(self, release: Release, runtime_config: RuntimeConfig) -> ClusterCopy:
        """Return the copy for an API server: without the objects that it does not serve, the others in its versions."""
        kinds = {(kind.group, kind.kind): kind for kind in runtime_config.served(release)}
        taken, left_out = list[Object](), Counter[str]()
        for item in self.objects:
            group, _, version = str(item["apiVersion"]).rpartition("/")
            kind = kinds.get((group, str(item["kind"])))
            if kind is None:
                left_out[str(item["kind"])] += 1
            elif version in kind.types:
                taken.append(item)
            else:
                taken.append({**item, "apiVersion": kind.api_version(next(iter(kind.types)))})
        if not left_out:
            return replace(self, objects=tuple(taken))
        note = f"left out, because the API server does not serve them: {_numbers(left_out)}; see --runtime-config"
        return replace(self, objects=tuple(taken), notes=(*self.notes, note))

    def restore(self, api: Api) -> None:
        """Store the objects in an API server that does not run yet.

        Raises:
            ConfigurationError: an object does not have the types of its kind.
        """
        taken = list[Object]()

        def each() -> Iterator[Object]:
            for item in self.objects:
                taken.append(item)
                yield item

        try:
            restore(api, each())
        except TypeMismatch as error:
            raise ConfigurationError(
                f"{self.source}: {_title(taken[-1])} is corrupt: {error}; save it again, with dra-kit snapshot or "
                "kubectl get -o yaml"
            ) from None

    @property
    def first_node(self) -> int:
        """The first number of a node ``node-N`` that does not exist in it, nor any higher one."""
        taken = {*self.node_names, *self.absent_nodes}
        numbers = [int(name[5:]) for name in taken if name.startswith("node-") and name[5:].isdecimal()]
        return max((number for number in numbers if number < _HIGHEST_NODE), default=0) + 1


_HIGHEST_NODE: Final = 1_000_000


def waits_for_scheduler(pod: ObjectView) -> bool:
    """Return whether the scheduler is to find a node for a pod."""
    return not (
        pod["spec"].get("nodeName")
        or is_terminal(pod)
        or "deletionTimestamp" in pod["metadata"]
        or _scheduled_by_others(pod)
    )


def _scheduled_by_others(pod: ObjectView) -> bool:
    return bool(pod["spec"].get("schedulingGates")) or pod["spec"].get("schedulerName", _SCHEDULER) != _SCHEDULER


def _title(obj: ObjectView) -> str:
    return f"{obj.get('kind', 'object')} {'/'.join(map(str, filter(None, object_key(obj))))}"


def _others(saved: SavedCluster, release: Release) -> tuple[list[Object], list[str]]:
    """Return the objects of further kinds that a copy has, and a sentence about those that it does not have."""
    taken, left_out = list[Object](), Counter[str]()
    for where, document in saved.others:
        kind, metadata = str(document["kind"]), document["metadata"]
        if kind not in _OTHER_KINDS or (kind == POD_GROUPS.kind and "GenericWorkload" not in release):
            left_out[kind] += 1
            continue
        served = _SERVED[kind]
        if document["apiVersion"] != served:
            raise ConfigurationError(f"{where}: {kind} of {document['apiVersion']} is not read; save it as {served}")
        if not isinstance(metadata.get("name"), str) or not metadata["name"]:
            raise ConfigurationError(f"{where}: {kind} has no metadata.name; save it again, with kubectl get -o yaml")
        own = {"namespace": metadata.get("namespace") or "default"} if kind in _NAMESPACED else {}
        taken.append({**document, "metadata": {**metadata, **own}})
    if not left_out:
        return taken, []
    return taken, [f"left out, because controllers would act on them without their pods: {_numbers(left_out)}"]


def _numbers(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {kind}" for kind, number in sorted(counts.items()))


_SERVED: Final = {
    "Namespace": "v1", "LimitRange": "v1", "ResourceQuota": "v1", "PriorityClass": "scheduling.k8s.io/v1",
    "PodGroup": POD_GROUPS.api_version,
}  # fmt: skip
_NAMESPACED: Final = frozenset({"LimitRange", "ResourceQuota", "PodGroup"})


def _distinct(path: Path, documents: Iterable[ObjectView]) -> Iterator[Object]:
    """Yield each object once, with a UID.

    Raises:
        ConfigurationError: two objects have the same name or UID, or metadata are corrupt.
    """
    seen: dict[tuple[str, str, str], ObjectView] = {}
    owners: dict[str, ObjectView] = {}  # by UID
    for document in documents:
        metadata = document["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        if not isinstance(namespace, str):
            raise _corrupt(path, document, "its namespace is not text")
        if "/" in namespace or "/" in name:
            raise _corrupt(path, document, "its name or namespace contains a slash")
        key = (str(document["kind"]), namespace, name)
        if (former := seen.setdefault(key, document)) is not document:
            if former == document:
                continue
            raise ConfigurationError(
                f"{path} has {_title(document)} twice, with different contents; remove one of them, or save the "
                "cluster again, with dra-kit snapshot"
            )
        uid = metadata.get("uid") or str(uuid.uuid5(_SPACE, "/".join(key)))
        if not isinstance(uid, str):
            raise _corrupt(path, document, "its UID is not text")
        if (owner := owners.setdefault(uid, document)) is not document:
            raise ConfigurationError(
                f"{path}: {_title(owner)} and {_title(document)} have the same metadata.uid, {uid}; remove it from the "
                "one that is a copy of the other"
            )
        yield {**document, "metadata": {**metadata, "uid": uid}}


def _corrupt(path: Path, document: ObjectView, problem: str) -> ConfigurationError:
    return ConfigurationError(f"{path}: {_title(document)} is corrupt: {problem}; save it again")


def _absent_consumers(
    path: Path, by_kind: Mapping[str, Sequence[ObjectView]]
) -> dict[str, dict[ObjectKey, ObjectView]]:
    """Return pods and PodGroups that hold claims and were not saved: with name, UID and phase.

    Raises:
        ConfigurationError: an item of ``reservedFor`` is not an object.
    """
    kinds = {PODS.plural: PODS.kind, POD_GROUPS.plural: POD_GROUPS.kind}
    known = {plural: {object_key(item) for item in by_kind.get(kind, ())} for plural, kind in kinds.items()}
    absent: dict[str, dict[ObjectKey, ObjectView]] = {plural: {} for plural in kinds}
    for claim in by_kind.get("ResourceClaim", ()):
        namespace = object_key(claim)[0]
        for number, item in enumerate((claim.get("status") or {}).get("reservedFor") or ()):
            if not isinstance(item, Mapping):
                raise _corrupt(path, claim, f"status.reservedFor[{number}] is not an object")
            plural, key = str(item.get("resource") or ""), (namespace, str(item.get("name") or ""))
            if plural in kinds and key not in known[plural]:
                metadata = {"namespace": namespace, "name": key[1], "uid": item.get("uid", "")}
                absent[plural][key] = {"metadata": metadata, "spec": {}, "status": {"phase": "Running"}}
    return absent


def _summary(by_kind: Mapping[str, Sequence[ObjectView]]) -> str:
    """Return how much there is."""
    devices: Counter[str] = Counter()
    for item in by_kind.get("ResourceSlice", ()):
        devices[str(item["spec"]["driver"])] += len(item["spec"].get("devices") or ())
    offered = [f"{_many(number, 'device')} of {driver}" for driver, number in sorted(devices.items())]
    pods = by_kind.get("Pod", ())
    placed = sum(bool(pod["spec"].get("nodeName")) and not is_terminal(pod) for pod in pods)
    waiting = sum(map(waits_for_scheduler, pods))
    claims = by_kind.get("ResourceClaim", ())
    allocated = sum(bool((claim.get("status") or {}).get("allocation")) for claim in claims)
    parts = [_many(len(by_kind.get("Node", ())), "node"), " and ".join(offered) or "no device"]
    parts += [f"{_many(placed, 'pod')} on nodes and {waiting:,} without"]
    return f"{', '.join(parts)}; {allocated:,} of {_many(len(claims), 'claim')} allocated"


def _many(number: int, noun: str) -> str:
    return counted(number, noun) if number < 1000 else f"{number:,} {noun}s"


def _judged(saved: str, version: KubernetesVersion) -> Iterator[str]:
    """Yield that the objects were saved from another release than the one that judges them, or from an unknown one."""
    if str(version) != saved:
        yield f"--kubernetes: Kubernetes {version} judges them, as if the cluster had been changed to it"
    elif version > NEWEST:
        yield (
            f"it is of Kubernetes {version}, whose rules apply as far as dra-kit knows them: it supports releases up "
            f"to {NEWEST}; --kubernetes {NEWEST} simulates that one"
        )


def _notes(saved: SavedCluster, by_kind: Mapping[str, Sequence[ObjectView]]) -> Iterator[str]:
    yield (
        "its nodes are copies, without kubelets and drivers: pods on them run nothing, and ResourceSlices stay as they "
        "are, although no driver renews them"
    )
    if quotas := len(by_kind.get("ResourceQuota", ())):
        yield f"{_many(quotas, 'ResourceQuota')} of it {'limits' if quotas == 1 else 'limit'} what you apply"
    if not by_kind.get("Node"):
        yield "it has no Node, so that no pod finds a place; save it with the right to list nodes"
    if saved.is_bundle:
        yield "a support bundle has only the pods of the driver: cpu and memory of nodes look free"
    for gap in saved.documents.gaps:
        yield f"{gap.plural} could not be read when it was saved: {gap.consequence}"
    pods = [pod for pod in by_kind.get("Pod", ()) if not pod["spec"].get("nodeName") and not is_terminal(pod)]
    if others := [pod for pod in pods if _scheduled_by_others(pod)]:
        waits = "waits" if len(others) == 1 else "wait"
        yield f"{_many(len(others), 'pod')} {waits} for another scheduler, or for scheduling gates, and stays as it is"


class CopiedNodes:
    """Stands for the kubelets of the nodes of a copy: removes pods that are deleted, as if they had ended at once.

    Pods that were being deleted when the cluster was saved stay as they are.
    """

    def __init__(self, client: Client, informers: SharedInformers, copy: ClusterCopy) -> None:
        self._client = client
        self._pods: Mapping[ObjectKey, Any] = informers.objects(PODS)
        self._leaving = copy.leaving
        self._kubelets = copy.kubelets
        self._queue: WorkQueue[ObjectKey] = WorkQueue("pods on copies of nodes", self._remove)
        informers.listen(PODS, self._changed)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._queue.run()

    def _is_removed(self, pod: ObjectView) -> bool:
        metadata, node = pod["metadata"], pod["spec"].get("nodeName")
        return (
            "deletionTimestamp" in metadata
            and bool(node)
            and node not in self._kubelets
            and metadata["uid"] not in self._leaving
        )

    def _changed(self, change: ObjectChange) -> None:
        if change.type != "DELETED" and self._is_removed(change.object):
            self._queue.add(object_key(change.object))

    async def _remove(self, key: ObjectKey) -> None:
        pod = self._pods.get(key)
        if pod is None or not self._is_removed(pod):
            return
        with suppress(NotFound):
            await self._client.delete(PODS, key[1], key[0], uid=pod["metadata"]["uid"], grace_period_seconds=0)
