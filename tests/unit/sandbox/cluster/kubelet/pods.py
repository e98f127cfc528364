"""Pod objects for tests."""

from __future__ import annotations

import datetime as dt
from typing import Any

from dra_kit.sandbox.containers.runtime import ContainerExit, ContainerStatus

Object = dict[str, Any]
NOW = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


def container(name: str = "eater", *command: str, **more: Any) -> Object:
    return {"name": name, "image": "busybox:stable", "command": list(command or ("sleep", "3600")), **more}


SLEEPER = container("eater", "sh", "-c", "env; exec sleep 3600")


def pod(*containers: Object, name: str = "guest", namespace: str = "kitchen", **spec: Any) -> Object:
    """A pod bound to node-a, as the API server has it before its kubelet saw it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "1"},
        "spec": {
            "nodeName": "node-a",
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 30,
            "containers": list(containers) or [container()],
            **spec,
        },
        "status": {"phase": "Pending"},
    }


def status(name: str, code: int | None = None, attempt: int = 0) -> ContainerStatus:
    """A container that runs, or ended with a code."""
    how = None if code is None else ContainerExit(code, "Error" if code else "Completed", NOW)
    return ContainerStatus(f"test://{name}-{attempt}", name, attempt, "busybox", NOW, how)
