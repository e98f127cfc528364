"""Calls the node like the kubelet, with minimal Python code in the measured time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from dra_kit.kubelet.proto import dra_v1_pb2 as pb
from dra_kit.kubelet.proto import dra_v1_pb2_grpc as pb_grpc
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.sandbox.kubelet.plugin_manager import PluginManager

import grpc  # isort: skip - dra_kit.kubelet.proto sets what it must find


class Caller:
    """One blocking connection to the registered driver."""

    def __init__(self, kubelet: PluginManager, driver: str) -> None:
        self._channel = grpc.insecure_channel(f"unix:{kubelet.plugin(driver).endpoint}")
        self._stub = pb_grpc.DRAPluginStub(self._channel)
        grpc.channel_ready_future(self._channel).result(30)

    def prepare(self, claims: Sequence[ClaimReference]) -> float:
        """Prepare claims successfully; return the milliseconds until the answer."""
        request = pb.NodePrepareResourcesRequest(claims=_claims(claims))
        start = time.perf_counter()
        answer = self._stub.NodePrepareResources(request, timeout=60)
        figure = (time.perf_counter() - start) * 1000
        _check({uid: result.error for uid, result in answer.claims.items()}, claims)
        return figure

    def unprepare(self, claims: Sequence[ClaimReference]) -> float:
        """Unprepare claims successfully; return the milliseconds until the answer."""
        request = pb.NodeUnprepareResourcesRequest(claims=_claims(claims))
        start = time.perf_counter()
        answer = self._stub.NodeUnprepareResources(request, timeout=60)
        figure = (time.perf_counter() - start) * 1000
        _check({uid: result.error for uid, result in answer.claims.items()}, claims)
        return figure

    def prepare_at_once(self, claims: Sequence[ClaimReference]) -> float:
        """Send calls of one claim each at the same time; return the milliseconds until all answers."""
        requests = [pb.NodePrepareResourcesRequest(claims=_claims([claim])) for claim in claims]
        start = time.perf_counter()
        calls = [self._stub.NodePrepareResources.future(request, timeout=60) for request in requests]
        answers = [call.result() for call in calls]
        figure = (time.perf_counter() - start) * 1000
        for claim, answer in zip(claims, answers, strict=True):
            _check({uid: result.error for uid, result in answer.claims.items()}, [claim])
        return figure

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


@dataclass
class Figures:
    """Milliseconds of each call, by kind."""

    one: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    released: list[float] = field(default_factory=list)
    hundred: list[float] = field(default_factory=list)
    released_hundred: list[float] = field(default_factory=list)
    twenty: list[float] = field(default_factory=list)


@dataclass
class Side:
    """One driver, its claims, and the durations of its calls.

    The methods of ``ONE_BY_ONE``, each for all parts, and of ``MANY`` leave the claims as the next one expects them.

    Attributes:
        rest: idle seconds before each call of the kubelet, as on a node that is not busy.
    """

    caller: Caller
    claims: Sequence[ClaimReference]
    figures: Figures = field(default_factory=Figures)
    rest: float = 0.0

    def prepare(self, part: slice) -> None:
        self.figures.one += [self._rested().prepare([claim]) for claim in self.claims[part]]

    def prepare_again(self, part: slice) -> None:
        self.figures.again += [self._rested().prepare([claim]) for claim in self.claims[part]]

    def unprepare(self, part: slice) -> None:
        self.figures.released += [self._rested().unprepare([claim]) for claim in self.claims[part]]

    def prepare_all(self) -> None:
        self.figures.hundred.append(self.caller.prepare(self.claims))

    def unprepare_all(self) -> None:
        self.figures.released_hundred.append(self.caller.unprepare(self.claims))

    def prepare_twenty(self) -> None:
        self.figures.twenty.append(self._rested().prepare_at_once(self.claims[:20]))
        self.caller.unprepare(self.claims[:20])

    def _rested(self) -> Caller:
        time.sleep(self.rest)
        return self.caller

    ONE_BY_ONE: ClassVar = (prepare, prepare_again, unprepare)
    MANY: ClassVar = (prepare_all, unprepare_all, *(prepare_twenty,) * 3)  # these differ most from one to the next


def _claims(claims: Sequence[ClaimReference]) -> list[pb.Claim]:
    return [pb.Claim(namespace=claim.namespace, name=claim.name, uid=claim.uid) for claim in claims]


def _check(errors: dict[str, str], claims: Sequence[ClaimReference]) -> None:
    failed = {uid: error for uid, error in errors.items() if error}
    if failed or set(errors) != {claim.uid for claim in claims}:
        raise RuntimeError(f"answered {len(errors)} of {len(claims)} claims, errors: {failed}")
