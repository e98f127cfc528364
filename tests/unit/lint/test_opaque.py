"""Opaque configuration, checked by the driver's own models."""

from __future__ import annotations

import pytest

from dra_kit.author.config.decoding import ConfigDecoder
from dra_kit.author.config.opaque import OpaqueConfig
from dra_kit.lint.surroundings import Surroundings
from tests.unit.lint.texts import DRIVER, GPUS, advertised, claim, found, rules, underlined


class GpuConfig(OpaqueConfig, api_version="gpu.example.com/v1"):
    sharing: dict[str, int] = {}
    exclusive: bool = False


CONFIGS = Surroundings(configs={DRIVER: ConfigDecoder([GpuConfig])})


def config(parameters: str, *, driver: str = DRIVER, kind: str = "ResourceClaim") -> str:
    head = "apiVersion: gpu.example.com/v1, kind: GpuConfig"
    extra = f"config:\n- opaque:\n    driver: {driver}\n    parameters: {{{head}, {parameters}}}"
    return claim(extra=extra, kind=kind)


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
def test_what_the_driver_would_refuse_is_an_error_at_its_place(kind: str) -> None:
    (finding,) = found(config("exclusiv: true", kind=kind), CONFIGS)
    assert (finding.rule, underlined(finding)) == ("opaque-config", "exclusiv")
    assert 'exclusiv: unknown field; did you mean "exclusive"?' in finding.message
    assert rules(config("exclusive: true", kind=kind), CONFIGS) == []


def test_each_problem_is_told() -> None:
    findings = found(config("exclusive: 1, sharing: {a: x}"), CONFIGS)
    assert sorted(underlined(finding) for finding in findings) == ["1", "x"]


def test_parameters_that_are_no_object_are_told_once() -> None:
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


def test_configuration_for_other_drivers_is_theirs() -> None:
    assert rules(config("anything: 1", driver="nic.acme.org"), CONFIGS) == []


def test_configuration_for_a_misspelt_driver_is_told() -> None:
    (finding,) = found(config("exclusive: true", driver="gpu.exmaple.com"), advertised(GPUS))
    assert (finding.rule, finding.help) == ("unknown-driver", f'did you mean "{DRIVER}"?')
