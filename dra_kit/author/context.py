"""``Context``: what the framework tells an author's code, and what it can be asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from pydantic import JsonValue

from dra_kit.author.effects.effect import Effect
from dra_kit.author.preparing.prepared import DeviceMetadata, DeviceStatus
from dra_kit.author.stopping import Stopping
from dra_kit.author.type_parameters import SettingsT
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.resource.objects import ClaimReference

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


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
        from prometheus_client import CollectorRegistry

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
