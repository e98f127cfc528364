"""The author's module of kopf handlers: how it is imported, and which errors a broken one causes."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.client.operator import kopf
from dra_kit.controller.author_handlers import copy_registry, load_handlers
from dra_kit.errors import ConfigurationError
from tests.unit.controller.claims import DRIVER
from tests.unit.controller.test_agent import Oven, Waiter

HANDLER = """
import kopf

@kopf.on.event("kitchen.example.com", "v1", "menus")
async def menu_changed(**_):
    pass
"""


def driver(handlers: str | None) -> dra.Driver[Any, Any]:
    return dra.Driver(DRIVER, provider=Oven(), preparer=Waiter(), handlers=handlers)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Makes a module of a text; its name."""
    monkeypatch.syspath_prepend(tmp_path)
    name = f"handlers_{tmp_path.name.replace('-', '_')}"

    def make(text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    return make


def ids(registry: Any) -> list[str]:
    return [str(handler.id) for part in vars(registry).values() for handler in part.get_all_handlers()]


def test_handlers_are_registered_for_the_driver_only(module: Callable[[str], str]) -> None:
    everybodys = kopf.get_default_registry()
    before = ids(everybodys)
    own = driver(module(HANDLER))
    assert load_handlers(own) is own.handlers
    assert ids(own.handlers) == ["menu_changed"]
    assert kopf.get_default_registry() is everybodys
    assert ids(everybodys) == before


def test_without_a_module_kopf_is_not_imported() -> None:
    assert not driver(None).handler_module.used


def test_a_copy_of_the_driver_has_the_same_handlers(module: Callable[[str], str]) -> None:
    own = driver(module(HANDLER))
    copied = copy.deepcopy(own)
    load_handlers(own)
    assert copied.handlers is own.handlers


def test_each_run_of_kopf_has_its_own_registry(module: Callable[[str], str]) -> None:
    registry = load_handlers(driver(module(HANDLER)))
    life = copy_registry(registry)
    kopf.on.login(id="ours", registry=life)(lambda **_: None)
    assert ids(life) == ["ours", "menu_changed"]
    assert ids(registry) == ["menu_changed"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "registers no kopf handler; decorate functions"),
        ("1 / 0", r"does not import: ZeroDivisionError: division by zero at .*handlers_"),
        ("import no_such_library", "does not import: ModuleNotFoundError: No module named 'no_such_library'"),
    ],
    ids=["empty", "fails", "lacks"],
)
def test_a_broken_module_is_reported(text: str, problem: str, module: Callable[[str], str]) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        load_handlers(driver(module(text)))


def test_a_missing_module_is_reported() -> None:
    with pytest.raises(ConfigurationError, match="module no_such_handlers not found"):
        load_handlers(driver("no_such_handlers"))


def test_an_invalid_module_name_is_rejected_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"handlers './handlers.py' is not a module name"):
        driver("./handlers.py")
