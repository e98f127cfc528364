from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.sandbox.kubelet.environment import expand_variables


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(PIZZA)", "funghi"),
        ("a $(PIZZA) and $(PIZZA)", "a funghi and funghi"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$$(PIZZA)", "$(PIZZA)"),
        ("$$$(PIZZA)", "$funghi"),
        ("$$$$", "$$"),
        ("$PIZZA ${PIZZA} $", "$PIZZA ${PIZZA} $"),
        ("$(PIZZA", "$(PIZZA"),
        ("$()", "$()"),
        ("$(NESTED)", "$(PIZZA)"),
    ],
)
def test_references(text: str, expanded: str) -> None:
    assert expand_variables(text, {"PIZZA": "funghi", "NESTED": "$(PIZZA)"}) == expanded


@given(st.text(), st.dictionaries(st.text(), st.text()))
def test_doubled_dollars_protect_any_text(text: str, variables: dict[str, str]) -> None:
    assert expand_variables(text.replace("$", "$$"), variables) == text
