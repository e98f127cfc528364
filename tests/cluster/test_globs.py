"""A driver that is a file of globs, deployed by the chart: a container gets a device node of its node, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cluster.plane import Plane
from tests.cluster.release import release

DRIVER = "fuse.example.com"
GLOBS = f"""
driver: {DRIVER}
devices:
- paths: /dev/fus*
  attributes:
    number: {{read: "/sys/class/misc/{{name}}/dev"}}
  env: {{"{{env}}_PATH": "{{path}}"}}
"""
OBJECTS = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: fuse}
spec:
  selectors:
  - cel:
      expression: device.driver == "fuse.example.com" && device.attributes["fuse.example.com"].number == "10:229"
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: fuse}
spec: {spec: {devices: {requests: [{name: fuse, exactly: {deviceClassName: fuse}}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: mounter}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - name: mounter
    image: IMAGE
    imagePullPolicy: Never
    command: [sh, -euxc, 'test -c "$FUSE_PATH"; ls -l "$FUSE_PATH"; exec 3<>"$FUSE_PATH"; ! test -e /dev/kmsg']
    resources: {claims: [{name: fuse}]}
  resourceClaims:
  - {name: fuse, resourceClaimTemplateName: fuse}
"""


def test_a_pod_gets_a_device_node(node_plane: Plane, pizza_image: str, tmp_path: Path) -> None:
    if not Path("/sys/class/misc/fuse").exists():
        pytest.skip("this machine has no /dev/fuse, a device node that every container may open")
    # any image with dra-kit in it will do
    repository, _, tag = pizza_image.rpartition(":")
    values = {"image": {"repository": repository, "tag": tag, "pullPolicy": "Never"}, "globs": GLOBS}
    manifest = tmp_path / "objects.yaml"
    manifest.write_text(OBJECTS.replace("IMAGE", pizza_image))
    with release(node_plane, "globs", values) as made:
        made.apply()
        made.rolled_out("daemonset", "node")
        made.rolled_out("deployment", "controller")
        made.kubectl("apply", "-f", str(manifest))
        try:
            succeeded = "--for=jsonpath={.status.phase}=Succeeded"
            ended = made.kubectl("wait", "pod/mounter", succeeded, "--timeout=100s", check=False)
            told = made.kubectl("describe", "pod/mounter", check=False)
            log = made.kubectl("logs", "mounter", check=False)
            assert "condition met" in ended, f"{told}\n{log}"
            # the runtime gives it to the user that the container runs as
            assert re.search(r"(?m)^crw-rw-rw- \d+ driver +65532 +10, +229 .* /dev/fuse$", log), log
        finally:
            made.kubectl("delete", "-f", str(manifest), check=False)
