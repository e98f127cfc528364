"""What errors carry beside their text."""

from __future__ import annotations

import dra_kit as dra


def test_a_remedy_is_a_field_and_the_end_of_the_text() -> None:
    error = dra.ConfigurationError("kubeconfig a: no server; looked in b", remedy="name another")
    assert str(error) == error.message == "kubeconfig a: no server; looked in b; name another"
    assert (error.problem, error.remedy) == ("kubeconfig a: no server; looked in b", "name another")


def test_without_one_the_problem_is_the_whole_text() -> None:
    error = dra.InvalidDevice("Device 'a': too long; shorten it")
    assert (error.problem, error.remedy, error.code) == ("Device 'a': too long; shorten it", "", "invalid-device")
