"""Containers that name a claim as a whole, whose requests are configured differently."""

from __future__ import annotations

import pytest

from tests.unit.diagnosis.lint.texts import DRIVER, found, pod, underlined

ENTRY = (
    "{{requests: [{requests}], opaque: {{driver: {driver}, parameters: {{apiVersion: a/v1, kind: A, mode: {mode}}}}}}}"
)
CLASSES = "".join(
    f"""\
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {{name: {mode}}}
spec:
  config: [{{opaque: {{driver: {DRIVER}, parameters: {{apiVersion: a/v1, kind: A, mode: {mode}}}}}}}]
"""
    for mode in ("fast", "slow")
)


def entry(mode: str, *requests: str, driver: str = DRIVER) -> str:
    return ENTRY.format(requests=", ".join(requests), driver=driver, mode=mode)


def files(config: str, use: str, *, one: str = "gpu", two: str = "gpu", classes: str = "") -> str:
    return f"""\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{name: lunch}}
spec:
  devices:
    requests:
    - {{name: one, exactly: {{deviceClassName: {one}}}}}
    - {{name: two, firstAvailable: [{{name: a, deviceClassName: {two}}}, {{name: b, deviceClassName: {two}}}]}}
    config: [{config}]
{classes}---
{pod("[{name: gpu, resourceClaimName: lunch}]", use)}"""


def warned(text: str) -> list[str]:
    return [underlined(finding) for finding in found(text) if finding.rule == "whole-claim"]


def test_a_container_that_names_such_a_claim_gets_what_both_requests_set() -> None:
    text = files(f"{entry('fast', 'one')}, {entry('slow', 'two')}", "[{name: gpu}]")
    [finding] = [finding for finding in found(text) if finding.rule == "whole-claim"]
    assert (finding.level, finding.path) == ("warning", "spec.containers[0].resources.claims[0]")
    assert finding.message.startswith(
        f"the requests one and two of ResourceClaim lunch have different configs for {DRIVER}"
    )
    assert "{name: gpu, request: one}" in finding.help


@pytest.mark.parametrize(
    ("config", "differs"),
    [
        ("", False),
        (entry("fast"), False),
        (f"{entry('fast')}, {entry('slow', 'two')}", True),
        (f"{entry('slow', 'two')}, {entry('fast')}", False),
        (f"{entry('fast', 'one')}, {entry('fast', 'two')}", False),
        (f"{entry('fast', 'one')}, {entry('slow', 'two/b')}", True),
        (entry("fast", "one"), False),
        (f"{entry('fast', 'one')}, {entry('slow', 'two', driver='nic.example.com')}", False),
    ],
)
def test_configurations_of_requests_are_compared_by_the_rules_of_the_api(config: str, *, differs: bool) -> None:
    assert bool(warned(files(config, "[{name: gpu}]"))) == differs


def test_configs_of_classes_count_too() -> None:
    assert warned(files("", "[{name: gpu}]", one="fast", two="slow", classes=CLASSES))
    assert not warned(files("", "[{name: gpu}]", one="fast", two="fast", classes=CLASSES))
    assert not warned(files(entry("fast"), "[{name: gpu}]", one="fast", two="slow", classes=CLASSES))


def test_a_container_that_names_a_request_gets_that_alone() -> None:
    config = f"{entry('fast', 'one')}, {entry('slow', 'two')}"
    assert not warned(files(config, "[{name: gpu, request: one}, {name: gpu, request: two}]"))
