"""What the node role implements: the DRA service without gRPC and without API versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from dra_kit.kubernetes.resource.objects import ClaimReference


class PreparedDevice(Struct, frozen=True):
    """One allocated device that is ready for the containers of a claim.

    Args:
        request_names: top-level requests of the claim, without sub-request (``gpu``, never ``gpu/big``): the kubelet
            compares these with what a container asks for. None means every request.
        pool_name: the allocation result's pool.
        device_name: the allocation result's device.
        cdi_device_ids: fully qualified CDI names (``vendor/class=name``).
        share_id: of a device that several claims share (KEP-5075); kubelets that speak v1beta1 never see it.
    """

    request_names: tuple[str, ...]
    pool_name: str
    device_name: str
    cdi_device_ids: tuple[str, ...] = ()
    share_id: str | None = None


class NodeService(Protocol):
    """Prepares and releases claims; called by ``PluginServer`` from its event loop, also concurrently.

    The claims of one call have distinct, non-empty UIDs. A call is cancelled when the kubelet gives up (after 45 s,
    Kubernetes 1.37) or when the grace period of a shutdown ends. An exception, returned for one claim or raised for
    all, reaches the kubelet as text: a ``DraKitError`` word for word, anything else as a bug in dra-kit.
    """

    async def prepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Sequence[PreparedDevice] | Exception]:
        """Make the devices of each claim usable; by claim UID, one entry per claim, in any order.

        The same claim may come again, and must give the same answer.
        """
        ...

    async def unprepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Exception | None]:
        """Release each claim; by claim UID, one entry per claim, None for done.

        A claim that is not known is done.
        """
        ...
