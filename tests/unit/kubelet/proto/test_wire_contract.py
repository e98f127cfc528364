"""Full method paths and field numbers are the kubelet's (``k8s.io/kubelet/pkg/apis`` 0.37)."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor

from dra_kit.kubelet.proto import (
    dra_health_v1_pb2,
    dra_health_v1alpha1_pb2,
    dra_v1_pb2,
    dra_v1beta1_pb2,
    pluginregistration_v1_pb2,
)

STRING, BOOL, MESSAGE = FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BOOL, FieldDescriptor.TYPE_MESSAGE
INT64, ENUM = FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_ENUM

# message: field: (number, type, repeated)
Fields = dict[str, tuple[int, int, bool]]

REGISTRATION: dict[str, Fields] = {
    "InfoRequest": {},
    "PluginInfo": {
        "type": (1, STRING, False),
        "name": (2, STRING, False),
        "endpoint": (3, STRING, False),
        "supported_versions": (4, STRING, True),
    },
    "RegistrationStatus": {"plugin_registered": (1, BOOL, False), "error": (2, STRING, False)},
    "RegistrationStatusResponse": {},
}

DRA_V1BETA1: dict[str, Fields] = {
    "Claim": {"namespace": (1, STRING, False), "uid": (2, STRING, False), "name": (3, STRING, False)},
    "NodePrepareResourcesRequest": {"claims": (1, MESSAGE, True)},
    "NodePrepareResourcesResponse": {"claims": (1, MESSAGE, True)},
    "NodePrepareResourceResponse": {"devices": (1, MESSAGE, True), "error": (2, STRING, False)},
    "Device": {
        "request_names": (1, STRING, True),
        "pool_name": (2, STRING, False),
        "device_name": (3, STRING, False),
        "cdi_device_ids": (4, STRING, True),
    },
    "NodeUnprepareResourcesRequest": {"claims": (1, MESSAGE, True)},
    "NodeUnprepareResourcesResponse": {"claims": (1, MESSAGE, True)},
    "NodeUnprepareResourceResponse": {"error": (1, STRING, False)},
}

DRA_V1 = DRA_V1BETA1 | {"Device": DRA_V1BETA1["Device"] | {"share_id": (5, STRING, False)}}

HEALTH: dict[str, Fields] = {
    "NodeWatchResourcesRequest": {},
    "DeviceIdentifier": {"pool_name": (1, STRING, False), "device_name": (2, STRING, False)},
    "DeviceHealth": {
        "device": (1, MESSAGE, False),
        "health": (2, ENUM, False),
        "last_updated_time": (3, INT64, False),
        "health_check_timeout_seconds": (4, INT64, False),
        "message": (5, STRING, False),
    },
    "NodeWatchResourcesResponse": {"devices": (1, MESSAGE, True)},
}


def fields(message: Descriptor) -> Fields:
    return {field.name: (field.number, field.type, field.is_repeated) for field in message.fields}


def methods(file: FileDescriptor) -> set[str]:
    return {
        f"/{service.full_name}/{method.name}({method.input_type.name}) {method.output_type.name}"
        for service in file.services_by_name.values()
        for method in service.methods
    }


@pytest.mark.parametrize(
    ("file", "messages"),
    [
        pytest.param(pluginregistration_v1_pb2.DESCRIPTOR, REGISTRATION, id="registration"),
        pytest.param(dra_v1_pb2.DESCRIPTOR, DRA_V1, id="v1"),
        pytest.param(dra_v1beta1_pb2.DESCRIPTOR, DRA_V1BETA1, id="v1beta1"),
        pytest.param(dra_health_v1_pb2.DESCRIPTOR, HEALTH, id="health v1"),
        pytest.param(dra_health_v1alpha1_pb2.DESCRIPTOR, HEALTH, id="health v1alpha1"),
    ],
)
def test_field_numbers_and_types(file: FileDescriptor, messages: dict[str, Fields]) -> None:
    assert {name: fields(message) for name, message in file.message_types_by_name.items()} == messages


def test_registration_methods() -> None:
    assert methods(pluginregistration_v1_pb2.DESCRIPTOR) == {
        "/pluginregistration.Registration/GetInfo(InfoRequest) PluginInfo",
        "/pluginregistration.Registration/NotifyRegistrationStatus(RegistrationStatus) RegistrationStatusResponse",
    }


@pytest.mark.parametrize(("file", "version"), [(dra_v1_pb2.DESCRIPTOR, "v1"), (dra_v1beta1_pb2.DESCRIPTOR, "v1beta1")])
def test_dra_methods(file: FileDescriptor, version: str) -> None:
    service = f"/k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin"
    assert methods(file) == {
        f"{service}/NodePrepareResources(NodePrepareResourcesRequest) NodePrepareResourcesResponse",
        f"{service}/NodeUnprepareResources(NodeUnprepareResourcesRequest) NodeUnprepareResourcesResponse",
    }


@pytest.mark.parametrize(
    ("file", "version"), [(dra_health_v1_pb2.DESCRIPTOR, "v1"), (dra_health_v1alpha1_pb2.DESCRIPTOR, "v1alpha1")]
)
def test_health(file: FileDescriptor, version: str) -> None:
    service = f"/{version}.DRAResourceHealth"
    assert methods(file) == {f"{service}/NodeWatchResources(NodeWatchResourcesRequest) NodeWatchResourcesResponse"}
    [method] = file.services_by_name["DRAResourceHealth"].methods
    assert (method.client_streaming, method.server_streaming) == (False, True)
    statuses = file.enum_types_by_name["HealthStatus"].values_by_name
    assert {name: value.number for name, value in statuses.items()} == {"UNKNOWN": 0, "HEALTHY": 1, "UNHEALTHY": 2}


def test_share_id_knows_absent_from_empty() -> None:
    assert not dra_v1_pb2.Device().HasField("share_id")
    assert dra_v1_pb2.Device(share_id="").HasField("share_id")


@pytest.mark.parametrize("file", [dra_v1_pb2.DESCRIPTOR, dra_v1beta1_pb2.DESCRIPTOR])
def test_answers_are_maps_by_uid(file: FileDescriptor) -> None:
    for name in ("NodePrepareResourcesResponse", "NodeUnprepareResourcesResponse"):
        entry = file.message_types_by_name[name].fields_by_name["claims"].message_type
        assert entry is not None
        assert entry.GetOptions().map_entry
        assert entry.fields_by_name["key"].type == STRING


def test_claim_on_the_wire() -> None:
    claim = dra_v1_pb2.Claim(namespace="n", uid="u", name="c")

    # field 1, 2 and 3, each a length-delimited string of one byte
    assert claim.SerializeToString() == b"\x0a\x01n\x12\x01u\x1a\x01c"
