"""dra-kit's models are built when the first object is made of them, an author's where they are written."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import pytest
from pydantic import Field, PydanticSchemaGenerationError
from pydantic_core import SchemaError

import dra_kit as dra
from dra_kit.author.models.model import AuthorModel
from dra_kit.errors import InvalidDevice

BUILT = """
from pydantic import BaseModel

import dra_kit

found = [getattr(dra_kit, name) for name in dra_kit.__all__]
models = {item for item in found if isinstance(item, type) and issubclass(item, BaseModel)}
assert len(models) > 20, models
print(*sorted(model.__name__ for model in models if vars(model).get("__pydantic_complete__")))
"""
THREADS = 8


@pytest.fixture
def switching() -> Iterator[None]:
    """Have threads take turns as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_importing_all_of_dra_kit_builds_no_model_but_the_bases_that_others_are_made_of() -> None:
    ran = subprocess.run([sys.executable, "-c", BUILT], capture_output=True, text=True, check=False, timeout=120)

    # pydantic builds a generic one when it gets its arguments; NoConfig is OpaqueConfig's, which authors derive from
    assert set(ran.stdout.split()) <= {"ChildProcess", "ClusterObject", "Effect", "NoConfig", "OpaqueConfig"}, ran


def test_who_asks_how_a_model_is_called_hears_of_its_fields() -> None:
    called = "import inspect, dra_kit\nprint(*[list(inspect.signature(dra_kit.Hook).parameters) for _ in range(2)])"
    ran = subprocess.run([sys.executable, "-c", called], capture_output=True, text=True, check=False, timeout=120)

    fields = list(dra.Hook.model_fields)
    assert ran.stdout.split("\n")[0] == f"{fields} {fields}", ran


def test_what_is_wrong_with_an_authors_device_is_told_where_it_is_written() -> None:
    with pytest.raises(SchemaError, match="regex parse error"):

        class Oven(dra.Device):
            dough: Annotated[str, Field(pattern="(pan")]


def test_what_is_wrong_with_an_authors_effect_is_told_where_it_is_written() -> None:
    class Knob:
        pass

    with pytest.raises(PydanticSchemaGenerationError):

        class Heat(dra.Effect[None]):
            knob: Knob


def test_an_authors_device_may_name_a_class_that_comes_later() -> None:
    class Oven(dra.Device):
        door: Door | None = None

    class Door(AuthorModel):
        wide: bool

    Oven.model_rebuild(_types_namespace={"Door": Door})

    assert Oven(name="oven-0", door=Door(wide=True)).door == Door(wide=True)


@pytest.mark.usefixtures("switching")
def test_threads_that_use_a_model_for_the_first_time_at_once_all_get_the_same() -> None:
    with ThreadPoolExecutor(THREADS) as threads:
        for _ in range(20):
            of = {"__module__": "dra_kit.late"}
            inner = type("Inner", (AuthorModel,), {**of, "__annotations__": {"size": int}})
            outer = type("Outer", (AuthorModel,), {**of, "__annotations__": {"name": str, "inner": inner}})
            assert not vars(outer)["__pydantic_complete__"]
            begin = threading.Barrier(THREADS)

            def use(number: int, begin: threading.Barrier = begin, made: type = outer, part: type = inner) -> object:
                begin.wait()
                with pytest.raises(InvalidDevice, match="name: "):
                    made(name=number, inner=part(size=1))
                return made(name="a", inner=part(size=1))

            assert len({repr(item) for item in threads.map(use, range(THREADS))}) == 1
