"""Who the driver is to the API server: the chart's ServiceAccounts and roles, exactly as they are shipped."""

from __future__ import annotations

import json
import secrets
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.find import REPOSITORY
from tests.cluster.plane import Plane, PlaneError

CHART = REPOSITORY / "charts" / "dra-driver"
DEADLINE_SECONDS = 90
# a right of each role that has any
_ONE_RIGHT = {"node": ("get", "nodes"), "controller": ("watch", "resourceclaims.resource.k8s.io")}


@dataclass(frozen=True)
class Access:
    """The accounts of one driver's roles in the cluster."""

    plane: Plane
    release: str
    namespace: str

    def kubeconfig(self, role: str, *, node: str | None = None) -> Path:
        """A kubeconfig that is the role's ServiceAccount.

        Args:
            role: which one.
            node: a Node that the token is bound to, as in a pod there; by default the plane's for the role ``node``,
                and none for the others. Empty for none.
        """
        account = f"{self.release}-{role}"
        if node is None and role == "node":
            assert self.plane.node is not None
            node = self.plane.node
        binding: list[str] = []
        if node:
            uid = self.plane.get("node", node)["metadata"]["uid"]
            binding = ["--bound-object-kind=Node", f"--bound-object-name={node}", f"--bound-object-uid={uid}"]
        token = self.plane.kubectl(
            "create", "token", account, "--namespace", self.namespace, "--duration=4h", *binding
        ).stdout.strip()
        path = self.plane.directory / f"{account}-{node or 'nowhere'}.kubeconfig"
        return self.plane.token_kubeconfig(account, token, path)

    def in_force(self) -> bool:
        """Whether the API server judges by the roles: it does so a moment after it has stored them."""
        account = f"system:serviceaccount:{self.namespace}:{self.release}"
        answers = [
            self.plane.kubectl("auth", "can-i", *right, "--all-namespaces", "--as", f"{account}-{role}", check=False)
            for role, right in _ONE_RIGHT.items()
        ]
        return all(answer.stdout.strip() == "yes" for answer in answers)


@contextmanager
def granted(
    plane: Plane, *, release: str, driver: str, values: Sequence[str] = (), given: Mapping[str, Any] | None = None
) -> Iterator[Access]:
    """The chart's RBAC for a driver, in a separate namespace and in force.

    Args:
        plane: where.
        release: its name.
        driver: its name.
        values: as helm's ``--set`` takes them.
        given: values as in a file; weaker.
    """
    # a unique name: without a controller manager, a deleted namespace is never removed
    namespace = f"{release}-{secrets.token_hex(3)}"
    manifests = render(plane, release=release, namespace=namespace, driver=driver, values=values, given=given)
    plane.kubectl("create", "namespace", namespace)
    try:
        plane.kubectl("apply", "-f", "-", stdin=manifests)
        access = Access(plane, release, namespace)
        end = time.monotonic() + DEADLINE_SECONDS
        while not access.in_force():
            if time.monotonic() > end:
                raise PlaneError(f"the roles of {release} are not in force within {DEADLINE_SECONDS} s")
            time.sleep(0.2)
        yield access
    finally:
        plane.kubectl("delete", "-f", "-", "--ignore-not-found", stdin=manifests)
        plane.kubectl("delete", "namespace", namespace, "--wait=false")


def render(
    plane: Plane,
    *,
    release: str,
    namespace: str,
    driver: str,
    values: Sequence[str] = (),
    given: Mapping[str, Any] | None = None,
) -> str:
    """The chart's manifests.

    Raises:
        PlaneError: helm is not there, or does not render it.
    """
    helm = plane.binaries / "helm"
    if not helm.exists():
        raise PlaneError(f"helm is missing in {plane.binaries}, so the chart's RBAC cannot be rendered")
    command = [helm, "template", release, CHART, "--namespace", namespace, "--set", f"driverName={driver}"]
    command += [part for value in values for part in ("--set", value)]
    command += ["--values", "-"]
    result = subprocess.run(
        list(map(str, command)), input=json.dumps(given or {}), capture_output=True, text=True, check=False, timeout=60
    )
    if result.returncode:
        raise PlaneError(f"{shlex.join(map(str, command))}: {result.stderr.strip()}")
    return result.stdout
