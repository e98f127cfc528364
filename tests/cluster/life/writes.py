"""What one driver wrote to the API server, counted by the API server itself.

Its request counters know verbs and resources, not who asked. Its flow control does know: a FlowSchema that selects an
account, verbs and resources counts exactly those requests (``apiserver_flowcontrol_dispatched_requests_total``,
Kubernetes 1.34 to 1.37), whatever kubelet, scheduler and controllers write to the same objects.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.manifests import listed
from tests.cluster.plane import Plane

_WRITING = ["create", "update", "patch", "delete", "deletecollection"]
_SLICES = ("resource.k8s.io", "resourceslices")
_FLOWS: dict[str, tuple[list[str], tuple[str, str]]] = {
    "slice created": (["create"], _SLICES),
    "slice updated": (["update", "patch"], _SLICES),
    "slice deleted": (["delete", "deletecollection"], _SLICES),
    "status written": (["patch", "update"], ("resource.k8s.io", "resourceclaims/status")),
    "event written": (["create", "patch"], ("events.k8s.io", "events")),
    "other": (_WRITING, ("*", "*")),
}
_DEADLINE_SECONDS = 60
_COUNTER = re.compile(
    r"apiserver_flowcontrol_dispatched_requests_total"
    r'\{flow_schema="bakery-([a-z-]+)",priority_level="[^"]*"\} ([0-9.e+]+)'
)


class FlowWrites:
    """The counters of one account, each from where it was last looked at."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._before: Counter[str] = Counter()

    @classmethod
    @contextmanager
    def of(cls, plane: Plane, *, namespace: str, account: str, kubeconfig: Path) -> Iterator[FlowWrites]:
        """Count for a ServiceAccount from now on.

        Args:
            plane: where it writes.
            namespace: the account's.
            account: its name.
            kubeconfig: that is the account.
        """
        manifests = listed(_schemas(namespace, account))  # in one call: all are there when the last one counts
        plane.kubectl("apply", "-f", "-", stdin=manifests)
        try:
            writes = cls(plane)
            writes._counts_for(kubeconfig)
            writes.forget()
            yield writes
        finally:
            plane.kubectl("delete", "-f", "-", "--ignore-not-found", stdin=manifests)

    def since(self) -> Counter[str]:
        """What was written since :meth:`forget`."""
        return self._now() - self._before

    def forget(self) -> None:
        """Begin again from here."""
        self._before = self._now()

    def restarted(self) -> None:
        """The API server counts from zero."""
        self._before = Counter()

    def _now(self) -> Counter[str]:
        text = self._plane.kubectl("get", "--raw", "/metrics").stdout
        return Counter({name.replace("-", " "): int(float(number)) for name, number in _COUNTER.findall(text)})

    def _counts_for(self, kubeconfig: Path) -> None:
        """Wait until the API server has put the schemas into force."""
        end = time.monotonic() + _DEADLINE_SECONDS
        while not self._now()["other"]:
            assert time.monotonic() < end, "the API server does not count by FlowSchemas of the tests"
            self._plane.kubectl("--kubeconfig", str(kubeconfig), "auth", "whoami")  # creates a review, and no object
            time.sleep(0.2)


def _schemas(namespace: str, account: str) -> list[dict[str, Any]]:
    subject = {"kind": "ServiceAccount", "serviceAccount": {"namespace": namespace, "name": account}}
    return [
        {
            "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
            "kind": "FlowSchema",
            "metadata": {"name": f"bakery-{name.replace(' ', '-')}"},
            "spec": {
                # before all others; the one for the rest comes last
                "matchingPrecedence": 10 + number,
                "priorityLevelConfiguration": {"name": "workload-low"},
                "distinguisherMethod": {"type": "ByUser"},
                "rules": [
                    {
                        "subjects": [subject],
                        "resourceRules": [
                            {
                                "verbs": verbs,
                                "apiGroups": [group],
                                "resources": [resource],
                                "namespaces": ["*"],
                                "clusterScope": True,
                            }
                        ],
                    }
                ],
            },
        }
        for number, (name, (verbs, (group, resource))) in enumerate(_FLOWS.items())
    ]
