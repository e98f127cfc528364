from __future__ import annotations

import pytest

from dra_kit.kubernetes.cel.device import AttributeValue, Device
from dra_kit.kubernetes.cel.environment import DeviceEnvironment
from dra_kit.kubernetes.cel.program import compile_selector
from dra_kit.kubernetes.release import KubernetesVersion
from dra_kit.kubernetes.values.quantity import Quantity
from dra_kit.kubernetes.values.semver import Version


def holds(device: Device, expression: str) -> bool:
    return compile_selector(expression).matches(device)


@pytest.mark.parametrize(
    ("value", "expression"),
    [
        (True, "x == true"),
        (3, "x == 3"),
        ("s", 'x == "s"'),
        (Version("1.2.3"), 'x == semver("1.2.3")'),
        ([1, 2], "x == [1, 2]"),
        ([Version("1.2.3")], 'x[0] == semver("1.2.3")'),
        ({"bool": False}, "x == false"),
        ({"int": 7}, "x == 7"),
        ({"string": "s"}, 'x == "s"'),
        ({"version": "1.2.3"}, 'x == semver("1.2.3")'),
        ({"bools": [True]}, "x == [true]"),
        ({"ints": [1]}, "x == [1]"),
        ({"strings": ["a"]}, 'x == ["a"]'),
        ({"versions": ["1.2.3"]}, 'x[0] == semver("1.2.3")'),
    ],
)
def test_attribute_can_be_value_or_api_object(value: AttributeValue, expression: str) -> None:
    device = Device(driver="d", attributes={"x": value})

    assert holds(device, f'cel.bind(x, device.attributes["d"].x, {expression})')


@pytest.mark.parametrize(
    "value", [1.5, None, {}, {"string": "a", "int": 1}, {"float": 1}, [None], 2**63, {"version": "1"}, chr(0xD800)]
)
def test_invalid_attribute_is_rejected(value: object) -> None:
    with pytest.raises(ValueError, match=r"attribute x|semantic version"):
        Device(driver="d", attributes={"x": value})  # type: ignore[dict-item]


def test_version_with_large_number_is_rejected() -> None:
    with pytest.raises(ValueError, match="attribute v: a number of the version is out of range"):
        Device(driver="d", attributes={"v": {"version": f"{2**64}.0.0"}})


@pytest.mark.parametrize("amount", ["8Gi", Quantity("8Gi"), 8 * 2**30])
def test_capacity_accepts_quantity_text_and_int(amount: str | int | Quantity) -> None:
    device = Device(driver="d", capacity={"memory": amount})

    assert holds(device, 'device.capacity["d"].memory == quantity("8192Mi")')


@pytest.mark.parametrize(("release", "is_integer"), [("1.37", False), ("1.38", True)])
def test_quantity_of_19_digits_is_an_integer_since_1_38(release: str, is_integer: bool) -> None:
    version, amount = KubernetesVersion.parse(release), "1000000000000000001"
    device = Device(driver="d", capacity={"memory": amount}, version=version)
    environment = DeviceEnvironment(version=version)

    for quantity in (f'quantity("{amount}")', 'device.capacity["d"].memory'):
        selector = compile_selector(f"{quantity}.isInteger()", environment=environment)
        assert selector.matches(device) is is_integer


def test_names_without_domain_use_driver_domain() -> None:
    device = Device(driver="d", attributes={"x": 1, "other.example.com/x": 2}, capacity={"other.example.com/c": 3})

    assert holds(device, 'device.attributes["d"].x == 1 && device.attributes["other.example.com"].x == 2')
    assert holds(device, 'device.capacity["other.example.com"].c.asInteger() == 3')


def test_device_is_not_shareable_by_default() -> None:
    assert not holds(Device(driver="d"), "device.allowMultipleAllocations")
    assert holds(Device(driver="d", allow_multiple_allocations=True), "device.allowMultipleAllocations")
