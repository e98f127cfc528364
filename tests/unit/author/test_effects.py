from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import pytest
from pydantic import BaseModel
from typing_extensions import override

import dra_kit as dra
from dra_kit.author.calls import call
from dra_kit.author.claim import AllocatedDevice, EffectRequests

OutcomeT = TypeVar("OutcomeT")


class Base(dra.Effect[OutcomeT], Generic[OutcomeT]):
    """An intermediate generic base, as an author with several effects writes it."""

    gpu: str = "GPU-0"

    @override
    def keys(self) -> Iterable[str]:
        return [self.gpu]

    @override
    def apply(self, previous: OutcomeT | None) -> OutcomeT:
        raise NotImplementedError

    @override
    def revert(self, outcome: OutcomeT | None) -> None:
        return None


class Model(BaseModel):
    uuid: str


@dataclass
class Data:
    uuid: str


class Tuple(NamedTuple):
    uuid: str
    number: int


OUTCOMES: list[tuple[Any, Any]] = [
    (str, "MIG-0"),
    (int, 3),
    (bool, True),
    (type(None), None),
    (str | None, None),
    (list[str], ["a", "b"]),
    (dict[str, int], {"a": 1}),
    (tuple[int, str], (1, "a")),
    (Model, Model(uuid="MIG-0")),
    (Data, Data(uuid="MIG-0")),
    (Tuple, Tuple("MIG-0", 1)),
    (list[Model], [Model(uuid="MIG-0")]),
    (dra.Quantity, dra.Quantity("1Gi")),
]


@pytest.mark.parametrize(("outcome_type", "outcome"), OUTCOMES)
def test_an_outcome_survives_a_round_trip_through_storage(outcome_type: Any, outcome: Any) -> None:
    effect: type[dra.Effect[Any, Any]] = type("Some", (Base[outcome_type],), {}, id="some")
    adapter = effect.outcome_adapter()
    again = adapter.validate_json(adapter.dump_json(adapter.validate_python(outcome)))
    assert again == outcome
    assert type(again) is type(outcome)


def test_the_outcome_type_is_found_through_all_bases() -> None:
    class Middle(Base[list[OutcomeT]], Generic[OutcomeT]):
        pass

    class Direct(Base[int], id="direct"):
        pass

    class Derived(Direct, id="derived"):
        pass

    assert Derived.outcome_adapter().validate_json("1") == 1
    with pytest.raises(ValueError, match="valid integer"):
        Derived.outcome_adapter().validate_json('"x"')
    assert Middle[int].outcome_adapter().validate_json("[1]") == [1]


def test_an_effect_without_argument_has_no_outcome() -> None:
    class Silent(dra.Effect, id="silent"):
        def keys(self) -> Iterable[str]:
            return ["a"]

        def apply(self, previous: None) -> None:
            return None

        def revert(self, outcome: None) -> None:
            return None

    class Derived(Silent, id="derived"):
        pass

    for effect in (Silent, Derived):
        assert effect.outcome_adapter().validate_json("null") is None
        with pytest.raises(ValueError, match="should be null"):
            effect.outcome_adapter().validate_json("1")


class Unstorable:
    pass


def driver_with(*effects: Any) -> dra.Driver[Any, Any]:
    class Provider(dra.DeviceProvider):
        def discover(self) -> Iterable[list[dra.Device]]:
            yield []

    class Preparer(dra.Preparer):
        def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            return dra.Prepared()

    return dra.Driver("effects.example", provider=Provider(), preparer=Preparer(), effects=effects)


class Named(Base[str], id="named"):
    pass


def test_a_driver_knows_its_effects_by_id() -> None:
    assert driver_with(Named).effects == {"named": Named}


def test_renaming_the_class_keeps_the_effect_id() -> None:
    renamed = type("Renamed", (Base[str],), {}, id="named")
    assert set(driver_with(renamed).effects) == set(driver_with(Named).effects)


@pytest.mark.parametrize(
    ("effects", "problem"),
    [
        ([type("Unnamed", (Base[str],), {})], "^effect Unnamed has no id; write class Unnamed"),
        ([Named, type("Twin", (Base[str],), {}, id="named")], "^effects Named and Twin have one id 'named'; ids are"),
        ([Named()], r"^effects: Named\(gpu='GPU-0'\) is not a dra_kit.Effect class; give the class itself"),
        ([str], "^effects: <class 'str'> is not a dra_kit.Effect class"),
        ([type("Half", (dra.Effect,), {}, id="half")], "^effect Half lacks apply, keys, revert; write what it still"),
        ([type("Open", (Base,), {}, id="open")], "^effect Open: its outcome type is open; derive it from"),
        ([type("Odd", (Base[Unstorable],), {}, id="odd")], "^effect Odd: its outcome type Unstorable cannot be stored"),
    ],
)
def test_an_invalid_effect_is_rejected(effects: list[Any], problem: str) -> None:
    with pytest.raises(dra.ConfigurationError, match=problem) as caught:
        driver_with(*effects)
    assert "\n" not in str(caught.value)


class Recording:
    """Ensures nothing: gives the name of the effect's GPU, in its own loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.threads: list[int] = []

    async def ensure(self, effect: Any) -> Any:
        await asyncio.sleep(0)
        assert asyncio.get_running_loop() is self.loop
        self.threads.append(threading.get_ident())
        return f"outcome of {effect.gpu}"


def device_with(effects: EffectRequests | None) -> AllocatedDevice[dra.NoConfig, dra.Device]:
    return AllocatedDevice(
        name="gpu-0",
        pool="node",
        request="r",
        config=dra.NoConfig(),
        advertised=dra.Device(name="gpu-0"),
        effects=effects,
    )


async def test_an_async_prepare_awaits_the_outcome() -> None:
    effects = EffectRequests(Recording())
    assert await device_with(effects).ensure(Named()) == "outcome of GPU-0"
    assert effects.never_awaited() == []


async def test_a_blocking_prepare_gets_the_outcome_with_result() -> None:
    scope = Recording()
    effects = EffectRequests(scope)

    def prepare() -> str:
        return device_with(effects).ensure(Named()).result()

    assert await call(prepare) == "outcome of GPU-0"
    assert scope.threads == [threading.get_ident()]
    assert effects.never_awaited() == []


async def test_the_authors_own_loop_can_await_the_outcome() -> None:
    device = device_with(EffectRequests(Recording()))

    def prepare() -> str:
        async def inner() -> str:
            return await device.ensure(Named())

        return asyncio.run(inner())

    assert await call(prepare) == "outcome of GPU-0"


async def test_an_effect_that_was_never_awaited_is_reported() -> None:
    effects = EffectRequests(Recording())
    device_with(effects).ensure(Named())
    await device_with(effects).ensure(Named())
    assert effects.never_awaited() == ["Named"]


async def test_unawaited_effects_of_several_threads_are_all_reported() -> None:
    effects = EffectRequests(Recording())
    device = device_with(effects)

    def forget(_: int) -> None:
        device.ensure(Named())

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(forget, range(400)))
    assert effects.never_awaited() == ["Named"] * 400


async def test_result_called_in_the_loop_is_rejected() -> None:
    with pytest.raises(dra.ConfigurationError, match=r"write 'await device.ensure\(…\)'"):
        device_with(EffectRequests(Recording())).ensure(Named()).result()


async def test_a_failed_effect_raises_in_the_blocking_prepare() -> None:
    class Failing(Recording):
        async def ensure(self, effect: Any) -> Any:
            raise dra.TransientError("the card is busy")

    device = device_with(EffectRequests(Failing()))
    with pytest.raises(dra.TransientError, match="the card is busy"):
        await call(lambda: device.ensure(Named()).result())


async def test_ensuring_something_else_than_an_effect_is_rejected() -> None:
    with pytest.raises(dra.ConfigurationError, match=r"^ensure\(class Named\): not an effect; give it an instance"):
        device_with(EffectRequests(Recording())).ensure(Named)  # type: ignore[arg-type]


def test_ensure_works_only_during_prepare() -> None:
    with pytest.raises(RuntimeError, match="only be ensured while a claim is being prepared"):
        device_with(None).ensure(Named())


def test_an_effect_without_fields_is_titled_by_its_id() -> None:
    class Power(dra.Effect, id="power"):
        def keys(self) -> list[str]:
            return ["power"]

        def apply(self, previous: None) -> None:
            """On."""

        def revert(self, outcome: None) -> None:
            """Off."""

    assert Power().title() == "power"
