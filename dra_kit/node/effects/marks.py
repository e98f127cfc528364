"""What is stored of an effect's record beside what the effect makes, so that a driver without records finds it."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.state.records import UNKNOWN_BOOT, EffectRecord


class Mark(BaseModel):
    """The fields of :class:`dra_kit.node.state.records.EffectRecord` that do not change; others may be added."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="ignore")

    effect: str
    spec: str
    keys: tuple[str, ...]
    claims: tuple[ClaimReference, ...]
    defaults: tuple[str, ...] = ()
    undo: str = ""

    @classmethod
    def of(cls, record: EffectRecord) -> Self:
        """Return the mark of a record."""
        return cls(**_fields(record))

    @classmethod
    def read(cls, text: str | bytes) -> Self | None:
        """Return the mark written by ``model_dump_json``; None for anything else."""
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return None

    def record(self) -> EffectRecord:
        """Return the record of an effect that is not known to be in force, as it would be stored."""
        return EffectRecord(**_fields(self), number=0, phase="intent", boot_id=UNKNOWN_BOOT)


def _fields(known: Mark | EffectRecord) -> dict[str, Any]:
    return {name: getattr(known, name) for name in Mark.model_fields}


class Finder(Protocol):
    """Knows where what effects have made can be found without their records."""

    async def found(self) -> list[Mark]:
        """Return the marks of all that is there.

        Raises:
            DraKitError: it cannot be looked for now.
        """
        ...
