"""The driver's log: lines, problems and permanently rejected claims."""

from __future__ import annotations

import logging

import pytest

from dra_kit.errors import ConfigurationError
from dra_kit.sandbox.drivers.log import DriverLog, RefusedClaims


def problems(raised: Exception, **fields: object) -> tuple[str, ...]:
    log = DriverLog()
    logger = logging.Logger("dra_kit.process")  # noqa: LOG001 - of this test alone
    logger.addHandler(log)
    try:
        raise raised
    except type(raised) as caught:
        logger.error("part failed", extra=fields, exc_info=caught)
    return tuple(log.problems)


def test_problems_contain_the_type_of_an_error() -> None:
    assert problems(OSError("no oven"), error="no oven") == ("part failed: OSError: no oven",)


def filled(*messages: str) -> DriverLog:
    log = DriverLog()
    logger = logging.Logger("dra_kit.process")  # noqa: LOG001 - of this test alone
    logger.addHandler(log)
    for message in messages:
        logger.warning(message)
    return log


def test_oldest_lines_are_dropped_and_counted() -> None:
    log = filled(*(f"{number:05} {'x' * 10_000}" for number in range(500)))

    first, *lines = log.lines
    gone = 500 - len(lines)
    assert gone > 0
    assert first == f"({gone} older lines dropped: the limit is 4 MiB)"
    assert f"{gone:05} xxx" in lines[0]
    assert sum(map(len, lines)) <= 4 << 20


def test_overlong_line_is_truncated() -> None:
    log = filled("x" * 1_000_000)

    assert len(log.lines[0]) < 20_000
    assert log.lines[0].endswith(" characters more)")
    assert len(log.problems[0]) < 20_000


def test_problems_are_listed_once_and_the_oldest_are_dropped() -> None:
    log = filled("again", *(f"problem {number}" for number in range(1_500)), "problem 1499")

    assert len(log.problems) == 1_000
    assert log.problems[-1] == "problem 1499"


def test_problem_of_a_dra_kit_error_has_no_type() -> None:
    assert problems(ConfigurationError("give --oven")) == ("part failed: give --oven",)


def test_problems_are_found_by_message() -> None:
    log = DriverLog()
    logger = logging.Logger("dra_kit.node")  # noqa: LOG001 - of this test alone
    logger.addHandler(log)
    logger.error("discover failed", extra={"error": "slices not published"})
    logger.warning("slices not published", extra={"error": "no answer"})

    assert log.problems_of("discover failed") == ("discover failed: slices not published",)
    assert log.problems_of("slices not published") == ("slices not published: no answer",)
    assert log.problems_of("no answer") == ()


@pytest.mark.parametrize(
    ("logger", "error"),
    [
        pytest.param("dra_kit.node.claims.status", "no oven", id="status-update"),
        pytest.param("dra_kit.node.claims.service", "", id="claim-prepared"),
        pytest.param("dra_kit.node.claims.release", "", id="claim-released"),
    ],
)
def test_only_the_result_of_a_later_call_clears_a_permanent_error(logger: str, error: str) -> None:
    refused = RefusedClaims()
    failed = {"claim": "default/lunch", "permanent": True, "error": "no oven"}
    refused.handle(logging.makeLogRecord({"name": "dra_kit.node.claims.service", **failed}))
    refused.handle(logging.makeLogRecord({"name": logger, "claim": "default/lunch"}))
    assert refused.of("default", "lunch") == error
