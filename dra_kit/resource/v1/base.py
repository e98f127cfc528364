"""What every API model shares: camelCase on the wire, unknown fields kept, absent stays absent."""

from __future__ import annotations

from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Self, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    Strict,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic.alias_generators import to_camel

Int64 = Annotated[int, Field(strict=True, ge=-(2**63), le=2**63 - 1)]
"""An integer as the API server decodes it: neither a string, nor a fraction, nor beyond 64 bits."""

Bool = Annotated[bool, Strict()]
"""``true`` or ``false``; ``"true"`` and ``1`` are refused, as the API server does."""

Time = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$")]
"""``metav1.Time``: RFC 3339; the API server cuts fractions of a second and answers in UTC."""


class APIModel(BaseModel, frozen=True):
    """A JSON object of the Kubernetes API.

    Attributes are the snake_case of the JSON names. Fields that this release does not know are kept and written
    back, so that a newer API server loses nothing. Optional fields that are empty are not written. ``null`` means
    absent, and the zero value inside lists and maps, as in the API server's own decoder.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, extra="allow", serialize_by_alias=True
    )

    @model_validator(mode="wrap")
    @classmethod
    def _null_is_zero(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(data)
        except ValidationError:
            # nulls are so rare that looking for them first would only slow down every other object
            if not isinstance(data, dict):
                raise
            cleaned = {name: _replace_nulls(value, _zeros(cls).get(name)) for name, value in data.items()}
            cleaned = {name: value for name, value in cleaned.items() if value is not None}
            if cleaned == data:
                raise
        return handler(cleaned)

    @model_serializer(mode="wrap")
    def _omit_empty(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        for name, field in type(self).model_fields.items():
            if not field.is_required() and not field.default and getattr(self, name) == field.default:
                data.pop(field.serialization_alias or name, None)
                data.pop(name, None)
        return data

    def to_json(self) -> dict[str, Any]:
        """This object as the API server takes it."""
        return self.model_dump(mode="json", by_alias=True)


def _replace_nulls(value: Any, zero: Any) -> Any:
    if zero is not None and isinstance(value, list):
        return [zero if item is None else item for item in value]
    if zero is not None and isinstance(value, dict):
        return {key: zero if item is None else item for key, item in value.items()}
    return value


@cache
def _zeros(model: type[APIModel]) -> dict[str, Any]:
    """The zero value of the items of each list and map, by attribute and by JSON name."""
    zeros: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        for annotation in _alternatives(field.annotation):
            container = get_origin(annotation)
            if container in {tuple, dict}:
                item = get_args(annotation)[0 if container is tuple else 1]
                item = get_args(item)[0] if get_origin(item) is Annotated else item
                zero = item() if item in {str, int, bool} else {} if issubclass(item, BaseModel) else "0"
                zeros[name] = zeros[field.alias or name] = zero
    return zeros


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in {Union, UnionType}:
        return tuple(item for item in get_args(annotation) if item is not NoneType)
    return (annotation,)


class ObjectMeta(APIModel, frozen=True):
    """``metadata`` as far as a driver needs it; the rest is kept as it came."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: Int64 | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()


class OwnerReference(APIModel, frozen=True):
    """The object whose deletion deletes this one."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: Bool | None = None
    block_owner_deletion: Bool | None = None
