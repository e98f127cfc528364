"""What is told of the driver's log."""

from __future__ import annotations

import logging

from dra_kit.errors import ConfigurationError
from dra_kit.sandbox.journal import DriverLog


def problems(raised: Exception, **fields: object) -> tuple[str, ...]:
    log = DriverLog()
    logger = logging.Logger("dra_kit.process")  # noqa: LOG001 - of this test alone
    logger.addHandler(log)
    try:
        raise raised
    except type(raised) as caught:
        logger.error("part failed", extra=fields, exc_info=caught)
    return tuple(log.problems)


def test_an_error_is_told_with_its_type() -> None:
    assert problems(OSError("no oven"), error="no oven") == ("part failed: OSError: no oven",)


def test_an_error_of_dra_kit_speaks_for_itself() -> None:
    assert problems(ConfigurationError("give --oven")) == ("part failed: give --oven",)
