"""Group P: NodePrepareResources."""

from __future__ import annotations

from typing import Final

from dra_kit.conformance.kubelet import shown_answers
from dra_kit.conformance.workbench import CheckFailure, CheckFunction, Workbench
from dra_kit.errors import KubeletError


async def p2(bench: Workbench) -> None:
    """Compare the claims of a call with the entries of its answer."""
    devices = await bench.devices(least=1)
    async with bench.claims(min(2, len(devices), bench.profile.devices or 2)) as claims:
        sent = {item.uid: item.reference.name for item in claims}
        try:
            answers = await bench.kubelet.prepare([item.reference for item in claims])
        except KubeletError as error:
            raise CheckFailure(str(error), *bench.last_output()) from None
        missing = [name for uid, name in sent.items() if uid not in answers]
        extra = [uid for uid in answers if uid not in sent]
        if missing or extra:
            raise CheckFailure(
                f"sent: {', '.join(f'{name} with UID {uid}' for uid, name in sent.items())}",
                *(f"claim {name} has no entry in the answer" for name in missing),
                *(f"the answer has an entry for {uid}, which was not sent" for uid in extra),
            )


async def p3(bench: Workbench) -> None:
    """Repeat a call, in another order of claims."""
    devices = await bench.devices(least=1)
    async with bench.claims(min(2, len(devices), bench.profile.devices or 2)) as claims:
        first = await bench.prepare(*claims)
        for order in (claims, claims[::-1]):
            again = await bench.prepare(*order)
            if again != first:
                raise CheckFailure(f"first: {shown_answers(first)}", f"again: {shown_answers(again)}")


CHECKS: Final[dict[str, CheckFunction]] = {"P2": p2, "P3": p3}
"""The checks of this group."""
