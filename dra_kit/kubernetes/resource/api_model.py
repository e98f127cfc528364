"""Base of the models of API objects: snake_case attributes, camelCase JSON, unknown fields preserved."""

from __future__ import annotations

from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Self, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    Strict,
    ValidationError,
    model_serializer,
)
from pydantic.alias_generators import to_camel

Int64 = Annotated[int, Field(strict=True, ge=-(2**63), le=2**63 - 1)]
"""An integer as the API server decodes it: within 64 bits, and neither a string nor a fraction."""
Bool = Annotated[bool, Strict()]
"""``true`` or ``false``; ``"true"`` and ``1`` are rejected, as in the API server."""
# not \d, which stands for the digits of every script: tables of 0.8 MiB in pydantic's regular expressions
Time = Annotated[
    str,
    Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})$"),
]
"""``metav1.Time``: RFC 3339; the API server truncates fractions of a second and returns UTC."""
_camel = cache(to_camel)


class APIModel(BaseModel, frozen=True):
    """A JSON object of the Kubernetes API.

    Attributes have the JSON names in snake_case. Unknown fields are preserved and written back, so that no data of a
    newer API server is lost. Empty optional fields are not written. ``null`` means absent, and in lists and maps the
    zero value, as in the API server's decoder.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="allow",
        serialize_by_alias=True,
    )

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """See pydantic; ``options`` are those of :meth:`pydantic.BaseModel.model_validate`."""
        try:
            return super().model_validate(obj, **options)
        except ValidationError:
            # nulls are rare: checking for them first would slow down all other objects
            cleaned = _without_nulls(obj, cls)
            if cleaned == obj:
                raise
        return super().model_validate(cleaned, **options)

    @model_serializer(mode="wrap", return_type=dict[str, Any])  # named: pydantic otherwise looks it up for each model
    def _omit_empty(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        for name, field in type(self).model_fields.items():
            if not field.is_required() and not field.default and getattr(self, name) == field.default:
                # models that are only nested do not have the generator's aliases
                data.pop(field.serialization_alias or _camel(name), None)
                data.pop(name, None)
        return data

    def to_json(self) -> dict[str, Any]:
        """Return this object as the API server accepts it."""
        return self.model_dump(mode="json", by_alias=True)


def _without_nulls(data: Any, model: type[APIModel]) -> Any:
    """Return an object without nulls: omit attributes, and replace items by the zero value of their type."""
    if not isinstance(data, dict):
        return data
    nested = _nested(model)
    return {
        name: _cleaned(value, *nested[name]) if name in nested else value
        for name, value in data.items()
        if value is not None
    }


def _cleaned(value: Any, container: Any, item: Any, zero: Any) -> Any:
    def cleaned(one: Any) -> Any:
        one = zero if one is None else one
        return _without_nulls(one, item) if item is not None else one

    if container is tuple and isinstance(value, list):
        return [cleaned(one) for one in value]
    if container is dict and isinstance(value, dict):
        return {key: cleaned(one) for key, one in value.items()}
    return cleaned(value) if container is None else value


@cache
def _nested(model: type[APIModel]) -> dict[str, tuple[Any, type[APIModel] | None, Any]]:
    """Return container, model and zero value of items by attribute and JSON name, for lists, maps and objects."""
    found: dict[str, tuple[Any, type[APIModel] | None, Any]] = {}
    for name, field in model.model_fields.items():
        for annotation in _alternatives(field.annotation):
            container = get_origin(annotation)
            item = annotation
            if container in {tuple, dict}:
                item = get_args(annotation)[0 if container is tuple else 1]
                item = get_args(item)[0] if get_origin(item) is Annotated else item
            is_model = isinstance(item, type) and issubclass(item, APIModel)
            if container in {tuple, dict} or is_model:
                zero = item() if item in {str, int, bool} else {} if is_model else "0"
                collection = container if container in {tuple, dict} else None
                found[name] = found[field.alias or name] = (collection, item if is_model else None, zero)
    return found


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in {Union, UnionType}:
        return tuple(item for item in get_args(annotation) if item is not NoneType)
    return (annotation,)


class ObjectMeta(APIModel, frozen=True):
    """``metadata`` as far as a driver needs it; the rest is preserved unchanged."""

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
