"""What becomes known of a device after its pod runs, by claim and by share: in the claim's status, in the container."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.manifests import Object, guest
from tests.cluster.node_driver import node_driver
from tests.cluster.plane import Plane
from tests.life.switches import until

HERE = Path(__file__).parent / "late_facts"
DRIVER = "nic.example"
MOUNTED = "/var/run/kubernetes.io/dra-device-attributes/resourceclaims"


def reader(name: str) -> list[Object]:
    """A claim for a share of the card, and a pod that prints what it reads of it, a line each second."""
    read = f"cat {MOUNTED}/{name}/nic/{DRIVER}-metadata.json | tr -d ' \\n'; echo"
    return guest(name, "nic-example", "sh", "-c", f"while true; do {read}; sleep 1; done", request="nic")


@contextmanager
def guests(plane: Plane, *names: str) -> Iterator[None]:
    plane.create(*(item for name in names for item in reader(name)))
    try:
        yield
    finally:
        plane.kubectl("delete", "pod", *names)
        plane.kubectl("delete", "resourceclaim", *names)


def claim_of(plane: Plane, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = plane.get("resourceclaim", name)
    return found


def share_of(plane: Plane, name: str) -> str:
    [result] = claim_of(plane, name)["status"]["allocation"]["devices"]["results"]
    return str(result["shareID"])


def published(plane: Plane, name: str) -> list[tuple[str | None, list[str]]]:
    devices = claim_of(plane, name)["status"].get("devices") or ()
    return [(item.get("shareID"), item["networkData"]["ips"]) for item in devices]


def read_by(plane: Plane, name: str) -> dict[str, Any]:
    """What the pod's container has read last."""
    lines = plane.kubectl("logs", name, check=False).stdout.splitlines()
    try:
        found: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):  # it has not started, or is in the middle of a line
        return {}
    return found


def address_read_by(plane: Plane, name: str) -> tuple[int, list[str]]:
    found = read_by(plane, name)
    if not found:
        return 0, []
    [device] = found["requests"][0]["devices"]
    return found["metadata"]["generation"], device["networkData"].get("ips", [])


def test_facts_of_shares_reach_their_own_claims_and_the_containers_that_run(node_plane: Plane, tmp_path: Path) -> None:
    shutil.copy(HERE / "driver.py", tmp_path)
    classes = (HERE / "deviceclass.yaml").read_text(encoding="utf-8")
    plane = node_plane
    with (
        node_driver(plane, "./driver.py", DRIVER, classes=classes, directory=tmp_path) as driver,
        guests(plane, "first", "second"),
    ):
        for name in ("first", "second"):
            until(f"{name} to read", lambda name=name: address_read_by(plane, name) == (1, []), driver.process.tail)  # type: ignore[misc]
        uid, share = claim_of(plane, "first")["metadata"]["uid"], share_of(plane, "second")
        told = [{"claim": uid, "ip": "10.0.0.1/24"}, {"share": share, "ip": "10.0.0.2/24"}]
        (tmp_path / "told.new").write_text(json.dumps(told))
        (tmp_path / "told.new").replace(tmp_path / "told.json")
        for name, ip in (("first", "10.0.0.1/24"), ("second", "10.0.0.2/24")):
            wanted = [(share_of(plane, name), [ip])]
            until(f"{wanted} of {name}", lambda name=name, wanted=wanted: published(plane, name) == wanted)  # type: ignore[misc]
            until(f"{ip} in {name}", lambda name=name, ip=ip: address_read_by(plane, name) == (2, [ip]))  # type: ignore[misc]
