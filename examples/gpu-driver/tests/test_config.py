"""The opaque config, by the table of what NVIDIA's driver accepts; what it accepts and fails on later is refused."""

from typing import Any

import dra_kit as dra
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_driver.config.kinds import GpuConfig
from gpu_driver.config.pinned_memory import limits
from gpu_driver.driver import driver
from gpu_driver.settings import Settings

ALL_ON = Settings(time_slicing=True, mps=True, passthrough=True)
TIME_SLICING = {"strategy": "TimeSlicing"}
MPS = {"strategy": "MPS"}


def sliced(**config: object) -> dict[str, Any]:
    return {"sharing": {**TIME_SLICING, "timeSlicingConfig": config}}


def mps(**config: object) -> dict[str, Any]:
    return {"sharing": {**MPS, "mpsConfig": config}}


def decode(kind: str, settings: Settings = ALL_ON, version: str = "resource.nvidia.com/v1beta1", **body: Any) -> Any:
    return driver.configs.with_settings(settings).decode({"apiVersion": version, "kind": kind, **body})


@pytest.mark.parametrize(
    ("body", "interval"),
    [
        ({"sharing": TIME_SLICING}, "Default"),
        (sliced(), "Default"),
        (sliced(interval="Long"), "Long"),
    ],
)
def test_a_time_slice_without_interval_is_the_default(body: dict[str, Any], interval: str) -> None:
    assert decode("GpuConfig", **body).sharing.interval == interval


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("GpuConfig", {}),
        ("GpuConfig", {"sharing": MPS}),
        ("GpuConfig", mps(defaultActiveThreadPercentage=1)),
        ("GpuConfig", mps(defaultPinnedDeviceMemoryLimit="1Mi")),
        ("GpuConfig", mps(multiUser=True)),
        ("MigDeviceConfig", {"sharing": TIME_SLICING}),
        ("MigDeviceConfig", {"sharing": MPS}),
        ("VfioDeviceConfig", {}),
        ("VfioDeviceConfig", {"iommu": {}}),
    ],
)
def test_valid_configs_are_accepted(kind: str, body: dict[str, Any]) -> None:
    assert type(decode(kind, **body)).__name__ == kind


def test_omitted_fields_change_nothing() -> None:
    assert decode("GpuConfig").sharing is None
    assert decode("MigDeviceConfig").sharing is None
    for body in ({}, {"iommu": {}}):
        iommu = decode("VfioDeviceConfig", **body).iommu
        assert (iommu.backend_policy, iommu.enable_api_device) == ("LegacyOnly", False)


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        ("GpuConfig", {"sharring": {}}, "sharring"),
        ("GpuConfig", sliced(intervall="Long"), "intervall"),
        ("GpuConfig", {"Sharing": TIME_SLICING}, "Sharing"),
        ("GpuConfig", {"sharing": {**TIME_SLICING, "time_slicing_config": {}}}, "time_slicing_config"),
        ("GpuConfig", sliced(interval="Huge"), "Medium"),
        ("GpuConfig", {"sharing": {**TIME_SLICING, "mpsConfig": {}}}, "mpsConfig goes with strategy MPS"),
        ("GpuConfig", {"sharing": {**MPS, "timeSlicingConfig": {}}}, "timeSlicingConfig goes with"),
        ("GpuConfig", mps(defaultActiveThreadPercentage=101), "100"),
        ("GpuConfig", mps(defaultActiveThreadPercentage=0), "at least 1"),
        ("GpuConfig", mps(defaultPinnedDeviceMemoryLimit="1k"), "less than 1Mi"),
        ("GpuConfig", mps(defaultPinnedDeviceMemoryLimit="1M"), "less than 1Mi"),
        ("GpuConfig", mps(defaultPinnedDeviceMemoryLimit="0"), "less than 1Mi"),
        ("GpuConfig", mps(defaultPerDevicePinnedMemoryLimit={"x": "1Gi"}), "neither the UUID"),
        *(
            ("GpuConfig", mps(defaultPerDevicePinnedMemoryLimit={key: "1Gi"}), "UUID")
            for key in ("9" * 4000, "00000", "²", "", "GPU-", "GPU-" + "a" * 5000, "GPU-a\nb")
        ),
        *(
            ("GpuConfig", mps(defaultPinnedDeviceMemoryLimit=limit), message)
            for limit, message in (
                ("17Ti", "more than 16Ti"),
                ("1e40", "16Ti"),
                ("1e999999999", "at most 4000 digits"),
                ("-1e3999", "less than 1Mi"),
                (10**30, "16Ti"),
                ("9" * 5000, "digits"),
                ("-1Gi", "less than 1Mi"),
                ("1e-40", "less than 1Mi"),
                (True, "bool"),
            )
        ),
        ("GpuConfig", mps(defaultActiveThreadPercentage=10**30), "64 bits"),
        ("GpuConfig", mps(defaultPerDevicePinnedMemoryLimit={"9" * 5000: "1Gi"}), "more than 4000 digits"),
        ("GpuConfig", {"enforced": "yes"}, "enforced"),
        ("GpuConfig", {"sharing": {}}, "strategy"),
        ("GpuConfig", {"sharing": {"strategy": "Foo"}}, "TimeSlicing"),
        ("MigDeviceConfig", sliced(), "timeSlicingConfig"),
        ("VfioDeviceConfig", {"iommu": {"backendPolicy": "X"}}, "PreferIommuFD"),
    ],
)
def test_invalid_configs_are_rejected_when_applied(kind: str, body: dict[str, Any], message: str) -> None:
    with pytest.raises(dra.InvalidConfig, match=message):
        decode(kind, **body)


@pytest.mark.parametrize(
    ("kind", "body", "gate"),
    [
        ("GpuConfig", {"sharing": TIME_SLICING}, "time_slicing"),
        ("MigDeviceConfig", {"sharing": MPS}, "mps"),
        ("VfioDeviceConfig", {}, "passthrough"),
    ],
)
def test_features_disabled_by_settings_are_rejected_with_the_flag(kind: str, body: dict[str, Any], gate: str) -> None:
    with pytest.raises(dra.InvalidConfig, match=f"--{gate.replace('_', '-')}"):
        decode(kind, ALL_ON.model_copy(update={gate: False}), **body)


def test_an_enforced_config_rejects_only_different_configs() -> None:
    mps, sliced = {"sharing": MPS}, {"sharing": TIME_SLICING}
    enforced = decode("GpuConfig", enforced=True, **mps)
    assert "remove the claim's, write the same" in enforced.refusal_of(decode("GpuConfig", **sliced))
    assert "remove the claim's, write the same" in enforced.refusal_of(decode("GpuConfig"))
    assert enforced.refusal_of(decode("GpuConfig", **mps)) == ""
    assert decode("GpuConfig", **mps).refusal_of(decode("GpuConfig", enforced=True, **sliced)) == ""


@pytest.mark.parametrize("kind", ["GpuConfig", "MigDeviceConfig", "VfioDeviceConfig"])
def test_each_kind_can_be_enforced(kind: str) -> None:
    other = {"iommu": {"enableAPIDevice": True}} if kind == "VfioDeviceConfig" else {"sharing": MPS}
    assert decode(kind, enforced=True).refusal_of(decode(kind, **other))


def test_the_old_config_version_is_upgraded() -> None:
    config = decode("GpuConfiguration", version="gpu.resource.nvidia.com/v1alpha1", sharing=TIME_SLICING)
    assert isinstance(config, GpuConfig)
    assert config.sharing is not None
    assert config.sharing.strategy == "TimeSlicing"


@pytest.mark.parametrize(("limit", "passed"), [("10Gi", "10240M"), ("10G", "9536M"), ("1.5Gi", "1536M"), ("1Mi", "1M")])
def test_a_limit_is_passed_in_whole_mebibytes(limit: str, passed: str) -> None:
    assert limits(["GPU-bbb", "GPU-aaa"], dra.QuantityField(limit), {}) == {"GPU-aaa": passed, "GPU-bbb": passed}


@pytest.mark.parametrize(
    ("key", "device"), [("0", "GPU-aaa"), ("1", "GPU-bbb"), ("01", "GPU-bbb"), ("GPU-bbb", "GPU-bbb")]
)
def test_a_limit_of_one_device_is_found_by_uuid_or_index_into_the_sorted_uuids(key: str, device: str) -> None:
    assert limits(["GPU-bbb", "GPU-aaa"], None, {key: dra.QuantityField("1Gi")}) == {device: "1024M"}


@pytest.mark.parametrize("key", ["2", "-1", "x", "GPU-ccc", "²"])
def test_a_limit_of_an_unknown_device_names_the_known_ones(key: str) -> None:
    with pytest.raises(dra.PermanentError, match="GPU-aaa, GPU-bbb"):
        limits(["GPU-bbb", "GPU-aaa"], None, {key: dra.QuantityField("1Gi")})


@given(
    st.lists(st.uuids().map(lambda uuid: f"GPU-{uuid}"), min_size=1, unique=True),
    st.integers(1, 2**20),
    st.data(),
)
def test_a_limit_by_index_means_the_same_device_as_by_uuid(
    uuids: list[str], mebibytes: int, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(uuids) - 1))
    limit = dra.QuantityField(f"{mebibytes}Mi")
    assert limits(uuids, None, {str(index): limit}) == limits(uuids, None, {sorted(uuids)[index]: limit})
