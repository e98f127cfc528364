"""Claims that were allocated anew since they were prepared."""

from __future__ import annotations

import time
from collections.abc import Callable

from dra_kit.errors import TransientError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.claims.reader import AllocatedClaim
from dra_kit.node.state.records import ClaimRecord
from dra_kit.plugin.kubelet_checkpoint import KubeletCheckpoint


class Reallocated:
    """Keeps what a claim was prepared with, for its containers, when the kubelet asks for it with another allocation.

    A pod that is deleted by force gives its claim up at once, and the next pod gets the same claim with other devices.
    A kubelet that was started again has forgotten that the claim is prepared, and asks for it although containers of
    the first pod may still run (Kubernetes 1.37, ``pkg/kubelet/cm/dra/manager.go``); and since it counts both pods as
    users of the claim, it releases the claim only when both are gone. So its checkpoint is looked at, too: a pod that
    the claim is not reserved for any more, and that is listed there, may have containers.

    Args:
        boot_id: of this boot; nothing runs any more of what was prepared in another one.
        checkpoint: the pods of claims, as the kubelet knows them.
        after: seconds from the first call with another allocation until what was prepared is given up all the same.
        clock: gives seconds that only rise.
    """

    def __init__(
        self,
        boot_id: str,
        checkpoint: KubeletCheckpoint,
        *,
        after: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._boot_id = boot_id
        self._checkpoint = checkpoint
        self._after = after
        self._clock = clock
        self._since: dict[str, tuple[str, float]] = {}

    def check(self, before: ClaimRecord, claim: AllocatedClaim) -> None:
        """Check whether what is recorded of a claim may be released, so that it is prepared as it is allocated now.

        Raises:
            TransientError: a container may still run with it (code ``device-in-use``).
        """
        if before.phase == "releasing" or before.boot_id != self._boot_id:
            return
        allocation, since = self._since.get(before.uid, ("", 0.0))
        if allocation != before.allocation:
            since = self._clock()
            self._since[before.uid] = before.allocation, since
        if self._clock() - since >= self._after and not self._may_run(claim):
            return
        devices = ", ".join(f"{item.pool}/{item.device}" for item in before.devices)
        raise TransientError(
            f"claim {claim.reference} was allocated anew since it was prepared with {devices}, and a container may "
            "still run with that; it is prepared as it is allocated now when the kubelet has released it (delete the "
            "pods that use it), after a reboot, or when this has been so for --orphan-after",
            code="device-in-use",
        )

    def _may_run(self, claim: AllocatedClaim) -> bool:
        """Return whether the kubelet lists a pod of the claim that was there before it was allocated anew."""
        pods = self._checkpoint.pods().get(claim.reference.uid)
        return pods is not None and not (pods and pods <= {item.uid for item in claim.status.reserved_for})

    def forget(self, reference: ClaimReference) -> None:
        """Forget a claim that is released."""
        self._since.pop(reference.uid, None)
