"""How the string-like values take part in pydantic models, without importing pydantic themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic_core import CoreSchema


def text_schema(validate: Callable[[Any], Any], *, accepts_numbers: bool = False) -> CoreSchema:
    """Return the pydantic schema of a value that is a string in JSON.

    Args:
        validate: makes the value out of what a model is given; raises ValueError.
        accepts_numbers: JSON numbers are documented as accepted, too.
    """
    from pydantic_core import core_schema

    accepted: CoreSchema = core_schema.str_schema()
    if accepts_numbers:
        accepted = core_schema.union_schema([accepted, core_schema.float_schema()])
    return core_schema.no_info_plain_validator_function(
        validate,
        json_schema_input_schema=accepted,
        serialization=core_schema.to_string_ser_schema(when_used="always"),
    )
