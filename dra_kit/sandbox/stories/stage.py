"""A namespace of its own in a cluster: where stories and tests make objects, and so that nothing is left of them."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from dra_kit.errors import Conflict, Forbidden, KubeError, NotFound, Unavailable
from dra_kit.kube.resources import NAMESPACES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from dra_kit.sandbox.cluster.served_kinds import ServedKinds
from dra_kit.sandbox.stories.facts import Cluster, DriverControl, Facts, PublishedDevice, gather
from dra_kit.sandbox.stories.manifests import Manifest
from dra_kit.scheduler.pods import held

POLL_SECONDS = 0.3
_PUBLISHES = 3.0
_PARTIAL = "a part"


def namespace_for(purpose: str, name: str) -> str:
    """A new namespace's name, a DNS label that tells its purpose: ``<purpose>-<name>-<six random digits>``."""
    readable = re.sub(r"[^a-z0-9]+", "-", f"{purpose}-{name}".lower()).strip("-")
    return f"{readable[:54]}-{secrets.token_hex(3)}"


def _shown_pool(specs: Sequence[Mapping[str, Any]]) -> str:
    newest = max(item["pool"]["generation"] for item in specs)
    current = [item for item in specs if item["pool"]["generation"] == newest]
    if len(current) < current[0]["pool"]["resourceSliceCount"]:
        return _PARTIAL
    return json.dumps([item.get("devices", []) for item in current], sort_keys=True)


@dataclass(frozen=True, slots=True)
class Made:
    """An object that was made, as what its manifest says and what it is to the server."""

    manifest: Manifest
    resource: Resource

    def __str__(self) -> str:
        return str(self.manifest)


class Stage:
    """A namespace, and the objects made in it.

    Args:
        cluster: where it is.
        namespace: its name; it must not exist yet.
        labels: of the namespace.
        timeout: seconds that each wait may take, and the whole of :meth:`close`.

    Attributes:
        namespace: its name.
        created: what was made, in this order, whether it is still there or not.
        unreached: the step after which the driver was to be killed, and to which it did not come until :meth:`close`.
    """

    def __init__(
        self, cluster: Cluster, namespace: str, *, labels: Mapping[str, str] | None = None, timeout: float = 180
    ) -> None:
        self.namespace = namespace
        self.created: list[Made] = []
        self.unreached: str = ""
        self._cluster = cluster
        self._client = cluster.client
        self._kinds = ServedKinds(cluster.client)
        self._labels = dict(labels or {})
        self._timeout = timeout
        self._former_files: dict[tuple[str, str], str] = {}  # by driver and setting
        self._ill: set[tuple[str, str, str]] = set()  # drivers, their devices, and reasons
        self._slices: set[str] = set()
        self._node_state: set[str] = set()

    async def open(self) -> None:
        """Remember how the cluster is once all slices of the driver are there, and make the namespace.

        Raises:
            KubeError: the API server does not take it.
        """
        async for _ in self.until_deadline(_PUBLISHES):
            if _PARTIAL not in (await self._pools()).values():
                break
        self._slices, self._node_state = await self._published(), set(await self._cluster.node_state())
        metadata = {"name": self.namespace, "labels": self._labels}
        try:
            await self._client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        except asyncio.CancelledError:
            await self.close()  # it may exist
            raise

    async def create(self, manifest: Manifest) -> None:
        """Make an object, in the namespace when it is namespaced; one that exists is not touched.

        Raises:
            ConfigurationError: the API server has no such kind.
            KubeError: the API server does not take it; unknown fields are refused, too.
        """
        resource = await self._kinds.resource(f"{manifest} of {manifest.file}", manifest.body)
        made = Made(manifest, resource)
        metadata = {**manifest.body["metadata"], **({"namespace": self.namespace} if resource.namespaced else {})}
        problem: KubeError = Unavailable(f"{manifest} was not sent")
        # noted first: whatever interrupts the request, the object may exist then
        self.created.append(made)
        self._cluster.forget_refusals(self.namespace)
        async for _ in self.until_deadline():
            try:
                await self._client.create(resource, {**manifest.body, "metadata": metadata}, strict=True)
            except KubeError as error:
                problem = error
                # the service account of a new namespace comes a moment later than the namespace
                if not (isinstance(error, Forbidden) and "serviceaccount" in error.message):
                    break
            else:
                return
        if not isinstance(problem, Unavailable):
            self.created.remove(made)
        raise problem

    def find(self, reference: str) -> Made | None:
        """What was made as ``<kind>/<name>``; None when nothing was."""
        return next((item for item in self.created if str(item) == reference), None)

    async def delete(self, made: Made) -> bool:
        """Delete an object and wait; True when it is gone."""
        self._cluster.forget_refusals(self.namespace)
        return not await self._remove([made], self._deadline())

    async def replace_file(self, setting: str, text: str, driver: str = "") -> None:
        """Replace the file that a driver's setting names, until :meth:`close`.

        Returns when every pool of the driver has other devices than before, and all of its slices are there; where
        nothing of it changes, after three seconds.

        Args:
            setting: its name.
            text: the new content.
            driver: its name; empty for the only one.
        """
        control = self._cluster.control(driver)
        before = await self._pools(driver)
        former = await control.replace_file(setting, text)
        self._former_files.setdefault((driver, setting), former)
        async for _ in self.until_deadline(_PUBLISHES):
            now = await self._pools(driver)
            if all(before.get(pool) != (found := now.get(pool)) and found != _PARTIAL for pool in {*before, *now}):
                break
        self._cluster.forget_refusals(self.namespace)

    async def _pools(self, driver: str = "") -> dict[tuple[str, str], str]:
        """The devices of each pool as a text, or that some slices are yet to come, by driver and pool.

        Args:
            driver: whose pools; empty for all.
        """
        slices: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for item in await self._own_slices():
            spec = item["spec"]
            if spec["driver"] == (driver or spec["driver"]):
                slices.setdefault((spec["driver"], spec["pool"]["name"]), []).append(spec)
        return {pool: _shown_pool(specs) for pool, specs in slices.items()}

    @asynccontextmanager
    async def driver(self, name: str = "") -> AsyncIterator[DriverControl]:
        """What may be done to a driver; what it has refused before, it may not refuse then.

        Args:
            name: of the driver; empty for the only one.

        Raises:
            ConfigurationError: there is no such driver, or several and none is named.
        """
        yield self._cluster.control(name)
        self._cluster.forget_refusals(self.namespace)

    async def devices(self) -> dict[str, PublishedDevice]:
        """The published devices, by ``<name>``; of several pools by ``<pool>/<name>``.

        Where devices of several drivers would have one name, it is ``<driver>/<pool>/<name>``.
        """
        found = await self._devices()
        several = len({item.pool for item in found}) > 1
        names = [f"{item.pool}/{item.name}" if several else item.name for item in found]
        twice = {name for name, count in Counter(names).items() if count > 1}
        return {
            f"{item.driver}/{item.pool}/{item.name}" if name in twice else name: item
            for name, item in zip(names, found, strict=True)
        }

    async def _devices(self) -> list[PublishedDevice]:
        """In the order of their slices."""
        return [
            PublishedDevice(
                name=device["name"],
                pool=item["spec"]["pool"]["name"],
                driver=item["spec"]["driver"],
                attributes={key: next(iter(value.values())) for key, value in device.get("attributes", {}).items()},
                capacity={key: value["value"] for key, value in device.get("capacity", {}).items()},
                taints=tuple(device.get("taints", ())),
            )
            for item in await self._own_slices()
            for device in item["spec"].get("devices", [])
        ]

    async def is_gone(self, made: Made) -> bool:
        """Whether an object that was made is there no more."""
        return not await self._objects([made])

    async def inject_health(self, device: str, reason: str, message: str | None, driver: str = "") -> None:
        """Make a device of a driver ill, until :meth:`close` or until ``message`` is None.

        Raises:
            ConfigurationError: the driver has no health source, or no such device or reason; or this is a real cluster.
        """
        await self._cluster.control(driver).inject_health(device, reason, message)
        self._cluster.forget_refusals(self.namespace)
        (self._ill.discard if message is None else self._ill.add)((driver, device, reason))

    async def facts(self, pods: Iterable[str], claims: Iterable[str]) -> Facts:
        """Look at pods and claims."""
        return await gather(self._cluster, self.namespace, pods, claims)

    async def until_deadline(self, timeout: float | None = None) -> AsyncIterator[None]:
        """Yield again and again, for as long as a wait may take, or for ``timeout`` seconds."""
        end = self._deadline(timeout)
        yield
        while time.monotonic() < end:
            await asyncio.sleep(POLL_SECONDS)
            yield

    async def close(self) -> tuple[str, ...]:
        """Delete everything, pods first, and tell what remains, and what holds it."""
        controls = [self._cluster.control(name) for name in self._cluster.drivers]
        for control in controls:
            await control.start()
        end = self._deadline()
        pods = [item for item in self.created if item.resource == PODS]
        remaining = await self._remove(pods, end)
        for (driver, setting), text in self._former_files.items():
            await self._cluster.control(driver).replace_file(setting, text)
        for driver, device, reason in self._ill:
            await self._cluster.control(driver).inject_health(device, reason, None)
        own = {item.manifest.name for item in self.created if item.manifest.kind == RESOURCE_CLAIMS.kind}
        # claims made from templates go by themselves once their pods are gone
        remaining += await self._settle(lambda: self._claims(own), end)
        remaining += await self._remove([item for item in reversed(self.created) if item not in pods], end)
        remaining += await self._settle(lambda: self._claims(set()), end)
        try:
            await self._client.delete(NAMESPACES, self.namespace)
        except NotFound:
            pass
        remaining += await self._settle(self._namespaces, end)
        remaining += await self._settle(self._node_difference, end)
        self.unreached = " and ".join(filter(None, (control.awaited for control in controls)))
        for control in controls:
            await control.restore()
        remaining += await self._settle(self._slice_difference, end)
        return tuple(dict.fromkeys(remaining))

    def _deadline(self, timeout: float | None = None) -> float:
        return time.monotonic() + (self._timeout if timeout is None else timeout)

    async def _remove(self, objects: Sequence[Made], end: float) -> list[str]:
        for item in objects:
            try:
                await self._client.delete(item.resource, item.manifest.name, self._namespace_of(item))
            except (NotFound, Conflict):  # gone, or going
                pass
            except Unavailable as error:
                _kind_gone(error)
        return await self._settle(lambda: self._objects(objects), end)

    async def _settle(self, remaining: Callable[[], Awaitable[list[str]]], end: float) -> list[str]:
        """Wait until nothing remains; what does in the end."""
        while (found := await remaining()) and time.monotonic() < end:  # noqa: ASYNC110 - a cluster sets no event
            await asyncio.sleep(POLL_SECONDS)
        return found

    # --- what there is

    def _namespace_of(self, made: Made) -> str | None:
        return self.namespace if made.resource.namespaced else None

    async def _objects(self, objects: Sequence[Made]) -> list[str]:
        found = []
        for item in objects:
            try:
                stored = await self._client.get(item.resource, item.manifest.name, self._namespace_of(item))
            except NotFound:
                continue
            except Unavailable as error:
                _kind_gone(error)
                continue
            found.append(f"{item}{held(stored)}")
        return found

    async def _claims(self, expected: set[str]) -> list[str]:
        claims = (await self._client.list(RESOURCE_CLAIMS, self.namespace)).items
        others = [item for item in claims if item["metadata"]["name"] not in expected]
        return [f"ResourceClaim/{item['metadata']['name']}{held(item)}" for item in others]

    async def _namespaces(self) -> list[str]:
        try:
            stored = await self._client.get(NAMESPACES, self.namespace)
        except NotFound:
            return []
        return [f"Namespace/{self.namespace}{held(stored)}"]

    async def _node_difference(self) -> list[str]:
        return sorted(set(await self._cluster.node_state()) - self._node_state)

    async def _published(self) -> set[str]:
        """Each published device with its pool, as a text; generations do not matter."""
        return {
            f"device {self._of_driver(item)}{item['spec']['pool']['name']}/{device['name']} as "
            f"{json.dumps(device, sort_keys=True)}"
            for item in await self._own_slices()
            for device in item["spec"].get("devices", [])
        }

    async def _own_slices(self) -> Sequence[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        for driver in self._cluster.drivers:
            found += (await self._client.list(RESOURCE_SLICES, field_selector=f"spec.driver={driver}")).items
        return found

    def _of_driver(self, item: Mapping[str, Any]) -> str:
        """Which driver's slice it is, where there are several."""
        return f"{item['spec']['driver']}/" if len(self._cluster.drivers) > 1 else ""

    async def _slice_difference(self) -> list[str]:
        before, now = self._slices, await self._published()
        return sorted([f"{text} is published" for text in now - before] + [f"{text} is gone" for text in before - now])


def _kind_gone(error: Unavailable) -> None:
    """The kind of an object is gone, and the object with it; everything else is raised."""
    if error.status != HTTPStatus.NOT_FOUND:
        raise error
