"""What the scenarios need from a cluster: implemented for real Kubernetes and for the sandbox."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Pace:
    """Durations in this cluster, in seconds.

    Attributes:
        deadline: after which the driver answers that a claim is not ready.
        outage: of the API server, when it is away.
        orphan: in which the driver has looked twice for a claim that is gone, with a margin.
        stubborn: that a container runs on after SIGTERM if it ignores it; a pod's whole grace period.
        look: after which every look at the slices that is due after a write has been taken.
    """

    deadline: float = 40.0
    outage: float = 60.0
    orphan: float = 300.0
    stubborn: int = 45
    look: float = 40.0


class Process(Protocol):
    """One process of the driver."""

    @property
    def alive(self) -> bool:
        """It has not ended."""

    @property
    def exit_code(self) -> int | None:
        """0, or the signal's number below zero; None while it lives."""

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""

    def join(self) -> None:
        """Wait until it has ended."""

    def log(self) -> str:
        """What it logged so far."""

    def close(self) -> None:
        """End it."""


class Writes(Protocol):
    """What the driver wrote to the API server, counted by the API server."""

    def since(self) -> Counter[str]:
        """What was written since :meth:`forget`, such as ``slice created``."""

    def forget(self) -> None:
        """Begin again from here."""


class Cluster(Protocol):
    """A cluster with one node.

    Objects are named as kubectl names them: by ``kind``, in the singular.
    """

    @property
    def node(self) -> str:
        """Name of the Node."""

    @property
    def directory(self) -> Path:
        """For files of the tests."""

    @property
    def kubelet_dir(self) -> Path:
        """The kubelet's root directory."""

    @property
    def cdi_dir(self) -> Path:
        """Of the CDI specs."""

    @property
    def pace(self) -> Pace:
        """How long things take."""

    @property
    def writes(self) -> Writes:
        """Of the driver."""

    # -- its parts

    def start_driver(self, arguments: Sequence[str], environment: Mapping[str, str], pod_uid: str) -> Process:
        """A process ``dra-kit node`` with the arguments and those that say where it is."""

    def driver_processes(self, pod_uid: str) -> Collection[int]:
        """Ids of the processes of the driver's pod that live."""

    def stop_kubelet(self, number: signal.Signals) -> None:
        """End the kubelet; it is gone when this returns."""

    def start_kubelet(self) -> None:
        """Start the kubelet, if it does not run."""

    def stop_api_server(self) -> None:
        """From now on nothing listens where it was."""

    def start_api_server(self) -> None:
        """Returns when it answers, with all objects that it had; at once if it was never away."""

    def delete_node(self) -> None:
        """Delete the Node, while the kubelet does not run."""

    def furnish_node(self) -> None:
        """A new Node and its driver get what is not the kubelet's to give, or not at once."""

    # -- its objects

    def create(self, items: Sequence[Mapping[str, Any]]) -> None:
        """Make objects, in one call where that is possible."""

    def delete(self, kind: str, names: Sequence[str], namespace: str = "", *, force: bool = False) -> None:
        """Ask for objects to be deleted, and do not wait; those that are gone do not matter.

        Args:
            kind: of the objects.
            names: of the objects.
            namespace: of the objects; empty for a cluster-scoped kind.
            force: pods without the kubelet's word.
        """

    def objects(self, kind: str, namespace: str = "", *, selector: str = "") -> list[dict[str, Any]]:
        """All objects of a kind.

        Args:
            kind: of the objects; ``event`` is that of ``events.k8s.io``.
            namespace: of the objects; empty for a cluster-scoped kind.
            selector: a field selector.
        """

    def output(self, namespace: str, pod: str) -> list[str]:
        """The lines that the pod's newest container has printed; none while there is none."""

    def end_container(self, namespace: str, pod: str) -> None:
        """The pod's container ends by itself."""
