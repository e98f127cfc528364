"""What the chart's values may be, and what is said where they may not."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from dra_kit.admission.policy.manifest import manifest, policy_objects
from dra_kit.author.target import load_driver
from tests.charts.rendering import ALL_ROLES, CHART, DEPLOYED, DRIVER, Helm, Refused

CLASSES = """\
# one of each
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: pizza}
---
# only a comment
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: pizza-vegetarian}
spec:
  selectors:
    - cel: {expression: 'device.attributes["kitchen.pizza.example"].cheese == "{{ not a template }}"'}
"""


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, "driverName is required"),
        ({"driverName": "Kitchen_Pizza"}, "driverName"),
        ({"driverName": "a" * 64}, "driverName"),
        ({**DEPLOYED, "target": ""}, "target is required with an image"),
        ({**DEPLOYED, "image": {"repository": "r"}}, "image.tag or image.digest is required"),
        ({**DEPLOYED, "image": {"repository": "r", "digest": "sha256:1"}}, "digest"),
        ({**DEPLOYED, "node": {"kubeletDir": "var/lib/kubelet"}}, "kubeletDir"),
        ({**DEPLOYED, "node": {"cdiDir": "/etc/cdi/"}}, "cdiDir"),
        ({**DEPLOYED, "node": {"settings": {"hardware-dir": "/x"}}}, "hardware-dir"),
        ({**DEPLOYED, "node": {"settings": {"menu": ["a"]}}}, "menu"),
        ({**DEPLOYED, "node": {"terminationGracePeriodSeconds": 20}}, "terminationGracePeriodSeconds"),
        ({**DEPLOYED, "node": {"livenessProbe": {}}}, "livenessProbe"),
        ({**DEPLOYED, "deviceClasses": [{}]}, "deviceClasses"),
        ({**DEPLOYED, "configPolicy": CLASSES}, "may contain only a ValidatingAdmissionPolicy and its binding"),
        (
            {**DEPLOYED, "deviceClasses": f"{CLASSES}---\nkind: Secret\n"},
            "may contain only DeviceClasses: kind Secret",
        ),
        ({**DEPLOYED, "deviceClasses": f"{CLASSES}---\nkind: [\n"}, "may contain only DeviceClasses: error"),
        ({**DEPLOYED, "logging": {"level": "verbose"}}, "level"),
        ({**DEPLOYED, "webhook": {"certificate": {"caBundle": "LS0tLS1CRUdJTg=="}}}, "caBundle"),
        ({**DEPLOYED, "node": {"networkPolicy": {"ports": []}}}, "ports"),
        ({**DEPLOYED, "nodes": {}}, "nodes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_values_are_refused_by_name(values: dict[str, Any], told: str, helm: Helm) -> None:
    with pytest.raises(Refused, match=told.replace(".", r"\.")):
        helm.render(values)


def test_without_an_image_there_are_only_rights_and_their_limits(helm: Helm) -> None:
    kinds = helm.render({"driverName": DRIVER}).kinds()

    assert kinds == {
        "ServiceAccount",
        "ClusterRole",
        "Lease",
        "Role",
        "RoleBinding",
        "ClusterRoleBinding",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }


def test_device_classes_are_part_of_the_release_as_they_are_given(helm: Helm) -> None:
    rendered = helm.render({**DEPLOYED, "deviceClasses": CLASSES})
    found = [item for item in rendered.objects if item["kind"] == "DeviceClass"]
    assert found == [item for item in yaml.safe_load_all(CLASSES) if item is not None]
    assert "DeviceClass" not in helm.render(DEPLOYED).kinds()


def test_the_policy_of_configs_is_part_of_the_release_as_it_is_given(helm: Helm) -> None:
    made = policy_objects(load_driver(str(CHART.parents[1] / "examples" / "pizza-driver")))
    given = manifest(made, DRIVER)
    rendered = helm.render({**DEPLOYED, "configPolicy": given})
    found = [item for item in rendered.objects if item["metadata"]["name"] == f"opaque-config.{DRIVER}"]
    assert found == list(yaml.safe_load_all(given)) == [made.policy, made.binding]


def test_an_image_by_digest_needs_no_tag(helm: Helm) -> None:
    digest = f"sha256:{'0' * 64}"
    manifests = helm.render({**DEPLOYED, "image": {"repository": "images.example/pizza", "digest": digest}})

    assert manifests.container("node")["image"] == f"images.example/pizza@{digest}"


@pytest.mark.parametrize("role", ["node", "controller", "webhook"])
def test_the_memory_of_every_role_is_limited_and_an_author_says_how(role: str, helm: Helm) -> None:
    def memory(**resources: Any) -> dict[str, str]:
        changed = {**ALL_ROLES, role: {**ALL_ROLES.get(role, {}), "resources": resources}}
        found: dict[str, Any] = helm.render(changed).container(role)["resources"]
        return {kind: amounts["memory"] for kind, amounts in found.items()}

    default = memory()
    assert default.keys() == {"requests", "limits"}
    assert memory(limits={"memory": "2Gi"}) == {**default, "limits": "2Gi"}
    assert memory(limits=None) == {"requests": default["requests"]}
