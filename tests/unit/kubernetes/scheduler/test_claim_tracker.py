"""Devices held by the scheduler under any order of events."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dra_kit.kubernetes.resource.objects import object_key
from dra_kit.kubernetes.scheduler.assume_cache import ClaimTracker
from dra_kit.kubernetes.scheduler.claims import EXTENDED_CLAIM_ANNOTATION, ExtendedClaim, NotReady
from dra_kit.kubernetes.scheduler.cycle import Placement

Object = dict[str, Any]
DEVICES = ("pizza-0", "pizza-1")
LUNCH = ("default", "lunch")


def allocation(device: str) -> Object:
    return {"devices": {"results": [{"device": device}]}}


def devices_of(document: Mapping[str, Any] | None) -> list[str]:
    return [item["device"] for item in document["devices"]["results"]] if document else []


class Server:
    """Claims in the API server, and events that the informer has not processed yet."""

    def __init__(self) -> None:
        self.claims: dict[tuple[str, str], Object] = {}
        self.told: list[tuple[str, Object]] = []
        self._version = 0

    def create(self, name: str, **metadata: Any) -> Object:
        self._version += 1
        uid = f"uid-{self._version}"
        return self._store({"metadata": {"name": name, "uid": uid, **metadata}}, "ADDED")

    def write(self, claim: Object, **status: Any) -> Object:
        return self._store({**claim, "status": {**claim.get("status", {}), **status}}, "MODIFIED")

    def delete(self, key: tuple[str, str]) -> None:
        self.told.append(("DELETED", self.claims.pop(key)))

    def _store(self, claim: Object, kind: str) -> Object:
        self._version += 1
        stored = copy.deepcopy(claim)
        stored["metadata"]["resourceVersion"] = str(self._version)
        self.claims[object_key(stored)] = stored
        self.told.append((kind, stored))
        return stored


@dataclass
class Attempt:
    """A placement in progress.

    Attributes:
        placement: that was decided.
        device: that its pod is to have.
        claim: its claim, as the placement knows it; None where it is still to be made.
        answer: what the server answered and the placement has not taken yet.
        state: what its last answer was about.
    """

    placement: Placement
    device: str
    claim: Mapping[str, Any] | None
    answer: Object | None = None
    state: Literal["decided", "made", "written"] = "decided"


class Interleavings(RuleBasedStateMachine):
    """Placements, edits of other clients and informer events in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.server = Server()
        self.informer: dict[tuple[str, str], Object] = {}
        self.held: dict[str, Mapping[str, Any]] = {}
        self.tracker = ClaimTracker(self.informer, self._hold)
        self.running: list[Attempt] = []
        self.pods = 0

    def _hold(self, holder: str, document: Mapping[str, Any] | None, _name: str) -> None:
        self.held.pop(holder, None)
        if document is not None:
            self.held[holder] = document

    def _free(self) -> list[str]:
        taken = {device for item in self.held.values() for device in devices_of(item)}
        return [device for device in DEVICES if device not in taken]

    def _pod(self, **spec: Any) -> Object:
        self.pods += 1
        return {"metadata": {"name": "guest", "namespace": "default", "uid": f"pod-{self.pods}"}, "spec": spec}

    def _start(self, attempt: Attempt) -> None:
        self.tracker.begin(attempt.placement)
        self.running.append(attempt)

    # --- decisions

    @precondition(lambda self: self.tracker.claim(LUNCH) is not None)
    @rule()
    def place(self) -> None:
        pod = self._pod(resourceClaims=[{"name": "r", "resourceClaimName": "lunch"}])
        try:
            claim = self.tracker.needed_by(pod)[LUNCH]
        except NotReady:
            return
        known = claim.get("status", {}).get("allocation")
        if known:
            placement = Placement(pod, "node-1", reserve=(claim,))
            self._start(Attempt(placement, devices_of(known)[0], claim))
        elif free := self._free():
            placement = Placement(pod, "node-1", allocations=((claim, allocation(free[0])),))
            self._start(Attempt(placement, free[0], claim))

    @precondition(lambda self: bool(self._free()))
    @rule()
    def place_extended(self) -> None:
        device, pod = self._free()[0], self._pod()
        owner = {"kind": "Pod", "uid": pod["metadata"]["uid"], "controller": True}
        metadata = {"annotations": {EXTENDED_CLAIM_ANNOTATION: "true"}, "ownerReferences": [owner]}
        document = {"metadata": {"namespace": "default", **metadata}}
        extended = ExtendedClaim(document, (), frozenset())
        placement = Placement(pod, "node-1", allocations=((document, allocation(device)),), extended=extended)
        self._start(Attempt(placement, device, None))

    # --- writes of placements; each waits for one response at a time

    @precondition(lambda self: bool(self.running))
    @rule(data=st.data(), steps=st.integers(1, 4))
    def go_on(self, data: st.DataObject, steps: int) -> None:
        attempt = data.draw(st.sampled_from(self.running))
        for _ in range(steps):
            if attempt in self.running:
                self._step(attempt)

    def _step(self, attempt: Attempt) -> None:
        """Write, or process the response to the last write."""
        if attempt.answer is not None:
            self._take(attempt)
        elif attempt.claim is None:
            assert attempt.placement.extended is not None
            metadata = dict(attempt.placement.extended.document["metadata"])
            attempt.answer = self.server.create(f"of-{attempt.placement.pod['metadata']['uid']}", **metadata)
        elif attempt.state == "written":
            self._end(attempt)
        else:
            self._write(attempt, attempt.claim)

    def _write(self, attempt: Attempt, claim: Mapping[str, Any]) -> None:
        stored = self.server.claims.get(object_key(claim))
        allocates = bool(attempt.placement.allocations)
        if (
            stored is None
            or stored["metadata"]["uid"] != claim["metadata"]["uid"]
            or allocates == bool(stored.get("status", {}).get("allocation"))
        ):
            self._end(attempt)  # another client was faster
        elif allocates:
            attempt.answer = self.server.write(stored, allocation=allocation(attempt.device))
        else:
            attempt.answer = self.server.write(stored, reservedFor=["guest"])

    def _take(self, attempt: Attempt) -> None:
        assert attempt.answer is not None
        if attempt.claim is None:
            self.tracker.made(attempt.placement.pod, attempt.answer)
            attempt.state = "made"
        else:
            self.tracker.written(attempt.placement.pod, attempt.answer)
            attempt.state = "written"
        attempt.claim, attempt.answer = attempt.answer, None

    @precondition(lambda self: bool(self.running))
    @rule(data=st.data(), take_back=st.booleans())
    def fail(self, data: st.DataObject, take_back: bool) -> None:
        attempt = data.draw(st.sampled_from(self.running))
        if attempt.answer is not None:
            self._take(attempt)
        if take_back and attempt.claim is not None:
            key = object_key(attempt.claim)
            stored = self.server.claims.get(key)
            if stored is not None and stored["metadata"]["uid"] == attempt.claim["metadata"]["uid"]:
                if attempt.placement.extended:
                    self.server.delete(key)
                else:
                    answer = self.server.write(stored, reservedFor=[])
                    self.look(data.draw(st.integers(0, 3)), missed=False)
                    self.tracker.written(attempt.placement.pod, answer)
        self._end(attempt)

    def _end(self, attempt: Attempt) -> None:
        self.tracker.end(attempt.placement)
        self.running.remove(attempt)

    # --- other clients

    @precondition(lambda self: LUNCH not in self.server.claims)
    @rule()
    def create(self) -> None:
        self.server.create("lunch", namespace="default")

    @precondition(lambda self: bool(self.server.claims))
    @rule(data=st.data())
    def deallocate(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.server.claims)))
        self.server.write(self.server.claims[key], allocation=None)

    @precondition(lambda self: bool(self.server.claims))
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self.server.delete(data.draw(st.sampled_from(sorted(self.server.claims))))

    @precondition(lambda self: bool(self.server.told))
    @rule(number=st.integers(1, 3), missed=st.booleans())
    def look(self, number: int, missed: bool) -> None:
        for _ in range(min(number, len(self.server.told))):
            self.see(missed)

    def see(self, missed: bool = False) -> None:
        kind, claim = self.server.told.pop(0)
        key = object_key(claim)
        if kind == "DELETED":
            claim = self.informer.pop(key)
        elif missed and kind == "MODIFIED" and key in {object_key(other) for _, other in self.server.told}:
            return  # after a broken watch, a list has only the newest state
        else:
            self.informer[key] = claim
        self.tracker.seen(claim, deleted=kind == "DELETED")

    # --- invariants

    @invariant()
    def held_devices_are_not_free(self) -> None:
        has = [attempt.device for attempt in self.running if attempt.state != "written"]
        for claim in self.server.claims.values():
            has += devices_of(claim.get("status", {}).get("allocation"))

        assert not {*has} & {*self._free()}

    @invariant()
    def no_device_has_two_holders(self) -> None:
        counts = Counter(device for item in self.held.values() for device in devices_of(item))

        assert not [device for device, count in counts.items() if count > 1]

    def teardown(self) -> None:
        for attempt in list(self.running):
            if attempt.answer is not None:
                self._take(attempt)
            self._end(attempt)
        while self.server.told:
            self.see()
        has = {
            claim["metadata"]["uid"]: document
            for claim in self.server.claims.values()
            if (document := claim.get("status", {}).get("allocation"))
        }
        assert self.held == has
        for key in list(self.server.claims):
            self.server.delete(key)
        while self.server.told:
            self.see()
        assert not self.held
        assert self.tracker.claim(LUNCH) is None


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(stateful_step_count=20)


def test_late_response_does_not_replace_newer_state() -> None:
    world = Interleavings()
    world.create()
    world.see()
    world.place()
    (attempt,) = world.running
    world._step(attempt)
    world.server.write(world.server.claims[LUNCH], allocation=None)
    world.look(2, missed=False)
    world._step(attempt)

    assert not world.held


def test_failed_placement_keeps_writes_of_another() -> None:
    world = Interleavings()
    world.create()
    world.see()
    world.place()
    first = world.running[0]
    world._step(first)
    world._step(first)
    world.place()
    answer = world.server.write(world.server.claims[LUNCH], reservedFor=[])
    world.tracker.written(first.placement.pod, answer)
    world._end(first)
    world.server.write(world.server.claims[LUNCH], allocation=None)
    world.look(3, missed=False)

    assert world._free() == ["pizza-1"]
    world._end(world.running[0])
    assert world._free() == ["pizza-0", "pizza-1"]
