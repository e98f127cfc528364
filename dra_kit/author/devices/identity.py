"""What makes a device the same device, and what is only observed of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, cast

from pydantic import BaseModel, JsonValue
from pydantic_core import to_jsonable_python
from typing_extensions import TypeVar

from dra_kit.author.models.model import shown

ValueT = TypeVar("ValueT")


class _Mark:
    """Marks an annotation; see :data:`Observed`."""

    def __repr__(self) -> str:
        return "dra_kit.Observed"


_OBSERVED: Final = _Mark()

if TYPE_CHECKING:
    Observed: TypeAlias = Annotated[ValueT, _OBSERVED]
else:

    class Observed:
        """A field of a Device's subclass that is only observed, as in ``temperature: dra.Observed[float]``.

        For type checkers it is what stands in the brackets. It does not belong to :meth:`dra_kit.Device.identity`: when
        it changes, claims that have the device are left as they are.
        """

        def __class_getitem__(cls, annotation: Any) -> Any:
            return Annotated[annotation, _OBSERVED]


class ObservedValue:
    """A value as :func:`observed` marks it, until the Device that it is given to has noted that."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"observed({shown(self.value)})"


def observed(value: ValueT) -> ValueT:
    """Mark the value of an attribute or capacity as only observed: ``attributes={"temperature": dra.observed(41)}``.

    It is published like any other, and does not belong to :meth:`dra_kit.Device.identity`. The device has the plain
    value: ``device.attributes["temperature"] == 41``.
    """
    return cast("ValueT", ObservedValue(value))


def plain_values(data: dict[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """Return a device's arguments without the marks, and the keys of :func:`identity_of` that were marked."""
    marked: list[str] = []
    for field in ("attributes", "capacity"):
        given = data.get(field)
        if not isinstance(given, Mapping) or ObservedValue not in map(type, given.values()):
            continue
        names = [name for name, value in given.items() if isinstance(value, ObservedValue)]
        marked += [f"{field}[{name}]" for name in names]
        data = data | {field: {**given, **{name: given[name].value for name in names}}}
    return data, frozenset(marked)


def identity_of(published: Mapping[str, Any], own: Mapping[str, object]) -> dict[str, JsonValue]:
    """Return everything of a device that may belong to its identity, by the place where it was written.

    Args:
        published: the device as JSON of the API.
        own: the values of the author's own fields.
    """
    found: dict[str, Any] = {}
    for field in ("attributes", "capacity"):
        found |= {f"{field}[{name}]": value for name, value in published.get(field, {}).items()}
    if counters := published.get("consumesCounters"):
        found["consumes_counters"] = counters
    return found | {name: stable(value) for name, value in own.items()}


def observed_fields(model: type[BaseModel]) -> frozenset[str]:
    """Return the names of the fields that are annotated as Observed."""
    return frozenset(name for name, field in model.model_fields.items() if _OBSERVED in field.metadata)


def stable(value: object) -> JsonValue:
    """Return an author's value as JSON that is the same in every process and release: its hashes are stored."""
    if isinstance(value, Mapping):
        return {str(key): stable(item) for key, item in value.items()}
    if isinstance(value, AbstractSet):
        return cast("JsonValue", sorted(json.dumps(stable(item), sort_keys=True) for item in value))
    if isinstance(value, list | tuple):
        return [stable(item) for item in value]
    # what has no JSON form, such as an open handle, is distinguished by its type alone
    return cast("JsonValue", to_jsonable_python(value, fallback=lambda item: type(item).__qualname__))
