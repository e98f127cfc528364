"""Pods with a claim each in one namespace, and what kubectl tells about them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.cluster.life import manifests
from tests.cluster.life.switches import PATIENCE
from tests.cluster.plane import Plane
from tests.crash.world import DRIVER


class Orders:
    """Orders by name; pod and claim are called the same.

    Attributes:
        names: of those that were made and are not known to be gone.
    """

    def __init__(self, plane: Plane, namespace: str) -> None:
        self.names: set[str] = set()
        self.namespace = namespace
        self._plane = plane
        self._numbers = itertools.count(1)

    def new_names(self, count: int) -> list[str]:
        """Names that nothing has yet."""
        return [f"order-{next(self._numbers)}" for _ in range(count)]

    def create(self, names: Sequence[str], config: Mapping[str, Any]) -> None:
        """All in one call."""
        items = [item for name in names for item in manifests.order(self.namespace, name, DRIVER, config)]
        self.names.update(names)
        self.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))

    def delete(self, names: Sequence[str], *, force: bool = False) -> None:
        """Ask for pods and claims to be deleted, and do not wait."""
        objects = [f"{kind}/{name}" for name in names for kind in ("pod", "resourceclaim")]
        flags = ["--force", "--grace-period=0"] if force else []
        self.kubectl("delete", *objects, "--wait=false", "--ignore-not-found", *flags)

    def wait(self, *arguments: str) -> None:
        """``kubectl wait``.

        Raises:
            AssertionError: with the Events, when it does not become true.
        """
        command = ("--namespace", self.namespace, "wait", *arguments, f"--timeout={PATIENCE - 10:g}s")
        result = self._plane.kubectl(*command, check=False)
        if result.returncode:
            raise AssertionError(f"{result.stderr.strip()}\n{self.kubectl('get', 'events')}")

    def wait_gone(self, names: Sequence[str]) -> None:
        """Wait until pods and claims are gone."""
        self.wait(*(f"{kind}/{name}" for name in names for kind in ("pod", "resourceclaim")), "--for=delete")
        self.names.difference_update(names)

    def claim(self, name: str) -> Any:
        """The ResourceClaim."""
        return self._get("resourceclaim", name)

    def output(self, name: str) -> list[str]:
        """The lines that the pod's container has printed."""
        return self.kubectl("logs", name, check=False).splitlines()

    def end_container(self, name: str) -> None:
        """The pod's container ends by itself."""
        self.kubectl("exec", name, "--", "kill", "1")

    def wait_for_container(self, name: str, *, restarts: int) -> None:
        """Wait until the pod's container was started again that often, and runs."""
        self.wait(f"pod/{name}", f"--for=jsonpath={{.status.containerStatuses[0].restartCount}}={restarts}")
        self.wait(f"pod/{name}", "--for=condition=Ready")

    def driver_events(self, name: str) -> list[str]:
        """Notes of the driver's Events on a claim, in the order of their times."""
        items = self._get("events.v1.events.k8s.io")["items"]
        mine = [item for item in items if item.get("reportingController") == DRIVER]
        mine = [item for item in mine if item["regarding"]["name"] == name]
        return [item["note"] for item in sorted(mine, key=lambda item: str(item["eventTime"]))]

    def kubelet_events(self, name: str) -> str:
        """Messages of the Events on a pod, one in a line."""
        items = self._get("events", "--field-selector", f"involvedObject.name={name},involvedObject.kind=Pod")["items"]
        return "\n".join(item["message"] for item in items)

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """What kubectl prints, in the namespace."""
        return self._plane.kubectl("--namespace", self.namespace, *arguments, stdin=stdin, check=check).stdout

    def _get(self, *arguments: str) -> Any:
        return self._plane.get(*arguments, "--namespace", self.namespace)
