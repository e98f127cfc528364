from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

DRIVER = """
    from collections.abc import Iterator, Sequence

    import dra_kit as dra
    from pydantic import BaseModel


    class Settings(BaseModel):
        slices: int = 8


    class Oven(dra.DeviceProvider):
        def discover(self) -> Iterator[Sequence[dra.Device]]:
            yield []


    class Waiter(dra.Preparer):
        def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            return dra.Prepared()


    driver = dra.Driver("dra.pizza", provider=Oven(), preparer=Waiter(), settings=Settings)
"""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """The file of driver dra.pizza."""
    path = tmp_path / "pizzeria.py"
    path.write_text(textwrap.dedent(DRIVER))
    return path
