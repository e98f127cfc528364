"""``QuantityField``: a quantity of a config, with its text as it was written."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from dra_kit.values.amount import MAX_DIGITS, Amount
from dra_kit.values.quantity import WHITE_SPACE, InvalidQuantity, Quantity, QuantityFormat

if TYPE_CHECKING:
    from pydantic_core import CoreSchema

_PATTERN: Final = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
"""What controller-gen writes into CustomResourceDefinitions for a ``resource.Quantity``."""

QUANTITY_SCHEMA: Final = {"dra_kit_format": "quantity"}
"""In the metadata of its schema, for those who read schemas: it takes quantities as text, and numbers."""


class QuantityField(Quantity):
    """A quantity as a claim's config writes it: ``memory: dra.QuantityField = dra.QuantityField("1Gi")``.

    It compares, adds and hashes as :class:`Quantity` does, by its number; ``text`` is what was written, for a program
    that is to be given exactly that: ``1024Mi`` stays ``1024Mi``, where a Quantity would be ``1Gi``. Models dump the
    text; sums and differences are plain quantities. Its JSON schema is that of quantities in CustomResourceDefinitions.

    Args:
        value: a text like ``"1.5Gi"``, or a number, which is read like its decimal text.

    Raises:
        ValueError: the text is not a quantity.
    """

    __slots__ = ("text",)

    text: str
    """As it was written, without white space around it."""

    def __init__(self, value: Quantity | str | int | Decimal) -> None:
        if isinstance(value, str):
            value = value.strip(WHITE_SPACE)
        super().__init__(value)
        self.text = value.text if isinstance(value, QuantityField) else str(value)

    @classmethod
    def _of(cls, amount: Amount, suffixes: QuantityFormat) -> Quantity:
        return Quantity._of(amount, suffixes)  # noqa: SLF001 - nobody wrote what was calculated

    def __repr__(self) -> str:
        return f"QuantityField({self.text!r})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            _from_json,
            metadata=dict(QUANTITY_SCHEMA),
            serialization=core_schema.plain_serializer_function_ser_schema(
                _text, return_schema=core_schema.str_schema()
            ),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: Any) -> dict[str, Any]:
        return {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": _PATTERN,
            "x-kubernetes-int-or-string": True,
        }


def _from_json(value: Any) -> QuantityField:
    field = QuantityField(repr(value) if isinstance(value, float) else value)
    if field.as_decimal.adjusted() >= MAX_DIGITS:  # `1e2147483647`: an int of it would never be done
        raise InvalidQuantity(f"a quantity has at most {MAX_DIGITS} digits; write a smaller exponent", "numeric")
    return field


def _text(value: QuantityField) -> str:
    return value.text
