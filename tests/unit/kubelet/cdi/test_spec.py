from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given

from dra_kit.kubelet.cdi.spec import (
    VERSIONS,
    CDIDevice,
    DeviceNode,
    IntelRdt,
    Mount,
    NetDevice,
    Spec,
    SpecEdits,
    build_spec,
    load_errors,
    minimum_version,
    version_requirements,
)
from tests.unit.kubelet.cdi import strategies
from tests.unit.kubelet.cdi.recorded import recorded

SOME = SpecEdits(env=("A=1",))


def spec_with(edits: SpecEdits = SOME, *, name: str = "x", kind: str = "vendor.example/thing") -> Spec:
    return build_spec(kind, (CDIDevice(name=name, container_edits=edits),))


@given(strategies.valid_specs)
def test_json_and_back_is_the_same_spec(spec: Spec) -> None:
    assert Spec.from_json(spec.to_json()) == spec


@given(strategies.valid_specs)
def test_json_does_not_depend_on_the_order_of_annotations(spec: Spec) -> None:
    turned = spec.model_copy(update={"annotations": dict(reversed(list(spec.annotations.items())))})
    assert Spec.model_validate(turned.model_dump()).to_json() == spec.to_json()


@given(strategies.valid_specs)
def test_json_means_the_same_when_read_as_yaml(spec: Spec) -> None:
    text = spec.to_json()
    assert yaml.safe_load(text) == json.loads(text)


def test_unset_fields_are_left_out() -> None:
    spec = spec_with(SpecEdits(device_nodes=(DeviceNode(path="/dev/x", uid=0, file_mode=0),)))
    assert json.loads(spec.to_json()) == {
        "cdiVersion": "0.3.0",
        "kind": "vendor.example/thing",
        "devices": [
            {
                "name": "x",
                "containerEdits": {"deviceNodes": [{"path": "/dev/x", "uid": 0, "fileMode": 0}]},
            }
        ],
    }


@pytest.mark.parametrize(
    "text",
    [
        '{"cdiVersion":"0.3.0","kind":"a/b","devices":[],"extra":1}',
        '{"cdiVersion":"0.3.0","kind":"a/b","kind":"a/b","devices":[]}',
        '{"cdiVersion":"0.3.0","kind":"a/b"}',
        '{"cdiVersion":"0.3.0","kind":"a/b","devices":[{"name":1,"containerEdits":{}}]}',
        '{"cdiVersion":"0.3.0"',
        "",
        b"\xff",
        "[" * 100_000,
    ],
)
def test_invalid_spec_is_rejected(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        Spec.from_json(text)


@pytest.mark.parametrize(
    ("version", "spec"),
    [
        ("0.3.0", spec_with()),
        ("0.3.0", spec_with(SpecEdits(mounts=(Mount(host_path="/a", container_path="/b"),)))),
        ("0.4.0", spec_with(SpecEdits(mounts=(Mount(host_path="/a", container_path="/b", type="none"),)))),
        ("0.5.0", spec_with(SpecEdits(device_nodes=(DeviceNode(path="/dev/a", host_path="/dev/b"),)))),
        ("0.5.0", spec_with(name="0x")),
        ("0.6.0", spec_with(kind="vendor.example/a.b")),
        ("0.6.0", build_spec("v/c", spec_with().devices, annotations={"a": "b"})),
        ("0.7.0", spec_with(SpecEdits(additional_gids=(5,)))),
        ("0.7.0", spec_with(SpecEdits(intel_rdt=IntelRdt()))),
        ("1.1.0", spec_with(SpecEdits(intel_rdt=IntelRdt(enable_monitoring=True)))),
        ("1.1.0", spec_with(SpecEdits(intel_rdt=IntelRdt(schemata=())))),
        ("1.1.0", spec_with(SpecEdits(net_devices=(NetDevice(host_interface_name="a", name="b"),)))),
    ],
)
def test_spec_declares_the_version_that_its_newest_field_requires(version: str, spec: Spec) -> None:
    assert spec.cdi_version == version


def test_edits_of_the_whole_spec_count_for_the_version() -> None:
    spec = build_spec("v/c", spec_with().devices, container_edits=SpecEdits(additional_gids=(5,)))
    assert spec.cdi_version == "0.7.0"


@given(strategies.valid_specs)
def test_the_minimum_version_covers_every_requirement_and_no_lower_one_loads(spec: Spec) -> None:
    minimum = VERSIONS.index(minimum_version(spec))
    assert all(VERSIONS.index(need.version) <= minimum for need in version_requirements(spec))
    loads = [not load_errors(spec.model_copy(update={"cdi_version": version})) for version in VERSIONS]
    assert loads == [index >= minimum for index in range(len(VERSIONS))]


def test_the_minimum_version_is_that_of_the_go_library() -> None:
    compared = 0
    for case in recorded("verdicts"):
        if not case["error"] and case["text"].startswith("{"):
            try:
                spec = Spec.from_json(case["text"])
            except ValueError:
                continue  # YAML in the looks of JSON
            assert minimum_version(spec) == case["min"], case["text"]
            compared += 1
    assert compared > 150
