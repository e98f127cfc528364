"""Opaque configuration, checked by the driver's own models."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dra_kit.author.config import ConfigDecoder, OpaqueConfig
from dra_kit.diagnosis.lint.devices import LintContext
from dra_kit.diagnosis.selector_mistakes.device_rules import Advertised
from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.slice_reader import LazySlice
from tests.unit.diagnosis.lint.texts import (
    DRIVER,
    GPUS,
    GUARD,
    advertised,
    claim,
    device_class,
    found,
    rules,
    underlined,
)


class GpuConfig(OpaqueConfig, api_version="gpu.example.com/v1"):
    sharing: dict[str, int] = {}
    exclusive: bool = False


CONFIGS = LintContext(UNMODIFIED, configs={DRIVER: ConfigDecoder([GpuConfig])})


def config(parameters: str, *, driver: str = DRIVER, kind: str = "ResourceClaim") -> str:
    head = "apiVersion: gpu.example.com/v1, kind: GpuConfig"
    extra = f"config:\n- opaque:\n    driver: {driver}\n    parameters: {{{head}, {parameters}}}"
    return claim(extra=extra, kind=kind)


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
def test_configuration_that_the_driver_rejects_is_an_error_at_its_position(kind: str) -> None:
    (finding,) = found(config("exclusiv: true", kind=kind), CONFIGS)
    assert (finding.rule, underlined(finding)) == ("opaque-config", "exclusiv")
    assert 'exclusiv: unknown field; did you mean "exclusive"?' in finding.message
    assert rules(config("exclusive: true", kind=kind), CONFIGS) == []


def test_each_problem_is_reported() -> None:
    findings = found(config("exclusive: 1, sharing: {a: x}"), CONFIGS)
    assert sorted(underlined(finding) for finding in findings) == ["1", "x"]


@pytest.mark.parametrize(
    "parameters",
    [
        'sharing: {a: "%s"}' % ("9" * 4001),
        r'sharing: {a: "\0"}',
        f"sharing: {{a: {'[' * 101}{']' * 101}}}",
    ],
    ids=["digits", "NUL", "levels"],
)
def test_configuration_that_no_driver_can_read_is_an_error(parameters: str) -> None:
    findings = found(config(parameters), CONFIGS)
    assert [finding.rule for finding in findings] == ["opaque-config"]


def test_parameters_that_are_not_an_object_are_reported_once() -> None:
    text = claim(extra=f"config:\n- opaque: {{driver: {DRIVER}, parameters: foo}}")
    (finding,) = found(text, CONFIGS)
    assert (finding.rule, underlined(finding)) == ("invalid-value", "foo")


def test_a_class_is_checked_too() -> None:
    text = f"""
        apiVersion: resource.k8s.io/v1
        kind: DeviceClass
        metadata: {{name: gpu}}
        spec:
          config:
          - opaque: {{driver: {DRIVER}, parameters: {{kind: GpuConfig}}}}
    """
    (finding,) = found(text, CONFIGS)
    assert "apiVersion: is missing" in finding.message


def test_configuration_for_other_drivers_is_ignored() -> None:
    assert rules(config("anything: 1", driver="nic.acme.org"), CONFIGS) == []


def test_configuration_for_a_misspelt_driver_is_reported() -> None:
    (finding,) = found(config("exclusive: true", driver="gpu.exmaple.com"), advertised(GPUS))
    assert (finding.rule, finding.help) == ("unknown-driver", f'did you mean "{DRIVER}"?')


class PartConfig(OpaqueConfig, api_version="gpu.example.com/v1", for_devices={"kind": "part"}):
    shared: bool = False


class WholeConfig(OpaqueConfig, api_version="gpu.example.com/v1", for_devices={"kind": ["whole", "spare"]}):
    exclusive: bool = False


WHOLE: dict[str, object] = {"attributes": {"kind": {"string": "whole"}}}
PART: dict[str, object] = {"attributes": {f"{DRIVER}/kind": {"string": "part"}}}
BOTH = [WHOLE, PART]


def known(*devices: dict[str, object]) -> LintContext:
    return replace(advertised(devices or BOTH), configs={DRIVER: ConfigDecoder([WholeConfig, PartConfig])})


def class_of(*kinds: str, config: str = "") -> str:
    """A class of some kinds of devices; of all of them without one."""
    which = " || ".join(f'device.attributes["{DRIVER}"].kind == "{kind}"' for kind in kinds)
    made = device_class(f"{GUARD} && ({which})" if kinds else GUARD)
    return f"{made}  config: [{config}]\n" if config else made


def entry(kind: str, requests: str = "") -> str:
    named = f"requests: [{requests}], " if requests else ""
    parameters = f"{{apiVersion: gpu.example.com/v1, kind: {kind}}}"
    return f"{{{named}opaque: {{driver: {DRIVER}, parameters: {parameters}}}}}"


def order(kind: str, *classes: str, requests: str = "gpu", body: str = "deviceClassName: gpu") -> str:
    return "---\n".join([class_of(*classes), claim(body, extra=f"config: [{entry(kind, requests)}]")])


def test_a_config_whose_kind_no_device_of_the_named_request_takes_is_an_error() -> None:
    (finding,) = found(order("PartConfig", "whole"), known())
    assert (finding.rule, finding.level, underlined(finding)) == ("config-for-other-devices", "error", "PartConfig")
    assert finding.message == (
        f"PartConfig is for devices with kind part, but request gpu can get only devices such as {DRIVER}/node/gpu-0"
    )
    assert finding.help == "write WholeConfig, or request other devices"


def test_a_class_with_config_of_a_kind_that_its_devices_do_not_take_is_an_error() -> None:
    (finding,) = found(class_of("part", config=entry("WholeConfig")), known())
    assert finding.message.startswith(
        "WholeConfig is for devices with kind whole or spare, but this class can get only devices"
    )
    assert finding.help == "write PartConfig, or select other devices"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(order("WholeConfig", "whole"), id="it fits"),
        pytest.param(order("PartConfig"), id="some of the devices take it"),
        pytest.param(order("PartConfig", "whole", requests=""), id="it is for all requests, and passed over"),
        pytest.param(order("PartConfig", "spare"), id="no device is known"),
        pytest.param(order("PartConfig", "whole", body="deviceClassName: other"), id="the class is not known"),
        pytest.param(
            order("PartConfig", "whole", body="deviceClassName: gpu\nadminAccess: true"), id="it is given no config"
        ),
    ],
)
def test_a_config_that_may_be_correct_is_not_reported(text: str) -> None:
    assert "config-for-other-devices" not in rules(text, known())


def alternatives(requests: str) -> str:
    """A part, or else a whole one, and a PartConfig for some of that."""
    choices = [f"{{name: {kind}, deviceClassName: {kind}}}" for kind in ("part", "whole")]
    spec = (
        f"requests: [{{name: gpu, firstAvailable: [{', '.join(choices)}]}}], config: [{entry('PartConfig', requests)}]"
    )
    made = [class_of(kind).replace("name: gpu", f"name: {kind}") for kind in ("part", "whole")]
    head = "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: lunch}\n"
    return "---\n".join([*made, f"{head}spec: {{devices: {{{spec}}}}}\n"])


@pytest.mark.parametrize(("requests", "expected"), [("gpu", 1), ("gpu/part", 0), ("gpu/whole", 1), ("", 0)])
def test_every_alternative_of_a_request_must_accept_a_config(requests: str, expected: int) -> None:
    findings = [one for one in found(alternatives(requests), known()) if one.rule == "config-for-other-devices"]
    assert len(findings) == expected
    assert all("request gpu/whole can get only devices" in one.message for one in findings)


def test_the_right_alternative_is_suggested_to_containers_that_name_all() -> None:
    [finding] = [one for one in found(alternatives("gpu"), known()) if one.rule == "config-for-other-devices"]
    assert finding.help == "apply it to gpu/part, write WholeConfig, or request other devices"


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        pytest.param([("PartConfig", "gpu"), ("WholeConfig", "gpu")], 0, id="a stronger one is taken"),
        pytest.param([("PartConfig", "gpu"), ("WholeConfig", "")], 0, id="as is one for all requests"),
        pytest.param([("WholeConfig", "gpu"), ("PartConfig", "gpu")], 1, id="a weaker one is not"),
        pytest.param([("PartConfig", "gpu"), ("WholeConfig", "other")], 1, id="nor one of another request"),
        pytest.param([("PartConfig", "gpu"), ("PartConfig", "gpu")], 2, id="nor one that does not fit either"),
    ],
)
def test_a_config_that_a_later_one_overrides_is_not_reported(configs: list[tuple[str, str]], expected: int) -> None:
    entries = ", ".join(entry(*each) for each in configs)
    text = "---\n".join([class_of("whole"), claim("deviceClassName: gpu", extra=f"config: [{entries}]")])
    assert rules(text, known()).count("config-for-other-devices") == expected
    made = class_of("whole", config=", ".join(entry(kind) for kind, _ in configs))
    fits = [kind for kind, _ in configs][-1] == "WholeConfig"
    assert ("config-for-other-devices" in rules(made, known())) is not fits


def test_a_device_of_another_driver_may_be_what_the_request_gets() -> None:
    both = Advertised(
        [
            LazySlice.of_pool(name, "node", [v1.Device.model_validate({"name": "a", **WHOLE})])
            for name in (DRIVER, "x.org")
        ],
        complete=True,
    )
    anything = device_class("true") + "---\n" + claim(extra=f"config: [{entry('PartConfig', 'gpu')}]")
    assert "config-for-other-devices" not in rules(anything, replace(known(), advertised=both))


class BoundConfig(OpaqueConfig, api_version="gpu.example.com/v1"):
    enforced: bool = False
    share: int = 0

    def refusal_of(self, config: BoundConfig) -> str:
        return "remove it" if self.enforced and config.share != self.share else ""


def bound(fields: str, requests: str = "", body: str = "deviceClassName: gpu") -> str:
    """A claim with a config of one field for a class that has one, too."""
    of_class, of_claim = (
        entry("BoundConfig", named).replace("BoundConfig}", f"BoundConfig, {more}}}")
        for named, more in (("", "enforced: true, share: 1"), (requests, fields))
    )
    return "---\n".join([class_of(config=of_class), claim(body, extra=f"config: [{of_claim}]")])


BOUND = replace(advertised(GPUS), configs={DRIVER: ConfigDecoder([BoundConfig])})


@pytest.mark.parametrize("requests", ["", "gpu"])
def test_a_config_that_replaces_one_that_the_class_enforces_is_an_error(requests: str) -> None:
    [finding] = [one for one in found(bound("share: 2", requests), BOUND) if one.rule == "class-config-replaced"]
    assert finding.level == "error"
    assert finding.message == "BoundConfig cannot replace that of DeviceClass gpu, which request gpu asks for"
    assert finding.help == "remove it"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(bound("share: 1"), id="it is the same"),
        pytest.param(bound("share: 2", "other"), id="it is for another request"),
        pytest.param(bound("share: 2", body="deviceClassName: other"), id="the class is not known"),
        pytest.param(bound("share: 2", body="deviceClassName: gpu\nadminAccess: true"), id="it is not bound"),
    ],
)
def test_a_config_that_the_class_permits_is_not_reported(text: str) -> None:
    assert "class-config-replaced" not in rules(text, BOUND)
