from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.kubernetes.resource.config import base_request, configs_for_driver, configs_for_result
from dra_kit.kubernetes.resource.v1 import DeviceAllocationConfiguration, OpaqueDeviceConfiguration
from dra_kit.kubernetes.values.json import DuplicateKeysObject, loads


def entry(*requests: str, driver: str = "gpu.example.com") -> DeviceAllocationConfiguration:
    opaque = OpaqueDeviceConfiguration(driver=driver, parameters={})
    return DeviceAllocationConfiguration(source="FromClaim", requests=requests, opaque=opaque)


names = st.sampled_from(["gpu", "gpu/big", "gpu/small", "nic", "nic/big", "gp", ""])
drivers = st.sampled_from(["gpu.example.com", "nic.example.com"])
entries = st.builds(
    lambda requests, driver: entry(*requests, driver=driver), st.lists(names, max_size=3), drivers
) | st.just(DeviceAllocationConfiguration(source="FromClass"))


@pytest.mark.parametrize(("request_name", "base"), [("gpu", "gpu"), ("gpu/big", "gpu"), ("gpu/big/x", "gpu"), ("", "")])
def test_base_request(request_name: str, base: str) -> None:
    assert base_request(request_name) == base


def test_entry_without_requests_applies_to_all_results() -> None:
    assert configs_for_result([entry()], "gpu/big") == [entry()]


def test_entry_for_request_applies_to_subrequests() -> None:
    assert configs_for_result([entry("gpu")], "gpu/big") == [entry("gpu")]


@pytest.mark.parametrize("result", ["gpu", "gpu/small", "gpu/bigger", "nic/big"])
def test_entry_for_subrequest_applies_to_it_only(result: str) -> None:
    assert configs_for_result([entry("gpu/big")], result) == []


def test_entry_of_unknown_kind_is_skipped() -> None:
    unknown = DeviceAllocationConfiguration.model_validate({"source": "FromClaim", "structured": {}})

    assert configs_for_result([unknown, entry()], "gpu") == [entry()]


def test_entries_of_other_drivers_are_skipped_for_driver() -> None:
    ours, theirs = entry("gpu"), entry("gpu", driver="nic.example.com")

    assert configs_for_result([theirs, ours], "gpu") == [theirs, ours]
    assert configs_for_driver([theirs, ours], "gpu", "gpu.example.com") == [ours]


@given(st.lists(entries, max_size=8), names)
def test_order_of_entries_is_preserved(config: list[DeviceAllocationConfiguration], request_name: str) -> None:
    positions = {id(e): index for index, e in enumerate(config)}

    selected = [positions[id(e)] for e in configs_for_result(config, request_name)]

    assert selected == sorted(selected)


@given(st.lists(entries, max_size=8), names, drivers)
def test_entries_of_driver_are_independent_of_others(
    config: list[DeviceAllocationConfiguration], request_name: str, driver: str
) -> None:
    ours = [e for e in config if e.opaque is not None and e.opaque.driver == driver]

    assert configs_for_driver(config, request_name, driver) == configs_for_result(ours, request_name)


def test_duplicate_keys_in_parameters_survive_the_models() -> None:
    line = b'{"source": "FromClaim", "opaque": {"driver": "gpu.example.com", "parameters": {"a": 1, "a": 2}}}'

    [config] = configs_for_driver([DeviceAllocationConfiguration.model_validate(loads(line))], "gpu", "gpu.example.com")

    assert config.opaque is not None
    assert isinstance(config.opaque.parameters, DuplicateKeysObject)
