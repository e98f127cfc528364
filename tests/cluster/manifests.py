"""Objects that several tests create."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import trustme

Object: TypeAlias = dict[str, Any]


def listed(items: Sequence[object]) -> str:
    """Return a List of objects for kubectl."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def claim(name: str, device_class: str, *, request: str, config: Sequence[Mapping[str, Any]] = ()) -> Object:
    """Return a claim for one device."""
    devices = {"requests": [{"name": request, "exactly": {"deviceClassName": device_class}}], "config": list(config)}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": devices},
    }


def guest(
    name: str, device_class: str, *command: str, request: str, config: Sequence[Mapping[str, Any]] = ()
) -> list[Object]:
    """Return a claim for one device, and a pod of the same name that runs a command with it."""
    container = {
        "name": "main",
        "image": "busybox:stable",
        "command": command,
        "resources": {"claims": [{"name": request}]},
    }
    spec = {
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "resourceClaims": [{"name": request, "resourceClaimName": name}],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    return [claim(name, device_class, request=request, config=config), pod]


def sleeper(name: str) -> Object:
    """Return a pod without a claim that does nothing."""
    container = {"name": "main", "image": "busybox:stable", "command": ["sleep", "100000"]}
    spec = {"terminationGracePeriodSeconds": 1, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def tls_secret(name: str, namespace: str, issued: trustme.LeafCert) -> Object:
    """Return a Secret with a certificate and its key."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": name, "namespace": namespace},
        "stringData": {
            "tls.crt": b"".join(part.bytes() for part in issued.cert_chain_pems).decode(),
            "tls.key": issued.private_key_pem.bytes().decode(),
        },
    }
