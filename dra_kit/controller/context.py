"""``Context`` as the controller implements it, the startup of the author's code, and the owner of what it creates."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry
from typing_extensions import override

from dra_kit.author.calls import PendingResult, call, describe_raised_error
from dra_kit.author.claim import ConsumerReference
from dra_kit.author.context import Context, PreparedClaim, Stopping
from dra_kit.author.driver import Driver
from dra_kit.author.prepared import DeviceMetadata, DeviceStatus
from dra_kit.author.reads import ClusterApi, ReadApi
from dra_kit.client.api import APPLY, Client
from dra_kit.client.resources import CLUSTER_ROLES, Resource
from dra_kit.errors import ConfigurationError, DraKitError, NotFound
from dra_kit.kubernetes.resource.api_model import OwnerReference
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.process.metrics import Metrics

T = TypeVar("T")


class ControllerContext(Context[Any]):
    """The context of an author's code in the controller; usable from any thread.

    Raises:
        ConfigurationError: what only a node has is read.
    """

    def __init__(self, driver: str, settings: Any, metrics: Metrics, cluster: ClusterApi | None = None) -> None:
        self.driver = driver
        self._cluster = cluster
        if settings is not None:
            self.settings = settings
        self._stopping = Stopping()
        self._metrics = metrics
        self._rescans: list[Callable[[], None]] = []

    def __getattr__(self, name: str) -> Any:
        if name in {"node", "state_dir"}:
            raise self._of_a_node(f"context.{name}")
        return super().__getattr__(name)  # type: ignore[misc]  # hidden from type checkers

    @property
    @override
    def stopping(self) -> Stopping:
        return self._stopping

    @property
    @override
    def metrics(self) -> CollectorRegistry:
        return self._metrics.registry

    @property
    @override
    def api(self) -> ReadApi:
        raise ConfigurationError(
            f"driver {self.driver}: context.api belongs to a node, and this code runs in the controller; use "
            "context.cluster, and add its rights to controller.extraRules in deploy/values.yaml"
        )

    @property
    @override
    def cluster(self) -> ClusterApi:
        if self._cluster is None:
            raise self._no_api_server("context.cluster")
        return self._cluster

    @contextmanager
    def rescanning(self, restart: Callable[[], None]) -> Iterator[None]:
        """Have :meth:`rescan` call ``restart``, from any thread, while a generator of the author's runs."""
        self._rescans.append(restart)
        try:
            yield
        finally:
            self._rescans.remove(restart)

    @override
    def rescan(self) -> None:
        for restart in tuple(self._rescans):
            restart()

    @override
    def prepared(self) -> Mapping[str, PreparedClaim]:
        return {}

    @override
    def update(
        self,
        device: str,
        *,
        pool: str | None = None,
        claim: ClaimReference | PreparedClaim | str | None = None,
        share: str | None = None,
        status: DeviceStatus | None = None,
        metadata: DeviceMetadata | None = None,
        wait: bool = False,
    ) -> None:
        raise self._of_a_node("context.update")

    @override
    def consumers(self, claim: ClaimReference | PreparedClaim) -> PendingResult[tuple[ConsumerReference, ...]]:
        raise self._of_a_node("context.consumers")

    def _of_a_node(self, what: str) -> ConfigurationError:
        return ConfigurationError(
            f"driver {self.driver}: {what} belongs to a node, and this code runs in the controller; store what it "
            "needs in the cluster, or read it from context.settings"
        )


class ControllerClusterApi(ClusterApi):
    """Implements :class:`dra_kit.ClusterApi` for a driver, with a client that belongs to an event loop."""

    def __init__(self, client: Client, driver: str, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._owner = f"{driver}/controller"
        self._loop = loop

    @override
    def get(
        self, api_version: str, plural: str, name: str, namespace: str | None = None
    ) -> PendingResult[Mapping[str, Any] | None]:
        async def get() -> Mapping[str, Any] | None:
            try:
                return await self._client.get(_resource(api_version, plural, namespace), name, namespace)
            except NotFound:
                return None

        return self._pending("get", get)

    @override
    def list(
        self, api_version: str, plural: str, namespace: str | None = None, *, label_selector: str = ""
    ) -> PendingResult[Sequence[Mapping[str, Any]]]:
        async def listed() -> Sequence[Mapping[str, Any]]:
            resource = _resource(api_version, plural, namespace)
            return (await self._client.list(resource, namespace, label_selector=label_selector)).items

        return self._pending("list", listed)

    @override
    def apply(
        self, plural: str, manifest: Mapping[str, Any], *, subresource: str = ""
    ) -> PendingResult[Mapping[str, Any]]:
        async def apply() -> Mapping[str, Any]:
            metadata = manifest.get("metadata") or {}
            namespace = metadata.get("namespace")
            api_version, kind = str(manifest.get("apiVersion") or ""), str(manifest.get("kind") or "")
            return await self._client.patch(
                _resource(api_version, plural, namespace, kind), str(metadata.get("name") or ""), manifest, namespace,
                content_type=APPLY, subresource=subresource, field_manager=self._owner, force=True,
            )  # fmt: skip

        return self._pending("apply", apply)

    @override
    def delete(self, api_version: str, plural: str, name: str, namespace: str | None = None) -> PendingResult[None]:
        async def delete() -> None:
            try:
                await self._client.delete(_resource(api_version, plural, namespace), name, namespace)
            except NotFound:
                return

        return self._pending("delete", delete)

    def _pending(self, verb: str, start: Callable[[], Coroutine[Any, Any, T]]) -> PendingResult[T]:
        return PendingResult(start, lambda: self._loop, f"cluster.{verb}(…)", f"cluster.{verb}(…)")


def _resource(api_version: str, plural: str, namespace: str | None, kind: str = "") -> Resource:
    group, _, version = api_version.rpartition("/")
    return Resource(group, version, plural, kind or plural, namespaced=namespace is not None)


class ControllerStartup:
    """A part of the controller, in every replica; a replica becomes active only after its startup has returned."""

    name = "startup"

    def __init__(self, driver: Driver[Any, Any], context: ControllerContext, ending: asyncio.Event) -> None:
        self._driver = driver
        self._context = context
        self._ending = ending

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready when all of it has returned.

        Raises:
            ConfigurationError: one of them raised.
        """
        relay = asyncio.create_task(self._relay_ending())
        try:
            for part in self._driver.controller_bound:
                part.context = self._context
                await self._start(part)
            ready.set()
            await asyncio.Event().wait()
        finally:
            relay.cancel()
            self._context.stopping.set()

    async def _relay_ending(self) -> None:
        """Set ``context.stopping`` at once, however long running parts take to stop."""
        await self._ending.wait()
        self._context.stopping.set()

    async def _start(self, part: Any) -> None:
        try:
            await call(part.startup, self._context)
        except DraKitError:
            raise
        except Exception as error:  # the author's code may raise anything
            text = describe_raised_error(error, type(part).__module__)
            raise ConfigurationError(f"{type(part).__name__}.startup {text}; correct it") from error


logger: logging.Logger = logging.getLogger(__name__)


class ControllerOwner:
    """The ClusterRole that owns the objects the controller creates; read once, and again after :meth:`forget`."""

    def __init__(self, client: Client, cluster_role: str | None) -> None:
        self._client = client
        self._cluster_role = cluster_role
        self._known: OwnerReference | None = None
        self._logged = False

    async def reference(self) -> OwnerReference | None:
        """Return the owner; None where there is none."""
        if self._cluster_role is None:
            return None
        if self._known is None:
            try:
                role = await self._client.get(CLUSTER_ROLES, self._cluster_role)
            except NotFound:
                if not self._logged:
                    logger.warning(
                        "objects of the controller are not deleted when it is uninstalled",
                        extra={"cluster_role": self._cluster_role, "remedy": "no ClusterRole has that name; correct "
                               "--cluster-role"},
                    )  # fmt: skip
                self._logged = True
                return None
            self._known = OwnerReference(
                api_version=CLUSTER_ROLES.api_version,
                kind=CLUSTER_ROLES.kind,
                name=self._cluster_role,
                uid=role["metadata"]["uid"],
            )
        return self._known

    def forget(self) -> None:
        """Read the ClusterRole again next time: another one may have its name by now."""
        self._known = None
