"""Compares the sandbox with recordings of kube-scheduler and kube-controller-manager."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from dra_kit.kubernetes.release import Release
from dra_kit.sandbox.control_plane import ControlPlane
from tests.golden.kind import Case, Line
from tests.golden.scenario_player import KEYS, Player, comparable, eventually, playing, quiet_seconds
from tests.golden.scenario_summaries import GONE

NAME = "scenarios"

_NUMBERED = re.compile(r"<name:\d+>")
_DEADLINE_SECONDS = 30.0
_CALM_SECONDS = 0.05
_QUIET_SECONDS = 0.25  # to check that nothing happens


def recognises(line: Line) -> bool:
    return {"id", "gates", "phases"} <= line.keys()


def replay(lines: Iterable[Line], release: Release) -> Iterator[Case]:
    """Replay each scenario on a new control plane up to the first phase that differs."""
    for line in lines:
        expected = _expected(line)
        played_on = Release.alpha(release.version) if line["gates"] == "alpha" else Release.of(release.version)
        yield Case(line["id"], expected, partial(_observe, expected, played_on))


def _expected(line: Line) -> Line:
    phases = []
    for phase in line["phases"]:
        stood = _gone_unnumbered(phase["settled"])
        stands = {key: comparable(items) for key, items in stood.items() if key in KEYS and items}
        phases.append(phase | {"settled": stands})
    return line | {"phases": phases}


def _gone_unnumbered(settled: Line) -> Line:
    """Return the result of a phase, without numbers in the names of deleted generated claims."""
    there = {claim["metadata"]["name"] for claim in settled.get("claims", [])}
    text = _NUMBERED.sub(lambda name: name[0] if name[0] in there else GONE, json.dumps(settled))
    stood: Line = json.loads(text)
    return stood


def _observe(expected: Line, release: Release) -> Line:
    return asyncio.run(_Replay(expected, release).run())


class _Replay:
    def __init__(self, expected: Line, release: Release) -> None:
        self._expected = expected
        self._release = release
        self._former: dict[str, str] = {}

    async def run(self) -> Line:
        """Return the scenario with our results."""
        async with ControlPlane(release=self._release) as control_plane:
            client = await control_plane.connect("test")
            async with playing(control_plane.credentials(), client) as player:
                phases: list[Line] = []
                for number, phase in enumerate(self._expected["phases"]):
                    phases.append(await self._phase(player, number, phase))
                    if phases[-1] != phase:
                        break
        return self._expected | {"phases": phases}

    async def _phase(self, player: Player, number: int, phase: Line) -> Line:
        """Return a phase with our answers, once its objects have been as in the recording for a moment.

        If nothing happens in the recording, the moment is longer, to check this. It is as long as in the recording if
        the scheduler tries a pod again by itself: what a change leads to depends on the attempts before it.
        """
        answers = await player.send(number, phase)
        await asyncio.sleep(quiet_seconds(phase) if has_failed_attempt(phase) else 0)
        moment = _QUIET_SECONDS if quiet_seconds(phase) else _CALM_SECONDS
        end = time.monotonic() + _DEADLINE_SECONDS
        while answers == phase["answers"] and time.monotonic() < end:
            await eventually(lambda: player.settled() == phase["settled"], end - time.monotonic())
            await player.calm(moment)
            if player.settled() == phase["settled"]:
                break
        trace = self._fitted(player.traces(), phase["trace"])
        self._former |= {name: states[-1] for name, states in phase["trace"].items()}
        return phase | {"answers": answers, "settled": player.settled(), "trace": trace}

    def _fitted(self, traces: Mapping[str, list[str]], expected: Mapping[str, list[str]]) -> dict[str, Any]:
        """Return for each recorded object the recorded states if ours agree, else ours."""
        fitted = {}
        for name, states in expected.items():
            # the previous state may be observed again
            former = self._former.get(name)
            pair = [traces.get(name, []), states]
            if name.startswith("claim/") and states[-1:] == ["gone"]:
                # the order of a claim's release and its garbage collection is undefined
                pair = [[state.removesuffix(" deleting") for state in items] for items in pair]
            got, wanted = (items[items[:1] == [former] :] for items in pair)
            fitted[name] = states if _is_subsequence(got, wanted) else traces.get(name, [])
        return fitted


def has_failed_attempt(phase: Line) -> bool:
    """Return whether a pod's attempt has failed with an error, after which the scheduler tries it again by itself."""
    conditions = [item for pod in phase["settled"].get("pods", ()) for item in pod["status"].get("conditions", ())]
    return any(condition.get("reason") == "SchedulerError" for condition in conditions)


def _is_subsequence(got: list[str], expected: list[str]) -> bool:
    """Return whether states agree: states may be skipped, but order and last state must be equal."""
    if expected and got[-1:] != expected[-1:]:
        return False
    rest = iter(expected)
    return all(state in rest for state in got)
