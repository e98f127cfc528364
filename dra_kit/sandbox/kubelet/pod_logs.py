"""What the kubelet answers to ``kubectl logs``.

Source: ``pkg/kubelet/kubelet_pods.go`` (validateContainerLogStatus) of Kubernetes 1.37, and
``k8s.io/cri-client/pkg/logs``, which reads the log files of container runtimes.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Final

from dra_kit.apiserver.pod_log import PodLogOptions, PodLogUnavailable
from dra_kit.sandbox.containers.log import ContainerLog, LogChunk, LogExcerpt

_STATUSES: Final = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
_WAITS_FOR_IMAGE: Final = {
    "ErrImagePull": "image can't be pulled",
    "ImagePullBackOff": "trying and failing to pull image",
}


def find_log(pod: Mapping[str, Any], name: str, *, previous: bool) -> str:
    """Return the ID of the container whose log is requested.

    Raises:
        PodLogUnavailable: there is none.
    """
    who = f"container {json.dumps(name)} in pod {json.dumps(pod['metadata']['name'])}"
    known = [item for field in _STATUSES for item in pod.get("status", {}).get(field) or () if item["name"] == name]
    if not known:
        raise PodLogUnavailable(f"{who} is not available")
    state, last = known[0].get("state") or {}, (known[0].get("lastState") or {}).get("terminated")
    last_id = (last or {}).get("containerID", "")
    if previous:
        if not last_id:
            raise PodLogUnavailable(f"previous terminated {who} not found")
        return str(last_id)
    if "running" in state:
        return str(known[0].get("containerID", ""))
    if "terminated" in state or last is not None:
        found = state.get("terminated", {}).get("containerID") or last_id
        if not found:
            raise PodLogUnavailable(f"{who} is terminated")
        return str(found)
    if "waiting" not in state:
        raise PodLogUnavailable(f"{who} is waiting to start - no logs yet")
    reason = state["waiting"].get("reason", "")
    raise PodLogUnavailable(f"{who} is waiting to start: {_WAITS_FOR_IMAGE.get(reason, reason)}")


async def log_stream(log: ContainerLog, options: PodLogOptions, now: int) -> AsyncGenerator[bytes, None]:
    """Yield the requested part of a log, until the container has ended or the limit is reached.

    ``now`` is in nanoseconds since 1970.
    """
    since = options.since(now)
    tail = log.begin if options.tail_lines is None else log.tail(options.tail_lines)
    begin = max(tail, log.since(since), key=lambda cursor: cursor.offset)
    lines = _Lines(since, options.timestamps)
    room = options.limit_bytes
    async with aclosing(log.follow(begin, None if options.follow else log.end)) as excerpts:
        async for excerpt in excerpts:
            data = b"".join(lines.of(excerpt))[:room]
            yield data
            if room is not None:
                room -= len(data)
                if not room:
                    return


class _Lines:
    """Excerpts as ``kubectl logs`` prints them, from ``since`` on (nanoseconds since 1970)."""

    def __init__(self, since: int, timestamps: bool) -> None:
        self._since = since
        self._timestamps = timestamps
        self._at_line = True

    def of(self, excerpt: LogExcerpt) -> Iterator[bytes]:
        """Yield the parts of one, in order."""
        if excerpt.missed.offset:
            yield f"dra-kit: {excerpt.missed.offset:,} bytes were dropped before they were read\n".encode()
            self._at_line = True
        for arrival in excerpt.arrivals:
            if arrival.at >= self._since:
                yield self._with_times(arrival) if self._timestamps else arrival.data
            self._at_line = arrival.data.endswith(b"\n")

    def _with_times(self, arrival: LogChunk) -> bytes:
        seconds, nanoseconds = divmod(arrival.at, 10**9)
        moment = dt.datetime.fromtimestamp(seconds, dt.UTC)
        prefix = f"{moment:%Y-%m-%dT%H:%M:%S}.{nanoseconds:09}Z ".encode()
        inner = arrival.data[:-1].replace(b"\n", b"\n" + prefix) + arrival.data[-1:]
        return prefix + inner if self._at_line else inner
