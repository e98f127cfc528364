"""What the node logs about a claim that failed."""

from __future__ import annotations

import logging

import pytest

import dra_kit as dra
from dra_kit.author.config import ConfigDecoder
from dra_kit.node.claims.events import log_failure

logger = logging.getLogger("tests.failures")


class Recipe(dra.OpaqueConfig, api_version="kitchen.example/v1"):
    slices: int = 8


def refused(**fields: object) -> dra.InvalidConfig:
    with pytest.raises(dra.InvalidConfig) as caught:
        ConfigDecoder([Recipe]).decode({"apiVersion": "kitchen.example/v1", "kind": "Recipe", **fields})
    return caught.value


def test_a_rejected_config_is_logged_without_values(caplog: pytest.LogCaptureFixture) -> None:
    error = refused(slices="sesame", sesame=1)
    with caplog.at_level(logging.ERROR):
        problem = log_failure(error, "claim not prepared", module="tests", logger=logger)
    assert "sesame" in str(problem)
    [record] = caplog.records
    assert "sesame" not in str(vars(record))
    assert (vars(record)["fields"], vars(record)["code"]) == (["slices", ""], "invalid-config")


def test_other_errors_are_logged_with_their_text(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        log_failure(dra.PermanentError("no oven"), "claim not prepared", module="tests", logger=logger)
    assert vars(caplog.records[0])["error"] == "no oven"
