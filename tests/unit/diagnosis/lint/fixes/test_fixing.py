"""The certain fixes of ``--fix``, and mistakes that it does not fix."""

from __future__ import annotations

import textwrap

import pytest

from dra_kit.diagnosis.lint.check import fix_files
from dra_kit.diagnosis.lint.devices import LintContext
from dra_kit.diagnosis.lint.findings import RULES
from dra_kit.kubernetes.manifests.documents import SourceFile
from dra_kit.kubernetes.release import UNMODIFIED
from tests.unit.diagnosis.lint.texts import DRIVER, GUARD, KNOWN, WHOLE_CLUSTER, A, C, claim, device_class, fixed, pod

EXPRESSIONS = [
    (f'{A}.model = "a=b"', f'{A}.model == "a=b"'),
    (f'{A}.model === "H200"', f'{A}.model == "H200"'),
    (f'{A}.model <> "H200"', f'{A}.model != "H200"'),
    (f"{A}.mig and {A}.ecc or {A}.x", f"{A}.mig && {A}.ecc || {A}.x"),
    (f"{A}.mig == True", f"{A}.mig == true"),
    (f"{A}.mig.bool == true", f"{A}.mig == true"),
    (f'device.attributes["{DRIVER}/model"].string == "H200"', f'{A}.model == "H200"'),
    ('attributes["gpu.example.com"].mig', f"{A}.mig"),
    ('driver == "gpu.example.com"', GUARD),
    ('device.attribute["gpu.example.com"].mig', f"{A}.mig"),
    (f'{A}.model.startswith("H")', f'{A}.model.startsWith("H")'),
    (f'{GUARD} && device.attributes["model"] == "H200"', f'{GUARD} && {A}.model == "H200"'),
    (
        "device.driver == 'gpu.example.com' && device.attributes.model == 'H200'",
        "device.driver == 'gpu.example.com' && device.attributes['gpu.example.com'].model == 'H200'",
    ),
    (
        f'{GUARD} && device.capacity["memory"].compareTo(quantity("1Gi")) >= 0',
        f'{GUARD} && {C}.memory.compareTo(quantity("1Gi")) >= 0',
    ),
    ('device.attributes["gpu.example.com/model"] == "H200"', f'{A}.model == "H200"'),
    (f'{C}.memory >= "80Gi"', f'{C}.memory.compareTo(quantity("80Gi")) >= 0'),
    (f'quantity("80Gi") < {C}.memory', f'quantity("80Gi").isLessThan({C}.memory)'),
    (f'{C}.memory.isLessThan("80Gi")', f'{C}.memory.isLessThan(quantity("80Gi"))'),
    (f'{A}.v > semver("1.2.3")', f'{A}.v.isGreaterThan(semver("1.2.3"))'),
    (f'{A}.v.isLessThan("1.2.3")', f'{A}.v.isLessThan(semver("1.2.3"))'),
    (f"{C}.memory.sign() == 1", f"sign({C}.memory) == 1"),
]


@pytest.mark.parametrize(("before", "after"), EXPRESSIONS, ids=range(len(EXPRESSIONS)))
def test_an_expression_is_fixed(before: str, after: str) -> None:
    assert fixed(device_class(before)) == device_class(after)


NOT_SURE = [
    f'{A}.model =~ "H.*"',  # another function altogether
    f"not {A}.mig == {A}.ecc",  # binds otherwise than !
    f'{A}.gpu-model == "H200"',  # gpuModel or gpu_model
    f'device.attributes["model"] == "H200" && {A}.x',  # of which driver
    f'{GUARD} && device.attributes["pcieRoot"] == "x"',  # Kubernetes' own domain, or the driver's
    f'{GUARD} || device.driver == "other.example.com" && device.attributes["model"] == "x"',
    f'{GUARD} || device.attributes["model"] == "x"',
    f'!({GUARD}) && device.attributes["model"] == "x"',
    f"{C}.memory >= 80",  # bytes, or a forgotten unit
    f'{C}.memory >= "80"',
    f'{C}.memory == quantity("16GB")',  # 16G or 16Gi
    f"{C}.memory == quantity(80)",
    f'{A}.v == semver("1.2")',  # 1.2.0, or any of 1.2
    f'{A}.v >= "1.2.3"',  # may be a text
    f'{A}.links.includes("a")',
    f'{A}.model == "H200',
]


@pytest.mark.parametrize("expression", NOT_SURE, ids=range(len(NOT_SURE)))
def test_an_ambiguous_expression_is_not_fixed(expression: str) -> None:
    assert fixed(device_class(expression)) == device_class(expression)


OF_DEVICES = [
    (f'{GUARD} && {A}.modle == "H200"', f'{GUARD} && {A}.model == "H200"'),
    (f'{GUARD} && {A}.memory > quantity("80Gi")', f'{GUARD} && {C}.memory.isGreaterThan(quantity("80Gi"))'),
    (f'{GUARD} && has({A}.mig) && {A}.cores == "132"', f"{GUARD} && has({A}.mig) && {A}.cores == 132"),
    ('device.driver == "gpu.exmaple.com"', GUARD),
    (f'{A}.model == "H200"', f'{GUARD} && {A}.model == "H200"'),
    (f'{A}.model == "H200" || {A}.cores == 108', f'{GUARD} && ({A}.model == "H200" || {A}.cores == 108)'),
    ('device.attributes["model"] == "H200"', f'{GUARD} && {A}.model == "H200"'),
]


@pytest.mark.parametrize(("before", "after"), OF_DEVICES, ids=range(len(OF_DEVICES)))
def test_known_devices_determine_the_fix(before: str, after: str) -> None:
    assert fixed(device_class(before), KNOWN) == device_class(after)


def test_a_class_determines_the_driver_of_a_claim() -> None:
    before = claim('deviceClassName: gpu\nselectors:\n- cel: {expression: \'device.capacity["memory"] >= "1Gi"\'}')
    after = claim(
        "deviceClassName: gpu\nselectors:\n"
        '- cel: {expression: \'device.capacity["gpu.example.com"].memory.compareTo(quantity("1Gi")) >= 0\'}'
    )
    assert fixed(f"{device_class(GUARD)}---\n{before}") == f"{device_class(GUARD)}---\n{after}"


FIELDS = [
    ("deviceClasName: gpu", "deviceClassName: gpu"),
    ('deviceClassName: gpu\ncount: "2"', "deviceClassName: gpu\ncount: 2"),
    ("deviceClassName: gpu\nallocationMode: all", "deviceClassName: gpu\nallocationMode: All"),
    (
        "deviceClassName: gpu\ntolerations: {key: a, operator: exists}",
        "deviceClassName: gpu\ntolerations: [{key: a, operator: Exists}]",
    ),
    ("deviceClassName: 1.10", 'deviceClassName: "1.10"'),
]


@pytest.mark.parametrize(("before", "after"), FIELDS)
def test_a_field_is_fixed(before: str, after: str) -> None:
    assert fixed(claim(before)) == claim(after)


@pytest.mark.parametrize(
    "body",
    [
        "deviceClassName: gpu\ncapacity: {requests: {memory: 16GB}}",  # 16G or 16Gi
        "deviceClassName: gpu\ncount: two",
        "deviceClassName: gpu\ncount: 0",
        "deviceClassName: gpu\ncolour: red",
        "deviceClassName: gpu\ndeviceClasName: gpu-2",  # one of the two
        "deviceClassName: [gpu]",
    ],
)
def test_an_ambiguous_field_is_not_fixed(body: str) -> None:
    assert fixed(claim(body)) == claim(body)


def test_names_in_pods_are_fixed_if_only_one_is_similar() -> None:
    entries = "[{name: gpu, resourceClaimTemplateName: lunch}]"
    before = f"{claim()}---\n{pod(entries, '[{name: gpus, request: gpu}, {name: gpu, request: gpus}]')}"
    entries = "[{name: gpu, resourceClaimName: lunch}]"
    after = f"{claim()}---\n{pod(entries, '[{name: gpu, request: gpu}, {name: gpu, request: gpu}]')}"
    assert fixed(before) == after


def test_a_misplaced_field_moves_once_its_target_has_the_right_name() -> None:
    before = pod("[{name: gpu, resourceClaimName: lunch}]", "[]").replace(
        "    resources:\n      claims: []\n", "    claims: [{name: gpu}]\n    resource:\n      limits: {cpu: 1}\n"
    )
    after = before.replace("    claims: [{name: gpu}]\n", "").replace("resource:", "resources:")
    after = after.replace("cpu: 1}\n", "cpu: 1}\n      claims: [{name: gpu}]\n")
    assert fixed(before) == after


def test_a_template_whose_spec_lacks_a_level_is_fixed_with_its_contents() -> None:
    before = claim('deviceClassName: gpu\ncount: "2"').replace("ResourceClaim", "ResourceClaimTemplate")
    after = claim("deviceClassName: gpu\ncount: 2", kind="ResourceClaimTemplate")
    assert fixed(before) == after


def test_a_name_with_another_number_is_another_name() -> None:
    text = f"{claim()}---\n{pod('[{name: gpu-0, resourceClaimName: lunch}]', '[{name: gpu-1}]')}"
    assert fixed(text) == text


def test_taint_rules_of_old_versions_are_not_fixed() -> None:
    text = textwrap.dedent("""\
        apiVersion: resource.k8s.io/v1beta2
        kind: DeviceTaintRule
        metadata: {name: a}
        spec: {taint: {key: a, effect: NoSchedule}}
    """)
    assert fixed(text) == text


def test_classic_claims_are_not_fixed_but_get_a_suggestion() -> None:
    text = textwrap.dedent("""\
        apiVersion: resource.k8s.io/v1alpha2
        kind: ResourceClaim
        metadata: {name: a}
        spec: {resourceClassName: gpu.example.com}
    """)
    made = fix_files([SourceFile("talk.yaml", text)], LintContext(UNMODIFIED))
    assert made.files[0].text == text
    (finding,) = made.outcome.findings
    assert 'exactly": {"deviceClassName": "gpu.example.com"}' in finding.help


def test_a_helm_template_is_left_unchanged_and_named() -> None:
    text = claim("deviceClasName: '{{ .Values.class }}'")
    made = fix_files([SourceFile("claim.yaml", text, explicit=False)], LintContext(UNMODIFIED))
    assert made.files[0].text == text
    assert made.templates == ["claim.yaml"]
    assert [finding.rule for finding in made.outcome.findings] == ["unknown-field"]


def test_a_file_that_cannot_be_read_completely_is_left_unchanged() -> None:
    text = f"{claim('deviceClasName: gpu')}---\na: [\n"
    assert fixed(text) == text


def test_fixes_are_reported_with_their_positions_and_the_rest_remains() -> None:
    made = fix_files([SourceFile("a.yaml", claim("deviceClasName: gpu\ncount: 0"))], LintContext(UNMODIFIED))
    assert [(finding.rule, finding.line) for finding in made.fixed] == [("unknown-field", 9)]
    assert [finding.rule for finding in made.outcome.findings] == ["zero-count"]


MORE = [
    (claim().replace("ResourceClaim", "Resourceclaim"), LintContext(UNMODIFIED)),
    (claim().replace("io/v1", "io/v1beta2"), LintContext(UNMODIFIED)),
    (claim(extra="constraints: [{matchAttribute: model}]"), KNOWN),
    (device_class('device.attributes["gpu.exmaple.com"].model == "H200"'), KNOWN),
    (device_class('device.attributes["gpu.exmaple.com"].model == "H200"'), WHOLE_CLUSTER),
    (device_class(f'{GUARD} && {C}.memroy.compareTo(quantity("1Gi")) >= 0'), KNOWN),
    (
        f"{device_class(GUARD, name='large')}---\n{claim('deviceClassName: lrage')}",
        LintContext(UNMODIFIED, complete=True),
    ),
]


def test_exactly_the_rules_with_a_documented_fix_have_one() -> None:
    texts = [(device_class(text), LintContext(UNMODIFIED)) for text, _ in EXPRESSIONS]
    texts += [(device_class(text), KNOWN) for text, _ in OF_DEVICES]
    texts += [(claim(text), LintContext(UNMODIFIED)) for text, _ in FIELDS]
    entries = "[{name: gpu, resourceClaimTemplateName: lunch}]"
    texts += [(f"{claim()}---\n{pod(entries, '[{name: gpus, request: gpu}, {name: gpu, request: gpus}]')}", KNOWN)]
    fixed = {
        finding.rule
        for text, known in [*texts, *MORE]
        for finding in fix_files([SourceFile("a.yaml", text)], known).fixed
    }
    assert fixed == {rule.id for rule in RULES.values() if rule.fix}
