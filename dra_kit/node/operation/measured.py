"""The kubelet's calls, counted, timed and traced on their way to the service that answers them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from dra_kit.errors import DraKitError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.plugin.service import NodeService, PreparedDevice
from dra_kit.process.metrics.measures import CALL_SECONDS, Durations, Words
from dra_kit.process.tracing import span

if TYPE_CHECKING:
    from dra_kit.process.metrics.families import Reading

Method: TypeAlias = Literal["prepare", "unprepare"]

_BUG: Final = "internal"


class MeasuredService:
    """Implements :class:`dra_kit.plugin.service.NodeService` by another one.

    Args:
        service: what does the work.
    """

    def __init__(self, service: NodeService) -> None:
        self._service = service
        self._seconds: dict[tuple[Method, str], Durations] = {}
        self._claims: Counter[tuple[Method, str, str]] = Counter()
        self._codes = Words()  # an author may give any

    async def prepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Sequence[PreparedDevice] | Exception]:
        """See :class:`dra_kit.plugin.service.NodeService`."""
        began = time.monotonic()
        with span("NodePrepareResources", claims=len(claims)):
            answer = await self._service.prepare(claims)
        self._count("prepare", began, answer)
        return answer

    async def unprepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Exception | None]:
        """See :class:`dra_kit.plugin.service.NodeService`."""
        began = time.monotonic()
        with span("NodeUnprepareResources", claims=len(claims)):
            answer = await self._service.unprepare(claims)
        self._count("unprepare", began, answer)
        return answer

    def _count(self, method: Method, began: float, answer: Mapping[str, object]) -> None:
        failed = False
        for result in answer.values():
            if isinstance(result, Exception):
                failed = True
                code = result.code if isinstance(result, DraKitError) else _BUG
                self._claims[method, "error", self._codes.of(code)] += 1
            else:
                self._claims[method, "success", ""] += 1
        key: tuple[Method, str] = (method, "error" if failed else "success")
        durations = self._seconds.get(key)
        if durations is None:
            durations = self._seconds[key] = Durations(CALL_SECONDS)
        durations.add(time.monotonic() - began)

    def readings(self) -> Iterator[Reading]:
        """Yield what was counted."""
        from dra_kit.process.metrics.families import KUBELET_CALL_SECONDS, KUBELET_CLAIMS  # when somebody asks

        for key, durations in list(self._seconds.items()):
            yield KUBELET_CALL_SECONDS.of(durations, *key)
        for labels, count in list(self._claims.items()):
            yield KUBELET_CLAIMS.of(count, *labels)
