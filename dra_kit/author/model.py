"""The base of everything an author constructs: strict, immutable, and wrong input is told where it was written."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, PlainValidator, ValidationError

from dra_kit.errors import InvalidDevice
from dra_kit.resource.fielderror import FieldError
from dra_kit.values.quantity import Quantity


def as_quantity(value: object) -> Quantity:
    """A quantity from what an author may write.

    Raises:
        ValueError: when it is none.
    """
    if isinstance(value, bool) or not isinstance(value, Quantity | str | int):
        msg = f"a quantity is a string such as '1Gi', an int or a dra_kit.Quantity, not {value!r}"
        raise ValueError(msg)  # noqa: TRY004 - pydantic collects ValueErrors only
    return Quantity(value)


QuantityLike: TypeAlias = Annotated[Quantity | str | int, PlainValidator(as_quantity)]
"""A Kubernetes quantity as an author writes it: ``"80Gi"``, ``8`` or ``Quantity("80Gi")``; kept as Quantity."""

CAMEL = re.compile(r"(?<=[a-z0-9])([A-Z])")


def snake_path(path: str) -> str:
    """A field path of the API in the names an author wrote; what stands in brackets (map keys) is left alone."""
    return re.sub(
        r"\[[^\]]*\]|[^\[]+",
        lambda part: part.group() if part.group().startswith("[") else CAMEL.sub(r"_\1", part.group()).lower(),
        path,
    )


def invalid(what: str, errors: Sequence[FieldError]) -> InvalidDevice:
    """The error of an author's object that breaks rules of the API: object, field, value and rule in one line."""
    return InvalidDevice(f"{what}: " + "; ".join(_line(error) for error in errors))


def _line(error: FieldError) -> str:
    path = snake_path(error.path.lstrip("."))
    text = str(error).removeprefix(f"{error.path}: ")
    return f"{path}: {text}" if path else text


class AuthorModel(BaseModel):
    """Immutable and strict: an argument that does not exist is an error, at the line that wrote it.

    Raises:
        InvalidDevice: naming the object, the field, the value and the rule.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    if not TYPE_CHECKING:  # type checkers see the fields as keyword arguments

        def __init__(self, **data: Any) -> None:
            try:
                super().__init__(**data)
            except ValidationError as error:
                raise _rule_error(error) or InvalidDevice(
                    f"{_title(type(self), data)}: {_problems(type(self), error)}"
                ) from None


def _title(cls: type[BaseModel], data: dict[str, Any]) -> str:
    name = data.get("name")
    return f"{cls.__name__} {name!r}" if isinstance(name, str) else cls.__name__


def _rule_error(error: ValidationError) -> InvalidDevice | None:
    """The error of a rule across fields, which is whole already."""
    for problem in error.errors(include_url=False):
        cause = problem.get("ctx", {}).get("error")
        if isinstance(cause, InvalidDevice):
            return cause
    return None


def _problems(cls: type[BaseModel], error: ValidationError) -> str:
    lines = []
    for problem in error.errors(include_url=False):
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"]).lstrip(".")
        text = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            near = difflib.get_close_matches(path, cls.model_fields, n=1)
            text = "no such argument" + (f"; did you mean {near[0]!r}?" if near else "")
        elif problem["type"] not in {"missing", "value_error"}:
            text += f" (got {problem['input']!r})"
        lines.append(f"{path}: {text}" if path else text)
    return "; ".join(lines)
