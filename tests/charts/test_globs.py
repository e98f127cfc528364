"""A driver that is a file of globs, deployed with an image that has dra-kit in it and nothing of the driver."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dra_kit.author.no_code.reader import read_globs
from tests.charts.rendering import RELEASE, Helm, Refused

GLOBS = """\
# serial adapters
driver: serial.example.com
devices:
- paths: /dev/ttyUSB*
  attributes: {vendor: {read: "/sys/class/tty/{name}/device/../idVendor"}}
"""
VALUES: Mapping[str, Any] = {"image": {"repository": "images.example/dra-kit", "tag": "1"}, "globs": GLOBS}
FILE = "/etc/dra-kit/globs/globs.yaml"


def test_the_file_is_the_target_of_every_role(helm: Helm, tmp_path: Path) -> None:
    chart = helm.render(VALUES)
    config = chart.named("ConfigMap", f"{RELEASE}-globs")
    (tmp_path / "globs.yaml").write_text(config["data"]["globs.yaml"])
    assert read_globs(tmp_path / "globs.yaml").driver == "serial.example.com"
    for role in ("node", "controller"):
        assert chart.container(role)["args"][:2] == [role, FILE]
        mounts = {mount["name"]: mount["mountPath"] for mount in chart.container(role)["volumeMounts"]}
        assert mounts["globs"] == "/etc/dra-kit/globs"
        volumes = {volume["name"]: volume for volume in chart.pod(role)["volumes"]}
        assert volumes["globs"]["configMap"]["name"] == config["metadata"]["name"]


def test_the_node_looks_at_the_hosts_devices_and_may_change_nothing(helm: Helm) -> None:
    chart = helm.render(VALUES)
    mounts = {mount["name"]: mount for mount in chart.container("node")["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in chart.pod("node")["volumes"]}
    for name, path in {"host-dev": "/dev", "host-sys": "/sys", "host-udev": "/run/udev"}.items():
        assert (mounts[name]["mountPath"], mounts[name]["readOnly"]) == (f"/host{path}", True)
        assert volumes[name]["hostPath"]["path"] == path
    assert chart.environment("node")["DRIVER_ROOT"] == "/host"
    assert chart.container("node")["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_driver_has_the_name_in_the_file(helm: Helm) -> None:
    [volume] = [item for item in helm.render(VALUES).pod("node")["volumes"] if item["name"] == "plugin"]
    assert volume["hostPath"]["path"] == "/var/lib/kubelet/plugins/serial.example.com"


def test_pods_are_replaced_when_the_file_changes(helm: Helm) -> None:
    texts = (GLOBS, f"{GLOBS}  permissions: r\n")
    made = [helm.render({**VALUES, "globs": text}).named("DaemonSet")["spec"]["template"] for text in texts]
    assert made[0]["metadata"]["annotations"] != made[1]["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"globs": "devices: []"}, "globs is not a file of globs: it names no driver"),
        ({"globs": "driver: ["}, "globs is not a file of globs: error"),
        ({"driverName": "other.example"}, "driverName is other.example, and globs says serial.example.com"),
        ({"target": "a:b"}, "target and globs cannot be combined"),
        (
            {"webhook": {"certificate": {"secretName": "a"}}},
            "globs and webhook.certificate.secretName cannot be combined",
        ),
        ({"webhook": {"certificate": {"selfMade": True}}}, "globs and webhook.certificate.selfMade cannot be combined"),
    ],
)
def test_globs_reject_incompatible_values(helm: Helm, values: Mapping[str, Any], told: str) -> None:
    with pytest.raises(Refused, match=told):
        helm.render({**VALUES, **values})
