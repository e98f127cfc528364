"""Corrections of misspelled names."""

from __future__ import annotations

import pytest

from dra_kit.text import unambiguous_correction

FIELDS = ("deviceClassName", "count", "selectors", "allocationMode", "name", "gpu")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("deviceClasName", "deviceClassName"),  # missing
        ("countt", "count"),  # too many
        ("selektors", "selectors"),  # wrong
        ("alloactionMode", "allocationMode"),  # swapped
        ("device_class_name", "deviceClassName"),
        ("GPU", "gpu"),
        ("gpus", "gpu"),
    ],
)
def test_one_typo_is_corrected(written: str, meant: str) -> None:
    assert unambiguous_correction(written, FIELDS) == meant


@pytest.mark.parametrize("written", ["count", "dviceClasName", "cpu", "colour", "", "gp", "selector-s-1", 1, None])
def test_several_typos_are_not_corrected(written: object) -> None:
    assert unambiguous_correction(written, FIELDS) == ""


def test_ambiguous_typo_is_not_corrected() -> None:
    assert unambiguous_correction("gpu-aa", ["gpu-ab", "gpu-ac"]) == ""
    assert unambiguous_correction("gpu-aa", ["gpu-ab", "GPU-AA"]) == "GPU-AA"


def test_other_number_is_not_corrected() -> None:
    assert unambiguous_correction("gpu-1", ["gpu-0"]) == ""
    assert unambiguous_correction("gpu1", ["gpu"]) == ""
