"""Pods with one claim each in one namespace, and their state in the API server."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.crash.world import DRIVER
from tests.life import manifests
from tests.life.cluster import Cluster
from tests.life.switches import until

KINDS = ("pod", "resourceclaim")


class Orders:
    """Orders by name; pod and claim have the same name.

    Attributes:
        names: of those that were made and are not known to be gone.
    """

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.names: set[str] = set()
        self.namespace = namespace
        self._cluster = cluster
        self._numbers = itertools.count(1)

    def new_names(self, count: int) -> list[str]:
        """Names that nothing has yet."""
        return [f"order-{next(self._numbers)}" for _ in range(count)]

    def create(self, names: Sequence[str], config: Mapping[str, Any], *, stubborn: int = 0) -> None:
        """All at once; their containers may take some seconds to end."""
        self.names.update(names)
        self._cluster.create(
            [item for name in names for item in manifests.order(self.namespace, name, DRIVER, config, stubborn)]
        )

    def create_pods(self, names: Sequence[str]) -> None:
        """Pods for claims that are there."""
        self._cluster.create([manifests.order(self.namespace, name, DRIVER, {})[1] for name in names])

    def delete_pods(self, names: Sequence[str], *, force: bool = False) -> None:
        """Ask for pods to be deleted whose claims stay, and do not wait."""
        self._cluster.delete("pod", names, self.namespace, force=force)

    def devices(self, name: str) -> tuple[str, ...]:
        """What a claim is allocated now."""
        allocation = self.claims()[name].get("status", {}).get("allocation") or {"devices": {"results": []}}
        return tuple(result["device"] for result in allocation["devices"]["results"])

    def delete(self, names: Sequence[str], *, force: bool = False) -> None:
        """Ask for pods and claims to be deleted, and do not wait."""
        for kind in KINDS:
            self._cluster.delete(kind, names, self.namespace, force=force)

    def wait_running(self, names: Sequence[str]) -> None:
        """Wait until these pods run."""
        self._until(f"{', '.join(names)} to run", lambda: all(_runs(pod) for pod in self._named("pod", names)))

    def wait_gone(self, names: Sequence[str]) -> None:
        """Wait until pods and claims are gone."""
        left = set(KINDS)

        def gone() -> bool:
            left.difference_update([kind for kind in left if not self._there(kind, names)])
            return not left

        self._until(f"pods and claims {', '.join(names)} to go", gone)
        self.names.difference_update(names)

    def wait_for_container(self, name: str, *, restarts: int) -> None:
        """Wait until the pod's container was started again that often, and runs."""

        def ready() -> bool:
            [status] = self._pod(name)["status"]["containerStatuses"]
            return bool(status["restartCount"] == restarts and status["ready"])

        self._until(f"the container of {name} to be started again", ready)

    def claims(self) -> dict[str, dict[str, Any]]:
        """The ResourceClaims by name."""
        items = self._cluster.objects("resourceclaim", self.namespace)
        return {item["metadata"]["name"]: item for item in items}

    def output(self, name: str) -> list[str]:
        """The lines that the pod's container has printed."""
        return self._cluster.output(self.namespace, name)

    def end_container(self, name: str) -> None:
        """The pod's container ends by itself."""
        self._cluster.end_container(self.namespace, name)

    def driver_events(self, name: str) -> list[str]:
        """Notes of the driver's Events on a claim, in the order of their times."""
        mine = [item for item in self._events(name) if item.get("reportingController") == DRIVER]
        return [item["note"] for item in sorted(mine, key=lambda item: str(item["eventTime"]))]

    def kubelet_events(self, name: str) -> str:
        """Notes of the Events on a pod, one in a line."""
        return "\n".join(item["note"] for item in self._events(name) if item["regarding"]["kind"] == "Pod")

    def _events(self, name: str) -> list[dict[str, Any]]:
        events = self._cluster.objects("event", self.namespace)
        return [item for item in events if item["regarding"]["name"] == name]

    def _pod(self, name: str) -> dict[str, Any]:
        [pod] = self._named("pod", [name])
        return pod

    def _named(self, kind: str, names: Sequence[str]) -> list[dict[str, Any]]:
        """The objects of these names, all of which exist."""
        found = {item["metadata"]["name"]: item for item in self._cluster.objects(kind, self.namespace)}
        return [found[name] for name in names]

    def _there(self, kind: str, names: Sequence[str]) -> list[str]:
        found = {item["metadata"]["name"] for item in self._cluster.objects(kind, self.namespace)}
        return [name for name in names if name in found]

    def _until(self, what: str, ready: Callable[[], object]) -> None:
        def told() -> str:
            events = self._cluster.objects("event", self.namespace)
            return "\n".join(f"{item['regarding']['name']}: {item.get('note')}" for item in events)

        until(what, ready, told)


def _runs(pod: Mapping[str, Any]) -> bool:
    return bool(pod.get("status", {}).get("phase") == "Running")
