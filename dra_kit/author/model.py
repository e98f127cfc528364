"""The base of everything an author constructs: immutable, and wrong input is reported where it was written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, PlainValidator, ValidationError
from pydantic_core import CoreSchema

from dra_kit.author.models.containers import with_lax_containers
from dra_kit.errors import DraKitError, InvalidDevice
from dra_kit.kubernetes.values.quantity import Quantity

_SHOWN_MAX = 80


def as_quantity(value: object) -> Quantity:
    """Return a quantity from what an author may write.

    Raises:
        ValueError: when it is none.
    """
    if isinstance(value, bool) or not isinstance(value, Quantity | str | int):
        msg = f"a quantity is a string such as '1Gi', an int or a dra_kit.Quantity, not {shown(value)}"
        raise ValueError(msg)  # noqa: TRY004 - pydantic collects ValueErrors only
    return Quantity(value)


QuantityLike: TypeAlias = Annotated[Quantity | str | int, PlainValidator(as_quantity)]
"""A Kubernetes quantity as an author writes it: ``"80Gi"``, ``8`` or ``Quantity("80Gi")``; stored as Quantity."""


def shown(value: object) -> str:
    """Return a value as Python writes it, on one line and cut when it is long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


def kind_of(value: object) -> str:
    """Return the type of a value that may be a secret, or large: what a text for others says instead of the value."""
    if isinstance(value, type):
        return f"class {value.__name__}"
    return "None" if value is None else type(value).__name__


class AuthorModel(BaseModel):
    """Immutable and strict; an argument that does not exist, or does not fit, is an error at the line that wrote it.

    Raises:
        InvalidDevice: naming the object, the field, the value and the rule; what is prepared raises InvalidPrepared.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        arbitrary_types_allowed=True,
    )
    error_class_: ClassVar[type[DraKitError]] = InvalidDevice
    tells_values_: ClassVar[bool] = True
    """Whether errors show wrong values; where these may be secrets they name the type."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return with_lax_containers(source, handler)

    if not TYPE_CHECKING:  # type checkers see the fields as keyword arguments

        def __init__(self, **data: Any) -> None:
            try:
                super().__init__(**data)
            except ValidationError as error:
                raise _rule_error(error) or self.error_class_(
                    f"{_title(type(self), data)}: {_problems(type(self), error)}"
                ) from None


def _title(cls: type[BaseModel], data: dict[str, Any]) -> str:
    name = data.get("name")
    return f"{cls.__name__} {shown(name)}" if isinstance(name, str) else cls.__name__


def _rule_error(error: ValidationError) -> DraKitError | None:
    """Return the error of a rule across fields, or of an object inside, which is whole already."""
    for problem in error.errors(include_url=False):
        cause = problem.get("ctx", {}).get("error")
        if isinstance(cause, DraKitError):
            return cause
    return None


def _problems(cls: type[AuthorModel], error: ValidationError) -> str:
    lines = []
    for problem in error.errors(include_url=False):
        first, *inner = problem["loc"] or ("",)
        path = str(first) + "".join(f"[{part}]" for part in inner if part != "[key]")
        lines.append(f"{path}: {_text(cls, str(first), dict(problem))}")
    return "; ".join(dict.fromkeys(lines))


def _text(cls: type[AuthorModel], field: str, problem: dict[str, Any]) -> str:
    match problem["type"]:
        case "extra_forbidden":
            import difflib  # for mistakes only: a node that runs well needs none of it

            near = difflib.get_close_matches(field, cls.model_fields, n=1)
            return "no such argument" + (f"; did you mean {near[0]!r}?" if near else "")
        case "missing":
            return "is required"
        case "value_error":
            return str(problem["msg"]).removeprefix("Value error, ")
    from dra_kit.author.models.wording import rule  # for mistakes only

    value = problem["input"]
    selected = problem["type"] == "literal_error" and isinstance(value, str)  # a misspelt word of a few
    return f"{rule(problem['msg'])}, not {shown(value) if cls.tells_values_ or selected else kind_of(value)}"
