"""The namespace of a story: its objects, waiting for them, and what is left after it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from dra_kit.client.resources import (
    NAMESPACES,
    POD_GROUPS,
    PODS,
    REPLICA_SETS,
    RESOURCE_CLAIMS,
    SERVICE_ACCOUNTS,
    Resource,
)
from dra_kit.errors import ConfigurationError, Conflict, Forbidden, KubeError, NotFound, Unavailable
from dra_kit.kubernetes.resource.objects import finalizer_note, object_key
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.controllers.workloads import WORKLOADS
from dra_kit.sandbox.drivers.roles import SLOW_CALL_SECONDS
from dra_kit.sandbox.stories.completion import pods_of_workloads
from dra_kit.sandbox.stories.facts import (
    PARTIAL,
    Cluster,
    DriverControl,
    PublishedDevice,
    StoryFacts,
    devices_in_slices,
    gather,
    published_devices,
    published_pools,
)
from dra_kit.sandbox.stories.manifests import (
    KindDiscovery,
    Manifest,
    annotated,
    apply_object,
    in_namespace,
    update_object,
)

POLL_SECONDS = 0.3
"""Seconds between two looks at the cluster; the first ones follow sooner."""
_FIRST_SECONDS: Final = 0.05
_PUBLISHES: Final = 3.0  # seconds until a driver changes its slices, if it does
_COMPLETE: Final = 60.0  # seconds until all slices of a pool are there, where some are


def _partial_pools(pools: Mapping[tuple[str, str], str]) -> list[str]:
    return [f"pool {pool} of driver {driver}" for (driver, pool), text in sorted(pools.items()) if text == PARTIAL]


def namespace_name(purpose: str, name: str) -> str:
    """Return a new namespace's name, a DNS label with its purpose: ``<purpose>-<name>-<six random digits>``."""
    readable = re.sub(r"[^a-z0-9]+", "-", f"{purpose}-{name}".lower()).strip("-")
    return f"{readable[:54]}-{secrets.token_hex(3)}"


class CreatedObject(Struct, frozen=True):
    """An object that was created."""

    manifest: Manifest
    resource: Resource
    namespace: str | None
    object: ObjectView = field(default_factory=dict)

    def __str__(self) -> str:
        return "/".join(filter(None, (self.manifest.kind, self.manifest.namespace, self.name)))

    @property
    def name(self) -> str:
        """``metadata.name``."""
        return str(self.object["metadata"]["name"]) if self.object else self.manifest.name

    @property
    def uid(self) -> str:
        """``metadata.uid``; empty if the server's answer was lost."""
        return str(self.object["metadata"]["uid"]) if self.object else ""


class StoryNamespace:
    """Creates objects, and deletes them at the end.

    Args:
        namespace: the namespace of the objects. It must not exist yet if ``own`` is set.
        own: create the namespace, and delete it at the end; otherwise objects are created in the namespaces that they
            name, or in this one.
        timeout: seconds that each wait may take.
        clean_up: seconds that the whole of :meth:`close` may take; None for ``timeout``.
        leftovers: regular expressions for what may remain.
        waiting: called once for each subject of a long wait, such as ``what is deleted``, with the subject, what is
            waited for, and the seconds that it may take.

    Attributes:
        timeout: seconds that each wait may take.
        created: the created objects, in order, including those that are deleted again.
        unreached: the step after which the driver should have been killed, if it did not reach it before :meth:`close`.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        *,
        own: bool = True,
        labels: Mapping[str, str] | None = None,
        timeout: float = 180,
        clean_up: float | None = None,
        leftovers: Sequence[str] = (),
        waiting: Callable[[str, Sequence[str], float], None] = lambda _subject, _found, _seconds: None,
    ) -> None:
        self.namespace = namespace
        self.created: list[CreatedObject] = []
        self.unreached: str = ""
        self._cluster = cluster
        self._client = cluster.client
        self._kinds = KindDiscovery(cluster.client)
        self._own = own
        self._labels = dict(labels or {})
        self.timeout: float = timeout
        self._clean_up = timeout if clean_up is None else clean_up
        self._leftovers = leftovers
        self._waiting = waiting
        self._announced: set[str] = set()
        self._former_files: dict[tuple[str, str], str] = {}  # by driver and setting
        self._former_objects: dict[tuple[Resource, str, str | None], ObjectView] = {}
        self._ill: set[tuple[str, str, str]] = set()  # drivers, their devices, and reasons
        self._remains = LeftoverCheck(cluster, namespace if own else None)

    async def open(self) -> None:
        """Store the state of the cluster once all slices of the driver exist, and create the namespace.

        Raises:
            KubeError: the API server rejects it.
        """

        async def partial_pools() -> list[str]:
            return _partial_pools(await published_pools(self._cluster))

        await self._until_none("all slices of these pools", partial_pools, self._deadline(_COMPLETE))
        await self._remains.note()
        if not self._own:
            return
        metadata = {"name": self.namespace, "labels": self._labels}
        try:
            await self._client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        except asyncio.CancelledError:
            await self.close()  # it may exist
            raise

    async def create(self, manifest: Manifest, *, applied: bool = False) -> None:
        """Create an object, in the namespace if it is namespaced; an existing object is not changed.

        With ``applied``, the object contains what was applied, for the next ``kubectl apply``.

        Raises:
            ConfigurationError: the API server has no such kind.
            KubeError: the API server rejects it; unknown fields are rejected, too.
        """
        resource = await self._kinds.resource(f"{manifest} of {manifest.file}", manifest.body)
        made = CreatedObject(manifest, resource, self._place(resource, manifest.namespace))
        placed = in_namespace(resource, manifest.body, self.namespace)
        body = annotated(placed) if applied else placed
        problem: KubeError = Unavailable(f"{manifest} was not sent")
        # recorded first: if the request is interrupted, the object may exist
        self.created.append(made)
        self.forget_refusals()
        async for _ in self.until_deadline():
            try:
                stored = await self._client.create(resource, body, strict=True)
            except KubeError as error:
                problem = error
                if not (isinstance(error, Forbidden) and await self._lacks_account(resource, body, made.namespace)):
                    break
            else:
                self.created[self.created.index(made)] = replace(made, object=stored)
                return
        if not isinstance(problem, Unavailable):
            self.created.remove(made)
        raise problem

    async def create_or_update(self, manifest: Manifest) -> None:
        """Create an object, or change an existing one as ``kubectl apply`` does.

        Fields that the manifest applied before had, and this one lacks, are removed. Fields that others have set stay.
        An object that was not created here gets its former content at the end.

        Raises:
            ConfigurationError: the API server has no such kind.
            KubeError: the API server rejects it; unknown fields are rejected, too.
        """
        try:
            await self.create(manifest, applied=True)
        except Conflict:
            resource = await self._kinds.resource(f"{manifest} of {manifest.file}", manifest.body)
            place = self._place(resource, manifest.namespace)
            key = (resource, manifest.name, place)
            known = next((item for item in self.created if (item.resource, item.name, item.namespace) == key), None)
            if known is None:
                self._former_objects.setdefault(key, await self._client.get(resource, manifest.name, place))
            body = in_namespace(resource, manifest.body, self.namespace)
            stored = await update_object(self._client, resource, body)
            if known is not None:
                self.created[self.created.index(known)] = replace(known, manifest=manifest, object=stored)

    async def _restore_objects(self) -> list[str]:
        """Give objects that were not created here the content that they had; return those that cannot get it."""
        found = []
        for (resource, name, place), former in self._former_objects.items():
            try:
                await self._restore(resource, name, place, former)
            except NotFound:
                pass
            except Unavailable as error:
                _kind_gone(error)
            except KubeError as error:
                title = f"{resource.kind} {'/'.join(filter(None, (place, name)))}"
                found.append(f"{title} did not get its former content: {error}")
        return found

    async def _restore(self, resource: Resource, name: str, namespace: str | None, former: ObjectView) -> None:
        problem: KubeError | None = None
        async for _ in self.until_deadline():
            live = (await self._client.get(resource, name, namespace))["metadata"]
            if live["uid"] != former["metadata"]["uid"]:
                return  # another object with this name
            metadata = {**former["metadata"], "resourceVersion": live["resourceVersion"]}
            try:
                await self._client.update(resource, {**former, "metadata": metadata})
            except Conflict as error:  # another client has changed it since
                problem = error
            else:
                return
        if problem is not None:
            raise problem

    def _place(self, resource: Resource, namespace: str) -> str | None:
        return (namespace or self.namespace) if resource.namespaced else None

    async def get(self, reference: str, version: str = "") -> dict[str, Any]:
        """Return an object, ``<kind>/<name>`` or ``<kind>/<namespace>/<name>``, that need not be created here.

        Raises:
            ConfigurationError: the reference is invalid, or the API server has no such kind.
            KubeError: the object does not exist, or the API server does not answer.
        """
        resource, place, name = await self._resolve(reference, version)
        return await self._client.get(resource, name, place)

    async def list_objects(
        self, kind: str, version: str = "", *, namespace: str | None = None, label_selector: str = ""
    ) -> Sequence[dict[str, Any]]:
        """Return objects of a kind: in this namespace, in another one, or with ``namespace=""`` in all.

        Raises:
            ConfigurationError: the API server has no such kind.
            KubeError: the API server does not answer.
        """
        resource = await self._kinds.named(kind, version)
        place = self.namespace if namespace is None else namespace
        found = await self._client.list(
            resource, place or None if resource.namespaced else None, label_selector=label_selector
        )
        return found.items

    async def patch(
        self, reference: str, body: Mapping[str, Any], version: str = "", *, subresource: str = ""
    ) -> dict[str, Any]:
        """Change an object by a merge patch; one that was not created here gets its former content at the end.

        Raises:
            ConfigurationError: the reference is invalid, or the API server has no such kind.
            KubeError: the API server rejects it; unknown fields are rejected, too.
        """
        resource, place, name = await self._resolve(reference, version)
        if not any((item.resource, item.name, item.namespace) == (resource, name, place) for item in self.created):
            live = await self._client.get(resource, name, place)
            self._former_objects.setdefault((resource, name, place), live)
        self.forget_refusals()
        return await self._client.patch(resource, name, body, place, subresource=subresource, strict=True)

    async def _resolve(self, reference: str, version: str) -> tuple[Resource, str | None, str]:
        kind, *parts = reference.split("/")
        if len(parts) not in {1, 2} or not all((kind, *parts)):
            raise ConfigurationError(
                f"{reference!r} is not a reference of an object; write <kind>/<name>, such as Pod/guest, or "
                "<kind>/<namespace>/<name>"
            )
        resource = await self._kinds.named(kind, version)
        if len(parts) == 2 and not resource.namespaced:
            raise ConfigurationError(f"{reference}: {kind} is cluster-scoped; leave out the namespace")
        return resource, self._place(resource, parts[0] if len(parts) == 2 else ""), parts[-1]

    async def _lacks_account(self, resource: Resource, body: ObjectView, namespace: str | None) -> bool:
        """Return whether it is a pod without its service account: a new namespace gets it a moment later."""
        if resource != PODS:
            return False
        name = body.get("spec", {}).get("serviceAccountName") or "default"
        try:
            await self._client.get(SERVICE_ACCOUNTS, name, namespace)
        except NotFound:
            return True
        return False

    async def apply(self, manifest: Manifest) -> None:
        """Create or update an object in the namespace that it names, or in this one.

        Raises:
            ConfigurationError: the API server rejects the object; the message names the manifest and the reason.
            KubeError: the API server does not answer.
        """
        applied = await apply_object(self._client, self._kinds, manifest.file, manifest.body, self.namespace)
        self.created.append(CreatedObject(manifest, applied.resource, applied.namespace or None, applied.object))

    def find(self, reference: str) -> CreatedObject | None:
        """Return the created object ``<kind>/<name>``; None if it was not created here."""
        return next((item for item in self.created if str(item) == reference), None)

    async def delete(self, made: CreatedObject) -> bool:
        """Delete an object and wait; return whether it is gone."""
        self.forget_refusals()
        return not await self._remove([made], self._deadline())

    async def replace_file(self, setting: str, text: str, driver: str = "") -> None:
        """Replace the file that a driver's setting names, until :meth:`close`.

        The method returns when every pool of the driver has changed and all of its slices exist, or after three seconds
        if nothing changes.
        """
        control = self._cluster.control(driver)
        before = await published_pools(self._cluster, driver)
        former = await control.replace_file(setting, text)
        self._former_files.setdefault((driver, setting), former)
        began = time.monotonic()

        async def unpublished() -> list[str]:
            now = await published_pools(self._cluster, driver)
            changed = all(before.get(pool) != now.get(pool) for pool in {*before, *now})
            late = time.monotonic() - began >= _PUBLISHES
            return _partial_pools(now) or ([] if changed or late else ["what the driver publishes of the new file"])

        await self._until_none("all slices of these pools", unpublished, self._deadline(_COMPLETE))
        self.forget_refusals()

    @asynccontextmanager
    async def driver(self, name: str = "") -> AsyncIterator[DriverControl]:
        """Yield the control of a driver; forget the driver's earlier rejections of claims afterwards.

        Raises:
            ConfigurationError: the driver does not exist, or the name is empty and several drivers run.
        """
        yield self._cluster.control(name)
        self.forget_refusals()

    async def devices(self) -> dict[str, PublishedDevice]:
        """Return the published devices; see :func:`dra_kit.sandbox.stories.facts.published_devices` for their names."""
        return await published_devices(self._cluster)

    async def is_gone(self, made: CreatedObject) -> bool:
        """Return whether an object that was created is gone."""
        return not await self._objects([made])

    async def inject_health(self, device: str, reason: str, message: str | None, driver: str = "") -> None:
        """Make a device of a driver unhealthy, until :meth:`close` or until ``message`` is None.

        Raises:
            ConfigurationError: the driver has no health source, or no such device or reason; or this is a real cluster.
        """
        await self._cluster.control(driver).inject_health(device, reason, message)
        self.forget_refusals()
        (self._ill.discard if message is None else self._ill.add)((driver, device, reason))

    def forget_refusals(self) -> None:
        """Forget that the driver refused claims of these namespaces: something has changed."""
        for namespace in {self.namespace, *(item.namespace for item in self.created if item.namespace)}:
            self._cluster.forget_refusals(namespace)

    async def facts(self, pods: Iterable[str], claims: Iterable[str]) -> StoryFacts:
        """Look at pods and claims."""
        return await gather(self._cluster, self.namespace, pods, claims)

    async def until_deadline(self, timeout: float | None = None) -> AsyncIterator[None]:
        """Yield repeatedly until the deadline of a wait, or for ``timeout`` seconds."""
        end, pause = self._deadline(timeout), _FIRST_SECONDS
        yield
        while time.monotonic() < end:
            await asyncio.sleep(min(pause, POLL_SECONDS))
            pause *= 1.5
            yield

    # --- the end

    async def close(self) -> tuple[str, ...]:
        """Delete everything, pods and workloads first; return what is left over, and what blocks its deletion."""
        controls = [self._cluster.control(name) for name in self._cluster.drivers]
        for control in controls:
            await control.start()
        end = self._deadline(self._clean_up)
        running = [item for item in self.created if item.resource in {PODS, *WORKLOADS}]
        pods = await self._pods_of(running)
        remaining = await self._remove(running, end)
        remaining += await self._settle(lambda: self._still(pods), end)
        for (driver, setting), text in self._former_files.items():
            await self._cluster.control(driver).replace_file(setting, text)
        for driver, device, reason in self._ill:
            await self._cluster.control(driver).inject_health(device, reason, None)
        groups = [
            item for item in self.created if item.resource.kind == POD_GROUPS.kind
        ]  # they hold claims of their pods
        remaining += await self._remove(groups, end)
        claims = [item for item in self.created if item.resource.kind == RESOURCE_CLAIMS.kind]
        own = {(item.namespace or "", item.name) for item in claims}
        # claims of templates are deleted automatically after their pods
        remaining += await self._settle(lambda: self._remains.claims(own), end)
        others = [item for item in reversed(self.created) if item not in running and item not in groups]
        remaining += await self._remove(others, end)
        remaining += await self._settle(self._remains.claims, end)
        remaining += await self._restore_objects()
        if self._own:
            await self._delete(NAMESPACES, self.namespace, None)
        for look in (self._remains.namespaces, self._remains.node):
            remaining += await self._settle(look, end)
        self.unreached = " and ".join(filter(None, (control.awaited for control in controls)))
        for control in controls:
            await control.restore()
        remaining += await self._settle(self._remains.devices, end)
        return tuple(dict.fromkeys(remaining))

    def _deadline(self, timeout: float | None = None) -> float:
        return time.monotonic() + (self.timeout if timeout is None else timeout)

    async def _remove(self, objects: Sequence[CreatedObject], end: float) -> list[str]:
        for item in objects:
            await self._delete(item.resource, item.name, item.namespace)
        return await self._settle(lambda: self._objects(objects), end)

    async def _delete(self, resource: Resource, name: str, namespace: str | None) -> None:
        try:
            await self._client.delete(resource, name, namespace)
        except (NotFound, Conflict):  # gone, or going
            pass
        except Unavailable as error:
            _kind_gone(error)

    async def _settle(self, remaining: Callable[[], Awaitable[list[str]]], end: float) -> list[str]:
        """Wait until only permitted objects remain; return those that should not."""

        async def unwanted() -> list[str]:
            texts = await remaining()
            return [text for text in texts if not any(re.search(pattern, text) for pattern in self._leftovers)]

        return await self._until_none("what is deleted", unwanted, end)

    async def _until_none(self, subject: str, look: Callable[[], Awaitable[list[str]]], end: float) -> list[str]:
        """Wait until nothing is found any more; return what was found last, and announce a long wait."""
        begin = time.monotonic()
        found: list[str] = []
        async for _ in self.until_deadline(end - begin):
            found = await look()
            if not found:
                break
            if subject not in self._announced and time.monotonic() > begin + SLOW_CALL_SECONDS:
                self._waiting(subject, found, end - begin)
                self._announced.add(subject)
        return found

    async def _objects(self, objects: Sequence[CreatedObject]) -> list[str]:
        """Return the objects that are there, each with what holds it."""
        groups: dict[tuple[Resource, str | None], list[str]] = {}
        for item in objects:
            groups.setdefault((item.resource, item.namespace), []).append(item.name)
        return [
            self._remains.title(resource.kind, stored)
            for (resource, namespace), names in groups.items()
            for stored in await self._stored(resource, namespace, names)
        ]

    async def _stored(self, resource: Resource, namespace: str | None, names: Sequence[str]) -> list[dict[str, Any]]:
        try:
            if len(names) == 1:
                return [await self._client.get(resource, names[0], namespace)]
            return [item for item in await self._list(resource, namespace) if item["metadata"]["name"] in names]
        except NotFound:
            pass
        except Unavailable as error:
            _kind_gone(error)
        return []

    async def _pods_of(self, objects: Sequence[CreatedObject]) -> set[str]:
        """Return UIDs of the pods that workloads among these objects created."""
        workloads = [item for item in objects if item.resource in WORKLOADS]
        uids = {item.uid for item in workloads}
        return {
            pod["metadata"]["uid"]
            for namespace in {item.namespace for item in workloads}
            for pod in pods_of_workloads(
                uids, await self._list(REPLICA_SETS, namespace), await self._list(PODS, namespace)
            )
        }

    async def _still(self, uids: set[str]) -> list[str]:
        """Return the pods of these UIDs that are there."""
        if not uids:
            return []
        others = any(item.manifest.namespace for item in self.created)
        found = await self._list(PODS, self.namespace if self._own and not others else None)
        return [self._remains.title("Pod", pod) for pod in found if pod["metadata"]["uid"] in uids]

    async def _list(self, resource: Resource, namespace: str | None) -> Sequence[dict[str, Any]]:
        return (await self._client.list(resource, namespace)).items


def _kind_gone(error: Unavailable) -> None:
    """Pass over the error of a kind that is gone, and its objects with it; raise every other one."""
    if error.status != HTTPStatus.NOT_FOUND:
        raise error


@dataclasses.dataclass(slots=True)
class LeftoverCheck:
    """Compares a cluster with its earlier state.

    Attributes:
        namespace: the namespace of all created objects, which is deleted at the end; None if objects are created in
            other namespaces, which stay.
    """

    cluster: Cluster
    namespace: str | None
    _claims: set[str] = dataclasses.field(default_factory=set, init=False)
    _node_state: set[str] = dataclasses.field(default_factory=set, init=False)
    _devices: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict, init=False)

    async def note(self) -> None:
        """Note how the cluster is; without a call it is compared with an empty one."""
        self._node_state = set(await self.cluster.node_state())
        if self.namespace is None:
            self._claims = {claim["metadata"]["uid"] for claim in await self._all_claims()}
        else:
            self._devices = await devices_in_slices(self.cluster)

    async def claims(self, own: Collection[tuple[str, str]] = ()) -> list[str]:
        """Return the claims that were not there before, except ``own``, each with what holds it."""
        new = (item for item in await self._all_claims() if item["metadata"].get("uid") not in self._claims)
        return [self.title("ResourceClaim", item) for item in new if object_key(item) not in own]

    async def namespaces(self) -> list[str]:
        """Return the namespace while it is there, with what holds it."""
        if self.namespace is None:
            return []
        try:
            stored = await self.cluster.client.get(NAMESPACES, self.namespace)
        except NotFound:
            return []
        return [self.title("Namespace", stored)]

    async def node(self) -> list[str]:
        """Return what the nodes store for claims and did not store before."""
        return sorted(set(await self.cluster.node_state()) - self._node_state)

    async def devices(self) -> list[str]:
        """Return the published devices that differ; in namespaces of others nothing is done that changes devices."""
        if self.namespace is None:
            return []
        before, now = self._devices, await devices_in_slices(self.cluster)
        names = sorted({*before, *now})
        return [text for name in names if (text := _device_change(name, before.get(name), now.get(name)))]

    def title(self, kind: str, item: ObjectView) -> str:
        """Return an object, ``<kind>/<name>`` as in a story or else with its namespace, and what holds it."""
        if self.namespace is None:
            return f"{kind} {'/'.join(filter(None, object_key(item)))}{finalizer_note(item)}"
        return f"{kind}/{item['metadata']['name']}{finalizer_note(item)}"

    async def _all_claims(self) -> Iterable[ObjectView]:
        return (await self.cluster.client.list(RESOURCE_CLAIMS, self.namespace)).items


def _device_change(name: str, before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> str:
    """Return what a test or story has changed of a device; a removed taint counts as a recovery."""
    if before is None or now is None:
        return f"device {name} is {'gone' if now is None else 'published'}"
    recovered = all(taint in before.get("taints", ()) for taint in now.get("taints", ()))
    fields = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
    changes = [
        f"{key} {json.dumps(now.get(key), sort_keys=True)} instead of {json.dumps(before.get(key), sort_keys=True)}"
        for key in fields
        if not (key == "taints" and recovered)
    ]
    return f"device {name} has {', '.join(changes)}" if changes else ""
