"""What the kubelet is answered at the end of a driver: claims that are prepared stay so until they are released."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dra_kit.errors import PermanentError, StoreError
from dra_kit.node.state.store import Store
from dra_kit.plugin.service import NodeService, PreparedDevice
from dra_kit.resource.reference import ClaimReference


class LastCalls:
    """A :class:`dra_kit.plugin.service.NodeService` that prepares nothing new.

    Args:
        service: that of the node role.
        store: the records.
        driver: the driver's name.
        boot_id: of this boot; what was prepared in another one is not prepared again.
    """

    def __init__(self, service: NodeService, store: Store, driver: str, boot_id: str) -> None:
        self._service = service
        self._store = store
        self._driver = driver
        self._boot_id = boot_id

    async def prepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Sequence[PreparedDevice] | Exception]:
        """Answer for claims that are prepared; refuse all others."""
        prepared = [claim for claim in claims if self._is_prepared(claim)]
        answers: dict[str, Sequence[PreparedDevice] | Exception] = {
            claim.uid: PermanentError(
                f"claim {claim} is not prepared: driver {self._driver} is being removed from this node; delete the "
                "pod, or install the driver again",
                code="driver-removed",
            )
            for claim in claims
        }
        if prepared:
            answers |= await self._service.prepare(prepared)
        return answers

    async def unprepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Exception | None]:
        """Release claims as ever."""
        return await self._service.unprepare(claims)

    def _is_prepared(self, claim: ClaimReference) -> bool:
        try:
            record = self._store.claim(claim.uid)
        except StoreError:
            return False
        return record is not None and (record.phase, record.boot_id) == ("prepared", self._boot_id)
