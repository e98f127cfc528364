"""A stored effect is read unchanged, or rejected before it is applied."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr, computed_field
from pydantic.alias_generators import to_camel

import dra_kit as dra
from tests.unit.node.hardware import needing
from tests.unit.node.role import Node

log: list[tuple[Any, ...]] = []


@pytest.fixture(autouse=True)
def _new_log() -> None:
    log.clear()


class Plain(dra.Effect[int]):
    def keys(self) -> Iterable[str]:
        return ["gpu"]

    def apply(self, previous: int | None) -> int:
        log.append(("apply", self))
        return 1

    def revert(self, outcome: int | None) -> None:
        log.append(("revert", outcome))


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, frozen=True)

    memory_size: int


class Partition(dra.Effect[Camel], id="partition"):
    """Its field and its outcome have other names in JSON than in Python."""

    profile: Camel
    gpu_name: str = Field(alias="gpuName")

    def keys(self) -> Iterable[str]:
        return [self.gpu_name]

    def apply(self, previous: Camel | None) -> Camel:
        log.append(("apply", self.profile, previous))
        return self.profile

    def revert(self, outcome: Camel | None) -> None:
        log.append(("revert", outcome))


PARTITION = Partition(profile=Camel.model_validate({"memorySize": 5}), gpuName="gpu-0")


async def test_fields_and_outcomes_with_aliases_are_read_at_the_next_start(node: Node) -> None:
    lunch = node.claim()
    await node.prepared_by(needing(PARTITION), lunch)
    async with node.running(needing(PARTITION)):
        await node.prepare(lunch)
        await node.unprepare(lunch)
    size = Camel.model_validate({"memorySize": 5})
    assert log == [("apply", size, None), ("revert", size)]
    assert node.is_clean()


async def test_an_effect_stored_by_field_names_is_the_same_effect(node: Node) -> None:
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    await node.prepared_by(needing(PARTITION), lunch)
    spec = '{"profile":{"memory_size":5},"gpu_name":"gpu-0"}'
    node.execute("UPDATE effects SET spec = ?, outcome = ?", spec, '{"memory_size":5}')
    async with node.running(needing(PARTITION)):
        await node.prepare(dinner)
        await node.unprepare(lunch, dinner)
    size = Camel.model_validate({"memorySize": 5})
    assert log == [("apply", size, None), ("revert", size)]
    assert node.is_clean()


class Excluded(Plain, id="excluded"):
    gpu: str = Field(exclude=True)


class Computed(Plain, id="computed"):
    @computed_field  # type: ignore[prop-decorator]
    @property
    def gpu(self) -> str:
        return "gpu-0"


class Loose(Plain, id="loose"):
    gpus: Any


@pytest.mark.parametrize(
    ("effect", "problem"),
    [
        (Excluded(gpu="gpu-0"), "Excluded cannot be read from its own JSON: gpu: Field required"),
        (Computed(), "Computed cannot be read from its own JSON: gpu: Extra inputs are not permitted"),
        (Loose(gpus=("gpu-0",)), "Loose cannot be read from its own JSON: reading it yields other values"),
    ],
)
async def test_an_effect_that_cannot_be_read_from_its_json_is_rejected_before_it_is_applied(
    node: Node, effect: dra.Effect[Any, Any], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    lunch = node.claim()
    async with node.running(needing(effect)):
        assert problem in await node.error(lunch)
        assert log == []
        assert node.is_clean()
    [told] = [vars(item) for item in caplog.records if item.getMessage() == "claim not prepared"]
    assert told["code"] == "invalid-effect"


class Password(dra.Effect[dict[str, int]], id="password"):
    def keys(self) -> Iterable[str]:
        return ["door"]

    def apply(self, previous: dict[str, int] | None) -> dict[str, int]:
        return {"hunter2": "open sesame"}  # type: ignore[dict-item]

    def revert(self, outcome: dict[str, int] | None) -> None:
        return None


async def test_an_invalid_outcome_is_reported_by_its_type_only(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    lunch = node.claim()
    async with node.running(needing(Password())):
        error = await node.error(lunch)
    assert error == (
        "effect Password.apply returned a value of type dict, which it does not declare, or which cannot be stored; "
        "return the type in dra_kit.Effect[<type>]"
    )
    assert "hunter2" not in caplog.text
    assert "sesame" not in caplog.text


class Secret(dra.Effect[SecretStr], id="secret"):
    def keys(self) -> Iterable[str]:
        return ["door"]

    def apply(self, previous: SecretStr | None) -> SecretStr:
        return SecretStr("open sesame")

    def revert(self, outcome: SecretStr | None) -> None:
        return None


async def test_ensure_returns_the_outcome_as_read_from_its_json(node: Node) -> None:
    lunch = node.claim()
    async with node.running(needing(Secret())):
        await node.prepare(lunch)
        assert node.env(lunch) == ["OUTCOMES=[SecretStr('**********')]"]
