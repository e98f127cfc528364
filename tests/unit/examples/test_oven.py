"""The oven is lit in steps; whatever step an interruption leaves it in, it can be lit and turned off again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.examples.kitchen import pizza

STEPS = range(6)  # three files, each written and then renamed


def oven(directory: Path, temperature: int = 220) -> Any:
    return pizza.HeatOven(oven=str(directory / "oven"), temperature=temperature)


def parts(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (directory / "oven").iterdir()}


def interrupt(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Let the step fail as if the process ended there: its file is not written, or not renamed."""
    count = iter(range(100))

    def failing(original: Any) -> Any:
        def call(path: Path, *args: Any, **kwargs: Any) -> Any:
            if next(count) == step:
                raise InterruptedError
            return original(path, *args, **kwargs)

        return call

    monkeypatch.setattr(Path, "write_text", failing(Path.write_text))
    monkeypatch.setattr(Path, "replace", failing(Path.replace))


def test_a_lit_oven_has_gas_flame_and_temperature(tmp_path: Path) -> None:
    flame = oven(tmp_path).apply(None)

    assert parts(tmp_path) == {"gas": "open", "flame": flame, "temperature": "220"}


def test_lighting_it_again_keeps_the_flame(tmp_path: Path) -> None:
    flame = oven(tmp_path).apply(None)

    assert oven(tmp_path).apply(flame) == flame
    assert oven(tmp_path).apply(None) == flame


def test_after_a_reboot_it_burns_as_before(tmp_path: Path) -> None:
    assert oven(tmp_path).apply("0a1b2c3d") == "0a1b2c3d"
    assert parts(tmp_path)["flame"] == "0a1b2c3d"


@pytest.mark.parametrize("step", STEPS)
def test_half_lit_it_is_lit_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    with monkeypatch.context() as patch:
        interrupt(patch, step)
        with pytest.raises(InterruptedError):
            oven(tmp_path).apply(None)
    burning = parts(tmp_path).get("flame")

    flame = oven(tmp_path).apply(None)

    assert parts(tmp_path) == {"gas": "open", "flame": flame, "temperature": "220"}
    assert burning in {None, flame}


@pytest.mark.parametrize("step", STEPS)
def test_half_lit_it_is_turned_off_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    with monkeypatch.context() as patch:
        interrupt(patch, step)
        with pytest.raises(InterruptedError):
            oven(tmp_path).apply(None)

    oven(tmp_path).revert(None)

    assert parts(tmp_path) == {}


def test_a_cold_oven_can_be_turned_off(tmp_path: Path) -> None:
    oven(tmp_path).revert(None)

    assert list(tmp_path.rglob("*")) == []


def test_different_temperatures_are_different_effects_on_one_oven(tmp_path: Path) -> None:
    assert oven(tmp_path, 220) != oven(tmp_path, 300)
    assert list(oven(tmp_path, 220).keys()) == list(oven(tmp_path, 300).keys())
