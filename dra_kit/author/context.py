"""``Context``: what the framework passes to an author's code, and what that code can ask; the bases that have it."""

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

from dra_kit.author.effect import Effect
from dra_kit.author.model import AuthorSettingsT, HardwareT, SettingsT
from dra_kit.author.prepared import DeviceMetadata, DeviceStatus
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.resource.objects import ClaimReference


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """The node this process runs on.

    Attributes:
        name: the Node object's name.
        labels: its labels, empty while the API server cannot be reached.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """One live claim with the author's own state for each of its devices.

    Attributes:
        states: ``(pool, device, share id or None)`` to the ``state`` that ``prepare`` returned.
    """

    namespace: str
    name: str
    uid: str
    states: Mapping[tuple[str, str, str | None], JsonValue]


@dataclass(frozen=True, slots=True)
class EffectInForce:
    """One effect of the driver, as it is stored on this node.

    Attributes:
        effect: with ``self.hardware``, so that it may be asked; of the author's own class.
        outcome: what ``apply`` returned last; None until then.
        claims: those that need it; none where it could not be undone yet.
        in_force: it was applied in this boot, and is not known to hold no more. False also while it is being applied
            or undone: ``outcome`` tells then what there may still be of it.
    """

    effect: Effect[Any, Any]
    outcome: Any
    claims: tuple[ClaimReference, ...]
    in_force: bool


class Context(ABC, Generic[SettingsT]):
    """Given to ``startup``; valid for the life of the process and safe to use from any thread.

    Attributes:
        driver: the driver's name.
        node: the node this process runs on.
        state_dir: a directory of the author's own that survives restarts (not reboots of a tmpfs).
        settings: an instance of ``Driver(settings=…)``.

    Raises:
        ConfigurationError: ``settings`` is read, and the driver has none.
    """

    driver: str
    node: NodeInfo
    state_dir: Path
    settings: SettingsT

    if not TYPE_CHECKING:  # type checkers are to know the attributes above, and no other

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
        """True once the process is asked to end; may be waited for."""

    @abstractmethod
    def rescan(self) -> None:
        """Ask for a fresh inventory: ``discover`` is started again from its beginning."""

    @abstractmethod
    def prepared(self) -> Mapping[str, PreparedClaim]:
        """Return all claims that are prepared now, by UID."""

    def effects(self) -> Sequence[EffectInForce]:
        """Return all effects of this driver on this node, oldest first: what is its own of what ``discover`` finds.

        Those that another release of the driver made, and this one does not understand, are missing. Where nothing is
        prepared, as in a context of a test's own, there are none.
        """
        return ()

    @property
    def metrics(self) -> CollectorRegistry:
        """The registry of prometheus-client whose numbers ``/metrics`` shows, on the port of the probes.

        Register collectors or metrics in it in ``startup``, such as ``Gauge(…, registry=context.metrics)``. In a
        context of a test's own it is one that nobody reads.
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
    ) -> None:
        """Report facts of a prepared device that became known after ``prepare``; written in the background.

        What is reported last stays, also where a claim is just being prepared or released, and cannot be written until
        that has ended; facts of claims that are not prepared are dropped, with a warning in the log.

        Args:
            device: the device's name.
            pool: its pool; None means the pool that is named after the node.
            claim: the claim concerned, itself or by UID; None means every claim that has the device.
            share: the share concerned, where several claims share the device (``AllocatedDevice.share_id``); None
                means all. What belongs to one container, an address for example, needs ``claim`` or ``share``.
            status: replaces what the claim's ``status.devices`` says of it.
            metadata: replaces what the container can read of it.
        """


class NotAvailableYet(ConfigurationError, AttributeError):
    """What the node gives is not there; an AttributeError too, so that ``hasattr`` answers no."""


class NodeComponent(Generic[HardwareT, AuthorSettingsT]):
    """Set by the framework before ``startup`` is called; one driver object serves one node.

    Attributes:
        hardware: the node's handle to the hardware, made by ``Driver(hardware=…)``.
        context: what the framework tells of the node, with the author's settings.

    Raises:
        ConfigurationError: one of them is read before it is there, or the driver has no hardware.
    """

    hardware: HardwareT
    context: Context[AuthorSettingsT]

    if not TYPE_CHECKING:  # type checkers are to know the attributes above, and no other

        def __getattr__(self, name: str) -> Any:
            title = type(self).__name__
            if name == "hardware":
                raise NotAvailableYet(
                    f"{title}.hardware is not there: write Driver(…, hardware=<its factory>); it is made before startup"
                )
            if name == "context":
                raise NotAvailableYet(
                    f"{title}.context is not there yet: the framework sets it before startup; read it there or later"
                )
            raise AttributeError(f"{title!r} object has no attribute {name!r}")


class ControllerComponent(Generic[AuthorSettingsT]):
    """Set by the framework before ``startup`` is called.

    Attributes:
        context: what the framework tells, with the author's settings. A controller is on no node: ``context.node`` and
            ``context.state_dir`` are not there, and nothing is prepared.

    Raises:
        ConfigurationError: it is read before it is there.
    """

    context: Context[AuthorSettingsT]

    if not TYPE_CHECKING:  # type checkers are to know the attribute above, and no other

        def __getattr__(self, name: str) -> Any:
            title = type(self).__name__
            if name == "context":
                raise NotAvailableYet(
                    f"{title}.context is not there yet: the framework sets it before startup; read it there or later"
                )
            raise AttributeError(f"{title!r} object has no attribute {name!r}")

    def startup(self, context: Context[Any]) -> Awaitable[None] | None:
        """Start, once, when the controller starts and before anything else of this. May be ``def`` or ``async def``."""
        del context
        return None


class Stopping:
    """True once the process is asked to end; from then on generators and loops should return soon.

    ``while not context.stopping:`` looks, ``while not await context.stopping.sleep(5):`` waits in between, and
    ``while not context.stopping.blocking_sleep(5):`` does so in a ``def``. Safe to use in any thread and event loop.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def __bool__(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        """Return when the process is asked to end."""
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
        """Wait so many seconds, or until the process is asked to end; whether it is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wait()
        return bool(self)

    def blocking_sleep(self, seconds: float) -> bool:
        """Return the same in a thread of its own, where ``def`` methods run."""
        return self._event.wait(seconds)

    def set(self) -> None:
        """Tell everybody who waits; called by the framework, and in tests of a driver's loops."""
        with self._lock:
            self._event.set()
            for loop, event in self._waiting:
                with suppress(RuntimeError):  # that loop has ended, and with it whoever waited
                    loop.call_soon_threadsafe(event.set)
