"""Selectors, checked against known devices."""

from __future__ import annotations

import pytest

from dra_kit.diagnosis.lint.check import check
from dra_kit.diagnosis.lint.devices import LintContext
from dra_kit.diagnosis.selector_mistakes.device_rules import Advertised
from dra_kit.kubernetes.manifests.documents import SourceFile
from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.slice_reader import LazySlice
from tests.unit.diagnosis.lint.texts import (
    DRIVER,
    GPUS,
    GUARD,
    KNOWN,
    WHOLE_CLUSTER,
    A,
    C,
    advertised,
    claim,
    device_class,
    found,
    rules,
    underlined,
)


@pytest.mark.parametrize(
    ("condition", "rule", "where", "help_"),
    [
        (f'{A}.modell == "H200"', "unknown-attribute", "modell", 'did you mean "model"?'),
        (f'{A}.flavour == "x"', "unknown-attribute", "flavour", "they have cores, driverVersion, mig, model"),
        (f'{A}["modell"] == "H200"', "unknown-attribute", '"modell"', 'did you mean "model"?'),
        (f'"modell" in {A}', "unknown-attribute", '"modell"', 'did you mean "model"?'),
        (f"has({A}.modell)", "unknown-attribute", "modell", 'did you mean "model"?'),
        (f"{A}.memory == 1", "unknown-attribute", "memory", f'it is a capacity: write {C}.memory == quantity("1")'),
        (f'{A}.memory >= "80Gi"', "unknown-attribute", "memory", f'write {C}.memory.compareTo(quantity("80Gi")) >= 0'),
        (f'{A}.memory > quantity("80Gi")', "unknown-attribute", "memory", f"{C}.memory.isGreaterThan(quantity("),
        (f'{A}.memory.isLessThan(quantity("80Gi"))', "unknown-attribute", "memory", f"write {C}.memory.isLessThan("),
        (f'{A}["{DRIVER}/model"] == "H200"', "domain-with-name", f'"{DRIVER}/model"', f"write {A}.model"),
        (f'{A}.cores >= quantity("8")', "attribute-type", 'quantity("8")', "devices have 132, 108"),
        (
            f'{A}.model.isGreaterThan(quantity("8"))', "attribute-type", 'quantity("8")',
            'devices have "H200", "A100"',
        ),
        (f'{C}.memry == quantity("1")', "unknown-capacity", "memry", 'did you mean "memory"?'),
        (f'{C}.cores == quantity("1")', "unknown-capacity", "cores", f"it is an attribute: {A}.cores"),
        ('device.attributes["gpu.exmple.com"].mig', "unknown-domain", '"gpu.exmple.com"', f'did you mean "{DRIVER}"?'),
        (f"cel.bind(a, {A}, a.migg)", "unknown-attribute", "migg", 'did you mean "mig"?'),
        (f"{A}.cores == 'many'", "attribute-type", "'many'", "devices have 132, 108"),
        (f'{A}.cores >= "132"', "attribute-type", '"132"', "write it without quotes: 132"),
        (f"{A}.model == 200", "attribute-type", "200", 'write it in quotes: "200"; devices have "H200", "A100"'),
        (f'{A}.driverVersion == "550.1.0"', "attribute-type", '"550.1.0"', f'{A}.driverVersion == semver("550.1.0")'),
        (f'"550.1" == {A}.driverVersion', "attribute-type", '"550.1"', f'{A}.driverVersion == semver("550.1.0")'),
    ],
)  # fmt: skip
def test_names_and_types_are_those_of_the_devices(condition: str, rule: str, where: str, help_: str) -> None:
    (finding,) = found(device_class(f"{GUARD} && {condition}"), KNOWN)
    assert (finding.rule, underlined(finding)) == (rule, where)
    assert help_ in finding.help


@pytest.mark.parametrize(
    "condition",
    [
        f'{A}.model == "H200"',
        f"{A}.cores > 100",
        f"{A}.cores > 100.5",
        f'{A}.?driverVersion.orValue(semver("1.0.0")).isGreaterThan(semver("500.0.0"))',
        f'has({A}.driverVersion) && {A}.driverVersion == semver("550.1.0")',
        f'!("mig" in {A}) || {A}.mig',
        f"{A}.?flavour.hasValue() || {A}.cores == 108",
        f'{C}.memory.compareTo(quantity("80Gi")) >= 0',
    ],
)
def test_selectors_may_use_published_attributes(condition: str) -> None:
    assert rules(device_class(GUARD, condition), KNOWN) == []


@pytest.mark.parametrize(
    ("condition", "rule"),
    [
        (f'{A}.driverVersion > semver("550.0.0")', "version-comparison"),
        (f'{A}.driverVersion > "550.0.0"', "attribute-type"),
        (f'{A}.model > "550.0.0"', "version-as-text"),
    ],
)
def test_a_wrong_comparison_is_reported_once(condition: str, rule: str) -> None:
    text = device_class(f"{GUARD} && has({A}.driverVersion) && {condition}")
    assert rules(text, KNOWN)[0] == rule
    assert [found for found in rules(text, KNOWN) if found != "matches-nothing"] == [rule]


def test_a_remedy_names_the_one_driver_that_is_known() -> None:
    (finding,) = found(device_class('device.attributes["model"] == "H200"'), KNOWN)
    assert finding.help == f"write {A}.model"


def test_a_standard_attribute_in_a_drivers_domain_is_reported_with_its_own_domain() -> None:
    known = advertised([{"attributes": {"resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"}}}])

    (finding,) = found(device_class(f'{GUARD} && {A}.pcieRoot == "pci0000:00"'), known)

    assert (finding.rule, underlined(finding)) == ("unknown-attribute", "pcieRoot")
    assert finding.help == 'write device.attributes["resource.kubernetes.io"].pcieRoot'


def test_a_misspelt_driver_is_reported() -> None:
    (finding,) = found(device_class('device.driver == "gpu.example.org"'), KNOWN)
    assert (finding.rule, finding.help) == ("unknown-driver", f'did you mean "{DRIVER}"?')


def test_other_drivers_are_ignored_unless_the_whole_cluster_is_known() -> None:
    text = device_class('device.driver == "nic.acme.org" && device.attributes["nic.acme.org"].speed > 10')
    assert rules(text, KNOWN) == []
    assert set(rules(text, WHOLE_CLUSTER)) == {"unknown-driver", "unknown-domain"}


@pytest.mark.parametrize(
    ("expressions", "rule"),
    [
        ((f'{GUARD} && device.attributes["gpu.exmple.com"].mig',), "missing-domain"),
        (('device.attributes["gpu.exmple.com"].mig',), "missing-domain"),
        ((f'{GUARD} && device.capacity["gpu.exmple.com"].memory.compareTo(quantity("1")) > 0',), "missing-domain"),
        ((f'{GUARD} && has(device.attributes["gpu.exmple.com"].mig)',), "unknown-domain"),
        ((f'{GUARD} && device.attributes["gpu.exmple.com"].?mig.orValue(false)',), "unknown-domain"),
        ((f'{GUARD} && "mig" in device.attributes["gpu.exmple.com"]',), "unknown-domain"),
        (('device.driver == "gpu.exmple.com" && device.attributes["gpu.exmple.com"].mig',), "unknown-domain"),
    ],
)
def test_a_domain_that_no_device_has_is_an_error_where_reading_it_fails(
    expressions: tuple[str, ...], rule: str
) -> None:
    findings = {one.rule: one for one in found(device_class(*expressions), WHOLE_CLUSTER)}
    finding = findings[rule]
    assert findings.keys() <= {rule, "unknown-driver"}
    assert (finding.level, underlined(finding)) == (
        "error" if rule == "missing-domain" else "warning",
        '"gpu.exmple.com"',
    )
    assert finding.help == f'did you mean "{DRIVER}"?'
    assert rules(device_class(*expressions), KNOWN)[-1] == "unknown-domain"


def test_an_attribute_that_some_devices_lack_is_reported_where_it_is_read() -> None:
    (finding,) = found(device_class(GUARD, f'{A}.model != "x" && {A}.mig'), KNOWN)
    assert (finding.rule, underlined(finding)) == ("optional-attribute", f"{A}.mig")
    assert "missing on 1 of 2 devices, such as gpu.example.com/node/gpu-0" in finding.message
    assert finding.help == f"check first: has({A}.mig) && …"


def test_a_selector_that_short_circuits_does_not_fail() -> None:
    assert rules(device_class(GUARD, f'{A}.model == "A100"', f"{A}.mig"), KNOWN) == []


def test_another_failure_of_a_selector_is_reported_with_its_reason() -> None:
    (finding,) = found(device_class(GUARD, f"{A}.model"), KNOWN)
    assert finding.rule == "cel-runtime"
    assert "could not be converted to bool" in finding.message


def test_a_class_that_matches_nothing_is_reported_with_the_condition_and_the_values() -> None:
    (finding,) = found(device_class(GUARD, f'{A}.cores > 1 && {A}.model == "H20"'), KNOWN)
    assert (finding.rule, finding.level) == ("matches-nothing", "warning")
    assert underlined(finding) == f'{A}.model == "H20"'
    assert finding.help == 'model is "H200", "A100"; did you mean "H200"?'


def test_conditions_that_exclude_each_other_are_reported() -> None:
    (finding,) = found(device_class(GUARD, f'{A}.cores > 110 && {A}.model == "A100"'), KNOWN)
    assert finding.rule == "matches-nothing"
    assert "all conditions, although some meet each" in finding.message


def test_a_request_is_checked_against_devices_that_pass_its_class() -> None:
    body = f"deviceClassName: gpu\nselectors: [{{cel: {{expression: '{A}.mig'}}}}]"
    only_a100 = device_class(f'{GUARD} && {A}.model == "A100"')
    assert rules(f"{only_a100}---\n{claim(body)}", KNOWN) == []
    every_gpu = device_class(GUARD)
    assert rules(f"{every_gpu}---\n{claim(body)}", KNOWN) == ["optional-attribute"]
    assert rules(claim(body), KNOWN) == []  # the devices of the class are unknown


def test_problems_of_a_class_are_not_reported_for_its_requests() -> None:
    wrong = device_class(f'{GUARD} && {A}.model == "H20"')
    asking = claim(f"deviceClassName: gpu\nselectors: [{{cel: {{expression: '{A}.mig'}}}}]")
    text = f"{wrong}---\n{asking}"
    assert rules(text, KNOWN) == ["matches-nothing"]


@pytest.mark.parametrize(("second", "reported"), [("A100", []), ("B300", ["matches-nothing"] * 2)])
def test_an_unsatisfied_alternative_is_reported_if_no_other_is_satisfied(second: str, reported: list[str]) -> None:
    one, two = (
        f"{{name: {name}, deviceClassName: gpu, selectors: [{{cel: {{expression: '{A}.model == \"{model}\"'}}}}]}}"
        for name, model in (("one", "B200"), ("two", second))
    )
    asking = claim().replace("exactly:", "firstAvailable:").replace("deviceClassName: gpu", f"- {one}\n        - {two}")
    assert rules(f"{device_class(GUARD)}---\n{asking}", KNOWN) == reported


def test_a_class_that_reads_attributes_of_any_driver_is_reported() -> None:
    (finding,) = found(device_class(f'{A}.model == "H200"'))
    assert (finding.rule, finding.level, underlined(finding)) == ("foreign-devices", "warning", f"{A}.model")
    assert finding.help == f'begin with device.driver == "{DRIVER}" &&'


@pytest.mark.parametrize(
    "expressions",
    [
        (f'{GUARD} && {A}.model == "H200"',),
        (GUARD, f'{A}.model == "H200"'),
        (f'has({A}.model) && {A}.model == "H200"',),
        (f'"{DRIVER}" in device.attributes && {A}.model == "H200"',),
        (f'{A}.?model.orValue("") == "H200"',),
    ],
)
def test_a_class_that_checks_for_presence_is_valid(expressions: tuple[str, ...]) -> None:
    assert rules(device_class(*expressions)) == []


def test_a_request_may_rely_on_presence_checks_of_its_class() -> None:
    body = f"deviceClassName: gpu\nselectors: [{{cel: {{expression: '{A}.cores > 1'}}}}]"
    assert rules(f"{device_class(GUARD)}---\n{claim(body)}") == []
    assert rules(f"{device_class()}---\n{claim(body)}") == ["foreign-devices"]


def test_a_constraint_on_an_attribute_that_no_device_has_is_reported() -> None:
    (finding,) = found(claim(extra=f"constraints: [{{matchAttribute: {DRIVER}/modell}}]"), KNOWN)
    assert (finding.rule, finding.help) == ("unknown-attribute", f'did you mean "{DRIVER}/model"?')
    assert rules(claim(extra=f"constraints: [{{matchAttribute: {DRIVER}/model}}]"), KNOWN) == []
    assert rules(claim(extra="constraints: [{matchAttribute: resource.kubernetes.io/pcieRoot}]"), KNOWN) == []


def test_a_constraint_on_a_standard_attribute_in_a_drivers_domain_is_reported() -> None:
    known = advertised([{"attributes": {"resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"}}}])

    (finding,) = found(claim(extra=f"constraints: [{{matchAttribute: {DRIVER}/pcieRoot}}]"), known)

    assert (finding.rule, finding.help) == ("unknown-attribute", "write resource.kubernetes.io/pcieRoot")
    assert finding.fix is not None


def test_an_attribute_of_the_same_domain_and_another_name_is_not_what_a_constraint_means() -> None:
    (finding,) = found(claim(extra=f"constraints: [{{matchAttribute: {DRIVER}/pcieRoot}}]"), KNOWN)
    assert finding.help == f"they have {DRIVER}/cores, {DRIVER}/driverVersion, {DRIVER}/mig, {DRIVER}/model"


def test_devices_of_several_drivers_are_disjoint() -> None:
    nic = v1.Device.model_validate({"name": "nic", "attributes": {"speed": {"int": 100}, f"{DRIVER}/x": {"int": 1}}})
    gpu = v1.Device.model_validate({"name": "gpu", **GPUS[0]})
    slices = [LazySlice.of_pool("nic.acme.org", "p", [nic]), LazySlice.of_pool(DRIVER, "p", [gpu, gpu])]
    known = Advertised(slices, complete=True)
    assert known.total == 3
    assert [number for _, number in known.distinct] == [1, 2]
    assert set(known.names("attributes", DRIVER)) == {"model", "cores", "driverVersion", "x"}
    text = device_class(f"{GUARD} && {A}.cores > 1", 'device.driver == "nic.acme.org"')
    (finding,) = check([SourceFile("f.yaml", text)], LintContext(UNMODIFIED, advertised=known)).findings
    assert finding.rule == "matches-nothing"


@pytest.mark.parametrize("given", ["40", 'quantity("40")'])
def test_a_string_with_a_quantity_is_compared_as_one(given: str) -> None:
    known = advertised([{"attributes": {"memory": {"string": "80Gi"}}}])
    (finding,) = found(device_class(f"{GUARD} && {A}.memory >= {given}"), known)
    right = f'quantity({A}.memory).compareTo(quantity("40")) >= 0'
    assert finding.help == f'write {right}; devices have "80Gi"'
    assert found(device_class(f"{GUARD} && {right}"), known) == []


def test_an_attribute_with_a_field_and_without_domain_is_reported_once() -> None:
    assert rules(device_class('device.attributes["model"].string == "H200"'), WHOLE_CLUSTER) == [
        "attribute-without-domain"
    ]
