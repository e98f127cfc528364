from __future__ import annotations

import math
from collections import OrderedDict, UserDict, UserList, deque
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dra_kit as dra
from dra_kit.author.claim import AllocatedDevice

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def refusal(**fields: Any) -> str:
    with pytest.raises(dra.InvalidPrepared) as caught:
        dra.Prepared(**fields)
    error = caught.value
    assert isinstance(error, dra.PermanentError)
    assert isinstance(error, ValueError)
    assert error.code == "invalid-prepared"
    assert "\n" not in str(error)
    return str(error)


def test_everything_is_optional() -> None:
    prepared = dra.Prepared()
    assert (prepared.env, prepared.state, prepared.claim_edits) == ({}, None, None)


def test_every_field_is_accepted() -> None:
    prepared = dra.Prepared(
        env={"GPU": "0"},
        mounts=[dra.Mount(host_path="/run/gpu", container_path="/run/gpu", options=["ro", "bind"])],
        device_nodes=[dra.DeviceNode(path="/dev/gpu0", permissions="rw", file_mode=0o660)],
        hooks=[dra.Hook(hook_name="createContainer", path="/bin/hook", args=["hook"])],
        net_devices=[dra.NetDevice(host_interface_name="eth1", name="net1")],
        additional_gids=[44],
        intel_rdt=dra.IntelRdt(clos_id="gold", schemata=["L3:0=f"], enable_monitoring=True),
        cdi_devices=["vendor.example/gpu=all"],
        claim_edits=dra.ContainerEdits(env={"GPUS": "1"}),
        status=dra.DeviceStatus(
            conditions=[dra.Condition(type="Ready", status="True", reason="Prepared")],
            data={"driver": "1.0"},
            network_data=dra.NetworkDeviceData(interface_name="net1", ips=["192.0.2.1/24"]),
        ),
        metadata=dra.DeviceMetadata(attributes={"uuid": "GPU-0"}),
        state={"uuid": "GPU-0"},
    )
    again = dra.Prepared.model_validate_json(prepared.model_dump_json())
    assert again.model_dump_json() == prepared.model_dump_json()


@pytest.mark.parametrize("name", ["", "A=B", "A\0"])
def test_an_invalid_environment_variable_name_is_rejected(name: str) -> None:
    assert refusal(env={name: "x"}).startswith("Prepared: env: a name that begins with ")


def test_an_environment_variable_value_with_nul_is_rejected() -> None:
    assert (
        refusal(env={"A": "x\0"})
        == "Prepared: env: the value of A contains NUL, which an environment variable cannot hold"
    )


@given(st.text(min_size=1).filter(lambda text: not {"=", "\0"} & {*text}))
def test_an_environment_variable_name_may_be_any_valid_text(name: str) -> None:
    assert dra.Prepared(env={name: "x"}).env == {name: "x"}


@given(st.text().filter(lambda text: "\0" not in text))
def test_an_environment_variable_value_may_be_any_text_without_nul(value: str) -> None:
    assert dra.Prepared(env={"A": value}).env == {"A": value}


@pytest.mark.parametrize(("value", "kind"), [(1, "int"), (True, "bool"), (None, "None"), (b"x", "bytes")])
def test_a_value_that_is_not_a_string_is_reported_by_its_type(value: Any, kind: str) -> None:
    assert refusal(env={"A": value}) == f"Prepared: env[A]: must be a string, not {kind}"


@pytest.mark.parametrize("gid", [True, "44", 4.0])
def test_a_gid_must_be_an_int(gid: Any) -> None:
    assert refusal(additional_gids=[gid]).startswith("Prepared: additional_gids[0]: must be an integer")


def test_an_unknown_argument_is_rejected() -> None:
    assert refusal(envs={}) == "Prepared: envs: no such argument; did you mean 'env'?"


def test_an_invalid_part_is_reported_with_its_class_name() -> None:
    with pytest.raises(dra.InvalidPrepared, match=r"^Hook: hook_name: must be 'prestart', 'createRuntime', "):
        dra.Hook(hook_name="before", path="/bin/hook")  # type: ignore[arg-type]


@pytest.mark.parametrize("sequence", [tuple, UserList, deque])
def test_any_sequence_is_accepted_as_a_list(sequence: Callable[[list[Any]], Any]) -> None:
    mount = dra.Mount(host_path="/a", container_path="/b", options=sequence(["ro"]))
    prepared = dra.Prepared(
        mounts=sequence([mount]), additional_gids=sequence([44]), state=sequence([1, sequence([2])])
    )
    assert list(prepared.mounts) == [mount]
    assert list(mount.options) == ["ro"]
    assert list(prepared.additional_gids) == [44]
    assert prepared.state == [1, [2]]


@pytest.mark.parametrize("mapping", [MappingProxyType, UserDict, OrderedDict])
def test_any_mapping_is_accepted_as_a_dict(mapping: Callable[[dict[str, Any]], Any]) -> None:
    prepared = dra.Prepared(env=mapping({"A": "b"}), state=mapping({"a": mapping({"b": 1})}))
    assert dict(prepared.env) == {"A": "b"}
    assert prepared.state == {"a": {"b": 1}}
    assert dra.DeviceStatus(data=mapping({"a": 1})).data == {"a": 1}


@pytest.mark.parametrize(
    "wrong", [{"additional_gids": ("44",)}, {"env": MappingProxyType({"A": 1})}, {"cdi_devices": "x"}]
)
def test_items_of_sequences_and_mappings_are_strict(wrong: dict[str, Any]) -> None:
    with pytest.raises(dra.InvalidPrepared):
        dra.Prepared(**wrong)


@given(JSON)
def test_the_state_is_stored_unchanged(state: Any) -> None:
    assert dra.Prepared(state=state).state == state


def test_the_state_is_copied() -> None:
    state: Any = {"uuids": ["GPU-0"]}
    prepared = dra.Prepared(state=state)
    state["uuids"].append("GPU-1")
    assert prepared.state == {"uuids": ["GPU-0"]}


@pytest.mark.parametrize("value", [object(), math.nan, math.inf, {1}, b"x", {1: 2}])
def test_a_state_that_is_not_json_is_rejected_with_its_path(value: Any) -> None:
    assert refusal(state={"a": [0, value]}).startswith("Prepared: state: at [a][1]: ")


def test_a_recursive_state_is_rejected() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert refusal(state=endless) == "Prepared: state: it is nested deeper than 100 levels"


@pytest.mark.parametrize(
    ("name", "variable"), [("pizza-0", "PIZZA_0"), ("0000-3b-00-0", "_0000_3B_00_0"), ("gpu", "GPU")]
)
def test_a_device_has_a_name_for_environment_variables(name: str, variable: str) -> None:
    device = AllocatedDevice(
        name=name, pool="node", request="r", config=dra.NoConfig(), advertised=dra.Device(name=name)
    )
    assert device.env_name == variable


@pytest.mark.parametrize(
    ("ids", "rule"),
    [
        ([""], "an id is 1 to 256 printable characters"),
        (["a\n"], "an id is 1 to 256 printable characters"),
        ([" a"], "an id is 1 to 256 printable characters"),
        (["x" * 257], "an id is 1 to 256 printable characters"),
        (["a", "a"], "each id is given once"),
        ([str(number) for number in range(65)], "there are 65 of them, at most 64 tell a device"),
    ],
)
def test_an_invalid_hardware_id_is_rejected(ids: list[str], rule: str) -> None:
    assert refusal(hardware_ids=ids).startswith(f"Prepared: hardware_ids: {rule}")


def test_hardware_ids_may_be_any_printable_text() -> None:
    ids = ["GPU-8f3c2c4e-0000-0000-0000-000000000000", "0000:3b:00.0", "SN 1234"]
    assert list(dra.Prepared(hardware_ids=ids).hardware_ids) == ids


@pytest.mark.parametrize("cpus", ["", "a-b", "3,2", "4-2", "1,,2"])
def test_invalid_list_of_cpus_is_rejected_with_its_value(cpus: str) -> None:
    with pytest.raises(dra.InvalidPrepared, match=f"^ContainerAdjustment: cpus: '{cpus}' is not a list of increasing"):
        dra.ContainerAdjustment(cpus=cpus)
