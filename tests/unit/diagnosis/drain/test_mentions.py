"""A driver that no object in the cluster mentions is an error."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Api
from tests.unit.diagnosis.drain.test_drain import DRIVER, claim, drain, node_slice

UNKNOWN = (
    "error: driver dra.pizza is not in this cluster: no slice, allocated claim, DeviceClass or DaemonSet mentions it"
)


def device_class(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a-class"}, "spec": spec}


def selecting(expression: str) -> dict[str, Any]:
    return device_class(selectors=[{"cel": {"expression": expression}}])


def configured(driver: str) -> dict[str, Any]:
    return device_class(config=[{"opaque": {"driver": driver, "parameters": {}}}])


def daemon_set(driver: str, component: str = "node") -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": driver, "app.kubernetes.io/component": component}
    spec = {"selector": {"matchLabels": labels}, "template": {"spec": {"containers": [{"args": ["node", "x:y"]}]}}}
    return {"metadata": {"name": "a-node", "namespace": "a", "labels": labels}, "spec": spec}


MENTIONS = [
    ("resourceslices", node_slice("node-1")),
    ("deviceclasses", selecting(f'device.driver == "{DRIVER}"')),
    ("deviceclasses", selecting(f"device.driver in ['other.example.com', '{DRIVER}']")),
    ("deviceclasses", configured(DRIVER)),
    ("daemonsets", daemon_set(DRIVER)),
    ("resourceclaims", claim("lunch", users=())),
    ("resourceclaims", claim("lunch", node="node-9", users=())),
]


@pytest.mark.parametrize(("plural", "mentions"), MENTIONS)
def test_a_driver_that_any_object_mentions_is_known(
    plural: str, mentions: dict[str, Any], kubeconfig: tuple[Api, Path]
) -> None:
    api, path = kubeconfig
    api.put(plural, mentions)
    found = drain(path, "--node", "node-1")
    assert (found.exit_code, found.stderr) == (0, ""), found.output


def test_a_driver_that_nothing_mentions_is_an_error(kubeconfig: tuple[Api, Path]) -> None:
    found = drain(kubeconfig[1])
    assert found.exit_code == 2
    assert found.stderr == f"{UNKNOWN}; correct --driver [unknown-driver]\n"


NEAREST = [
    ("resourceslices", node_slice("node-1", "dra.piza")),
    ("deviceclasses", selecting('device.driver == "dra.piza"')),
    ("deviceclasses", configured("dra.piza")),
    ("daemonsets", daemon_set("dra.piza")),
    ("resourceclaims", claim("lunch", driver="dra.piza")),
]


@pytest.mark.parametrize(("plural", "mentions"), NEAREST)
def test_the_nearest_name_is_offered(plural: str, mentions: dict[str, Any], kubeconfig: tuple[Api, Path]) -> None:
    api, path = kubeconfig
    api.put(plural, mentions)
    api.put("resourceslices", node_slice("node-1", "nic.example.com"))
    found = drain(path)
    assert (found.exit_code, found.stderr) == (
        2,
        f'{UNKNOWN}; correct --driver; did you mean "dra.piza"? [unknown-driver]\n',
    )


def test_without_a_near_name_all_drivers_are_listed(kubeconfig: tuple[Api, Path]) -> None:
    api, path = kubeconfig
    api.put("resourceslices", node_slice("node-1", "nic.example.com"))
    assert f"{UNKNOWN}; correct --driver; there are nic.example.com" in drain(path).stderr


def test_other_software_is_not_offered(kubeconfig: tuple[Api, Path]) -> None:
    api, path = kubeconfig
    api.put("daemonsets", daemon_set("dra-pizza"))
    api.put("daemonsets", daemon_set("dra.piza", component="webhook"))
    assert drain(path).stderr == f"{UNKNOWN}; correct --driver [unknown-driver]\n"


def test_an_unknown_driver_may_be_accepted(kubeconfig: tuple[Api, Path]) -> None:
    found = drain(kubeconfig[1], "--allow-unknown")
    assert (found.exit_code, found.output) == (0, "driver dra.pizza: no claim is in use\n")


RESOURCE = "/apis/resource.k8s.io/v1"
PATHS = {
    "resourceslices": f"{RESOURCE}/resourceslices",
    "deviceclasses": f"{RESOURCE}/deviceclasses",
    "daemonsets": "/apis/apps/v1/daemonsets",
}


@pytest.mark.parametrize("plurals", [("resourceslices",), ("deviceclasses",), ("daemonsets",), tuple(PATHS)])
def test_kinds_that_may_not_be_listed_are_named(plurals: tuple[str, ...], kubeconfig: tuple[Api, Path]) -> None:
    api, path = kubeconfig
    with ExitStack() as stack:
        for plural in plurals:
            stack.enter_context(api.failing(403, "GET", below=PATHS[plural]))
        found = drain(path)
        reported = json.loads(drain(path, "-o", "json").output)
    assert found.exit_code == 0
    assert found.output == (
        "driver dra.pizza: no claim is in use\n"
        f"cannot check whether driver dra.pizza exists: you may not list {', '.join(plurals)}\n"
    )
    assert reported["unreadable"] == list(plurals)


def test_claims_suggest_the_name_of_a_misspelt_driver_if_nothing_else_may_be_listed(
    kubeconfig: tuple[Api, Path],
) -> None:
    api, path = kubeconfig
    api.put("resourceclaims", claim("lunch", driver="dra.piza"))
    with ExitStack() as stack:
        for below in PATHS.values():
            stack.enter_context(api.failing(403, "GET", below=below))
        found = drain(path)
    assert found.exit_code == 0
    assert found.output.startswith('driver dra.pizza: no claim is in use; did you mean "dra.piza"?\n')
