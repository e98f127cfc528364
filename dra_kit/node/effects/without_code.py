"""Reverts the framework's own effects without their class, on a node without the driver's code.

Enough is stored about a program and about an object in the cluster to terminate the one and delete the other. Any other
effect can only be reverted by its author's ``revert``.
"""

from __future__ import annotations

import logging
import types
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any, Literal, NoReturn

from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from typing_extensions import override

from dra_kit.author.cluster_object import ClusterObject, ObjectAddress
from dra_kit.author.effect import ChildProcess, Effect
from dra_kit.errors import TransientError
from dra_kit.node.effects.classes import EffectClasses
from dra_kit.node.state.records import EffectRecord


class _EndProgram(BaseModel):
    what: Literal["ChildProcess"] = "ChildProcess"
    end_within: float


class _DeleteObject(BaseModel):
    what: Literal["ClusterObject"] = "ClusterObject"
    api_version: str
    kind: str
    plural: str
    namespace: str
    name: str

    @property
    def address(self) -> ObjectAddress:
        return ObjectAddress(**self.model_dump(exclude={"what"}))


_UNDO: TypeAdapter[_EndProgram | _DeleteObject] = TypeAdapter(
    Annotated[_EndProgram | _DeleteObject, Field(discriminator="what")]
)


class _WithoutClass:
    """An effect that can only be reverted; its keys are the stored ones."""

    def keys(self) -> list[str]:
        """Return the keys that were stored."""
        touched: list[str] = self.touched  # type: ignore[attr-defined] # a field of the classes below
        return touched


class _Program(_WithoutClass, ChildProcess[None]):
    touched: list[str]

    def command(self) -> NoReturn:
        """Raise an error: the program cannot be started without its class."""
        raise TransientError(
            f"program {self.title()} cannot be started without the driver's code, only terminated",
            code="no-driver-code",
        )


class _Object(_WithoutClass, ClusterObject[None]):
    touched: list[str]
    at: ObjectAddress

    def address(self) -> ObjectAddress:
        """Return the address at which it was applied."""
        return self.at

    def body(self) -> NoReturn:
        """Raise an error: the object cannot be applied without its class."""
        raise TransientError(
            f"{self.at} cannot be applied without the driver's code, only deleted", code="no-driver-code"
        )


def stored_undo(effect: Effect[Any, Any]) -> str:
    """Return what is stored so that an effect can be reverted without its class; empty if it cannot be."""
    if isinstance(effect, ChildProcess):
        return _EndProgram(end_within=effect.end_within).model_dump_json()
    if isinstance(effect, ClusterObject):
        return _DeleteObject(**asdict(effect.address())).model_dump_json()
    return ""


def effect_without_class(record: EffectRecord) -> Effect[Any, Any] | None:
    """Return an effect that can be reverted in place of a stored one; None if only its class can revert it.

    A program's own ways to stop (``stop``) and to clean up (``clear``) are author's code, too. Without them it gets
    SIGTERM.
    """
    with suppress(ValidationError):
        undo = _UNDO.validate_json(record.undo)
        if isinstance(undo, _EndProgram):
            # the program's name in the directory of programs is derived from the effect's id
            cls: Any = types.new_class("Program", (_Program,), {"id": record.effect}, _ends_within(undo.end_within))
            program: Effect[Any, Any] = cls(touched=list(record.keys))
            return program
        return _Object(claim_uid="-", touched=list(record.keys), at=undo.address)
    return None


def _ends_within(seconds: float) -> Any:
    def fill(namespace: dict[str, Any]) -> None:
        namespace["end_within"] = seconds
        namespace["__annotations__"] = {"end_within": "ClassVar[float]"}
        namespace["__module__"] = __name__

    return fill


def stored_object(record: EffectRecord) -> ObjectAddress | None:
    """Return the object that an effect creates; None if it creates none, or if the address was not stored."""
    with suppress(ValidationError):
        undo = _UNDO.validate_json(record.undo)
        return undo.address if isinstance(undo, _DeleteObject) else None
    return None


def title_without_class(record: EffectRecord) -> str:
    """Return the text of an effect for people."""
    return str(stored_object(record) or f"{record.effect} on {', '.join(record.keys)}")


logger: logging.Logger = logging.getLogger(__name__)
REMEDY = "run dra-kit decommission with the driver's TARGET, in the driver's image; or give it up with --abandon"


class _Abandoned(Effect[None, Any], id="dra-kit/abandoned"):
    """An effect that cannot be reverted: its changes stay, and it is forgotten."""

    what: str
    touched: list[str]

    def keys(self) -> list[str]:
        """Return the keys that were stored."""
        return self.touched

    def apply(self, previous: None) -> NoReturn:
        """Raise an error: it cannot be applied without its code."""
        del previous
        raise TransientError(f"effect {self.what} cannot be applied without the driver's code", code="no-driver-code")

    def revert(self, outcome: object) -> None:
        """Leave the hardware unchanged."""
        del outcome
        logger.warning("effect abandoned", extra={"effect": self.what, "keys": self.touched})


class EffectsWithoutCode(EffectClasses):
    """Reverts the framework's own effects; other effects are only given up, on request.

    Args:
        abandon: forget effects that only the driver's code can revert, and leave their hardware unchanged.
    """

    def __init__(self, *, abandon: bool) -> None:
        super().__init__({})
        self._abandon = abandon

    @property
    @override
    def runs_programs(self) -> bool:
        return True

    @override
    def check(self, stored: Sequence[EffectRecord]) -> None:
        """Accept everything: what cannot be reverted here is reported when its turn comes."""

    @override
    def load(self, record: EffectRecord) -> tuple[Effect[Any, Any], Any]:
        effect = effect_without_class(record)
        if effect is None and self._abandon:
            effect = _Abandoned(what=self.title(record), touched=list(record.keys))
        if effect is None:
            raise TransientError(
                f"effect {self.title(record)} can only be reverted by the driver's code; {REMEDY}",
                code="no-driver-code",
            )
        return effect, None

    @override
    def title(self, record: EffectRecord) -> str:
        return title_without_class(record)
