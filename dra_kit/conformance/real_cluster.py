"""Group C: the behaviours of KEP-5970 in a real cluster, seen through its API server only.

The scheduler allocates, the kubelet prepares, and a container prints what it got. What no API object shows, such as the
registration, is read in the kubelet's metrics (``nodes/proxy``) and in its Events on pods. Sources: Kubernetes 1.37,
``pkg/kubelet/cm/dra/manager.go`` and ``pkg/kubelet/pluginmanager/metrics``.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Self, TypeAlias

from msgspec import Struct, field

from dra_kit.client.api import Client
from dra_kit.client.resources import (
    DEVICE_CLASSES,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    SERVICE_ACCOUNTS,
    Resource,
)
from dra_kit.conformance.catalogue import selected
from dra_kit.conformance.cluster import newest
from dra_kit.conformance.kubelet import KubeletMetrics, is_prepared, runs
from dra_kit.conformance.profile import DriverProfile, injected, printed_edits
from dra_kit.conformance.runner import CheckOutcome, ConformanceReport, RunProgress, judged
from dra_kit.conformance.slices import problems_of_pools, require_same_slices, shown_slice, steady_versions, versions_of
from dra_kit.conformance.workbench import CheckBlocked, CheckFailure, CheckNotApplicable, DriverUnknown
from dra_kit.errors import ConfigurationError, Conflict, Forbidden, KubeError, NotFound, Unavailable
from dra_kit.kubelet.cdi.spec import SpecEdits
from dra_kit.kubernetes.manifests.documents import read_objects, source_file
from dra_kit.text import escape_unprintable

IMAGE: Final = "busybox:stable"
"""The default image of containers; it needs ``sh``, ``cat`` and ``find``."""
LABELS: Final = {"app.kubernetes.io/managed-by": "dra-kit-conformance"}
"""Labels of all cluster-scoped objects of a run."""
STEADY_SECONDS: Final = 10.0
"""Seconds in which slices are watched."""
PODS_MAX: Final = 16
"""At most so many pods are created until one of them gets the device that was released."""
_BACKOFF_SECONDS: Final = 125.0  # a kubelet waits up to 122 s after failures at a socket, also those of another driver
_ACCOUNT_SECONDS: Final = 30.0  # the controller manager creates the service account of a new namespace
_REMOVAL_SECONDS: Final = 60.0  # for all pods, for all claims, and for the namespace
_WITH, _WITHOUT = "with-claim", "without-claim"
_NOT_PREPARED: Final = "FailedPrepareDynamicResources"
_NO_IMAGE: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"})

Object: TypeAlias = dict[str, Any]


class RealClusterSettings(Struct, frozen=True, kw_only=True):
    """What is judged in a cluster.

    Attributes:
        subject: how the driver is found or started, for people.
        driver: its name.
        profile: of the driver.
        only: ids of checks, such as ``C1,C4``; empty for all.
        node: the node on which it is judged; empty for the first one with devices of the driver.
        image: of the containers.
        poll: seconds between two looks.
        last_output: returns what the driver wrote last, if dra-kit started it.
    """

    subject: str
    driver: str
    profile: DriverProfile
    only: str = ""
    node: str = ""
    image: str = IMAGE
    poll: float = 0.5
    last_output: Callable[[], list[str]] = list


class ClaimedPod(Struct):
    """A pod with a claim of one device.

    Attributes:
        name: of the pod and of its claim.
        devices: pool and name of the driver's devices that were allocated.
    """

    name: str
    devices: set[tuple[str, str]] = field(default_factory=set)


class ClusterBench:
    """What the checks of group C work with; an asynchronous context manager that removes what they created.

    Args:
        client: may create namespaces, pods, claims and classes.
        settings: of the run.
        progress: is notified of what could not be removed.
    """

    def __init__(self, client: Client, settings: RealClusterSettings, progress: RunProgress) -> None:
        self.client = client
        self.settings = settings
        self.profile: DriverProfile = settings.profile
        self.driver: str = settings.driver
        self.node: str = settings.node
        self.namespace: str = f"dra-conformance-{secrets.token_hex(4)}"
        self.calls_before: Mapping[str, int] = {}
        self._mark = f"--{secrets.token_hex(8)}-"  # no variable of a driver has it
        self._progress = progress
        self._classes: list[str] = []
        self._local = False  # the node has slices of its own, so that no others are read
        self._class = self.profile.device_class or self.namespace
        self._pods: list[ClaimedPod] = []
        self._done: dict[str, Exception | None] = {}

    async def __aenter__(self) -> Self:
        try:
            await self._create_classes()
            # pods without a security context are rejected where the cluster's default is "restricted"
            labels = LABELS | {"pod-security.kubernetes.io/enforce": "privileged"}
            await self.client.create(NAMESPACES, _object(NAMESPACES, self.namespace, labels=labels))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for remove in (self._remove_pods, self._remove_classes, self._remove_namespace):
            try:
                await remove()
            except KubeError as error:
                self._progress.remains(str(error))

    async def _remove_namespace(self) -> None:
        with suppress(NotFound):
            await self.client.delete(NAMESPACES, self.namespace)
        if not await self.until(lambda: self._gone(NAMESPACES, self.namespace), _REMOVAL_SECONDS):
            self._progress.remains(f"namespace {self.namespace} is still being deleted")

    async def _create_classes(self) -> None:
        for file in self.profile.device_classes:
            for place, body in read_objects(source_file(file)):
                if body.get("kind") != "DeviceClass":
                    raise ConfigurationError(f"{place}: only a DeviceClass is created in a cluster; leave it out")
                await self._create_class(body)
        if self.profile.device_class is None:
            body = _object(DEVICE_CLASSES, self._class)
            body["spec"] = {"selectors": [{"cel": {"expression": f"device.driver == {json.dumps(self.driver)}"}}]}
            await self._create_class(body)
        try:
            await self.client.get(DEVICE_CLASSES, self._class)
        except NotFound:
            raise ConfigurationError(
                f"DeviceClass {self._class} does not exist; create it, or name its manifest as deviceClasses of the "
                "profile"
            ) from None

    async def _create_class(self, body: Mapping[str, Any]) -> None:
        """Create a class unless there is one with this name."""
        version = str(body.get("apiVersion", "")).rpartition("/")[2]
        resource = Resource(DEVICE_CLASSES.group, version, DEVICE_CLASSES.plural, DEVICE_CLASSES.kind, namespaced=False)
        metadata = body.get("metadata") or {}
        labelled = {**metadata, "labels": {**(metadata.get("labels") or {}), **LABELS}}
        with suppress(Conflict):
            made = await self.client.create(resource, {**body, "metadata": labelled})
            self._classes.append(made["metadata"]["name"])

    async def _remove_classes(self) -> None:
        while self._classes:
            await self._delete(DEVICE_CLASSES, self._classes.pop())

    # --- results of checks, which other checks need

    async def result(self, check: str) -> None:
        """Run a check, or raise again what it raised before."""
        if check not in self._done:
            try:
                await CHECKS[check](self)
            except (CheckFailure, CheckBlocked, CheckNotApplicable, KubeError) as error:
                self._done[check] = error
            else:
                self._done[check] = None
        problem = self._done[check]
        if problem is not None:
            raise problem

    async def need(self, check: str) -> None:
        """Go on only if another check has passed.

        Raises:
            CheckBlocked: it has not.
        """
        try:
            await self.result(check)
        except CheckFailure as failure:
            raise CheckBlocked(f"{failure.evidence[0]}: see {check}") from None

    async def until(self, condition: Callable[[], Awaitable[bool]], timeout: float) -> bool:
        """Wait until a condition is true; return whether it is.

        Raises:
            Unavailable: the API server does not answer in time.
        """
        end = time.monotonic() + timeout
        while True:
            try:
                if await condition():
                    return True
            except Unavailable:  # it may only restart
                if time.monotonic() > end:
                    raise
            if time.monotonic() > end:
                return False
            await asyncio.sleep(self.settings.poll)

    # --- what the cluster shows

    async def slices(self) -> list[Object]:
        """Return the driver's slices of the node; those of several nodes if the node has none of its own."""
        selector = f"spec.driver={self.driver}" + (f",spec.nodeName={self.node}" if self._local else "")
        listed = await self.client.list(RESOURCE_SLICES, field_selector=selector)
        return [item for item in listed.items if self.node in ("", item["spec"].get("nodeName", self.node))]

    async def published(self) -> list[Object]:
        """Return the slices when there are devices, and choose the node.

        Raises:
            CheckBlocked: there are none in time.
        """
        found: list[Object] = []

        async def devices() -> bool:
            found[:] = await self.slices()
            return any(item["spec"].get("devices") for item in newest(found))

        if not await self.until(devices, self.profile.start_within):
            raise CheckBlocked(
                f"driver {self.driver} publishes no devices{f' on node {self.node}' if self.node else ''} within "
                f"{self.profile.start_within:g} s"
            )
        if not self.node:
            nodes = {item["spec"].get("nodeName", "") for item in newest(found) if item["spec"].get("devices")}
            local = sorted(nodes - {""})
            self.node = next(iter([*sorted(nodes & await self._nodes()), *local]), "")
        self._local = any(item["spec"].get("nodeName") == self.node for item in found)
        return await self.slices()

    async def _nodes(self) -> set[str]:
        """Return the names of nodes that take pods."""
        listed = await self.client.list(NODES)
        return {
            item["metadata"]["name"]
            for item in listed.items
            if not item.get("spec", {}).get("unschedulable")
            if any(
                (entry["type"], entry["status"]) == ("Ready", "True")
                for entry in item.get("status", {}).get("conditions", [])
            )
        }

    async def unprepare_calls(self) -> Mapping[str, int]:
        """Return the number of finished NodeUnprepareResources calls by status; empty if the metrics cannot be read."""
        with suppress(Unavailable):
            if metrics := await KubeletMetrics.fetch(self.client, self.node):
                return metrics.calls(self.driver, "NodeUnprepareResources")
        return {}

    async def events(self, pod: ClaimedPod) -> list[tuple[str, str]]:
        """Return reason and text of the Events on a pod, oldest first and each once."""
        listed = await self.client.list(EVENTS, self.namespace)
        own = [item for item in listed.items if item.get("regarding", {}).get("name") == pod.name]
        own.sort(key=_time)
        return list(dict.fromkeys((str(item.get("reason", "")), str(item.get("note", ""))) for item in own))

    async def evidence(self, pod: ClaimedPod) -> list[str]:
        """Return what conditions, containers and Events say of a pod, for evidence."""
        lines: list[str] = []
        with suppress(NotFound):
            status = (await self.client.get(PODS, pod.name, self.namespace)).get("status", {})
            lines.append(f"pod {pod.name} is {status.get('phase', 'new')} {status.get('message', '')}".rstrip())
            lines += [
                f"{entry['type']}: {entry.get('reason', '')} {entry['message']}"
                for entry in status.get("conditions") or ()
                if entry["status"] != "True" and entry.get("message") and entry["type"] == "PodScheduled"
            ]
            for container in status.get("containerStatuses") or ():
                for waiting in (item for item in container.get("state", {}).values() if item.get("message")):
                    lines.append(f"container {container['name']}: {waiting.get('reason')}: {waiting['message']}")
        warnings = [(reason, note) for reason, note in await self.events(pod) if reason not in _ORDINARY]
        return [*lines, *(f"{reason}: {note}" for reason, note in warnings[-4:]), *self.settings.last_output()]

    # --- pods

    async def first(self) -> ClaimedPod:
        """Return the first pod, which is created."""
        if not self._pods:
            await self.published_or_blocked()
            self.calls_before = await self.unprepare_calls()
        return self._pods[0] if self._pods else await self.pod()

    async def published_or_blocked(self) -> None:
        """Go on only if there are devices.

        Raises:
            CheckBlocked: there are none.
        """
        try:
            await self.published()
        except CheckBlocked as reason:
            raise CheckBlocked(f"{reason}: see C2") from None

    async def pod(self) -> ClaimedPod:
        """Create a pod with two containers, of which one has a claim of one device."""
        pod = ClaimedPod(f"pod-{len(self._pods) + 1}")
        request = {"name": "device", "exactly": {"deviceClassName": self._class, **self.profile.request}}
        devices: Object = {"requests": [request]}
        if self.profile.configuration is not None:
            devices["config"] = [{"opaque": {"driver": self.driver, "parameters": self.profile.configuration}}]
        claim = _object(RESOURCE_CLAIMS, pod.name, self.namespace) | {"spec": {"devices": devices}}
        await self.client.create(RESOURCE_CLAIMS, claim)
        self._pods.append(pod)
        with suppress(Forbidden):  # a run does not need the right to see the account
            await self.until(self._has_account, _ACCOUNT_SECONDS)
        await self.client.create(PODS, self._manifest(pod))
        return pod

    async def _has_account(self) -> bool:
        """Return whether the namespace has the service account without which pods are rejected."""
        return not await self._gone(SERVICE_ACCOUNTS, "default")

    def _manifest(self, pod: ClaimedPod) -> Object:
        parts = {
            # a shell drops variables that it could not name, such as those with a UID; the kubelet makes $$ of $$$$
            "env": "cat /proc/$$$$/environ; echo",
            "mounts": "cat /proc/self/mountinfo",
            "files": "find /dev ! -type d 2>/dev/null",
            "end": "exec sleep 100000",
        }
        script = "; ".join(f"echo {self._mark}{part}; {command}" for part, command in parts.items())
        container = {"image": self.settings.image, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", script]}
        spec: Object = {
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {"name": _WITH, **container, "resources": {"claims": [{"name": "device"}]}},
                {"name": _WITHOUT, **container},
            ],
            "resourceClaims": [{"name": "device", "resourceClaimName": pod.name}],
        }
        if self.node:
            term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [self.node]}]}
            required = {"nodeSelectorTerms": [term]}
            spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
        return _object(PODS, pod.name, self.namespace) | {"spec": spec}

    async def allocated(self, pod: ClaimedPod) -> None:
        """Wait for the allocation of a pod's claim.

        Raises:
            CheckFailure: there is none in time, or it has no device of the driver.
        """
        found: list[Object] = []

        async def results() -> bool:
            claim = await self.client.get(RESOURCE_CLAIMS, pod.name, self.namespace)
            allocation = claim.get("status", {}).get("allocation") or {}
            found[:] = allocation.get("devices", {}).get("results") or ()
            return bool(allocation)

        if not await self.until(results, self.profile.pod_within):
            raise CheckFailure(
                f"no device is allocated to a claim of class {self._class} within {self.profile.pod_within:g} s",
                *await self.evidence(pod),
            )
        pod.devices = {(item["pool"], item["device"]) for item in found if item["driver"] == self.driver}
        if not pod.devices:
            others = ", ".join(sorted({item["driver"] for item in found})) or "none"
            raise CheckFailure(f"the claim of class {self._class} got devices of {others}, and none of {self.driver}")

    async def prepared(self, pod: ClaimedPod) -> None:
        """Wait until the kubelet has prepared a pod's claim: only then it creates the pod's sandbox.

        Raises:
            CheckFailure: it has not in time.
        """
        if not await self.until(lambda: self._reached(pod, is_prepared), self.profile.pod_within):
            raise CheckFailure(
                f"the claim is not prepared within {self.profile.pod_within:g} s", *await self.evidence(pod)
            )

    async def running(self, pod: ClaimedPod) -> None:
        """Wait until both containers of a pod run.

        Raises:
            CheckFailure: they do not in time.
            CheckBlocked: their image is missing.
        """
        if await self.until(lambda: self._reached(pod, runs), self.profile.pod_within):
            return
        lines = await self.evidence(pod)
        if any(reason in line for line in lines for reason in _NO_IMAGE):
            raise CheckBlocked("\n".join([f"image {self.settings.image} is missing; name one by --image", *lines]))
        raise CheckFailure(f"the containers do not run within {self.profile.pod_within:g} s", *lines)

    async def _reached(self, pod: ClaimedPod, condition: Callable[[Mapping[str, Any]], bool]) -> bool:
        found = (await self.client.get(PODS, pod.name, self.namespace)).get("status", {})
        if found.get("phase") == "Failed":
            raise CheckFailure("the pod failed", *await self.evidence(pod))
        return condition(found)

    async def seen(self, pod: ClaimedPod, container: str) -> SpecEdits:
        """Return the variables, mounts and files that a container has.

        Raises:
            CheckBlocked: it does not print them.
        """
        texts = [""]

        async def printed() -> bool:
            with suppress(KubeError):  # the kubelet may not have its log yet
                texts[0] = await self.client.log(pod.name, self.namespace, container)
            return f"{self._mark}end" in texts[0]

        if not await self.until(printed, self.profile.pod_within):
            raise CheckBlocked(
                f"container {container} does not print its environment; image {self.settings.image} needs sh, cat "
                "and find"
            )
        return printed_edits(texts[0], self._mark)

    async def end(self, pod: ClaimedPod) -> bool:
        """Delete a pod; return whether it is gone in time."""
        with suppress(NotFound):
            await self.client.delete(PODS, pod.name, self.namespace)
        return await self.until(lambda: self._gone(PODS, pod.name), self.profile.pod_within)

    async def release(self, pod: ClaimedPod) -> bool:
        """Delete the claim of a pod that is gone; return whether it is gone in time."""
        with suppress(NotFound):
            await self.client.delete(RESOURCE_CLAIMS, pod.name, self.namespace)
        return await self.until(lambda: self._gone(RESOURCE_CLAIMS, pod.name), self.profile.pod_within)

    async def users(self, devices: set[tuple[str, str]]) -> list[str]:
        """Return the claims of others that have one of these devices."""
        listed = await self.client.list(RESOURCE_CLAIMS)
        return [
            f"{item['metadata']['namespace']}/{item['metadata']['name']}"
            for item in listed.items
            if item["metadata"]["namespace"] != self.namespace
            for result in ((item.get("status", {}).get("allocation") or {}).get("devices") or {}).get("results") or ()
            if result["driver"] == self.driver and (result["pool"], result["device"]) in devices
        ]

    async def _gone(self, resource: Resource, name: str) -> bool:
        try:
            await self.client.get(resource, name, self.namespace)
        except NotFound:
            return True
        return False

    async def _remove_pods(self) -> None:
        """Delete all pods and claims; pods whose claims the driver does not release are deleted by force."""
        names = [pod.name for pod in self._pods]
        if left := await self._deleted(PODS, names):
            self._progress.remains(f"pods of {self.namespace} do not end, and are deleted by force: {', '.join(left)}")
            await self._deleted(PODS, left, grace=0)
        if left := await self._deleted(RESOURCE_CLAIMS, names):
            self._progress.remains(f"claims of {self.namespace} are still in use: {', '.join(left)}")

    async def _deleted(self, resource: Resource, names: Sequence[str], grace: int | None = None) -> list[str]:
        """Delete objects, and return those that are not gone in time."""
        left = list(names)
        for name in names:
            await self._delete(resource, name, self.namespace, grace)

        async def gone() -> bool:
            left[:] = [name for name in left if not await self._gone(resource, name)]
            return not left

        try:
            await self.until(gone, _REMOVAL_SECONDS)
        except KubeError as error:  # what follows is tried nevertheless
            self._progress.remains(str(error))
        return left

    async def _delete(self, resource: Resource, name: str, namespace: str = "", grace: int | None = None) -> None:
        """Delete an object; if that fails, notify of it and go on."""
        try:
            await self.client.delete(resource, name, namespace, grace_period_seconds=grace)
        except NotFound:
            pass
        except KubeError as error:
            self._progress.remains(str(error))


def _object(resource: Resource, name: str, namespace: str = "", *, labels: Mapping[str, str] | None = None) -> Object:
    metadata: Object = {"name": name, "namespace": namespace, "labels": dict(labels or {})}
    given = {key: value for key, value in metadata.items() if value}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": given}


_ORDINARY: Final = frozenset({"Scheduled", "Pulled", "Pulling", "Created", "Started", "Killing"})


def _time(event: Mapping[str, Any]) -> str:
    """Return when an Event happened last; kubelets write the older fields."""
    return str(event.get("deprecatedLastTimestamp") or event.get("eventTime") or "")


# --- the checks


async def c1(bench: ClusterBench) -> None:
    """Find the registration in the kubelet's metrics, or in how it treats a pod."""
    with suppress(CheckBlocked):  # C2 is about that
        await bench.published()
    if not (reason := await _unregistered_reason(bench)):
        return
    try:
        await bench.result("C4")
    except DriverUnknown as problem:
        raise CheckFailure(reason, *problem.notes, *bench.settings.last_output()) from None
    except CheckBlocked as blocked:
        raise CheckBlocked(f"{reason}, and no pod shows it: {blocked}") from None
    except CheckFailure:
        if not await _not_prepared(bench):
            raise CheckBlocked(f"{reason}, and no Event has the reason why the claim is not prepared: see C4") from None


async def _unregistered_reason(bench: ClusterBench) -> str:
    """Return why the driver does not count as registered by the kubelet's metrics; empty if it does."""
    if not bench.node:
        return "no node with devices of the driver is known, so that no kubelet is asked; name one by --node"
    found: list[str] = []

    async def registered() -> bool:
        metrics = await KubeletMetrics.fetch(bench.client, bench.node)
        if metrics is None:
            raise CheckBlocked("the API server refuses the request")
        found[:] = metrics.sockets(bench.driver, state="desired")
        return bool(metrics.sockets(bench.driver, state="actual"))

    try:
        in_time = await bench.until(registered, bench.profile.start_within)
        if in_time or (found and await bench.until(registered, _BACKOFF_SECONDS)):
            return ""
    except (CheckBlocked, Unavailable) as error:
        return f"the kubelet's metrics cannot be read: {error}"
    reason = f"no registered socket in the metrics of the kubelet of {bench.node} has the name of the driver"
    return f"{reason}; it has found {', '.join(found)}, and its log says why it is not registered" if found else reason


async def _not_prepared(bench: ClusterBench) -> list[str]:
    """Return why the kubelet did not prepare the claim of the first pod."""
    return [note for reason, note in await bench.events(await bench.first()) if reason == _NOT_PREPARED]


async def c2(bench: ClusterBench) -> None:
    """Look for devices, owners, complete pools, and writes without a reason."""
    try:
        found = await bench.published()
    except CheckBlocked as reason:
        listed = await bench.client.list(RESOURCE_SLICES)
        names = ", ".join(sorted({item["spec"]["driver"] for item in listed.items})) or "none"
        raise CheckFailure(str(reason), f"drivers with slices: {names}", *bench.settings.last_output()) from None
    uid = (await bench.client.get(NODES, bench.node))["metadata"]["uid"] if bench.node else ""
    problems = [
        f"slice {item['metadata']['name']} has ownerReferences {json.dumps(owners)}, expected Node {bench.node} with "
        f"UID {uid}"
        for item in found
        if item["spec"].get("nodeName")
        for owners in [item["metadata"].get("ownerReferences") or []]
        if not any(owner["kind"] == "Node" and owner["uid"] == uid for owner in owners)
    ]

    async def complete() -> bool:
        found[:] = await bench.slices()
        return not problems_of_pools(found)

    if not await bench.until(complete, bench.profile.restored_within):
        problems += [*problems_of_pools(found), *map(shown_slice, found)]
    if problems:
        raise CheckFailure(*problems)
    before = await steady_versions(bench.slices, bench.profile)
    await asyncio.sleep(STEADY_SECONDS)
    after = versions_of(await bench.slices())
    require_same_slices(before, after, f"slices changed in {STEADY_SECONDS:g} s without a claim of this run")


async def c3(bench: ClusterBench) -> None:
    """Have the scheduler allocate a device to a claim."""
    await bench.allocated(await bench.first())


async def c4(bench: ClusterBench) -> None:
    """Have the kubelet prepare the claim of a pod."""
    await bench.need("C3")
    try:
        await bench.prepared(await bench.first())
    except CheckFailure:
        unknown = f"DRA driver {bench.driver} is not registered"
        if notes := [note for note in await _not_prepared(bench) if unknown in note]:
            raise DriverUnknown(notes) from None
        raise


async def c5(bench: ClusterBench) -> None:
    """Compare what a container with the claim got with what the profile expects, or with its neighbour."""
    await bench.need("C4")
    pod = await bench.first()
    await bench.running(pod)
    having = await bench.seen(pod, _WITH)
    extra = injected(having, await bench.seen(pod, _WITHOUT))
    if bench.profile.expect is not None:
        if missing := list(bench.profile.expect.missing_in(having)):
            raise CheckFailure(*missing, *(f"only the container with the claim has {item[:200]}" for item in extra))
    elif not extra:
        raise CheckNotApplicable(
            "the profile expects nothing, and a container with the claim has the variables, mounts and files of one "
            "without"
        )


async def c6(bench: ClusterBench) -> None:
    """Delete the pod: it stays until the kubelet has unprepared its claims."""
    await bench.need("C4")
    pod = await bench.first()
    if await bench.end(pod):
        return
    lines = [f"the pod was deleted, and is still there after {bench.profile.pod_within:g} s: its claim is prepared"]
    for status, count in (await bench.unprepare_calls()).items():
        if more := count - bench.calls_before.get(status, 0):
            lines.append(f"calls of NodeUnprepareResources with status {status}: {more}")
    raise CheckFailure(*lines, *await bench.evidence(pod))


async def c7(bench: ClusterBench) -> None:
    """Create pods until one of them has the device that was released."""
    await bench.need("C6")
    former = await bench.first()
    if not await bench.release(former):
        raise CheckBlocked("the claim of a pod that is gone is not deleted by the cluster")
    names = ", ".join(f"{device} of pool {pool}" for pool, device in sorted(former.devices))
    for _ in range(min(bench.profile.devices or PODS_MAX, PODS_MAX)):
        pod = await bench.pod()
        try:
            await bench.allocated(pod)
        except CheckFailure as failure:
            if users := await bench.users(former.devices):
                raise CheckBlocked(f"device {names} is in use by claim {users[0]} now") from None
            raise CheckFailure(f"device {names} was released, and is not allocated again", *failure.evidence) from None
        if pod.devices & former.devices:
            await bench.prepared(pod)
            await bench.running(pod)
            return
    raise CheckBlocked(f"no new claim got device {names}, because others are free")


ClusterCheck: TypeAlias = Callable[[ClusterBench], Awaitable[None]]
CHECKS: Final[dict[str, ClusterCheck]] = {"C1": c1, "C2": c2, "C3": c3, "C4": c4, "C5": c5, "C6": c6, "C7": c7}


async def judge_in_cluster(
    client: Client, settings: RealClusterSettings, progress: RunProgress | None = None
) -> ConformanceReport:
    """Run the checks of group C in a cluster, remove what they created, and return the verdict.

    Raises:
        ConfigurationError: the class of the profile, or the node, does not exist.
        KubeError: the API server is not reachable, or rejects the namespace.
        ValueError: ``only`` names an unknown check.
    """
    checks = selected(settings.only, cluster=True)
    progress = progress or RunProgress()
    if settings.node:
        try:
            await client.get(NODES, settings.node)
        except NotFound:
            raise ConfigurationError(f"node {settings.node} does not exist; correct --node") from None
    outcomes: list[CheckOutcome] = []
    progress.identified(escape_unprintable(settings.driver))
    async with ClusterBench(client, settings, progress) as bench:
        for check in checks:
            progress.begins(check)
            started = time.monotonic()
            status, evidence = await judged(bench.result(check.id), settings.last_output)
            outcome = CheckOutcome(check, status, evidence, time.monotonic() - started)
            outcomes.append(outcome)
            progress.ends(outcome)
        where = f"{settings.subject}, on node {bench.node}" if bench.node else settings.subject
    return ConformanceReport(escape_unprintable(settings.driver), where, outcomes)
