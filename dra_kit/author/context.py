"""``Context``: what the framework passes to the author's code, and the base classes that receive it."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from prometheus_client import CollectorRegistry
from pydantic import JsonValue

from dra_kit.author.calls import PendingResult, call_threadsafe, running_generator
from dra_kit.author.claim import ConsumerReference, PreparedDevice
from dra_kit.author.effect import Effect
from dra_kit.author.model import AuthorSettingsT, HardwareT, SettingsT
from dra_kit.author.prepared import DeviceMetadata, DeviceStatus
from dra_kit.author.reads import ClusterApi, ReadApi
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.resource.objects import ClaimReference


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """The node this process runs on.

    Attributes:
        name: the Node object's name.
        labels: its labels when the process started, or with ``Driver(follow_node=True)`` its current ones; empty until
            the API server could be reached.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """One prepared claim with the author's own state for each of its devices.

    Attributes:
        states: ``(pool, device, share id or None)`` to the ``state`` that ``prepare`` returned.
        devices: its devices of this driver, with request and state, in the order of preparation.
        consumers: for whom it was reserved when it was prepared: usually one pod. Pods that use the same claim later do
            not change this; :meth:`Context.consumers` returns the current ones. In a claim that an older release
            prepared, only the names of pods are known.
    """

    namespace: str
    name: str
    uid: str
    states: Mapping[tuple[str, str, str | None], JsonValue]
    devices: tuple[PreparedDevice, ...] = ()
    consumers: tuple[ConsumerReference, ...] = ()


@dataclass(frozen=True, slots=True)
class EffectInForce:
    """One effect of the driver, as it is stored on this node.

    Attributes:
        effect: an instance of the author's own class, with ``self.hardware`` set, so its methods can be called.
        outcome: what ``apply`` returned last; None before that.
        claims: those that need it; empty if it is no longer needed but could not be undone yet.
        in_force: it was applied in this boot, and is not known to have lost its effect. Also False while it is being
            applied or undone: ``outcome`` then describes what may still be left of it.
    """

    effect: Effect[Any, Any]
    outcome: Any
    claims: tuple[ClaimReference, ...]
    in_force: bool


@dataclass(frozen=True, slots=True)
class OtherDevice:
    """A device of a claim that another driver prepared.

    Attributes:
        pool: its pool.
        device: its name.
        requests: the claim's requests that it satisfies; empty for all.
        cdi_devices: qualified names for ``Prepared(cdi_devices=…)``: what a container gets with it.
        share_id: distinguishes the shares of a device.
    """

    pool: str
    device: str
    requests: tuple[str, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    share_id: str | None = None


class OtherDriver(ABC):
    """Another DRA driver on this node, of any vendor and in any language: ``context.other_driver(name)``.

    It is called through the socket at which the kubelet calls it. It reads the claim from the API server, and prepares
    what is allocated to it there. ``await`` each result in ``async def``, or call ``result()`` on it in ``def``.
    """

    @abstractmethod
    def prepare(self, claim: ClaimReference) -> PendingResult[tuple[OtherDevice, ...]]:
        """Have it prepare a claim that is allocated to it; again, if it did so before. Returns its devices.

        What was prepared must be released: call it in ``apply`` of an effect, and :meth:`unprepare` in ``revert``.

        Raises:
            TransientError: from the result: it does not run, does not answer within 45 seconds, or returns an error
                (code ``other-driver-failed``).
        """

    @abstractmethod
    def unprepare(self, claim: ClaimReference) -> PendingResult[None]:
        """Have it release a claim; a claim that it does not know is not an error.

        Raises:
            TransientError: from the result, as for :meth:`prepare`.
        """


class Context(ABC, Generic[SettingsT]):
    """Given to ``startup``; valid for the life of the process and safe to use from any thread.

    Attributes:
        driver: the driver's name.
        node: the node this process runs on; another object after its labels have changed.
        state_dir: the author's own directory, which survives restarts (but not reboots if it is on a tmpfs).
        settings: an instance of ``Driver(settings=…)``.

    Raises:
        ConfigurationError: ``settings`` is read, but the driver has none.
    """

    driver: str
    node: NodeInfo
    state_dir: Path
    settings: SettingsT

    if not TYPE_CHECKING:  # type checkers must see only the attributes above

        def __getattr__(self, name: str) -> Any:
            if name != "settings":
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise ConfigurationError(
                f"driver {self.driver} has no settings, and its code reads context.settings; "
                "write Driver(…, settings=<their class>)"
            )

    @property
    @abstractmethod
    def stopping(self) -> Stopping:
        """True once the process is asked to stop; can be waited for."""

    @abstractmethod
    def rescan(self) -> None:
        """Request a fresh inventory: ``discover`` is restarted from its beginning.

        A ``def discover`` is restarted once it yields; ``context.stopping.blocking_sleep`` in it ends at once.
        """

    @abstractmethod
    def prepared(self) -> Mapping[str, PreparedClaim]:
        """Return all claims that are currently prepared, by UID."""

    def consumers(self, claim: ClaimReference | PreparedClaim) -> PendingResult[tuple[ConsumerReference, ...]]:
        """Return for whom a claim is reserved now (``status.reservedFor``): usually pods, or a PodGroup.

        ``await`` it in ``async def``, or call ``result()`` on it in ``def``. It reads the claim with one request, like
        ``context.api``, and needs no declaration. The result is empty if the claim does not exist any more.

        Raises:
            ConfigurationError: no API server is used, as for ``api``.
            DraKitError: from the result: the API server rejects the request or does not respond.
        """
        del claim
        raise self._no_api_server("context.consumers")

    def effects(self) -> Sequence[EffectInForce]:
        """Return all effects of this driver on this node, oldest first: they identify what the driver itself created.

        Effects that another release of the driver stored and this one does not understand are missing. If nothing is
        prepared, as in a context created in a test, the result is empty.
        """
        return ()

    @property
    def api(self) -> ReadApi:
        """Reads the objects of the cluster that ``Driver(reads=[…])`` declares, with the node's account.

        Raises:
            ConfigurationError: no API server is used, as by a command that only runs ``discover``, or in a context
                that a test created.
        """
        raise self._no_api_server("context.api")

    @property
    def cluster(self) -> ClusterApi:
        """Objects of the cluster, with the rights of the controller; only for code that runs there.

        Raises:
            ConfigurationError: this code runs on a node, whose account has no such rights.
        """
        raise ConfigurationError(
            f"driver {self.driver}: context.cluster belongs to the controller, and this code runs on a node; declare "
            "what it reads, Driver(reads=[dra.Reads(…)]), and use context.api"
        )

    def other_driver(self, name: str) -> OtherDriver:
        """Return another driver on this node, for a driver whose devices consist of devices of others.

        The chart must mount the folder of its service socket into this driver's container
        (``node.extraVolumes``, ``node.extraVolumeMounts``).

        Raises:
            ConfigurationError: it is this driver itself, or this code does not run on a node, as in a context that a
                test created.
        """
        del name
        raise ConfigurationError(
            f"driver {self.driver}: context.other_driver is not available: this code does not run on a node; call it "
            "in an effect or in prepare, and override it in the context that a test creates"
        )

    def _no_api_server(self, what: str) -> ConfigurationError:
        return ConfigurationError(
            f"driver {self.driver}: {what} is not available: no API server is used here; run the driver in the "
            "sandbox, or override it in the context that the test creates"
        )

    @property
    def metrics(self) -> CollectorRegistry:
        """The prometheus-client registry whose metrics ``/metrics`` exposes, on the port of the probes.

        Register collectors or metrics in it in ``startup``, such as ``Gauge(…, registry=context.metrics)``. In a
        context created in a test, no endpoint exposes the registry.
        """
        return CollectorRegistry()

    @abstractmethod
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
        """Report facts about a prepared device that became known after ``prepare``; written in the background.

        The last report wins. Facts about a claim that is being prepared or released are written when that has finished.
        Facts about claims that are not prepared are dropped, with a warning in the log.

        Args:
            device: the device's name.
            pool: its pool; None means the pool named after the node.
            claim: the claim, as an object or by UID; None means every claim that has the device.
            share: the share, if several claims share the device (``AllocatedDevice.share_id``); None means all shares.
                Facts that belong to one container, for example an address, need ``claim`` or ``share``.
            status: replaces the device's entry in the claim's ``status.devices``.
            metadata: replaces the metadata that the container can read about it.
            wait: return when the facts are stored and in the file that the container reads, not before; the status is
                sent to the API server afterwards. This blocks: in ``async def`` write ``await
                asyncio.to_thread(self.context.update, …, wait=True)``.

        Raises:
            ConfigurationError: with ``wait``: in an event loop, while the same claim is being prepared or released, or
                in a call for which a call for the other claim waits, by such an update or ``concurrency="driver"``.
            DraKitError: with ``wait``: the facts are not valid or cannot be stored, or no claim is prepared with the
                device.
        """


class NotAvailableYet(ConfigurationError, AttributeError):
    """An attribute set by the node is not available; also an AttributeError, so that ``hasattr`` returns False."""


def _missing(component: object, name: str) -> AttributeError:
    """Return the error of an attribute that is not set, or not set yet."""
    title = type(component).__name__
    if name == "hardware" and isinstance(component, NodeComponent):
        return NotAvailableYet(
            f"{title}.hardware is not there: write Driver(…, hardware=<its factory>); it is made before startup"
        )
    if name == "runtime" and isinstance(component, NodeComponent):
        return NotAvailableYet(
            f"{title}.runtime is not there yet: the framework sets it before startup; read it there or later"
        )
    if name == "context":
        return NotAvailableYet(
            f"{title}.context is not there yet: the framework sets it before startup; read it there or later"
        )
    return AttributeError(f"{title!r} object has no attribute {name!r}")


class NodeComponent(Generic[HardwareT, AuthorSettingsT]):
    """The base that gets hardware and context before ``startup`` is called; one driver object serves one node.

    Attributes:
        hardware: the node's handle to the hardware, made by ``Driver(hardware=…)``.
        context: what the framework reports about the node, with the author's settings.

    Raises:
        ConfigurationError: one of them is read before it is set, or the driver has no hardware.
    """

    hardware: HardwareT
    context: Context[AuthorSettingsT]

    if not TYPE_CHECKING:  # type checkers must see only the attributes above

        def __getattr__(self, name: str) -> Any:
            raise _missing(self, name)


class ControllerComponent(Generic[AuthorSettingsT]):
    """The base that gets its context before ``startup`` is called.

    Attributes:
        context: what the framework provides, with the author's settings. A controller does not run for a node:
            ``context.node`` and ``context.state_dir`` are not available, and nothing is prepared. ``context.cluster``
            reads and writes objects of the cluster.

    Raises:
        ConfigurationError: it is read before it is set.
    """

    context: Context[AuthorSettingsT]

    if not TYPE_CHECKING:  # type checkers must see only the attribute above

        def __getattr__(self, name: str) -> Any:
            raise _missing(self, name)

    def startup(self, context: Context[Any]) -> Awaitable[None] | None:
        """Initialize, once, when the controller starts, before any other method. May be ``def`` or ``async def``."""
        del context
        return None


class Stopping:
    """True once the process is asked to stop; generators and loops should then return soon.

    ``while not context.stopping:`` checks it, ``while not await context.stopping.sleep(5):`` also sleeps between checks
    and ``while not context.stopping.blocking_sleep(5):`` does so in a ``def``. Safe in any thread and event loop.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._blocked: list[threading.Event] = []

    def __bool__(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        """Return when the process is asked to stop."""
        waiter = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            if self._event.is_set():
                return
            self._waiting.append(waiter)
        try:
            await waiter[1].wait()
        finally:
            with self._lock:
                self._waiting.remove(waiter)

    async def sleep(self, seconds: float) -> bool:
        """Wait for this many seconds, or until the process is asked to stop; return whether it was."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wait()
        return bool(self)

    def blocking_sleep(self, seconds: float) -> bool:
        """Do the same as ``sleep``, blocking, for the worker threads in which ``def`` methods run.

        In a ``def discover``, ``context.rescan()`` ends it, too.
        """
        generator = running_generator()
        if generator is None:
            return self._event.wait(seconds)
        with generator.sleeping() as woken:
            with self._lock:
                self._blocked.append(woken)
            try:
                if not self:
                    woken.wait(seconds)
            finally:
                with self._lock:
                    self._blocked.remove(woken)
        return bool(self)

    def set(self) -> None:
        """Wake all waiters; called by the framework, and in tests of a driver's loops."""
        with self._lock:
            self._event.set()
            for woken in self._blocked:
                woken.set()
            for loop, event in self._waiting:
                call_threadsafe(loop, event.set)
