"""What the kubelet answers to ``kubectl logs``."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

import pytest

from dra_kit.apiserver.pod_log import PodLogOptions, PodLogUnavailable
from dra_kit.sandbox.containers.log import LINE_MAX, ContainerLog, find_log, log_stream

SECOND = 10**9
NOW = 1_700_000_000 * SECOND
MOMENT = dt.datetime.fromtimestamp(1_700_000_000, dt.UTC)


def pod(state: dict[str, Any], last: dict[str, Any] | None = None, kind: str = "containerStatuses") -> dict[str, Any]:
    status = {"name": "c", "state": state, "lastState": last or {}, "containerID": "r://now"}
    return {"metadata": {"name": "p"}, "status": {kind: [status]}}


def ended(identity: str) -> dict[str, Any]:
    return {"terminated": {"exitCode": 1, "containerID": identity}}


@pytest.mark.parametrize(
    ("found", "previous", "expected"),
    [
        (pod({"running": {}}), False, "r://now"),
        (pod({"running": {}}, ended("r://old")), True, "r://old"),
        (pod(ended("r://end")), False, "r://end"),
        (pod(ended("r://end"), kind="initContainerStatuses"), False, "r://end"),
        (pod(ended(""), ended("r://old")), False, "r://old"),
        # it waits for its restart
        (pod({"waiting": {"reason": "CrashLoopBackOff"}}, ended("r://old")), False, "r://old"),
        (pod({"waiting": {"reason": "CrashLoopBackOff"}}, ended("r://old")), True, "r://old"),
    ],
)
def test_container_of_a_log_request_is_found(found: dict[str, Any], previous: bool, expected: str) -> None:
    assert find_log(found, "c", previous=previous) == expected


@pytest.mark.parametrize(
    ("found", "previous", "expected"),
    [
        ({"metadata": {"name": "p"}}, False, 'container "c" in pod "p" is not available'),
        (pod({"waiting": {"reason": "ContainerCreating"}}), False,
         'container "c" in pod "p" is waiting to start: ContainerCreating'),
        (pod({"waiting": {"reason": "ErrImagePull"}}), False,
         'container "c" in pod "p" is waiting to start: image can\'t be pulled'),
        (pod({"waiting": {"reason": "ImagePullBackOff"}}), False,
         'container "c" in pod "p" is waiting to start: trying and failing to pull image'),
        (pod({}), False, 'container "c" in pod "p" is waiting to start - no logs yet'),
        (pod(ended("")), False, 'container "c" in pod "p" is terminated'),
        (pod({"running": {}}), True, 'previous terminated container "c" in pod "p" not found'),
    ],
)  # fmt: skip
def test_log_request_without_a_log_is_rejected(found: dict[str, Any], previous: bool, expected: str) -> None:
    with pytest.raises(PodLogUnavailable) as told:
        find_log(found, "c", previous=previous)

    assert str(told.value) == expected


def log_of(*lines: bytes, ended: bool = True) -> ContainerLog:
    """A log whose lines came a second apart, the last one second before now."""
    log = ContainerLog()
    for number, line in enumerate(lines):
        log.append(line, NOW - (len(lines) - number) * SECOND)
    if ended:
        log.finish(NOW)
    return log


async def read(log: ContainerLog, **options: Any) -> bytes:
    return b"".join([data async for data in log_stream(log, PodLogOptions(**options), NOW)])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, b"1\n2\n3\n"),
        ({"follow": True}, b"1\n2\n3\n"),
        ({"tail_lines": 2}, b"2\n3\n"),
        ({"tail_lines": 0}, b""),
        ({"tail_lines": 9}, b"1\n2\n3\n"),
        ({"since_seconds": 2}, b"2\n3\n"),
        ({"since_seconds": 2, "tail_lines": 1}, b"3\n"),
        ({"since_seconds": 1, "tail_lines": 2}, b"3\n"),
        ({"since_time": MOMENT - dt.timedelta(seconds=2)}, b"2\n3\n"),
        ({"since_time": MOMENT - dt.timedelta(seconds=1, milliseconds=1)}, b"2\n3\n"),  # whole seconds are sent
        ({"since_time": MOMENT}, b""),
        ({"limit_bytes": 3}, b"1\n2"),
        ({"limit_bytes": 4, "follow": True}, b"1\n2\n"),
        ({"limit_bytes": 99}, b"1\n2\n3\n"),
        ({"timestamps": True, "tail_lines": 1}, b"2023-11-14T22:13:19.000000000Z 3\n"),
        ({"timestamps": True, "limit_bytes": 30}, b"2023-11-14T22:13:17.000000000Z"),
    ],
)
async def test_log_options_select_the_lines(options: dict[str, Any], expected: bytes) -> None:
    assert await read(log_of(b"1\n", b"2\n", b"3\n"), **options) == expected


async def test_each_line_has_a_timestamp_and_parts_of_a_line_share_one() -> None:
    part = b"x" * LINE_MAX
    time = b"2023-11-14T22:13:19.000000000Z "

    assert await read(log_of(b"1\n\n" + part + b"y\nend"), timestamps=True) == (
        time + b"1\n" + time + b"\n" + time + part + b"y\n" + b"2023-11-14T22:13:20.000000000Z end"
    )


async def test_a_tail_counts_the_parts_of_a_long_line() -> None:
    assert await read(log_of(b"x" * (2 * LINE_MAX) + b"yz\n"), tail_lines=2) == b"x" * LINE_MAX + b"yz\n"


async def test_log_without_follow_ends_at_the_time_of_the_request() -> None:
    log = log_of(*[b"x" * 60_000 + b"\n"] * 3, ended=False)

    parts: list[bytes] = []
    async for data in log_stream(log, PodLogOptions(tail_lines=8), NOW):
        parts.append(data)
        log.append(b"more\n", NOW)

    assert len(parts) > 1
    assert b"".join(parts).endswith(b"x\n")


async def test_future_since_time_selects_only_later_lines() -> None:
    log = log_of(b"1\n", ended=False)
    reading = asyncio.create_task(read(log, follow=True, since_time=MOMENT + dt.timedelta(seconds=9)))
    await asyncio.sleep(0)

    log.append(b"2\n", NOW + 8 * SECOND)
    await asyncio.sleep(0.01)
    log.append(b"3\n", NOW + 9 * SECOND)
    log.finish(NOW)

    assert await reading == b"3\n"


async def test_slow_reader_sees_how_much_it_missed() -> None:
    log = ContainerLog(1_000)
    log.append(b"first\n", NOW)

    parts: list[bytes] = []
    async for data in log_stream(log, PodLogOptions(follow=True), NOW):
        if not parts:
            for number in range(1_000):
                log.append(b"%03d\n" % number, NOW)
            log.finish(NOW)
        parts.append(data)

    told = b"".join(parts).splitlines()
    assert told[0] == b"first"
    assert told[1].startswith(b"dra-kit: 3,")
    assert told[1].endswith(b" bytes were dropped before they were read")
    assert told[-1] == b"999"
