"""Pod objects for tests."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]


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
