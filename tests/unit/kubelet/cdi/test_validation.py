from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from dra_kit.kubelet.cdi.spec import (
    CDIDevice,
    DeviceNode,
    Hook,
    IntelRdt,
    Mount,
    NetDevice,
    Spec,
    SpecEdits,
    build_spec,
    load_errors,
    validate_spec,
)
from tests.unit.kubelet.cdi import strategies
from tests.unit.kubelet.cdi.recorded import recorded

SOME = SpecEdits(env=("A=1",))


def node(**fields: Any) -> SpecEdits:
    return SpecEdits(device_nodes=(DeviceNode(**{"path": "/dev/x", **fields}),))


def hook(**fields: Any) -> SpecEdits:
    return SpecEdits(hooks=(Hook(**{"hook_name": "prestart", "path": "/h", **fields}),))


def mount(**fields: Any) -> SpecEdits:
    return SpecEdits(mounts=(Mount(**{"host_path": "/h", "container_path": "/c", **fields}),))


def net(*pairs: tuple[str, str]) -> SpecEdits:
    return SpecEdits(net_devices=tuple(NetDevice(host_interface_name=host, name=name) for host, name in pairs))


@given(strategies.valid_specs)
def test_a_good_spec_has_no_problems(spec: Spec) -> None:
    assert validate_spec(spec) == []


@pytest.mark.parametrize(
    ("edits", "path", "value", "refused"),
    [
        (SpecEdits(env=("A=1", "B")), "env[1]", "NAME=value", True),
        (SpecEdits(env=("=x",)), "env[0]", "NAME=value", True),
        (SpecEdits(env=("A=x\0y",)), "env[0]", "NUL", False),
        (node(path=""), "deviceNodes[0].path", "empty", True),
        (node(path="dev/x"), "deviceNodes[0].path", "'dev/x'", False),
        (node(host_path="x"), "deviceNodes[0].hostPath", "'x'", False),
        (node(type="char"), "deviceNodes[0].type", "'char'", True),
        (node(permissions="rwx"), "deviceNodes[0].permissions", "'rwx'", True),
        (node(major=-1), "deviceNodes[0].major", "-1", False),
        (node(minor=2**63), "deviceNodes[0].minor", str(2**63), True),
        (node(file_mode=0o10000), "deviceNodes[0].fileMode", "4096", False),
        (node(file_mode=-1), "deviceNodes[0].fileMode", "-1", True),
        (node(uid=2**32), "deviceNodes[0].uid", str(2**32), True),
        (node(gid=-5), "deviceNodes[0].gid", "-5", True),
        (hook(hook_name="stop"), "hooks[0].hookName", "'stop'", True),
        (hook(path=""), "hooks[0].path", "empty", True),
        (hook(path="h"), "hooks[0].path", "'h'", False),
        (hook(env=("X",)), "hooks[0].env[0]", "NAME=value", True),
        (hook(args=("a", "\0")), "hooks[0].args[1]", "NUL", False),
        (hook(timeout=0), "hooks[0].timeout", "0", False),
        (hook(timeout=2**63), "hooks[0].timeout", str(2**63), True),
        (mount(host_path=""), "mounts[0].hostPath", "empty", True),
        (mount(host_path="h"), "mounts[0].hostPath", "'h'", False),
        (mount(host_path="h", type="xfs", options=("bind",)), "mounts[0].hostPath", "'h'", False),
        (mount(container_path="c"), "mounts[0].containerPath", "'c'", False),
        (mount(options=("a\0",)), "mounts[0].options[0]", "NUL", False),
        (SpecEdits(intel_rdt=IntelRdt(clos_id="a/b")), "intelRdt.closID", "'a/b'", True),
        (SpecEdits(additional_gids=(1, -1)), "additionalGids[1]", "-1", True),
        (net(("", "b")), "netDevices[0].hostInterfaceName", "empty", True),
        (net(("a", "b"), ("a", "c")), "netDevices[1].hostInterfaceName", "'a'", True),
        (net(("a", "c"), ("b", "c")), "netDevices[1].name", "'c'", True),
        (net(("a", "n" * 16)), "netDevices[0].name", "15 bytes", False),
    ],
)
def test_a_broken_edit_is_named_by_path_and_rule(edits: SpecEdits, path: str, value: str, refused: bool) -> None:
    """``refused`` is what the Go library does with such a file; the recorded verdicts confirm it."""
    in_device = build_spec("v/c", (CDIDevice(name="x", container_edits=edits),))
    in_spec = build_spec("v/c", (CDIDevice(name="x", container_edits=SOME),), container_edits=edits)
    for spec, prefix in ((in_device, "devices[0].containerEdits."), (in_spec, "containerEdits.")):
        [problem] = validate_spec(spec)
        assert problem.path == prefix + path
        assert value in problem.text
        assert problem.refused is refused
        assert str(problem) == f"{problem.path}: {problem.text}"


def test_other_file_system_types_allow_any_mount_source() -> None:
    spec = build_spec("v/c", (CDIDevice(name="x", container_edits=mount(host_path="tmpfs", type="tmpfs")),))
    assert validate_spec(spec) == []


@pytest.mark.parametrize(
    ("kind", "refused"),
    [
        ("", True),
        ("v", True),
        ("/c", True),
        ("1v/c", True),
        ("v/c/d", True),
        ("v/c-", True),
        ("v_w/c", False),
        (f"v/{'c' * 64}", False),
    ],
)
def test_a_bad_kind_is_named(kind: str, refused: bool) -> None:
    problems = validate_spec(build_spec(kind, (CDIDevice(name="x", container_edits=SOME),)))
    assert {problem.path for problem in problems} == {"kind"}
    assert any(problem.refused for problem in problems) is refused
    assert all(repr(kind) in problem.text for problem in problems)


def test_a_repeated_device_name_names_the_first_one() -> None:
    device = CDIDevice(name="x", container_edits=SOME)
    [problem] = validate_spec(build_spec("v/c", (device, device)))
    assert (problem.path, problem.text) == ("devices[1].name", "'x' is already the name of devices[0]")


def test_a_device_without_edits_is_refused() -> None:
    [problem] = load_errors(build_spec("v/c", (CDIDevice(name="x", container_edits=SpecEdits()),)))
    assert problem.path == "devices[0].containerEdits"


def test_a_spec_without_devices_is_refused() -> None:
    assert [problem.path for problem in load_errors(build_spec("v/c", ()))] == ["devices"]


def test_a_version_that_is_too_low_names_the_field_that_needs_more() -> None:
    spec = build_spec("v/c", (CDIDevice(name="0", container_edits=SOME),)).model_copy(update={"cdi_version": "0.4.0"})
    [problem] = load_errors(spec)
    assert problem.text == "0.4.0 is too old: devices[0].name (a name that starts with a digit) needs 0.5.0"


@pytest.mark.parametrize("key", ["", "-a", "a/b/c", "/a", "a/", "a" * 64, "a_b.c/d"])
def test_a_bad_annotation_key_is_named(key: str) -> None:
    [problem] = validate_spec(build_spec("v/c", (CDIDevice(name="x", container_edits=SOME),), annotations={key: ""}))
    assert problem.path == f"annotations[{key}]"


def test_annotations_have_a_limit() -> None:
    annotations = {"a": "x" * 256 * 1024}
    [problem] = validate_spec(build_spec("v/c", (CDIDevice(name="x", annotations=annotations, container_edits=SOME),)))
    assert problem.path == "devices[0].annotations"


def test_all_problems_are_collected() -> None:
    edits = SpecEdits(env=("A", "B"), mounts=(Mount(host_path="", container_path=""),))
    problems = validate_spec(build_spec("v/c", (CDIDevice(name="-", container_edits=edits),)))
    assert len(problems) == 5


def test_rejected_specs_are_those_of_the_go_library() -> None:
    compared = {True: 0, False: 0}
    for case in recorded("verdicts"):
        try:
            spec = Spec.from_json(case["text"])
        except ValueError:
            continue  # the loader's part
        refused = bool(load_errors(spec))
        assert refused == bool(case["error"]), (case["text"], case["error"])
        compared[refused] += 1
    assert min(compared.values()) > 100


@given(strategies.careless_specs)
def test_any_spec_can_be_judged_and_problems_point_into_it(spec: Spec) -> None:
    roots = ("cdiVersion", "kind", "annotations", "devices", "containerEdits")
    assert all(problem.path.startswith(roots) and problem.text for problem in validate_spec(spec))
