"""Between the version-neutral types and the messages of DRA v1 and v1beta1.

v1 is v1beta1 with one more field, so everything is written in v1's messages; v1beta1's are re-read from their bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.plugin.service import PreparedDevice
from dra_kit.proto import dra_v1_pb2 as v1
from dra_kit.proto import dra_v1beta1_pb2 as v1beta1


def claim_refs(
    request: v1.NodePrepareResourcesRequest
    | v1.NodeUnprepareResourcesRequest
    | v1beta1.NodePrepareResourcesRequest
    | v1beta1.NodeUnprepareResourcesRequest,
) -> list[ClaimReference]:
    """Return the claims that a request of either version names, in its order."""
    return [ClaimReference(namespace=claim.namespace, name=claim.name, uid=claim.uid) for claim in request.claims]


def device_message(device: PreparedDevice) -> v1.Device:
    """Return v1's message for one prepared device.

    Raises:
        TypeError, ValueError: a field is no text, or text that UTF-8 cannot hold.
    """
    return v1.Device(
        request_names=device.request_names,
        pool_name=device.pool_name,
        device_name=device.device_name,
        cdi_device_ids=device.cdi_device_ids,
        share_id=device.share_id,
    )


def prepare_response(answers: Mapping[str, Sequence[v1.Device] | str]) -> v1.NodePrepareResourcesResponse:
    """Return v1's answer: by claim UID, prepared devices or the text of an error."""
    response = v1.NodePrepareResourcesResponse()
    for uid, answer in answers.items():
        entry = response.claims[uid]  # reading creates the entry
        if isinstance(answer, str):
            entry.error = answer
        else:
            entry.devices.extend(answer)
    return response


def prepare_response_v1beta1(
    answers: Mapping[str, Sequence[v1.Device] | str],
) -> v1beta1.NodePrepareResourcesResponse:
    """Return v1beta1's answer: the same without share ids, which it has no field for."""
    response = prepare_response(answers)
    for entry in response.claims.values():
        for device in entry.devices:
            device.ClearField("share_id")
    return v1beta1.NodePrepareResourcesResponse.FromString(response.SerializeToString())


def unprepare_response(answers: Mapping[str, str | None]) -> v1.NodeUnprepareResourcesResponse:
    """Return v1's answer: by claim UID, None or the text of an error."""
    response = v1.NodeUnprepareResourcesResponse()
    for uid, error in answers.items():
        response.claims[uid].error = error or ""
    return response


def unprepare_response_v1beta1(answers: Mapping[str, str | None]) -> v1beta1.NodeUnprepareResourcesResponse:
    """Return v1beta1's answer, the same as v1's."""
    return v1beta1.NodeUnprepareResourcesResponse.FromString(unprepare_response(answers).SerializeToString())
