"""What the kubelet is answered at the end of a driver: claims that are prepared stay so until they are released."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from dra_kit.errors import PermanentError, StoreError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.state.records import EffectRecord
from dra_kit.node.state.store import Store
from dra_kit.plugin.service import NodeService, PreparedDevice


def removed_error(claim: ClaimReference, driver: str) -> PermanentError:
    """Return what the kubelet gets for a claim that is not prepared any more."""
    return PermanentError(
        f"claim {claim} is not prepared: driver {driver} is being removed from this node; delete the pod, or install "
        "the driver again",
        code="driver-removed",
    )


class WithoutCode(Struct, frozen=True):
    """What is known of effects where the driver's code is not there to apply them again.

    Attributes:
        is_in_force: whether an effect is, as far as is known.
        title: what people read of an effect.
    """

    is_in_force: Callable[[EffectRecord], bool]
    title: Callable[[EffectRecord], str]


class LastCalls:
    """A :class:`dra_kit.plugin.service.NodeService` that prepares nothing new.

    Args:
        service: that of the node role.
        store: the records.
        driver: the driver's name.
        boot_id: of this boot; what was prepared in another one is not prepared again.
        without_code: the driver's code is not there; None where it is, and prepares again what does not hold any more.
    """

    def __init__(
        self, service: NodeService, store: Store, driver: str, boot_id: str, *, without_code: WithoutCode | None
    ) -> None:
        self._service = service
        self._store = store
        self._driver = driver
        self._boot_id = boot_id
        self._without_code = without_code

    async def prepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Sequence[PreparedDevice] | Exception]:
        """Answer for claims that are prepared; refuse all others."""
        refused = {claim.uid: problem for claim in claims if (problem := self._refusal(claim)) is not None}
        prepared = [claim for claim in claims if claim.uid not in refused]
        return {**refused, **(await self._service.prepare(prepared) if prepared else {})}

    async def unprepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Exception | None]:
        """Release claims as ever."""
        return await self._service.unprepare(claims)

    def _refusal(self, claim: ClaimReference) -> PermanentError | StoreError | None:
        try:
            record, effects = self._store.claim(claim.uid), self._store.effects_of(claim.uid)
        except StoreError as error:  # whether it is prepared is not known
            return error
        if record is None or (record.phase, record.boot_id) != ("prepared", self._boot_id):
            return removed_error(claim, self._driver)
        if self._without_code is None:
            return None
        lost = [item for item in effects if not self._without_code.is_in_force(item)]
        if not (lost or record.outdated):
            return None
        what = f"{', '.join(map(self._without_code.title, lost))} not in force" if lost else "its device is another one"
        return PermanentError(
            f"claim {claim} is not prepared again ({what}): driver {self._driver} is being removed from this node, and "
            "its code is not here; delete the pod, or undertake it with the driver's TARGET, in the driver's image",
            code="no-driver-code",
        )
