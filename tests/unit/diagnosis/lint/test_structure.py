"""Fields that do not exist, and values of the wrong type."""

from __future__ import annotations

import pytest

from dra_kit.diagnosis.lint.devices import LintContext
from dra_kit.kubernetes.release import Release
from tests.unit.diagnosis.lint.texts import claim, device_class, found, pod, rules, underlined


@pytest.mark.parametrize(
    ("text", "name", "help_"),
    [
        (claim("deviceClassNme: gpu"), "deviceClassNme", 'did you mean "deviceClassName"?'),
        (claim("deviceClassName: gpu\ncuont: 2"), "cuont", 'did you mean "count"?'),
        (claim(extra="konstraints: []"), "konstraints", 'did you mean "constraints"?'),
        (claim("deviceClassName: gpu\nflavour: x"), "flavour", "known here: adminAccess, allocationMode, capacity"),
        (device_class(name="gpu, lables: {a: b}"), "lables", 'did you mean "labels"?'),
    ],
)
def test_an_unknown_field_is_reported_with_a_suggestion(text: str, name: str, help_: str) -> None:
    (finding,) = found(text)
    assert (finding.rule, underlined(finding)) == ("unknown-field", name)
    assert help_ in finding.help


V1BETA1_REQUEST = """\
apiVersion: resource.k8s.io/{version}
kind: ResourceClaim
metadata: {{name: lunch}}
spec:
  devices:
    requests:
    - name: gpu
      deviceClassName: gpu
      count: 2
"""


def test_a_request_of_v1beta1_in_v1_is_reported_as_such() -> None:
    findings = found(V1BETA1_REQUEST.format(version="v1"))
    assert [(finding.rule, finding.help) for finding in findings] == [
        ("unknown-field", "it belongs one level deeper: exactly.deviceClassName"),
        ("unknown-field", "it belongs one level deeper: exactly.count"),
    ]


def test_v1beta1_is_checked_in_its_own_shape() -> None:
    assert rules(V1BETA1_REQUEST.format(version="v1beta1")) == ["deprecated-version"]
    wrong = V1BETA1_REQUEST.format(version="v1beta1").replace("count: 2", "count: 0\n      selectors: [{cel: {}}]")
    assert rules(wrong) == ["deprecated-version", "zero-count", "invalid-value"]


def test_a_device_of_v1beta1_has_its_fields_below_basic() -> None:
    slice_ = """
        apiVersion: resource.k8s.io/{version}
        kind: ResourceSlice
        metadata: {{name: s}}
        spec:
          driver: gpu.example.com
          nodeName: node-1
          pool: {{name: node-1, resourceSliceCount: 1}}
          devices: [{{name: a, basic: {{attributes: {{model: {{text: H200}}}}}}}}]
    """
    beta = [finding.path for finding in found(slice_.format(version="v1beta1")) if finding.rule == "unknown-field"]
    assert beta == ["spec.devices[0].basic.attributes[model].text"]
    (finding,) = [finding for finding in found(slice_.format(version="v1")) if finding.rule == "unknown-field"]
    assert finding.help == "since v1beta2 a device has these fields itself"


@pytest.mark.parametrize(
    ("text", "path", "message", "help_"),
    [
        (claim('deviceClassName: gpu\ncount: "2"'), "exactly.count", "must be a valid integer", "without quotes: 2"),
        (claim("deviceClassName: 5"), "exactly.deviceClassName", "must be a string, not 5", 'in quotes: "5"'),
        (claim("deviceClassName: gpu\nadminAccess: 1"), "exactly.adminAccess", "must be a boolean, not 1", ""),
        (claim("deviceClassName: gpu\nselectors: {cel: {}}"), "exactly.selectors", "must be a list", "begin each item"),
        (claim("deviceClassName: gpu\ncapacity: 8"), "exactly.capacity", "must be an object, not 8", ""),
        (claim(extra="constraints: [x]"), "constraints[0]", 'must be an object, not "x"', ""),
        (device_class(name="no"), "metadata.name", "must be a string, not false", 'in quotes: "no"'),
        (device_class(name="5"), "metadata.name", "must be a string, not 5", 'in quotes: "5"'),
    ],
)
def test_a_value_of_the_wrong_type_is_reported(text: str, path: str, message: str, help_: str) -> None:
    (finding,) = [finding for finding in found(text) if finding.rule == "wrong-type"]
    assert finding.path.endswith(path)
    assert message.replace("a valid integer", "an integer") in finding.message
    assert help_ in finding.help


def test_the_rest_of_an_object_with_a_wrong_type_is_checked() -> None:
    assert rules(claim('deviceClassName: gpu\ncount: "2"\nallocationMode: Al')) == ["wrong-type", "invalid-value"]


def test_an_item_of_the_wrong_type_is_reported_once() -> None:
    assert rules(claim().replace("- name: gpu\n      exactly:\n        deviceClassName: gpu", "- gpu")) == [
        "wrong-type"
    ]
    assert rules(pod("[gpu]", "[]")) == ["wrong-type"]


def test_null_is_treated_as_absent() -> None:
    assert rules(claim("deviceClassName: gpu\nselectors: ~\ncount: null", extra="constraints: null")) == []


def test_the_status_is_ignored() -> None:
    assert rules(claim() + "status: {devices: [{driver: x, anything: 1}], allocation: 7}\n") == []


@pytest.mark.parametrize(
    ("text", "message", "help_"),
    [
        ("apiVersion: v1\nkind: ResourceClaim\n", "v1 has no kind ResourceClaim", "apiVersion: resource.k8s.io/v1"),
        ("apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplat\n", "has no kind", '"ResourceClaimTemplate"'),
        ("apiVersion: resource.k8s.io/v1alpha2\nkind: ResourceClaim\n", "does not serve", "resource.k8s.io/v1"),
        ("apiVersion: resources.k8s.io/v1\nkind: ResourceClaim\n", "has no kind", "apiVersion: resource.k8s.io/v1"),
        ("apiVersion: v1\nkind: ResourceClaims\n", "v1 has no kind", "kind: ResourceClaim"),
        ("kind: ResourceClaim\n", "the object lacks apiVersion", ""),
        ("apiVersion: apps/v1\nkind: deployment\n", "apps/v1 has no kind deployment", 'did you mean "Deployment"?'),
        ("apiVersion: v1\n", "the object lacks kind", ""),
    ],
)
def test_an_object_without_kind_is_reported(text: str, message: str, help_: str) -> None:
    (finding,) = found(text)
    assert finding.rule == "unknown-kind"
    assert message in finding.message
    assert help_ in finding.help


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nkind: ConfigMap\ndata: {a: b}\n",
        "apiVersion: example.com/v1\nkind: ResourceClaim\nspec: 7\n",
        "apiVersion: apps/v1\nkind: ControllerRevision\ndata: nonsense\nspec: nonsense\n",
        "apiVersion: v1\nkind: List\nitems: []\n",
        "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: a}\n",
        "apiVersion: resources.k8s.example/v1\nkind: DeviceClass\n",
    ],
)
def test_objects_of_other_api_groups_are_ignored(text: str) -> None:
    assert rules(text) == []


def old(version: str, kind: str, rest: str) -> str:
    return f"apiVersion: resource.k8s.io/{version}\nkind: {kind}\nmetadata: {{name: lunch}}\n{rest}\n"


@pytest.mark.parametrize(
    ("text", "help_"),
    [
        (
            old("v1alpha2", "ResourceClass", "driverName: gpu.example.com"),
            (
                "write apiVersion: resource.k8s.io/v1, kind: DeviceClass, "
                """spec: {"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]}"""
            ),
        ),
        (
            old("v1alpha2", "ResourceClaim", "spec: {resourceClassName: gpu}"),
            (
                'write apiVersion: resource.k8s.io/v1 and spec: {"devices": {"requests": '
                '[{"name": "device", "exactly": {"deviceClassName": "gpu"}}]}}'
            ),
        ),
        (
            old(
                "v1alpha2",
                "ResourceClaimTemplate",
                "spec: {spec: {resourceClassName: gpu, parametersRef: {kind: Gpu, name: large}}}",
            ),
            (
                'write apiVersion: resource.k8s.io/v1 and spec: {spec: {"devices": {"requests": '
                '[{"name": "device", "exactly": {"deviceClassName": "gpu"}}]}}}; '
                "move the parameters of parametersRef below spec.spec.devices.config[].opaque"
            ),
        ),
        (
            old(
                "v1beta1", "ResourceClaim", "spec: {devices: {requests: [{name: gpu, deviceClassName: gpu, count: 2}]}}"
            ),
            (
                "write apiVersion: resource.k8s.io/v1 and requests: "
                '[{"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": 2}}]'
            ),
        ),
    ],
    ids=["ResourceClass", "classic claim", "classic template with parameters", "v1beta1"],
)
def test_an_old_object_gets_the_text_of_v1_to_write(text: str, help_: str) -> None:
    assert [finding.help for finding in found(text)] == [help_]


def slice_(device: str) -> str:
    return (
        "apiVersion: resource.k8s.io/v1\nkind: ResourceSlice\nmetadata: {name: s}\nspec:\n"
        "  driver: gpu.example.com\n  nodeName: node-1\n  pool: {name: node-1, generation: 1, resourceSliceCount: 1}\n"
        f"  devices: [{{name: a, {device}}}]\n"
    )


REQUEST = "spec.devices.requests[].exactly"


@pytest.mark.parametrize(
    ("text", "help_"),
    [
        (claim(extra="tolerations: []"), f"it belongs deeper: {REQUEST}.tolerations"),
        (claim(extra="selectors: []"), f"it belongs deeper: {REQUEST}.selectors"),
        (claim(extra="deviceclassname: gpu"), f"it belongs deeper: {REQUEST}.deviceClassName"),
        (
            claim("deviceClassName: gpu\nconstraints: [{matchAttribute: a/b}]"),
            "it belongs higher: spec.devices.constraints",
        ),
        (claim("deviceClassName: gpu\nname: x"), "it belongs higher: spec.devices.requests[0].name"),
        (claim("deviceClass: gpu"), f"name the class at {REQUEST}.deviceClassName"),
        (claim(extra="parametersRef: {name: x}"), "write the parameters at spec.devices.config[].opaque.parameters"),
        (claim(extra="resourceClaims: []"), "resourceClaims is a field of a pod: spec.resourceClaims"),
        (claim(extra="nodeSelector: {a: b}"), "nodeSelector is a field of a pod: spec.nodeSelector"),
        (claim().replace("metadata:", "tolerations: []\nmetadata:"), f"it belongs deeper: {REQUEST}.tolerations"),
        (device_class(name="a").replace("spec:", "spec:\n  driverName: d"), "select the driver at spec.selectors[]"),
        (
            device_class(name="a").replace("spec:", "spec:\n  requests: []"),
            "is a field of a ResourceClaim: spec.devices",
        ),
        (slice_("taint: {key: a}"), 'did you mean "taints"?'),
        (slice_("attributes: {model: {value: H200}}"), "write string: H200"),
        (slice_("capacity: {memory: {quantity: 1Gi}}"), 'did you mean "value"?'),
        (claim("deviceClassName: gpu\ncapacity: {memory: 1Gi}"), "it belongs one level deeper: requests.memory"),
        (claim("deviceClassName: gpu\nexpression: 'true'"), "requests[0].exactly.selectors[].cel.expression"),
        (claim(extra="allocationMode: WaitForFirstConsumer"), "remove it: the scheduler allocates a claim"),
        (claim(extra="allocationMode: All"), f"it belongs deeper: {REQUEST}.allocationMode"),
        (pod("[]", "[]") + "  claims: [{name: gpu}]\n", "it belongs deeper: spec.containers[].resources.claims"),
        (pod("[]", "[]") + "  deviceClassName: gpu\n", f"deviceClassName is a field of a ResourceClaim: {REQUEST}."),
        (pod("[{gpu: {resourceClaimName: a}}]", "[]"), "write name: gpu, and its fields beside it"),
        (pod("[{name: gpu, deviceClassName: a}]", "[]"), "a pod names a claim or a template, whose request names"),
        (pod("[{name: gpu, resourceClaim: a}]", "[]"), 'mean "resourceClaimName" or "resourceClaimTemplateName"?'),
        (pod("[]", "[]").replace("    image", "    resourceClaims: []\n    image"), "higher: spec.resourceClaims"),
    ],
)
def test_an_unknown_field_is_placed_by_its_path(text: str, help_: str) -> None:
    (finding,) = [one for one in found(text) if one.rule == "unknown-field"]
    assert help_ in finding.help


def test_a_claim_has_no_spec_in_its_spec() -> None:
    text = claim(kind="ResourceClaimTemplate").replace("kind: ResourceClaimTemplate", "kind: ResourceClaim")
    (finding,) = found(text)
    assert finding.path == "spec.spec"
    assert "its fields belong directly to spec; only a ResourceClaimTemplate has spec.spec" in finding.help


def test_a_template_without_inner_spec_is_placed_one_level_deeper() -> None:
    (finding,) = found(claim().replace("kind: ResourceClaim", "kind: ResourceClaimTemplate"))
    assert (finding.path, finding.help) == ("spec.devices", "it belongs one level deeper: spec.devices")
    assert finding.fix is not None


@pytest.mark.parametrize(
    ("text", "help_"),
    [
        (claim("deviceClassName: {name: gpu}"), "write the value itself: gpu"),
        (claim("deviceClassName: [gpu]"), "write the value itself: gpu"),
        (claim("deviceClassName: gpu\ncount: {int: 1}"), "write the value itself: 1"),
        (claim("deviceClassName: gpu\ncapacity: {requests: {memory: {value: 1Gi}}}"), "write the value itself:"),
        (claim("deviceClassName: gpu\nselectors: ['true']"), "write {cel: {expression: …}}"),
        (claim("deviceClassName: gpu\nselectors: [{cel: 'true'}]"), "write {expression: …}"),
        (claim(extra="config: [{requests: [{name: gpu}], opaque: {driver: d, parameters: {}}}]"), "itself: gpu"),
        (claim(extra="constraints: [{requests: gpu, matchAttribute: a/b}]"), "write [gpu]"),
        (claim("- deviceClassName: gpu"), "write the object without '- '"),
        (pod("[{name: gpu, resourceClaimName: a}]", "{gpu: 1}"), "write the names as items: [{name: gpu}]"),
        (slice_("attributes: {model: H200}"), "write {string: H200}"),
        (slice_("attributes: {cores: 8}"), "write {int: 8}"),
        (slice_("attributes: {mig: true}"), "write {bool: true}"),
        (slice_("attributes: {driverVersion: 1.2.3}"), "write {version:"),
        (slice_("attributes: [{name: model, string: H200}]"), "write each item as <name>: {…}"),
        (slice_("capacity: {memory: 80Gi}"), "write {value:"),
        (slice_("taints: [broken]"), "write {key:"),
        (claim().replace("  devices:\n    requests:\n", "  devices:\n"), "write the list in the field requests"),
    ],
)
def test_a_value_of_another_shape_gets_the_right_one(text: str, help_: str) -> None:
    (finding,) = [one for one in found(text) if one.rule == "wrong-type"]
    assert help_ in finding.help


@pytest.mark.parametrize(
    ("version", "kind", "release"),
    [
        ("v1beta1", "DeviceClass", "1.38"),
        ("v1beta2", "DeviceClass", "1.39"),
        ("v1alpha3", "DeviceTaintRule", "1.39"),
        ("v1beta2", "DeviceTaintRule", "1.42"),
    ],
)
def test_an_old_version_is_served_on_demand_until_its_removal(version: str, kind: str, release: str) -> None:
    (finding,) = [one for one in found(old(version, kind, "spec: {}")) if one.rule == "deprecated-version"]
    group = f"resource.k8s.io/{version}"
    assert f"only with --runtime-config={group}=true, from Kubernetes {release} on not at all" in finding.message


def test_a_kind_whose_only_version_is_off_by_default_is_reported() -> None:
    text = old("v1alpha3", "ResourcePoolStatusRequest", "spec: {driver: gpu.example.com}")
    assert "only with --runtime-config=resource.k8s.io/v1alpha3=true" in found(text)[0].message
    assert rules(text) == ["version-off"]
    assert rules(text, LintContext(release=Release.alpha())) == []
