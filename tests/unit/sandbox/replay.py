"""Replays recorded scenarios of a real control plane: requests are sent, and what scheduler and controllers make of
them is compared with what kube-scheduler and kube-controller-manager made of them.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import aiohttp

from tests.unit.sandbox.summaries import Object, Watcher, in_order, settled

DEADLINE = 30.0
_CALM_SECONDS = 0.05
_QUIET_SECONDS = 0.25  # where the recording waited to see that nothing happens
_REFERENCE = re.compile(r"\$\{(\d+)_(\d+)\.([^}]*)\}")


class Replay:
    """One scenario against one server.

    Args:
        url: of the API server.
        watcher: follows the server's objects.
        passed_over: kinds of objects that are not compared.
    """

    def __init__(self, url: str, watcher: Watcher, *, passed_over: Collection[str] = ()) -> None:
        self._url = url
        self._watcher = watcher
        self._compared = [key for key in ("pods", "claims", "rules", "events") if key not in passed_over]
        self._former: dict[str, str] = {}
        self._answers: dict[tuple[int, int], Object] = {}

    async def run(self, scenario: Object) -> None:
        """Run all phases.

        Raises:
            AssertionError: what became of the objects differs.
        """
        async with aiohttp.ClientSession(headers={"User-Agent": "oracle/1"}) as session:
            for number, phase in enumerate(scenario["phases"]):
                self._watcher.begin_phase()
                for step, request in enumerate(phase["do"]):
                    status = await self._send(session, request, (number, step))
                    assert status == phase["answers"][step], f"phase {number}, request {step}: {status}"
                await self._becomes(phase, number)

    async def _send(self, session: aiohttp.ClientSession, request: Object, place: tuple[int, int]) -> int:
        body = request.get("body")
        headers = {"Content-Type": request.get("contentType", "application/json")}
        if request["method"] == "PATCH":
            headers["Content-Type"] = request.get("contentType", "application/merge-patch+json")
        async with session.request(
            request["method"],
            self._url + self._resolved(request["path"]),
            # compact, as recorded: white space in opaque parameters counts
            data=None if body is None else self._resolved(json.dumps(body, separators=(",", ":"))),
            headers=headers,
        ) as answer:
            self._answers[place] = await answer.json()
            return answer.status

    def _resolved(self, text: str) -> str:
        def value(match: re.Match[str]) -> str:
            found: Any = self._answers[int(match[1]), int(match[2])]
            for part in match[3].split("."):
                found = found[int(part) if isinstance(found, list) else part]
            return str(found)

        return _REFERENCE.sub(value, text)

    async def _becomes(self, phase: Mapping[str, Any], number: int) -> None:
        """Wait until everything is as recorded; where that is "nothing happens", it must stay so for a moment."""
        expected = {
            key: in_order([_without_managers(item) for item in phase["settled"].get(key, [])]) for key in self._compared
        }

        def current() -> dict[str, list[Object]]:
            return {key: items for key, items in settled(self._watcher.objects).items() if key in expected}

        await _eventually(lambda: current() == expected)
        await asyncio.sleep(_QUIET_SECONDS if phase["until"].startswith("quiet") else _CALM_SECONDS)
        got = current()
        for key, value in expected.items():
            assert got[key] == value, f"phase {number}, {key}: {got[key]}"
        traces = self._watcher.traces()
        for name, states in phase["trace"].items():
            if f"{name.partition('/')[0]}s" not in self._compared:
                continue
            # the state that it had before may be seen again
            former = self._former.get(name)
            got_states, wanted = (items[items[:1] == [former] :] for items in (traces.get(name, []), states))
            assert _is_subsequence(got_states, wanted), f"phase {number}, {name}: {got_states}"
        self._former |= {name: states[-1] for name, states in phase["trace"].items()}


def _without_managers(item: Object) -> Object:
    """Who wrote which field is not told here, nor are shares numbered."""
    kept = {key: value for key, value in item.items() if key != "managers"}
    renamed: Object = json.loads(re.sub(r"<share:\d+>", "<share>", json.dumps(kept)))
    return renamed


async def _eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while True:
        if condition() or time.monotonic() > end:
            return
        await asyncio.sleep(0.02)


def _is_subsequence(got: list[str], expected: list[str]) -> bool:
    """Steps may be merged; their order may not change, and the last one must be the same."""
    if expected and got[-1:] != expected[-1:]:
        return False
    rest = iter(expected)
    return all(state in rest for state in got)
