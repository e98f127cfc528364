"""Details of pydantic-core's schemas: keys of fields, defaults, validators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

Schema: TypeAlias = Mapping[str, Any]
"""A schema of pydantic-core, which all have a ``type``; or a config of one."""

_AROUND: Final = frozenset({"function-after", "function-before", "function-wrap", "nullable", "custom-error"})


def below(path: str, key: str) -> str:
    """Return the path of a field inside an object."""
    return f"{path}.{key}" if path else key


def has_default(schema: Schema) -> bool:
    """Return whether a field may be left out; its default may be inside of validators."""
    while schema["type"] in _AROUND:
        schema = schema["schema"]
    return bool(schema["type"] == "default")


def keys_of(name: str, field: Schema, config: Schema) -> tuple[tuple[str, ...], bool]:
    """Return the keys that a field is read from; False if it may be read from inside of what is there.

    Args:
        name: of the field.
        field: its schema.
        config: of the model.
    """
    alias = field.get("validation_alias")
    if alias is None:
        return (name,), True
    paths: list[Any] = [[alias]] if isinstance(alias, str) else alias
    if paths and not isinstance(paths[0], list):
        paths = [alias]
    found: dict[str, None] = {}
    if config.get("validate_by_alias", True) is not False:
        found |= dict.fromkeys(str(path[0]) for path in paths)
    if config.get("validate_by_name") or config.get("populate_by_name") or not found:
        found[name] = None
    return tuple(found), all(len(path) == 1 for path in paths)


def single_key(discriminator: Any) -> str | None:
    """Return the key of a discriminator that is the same for all kinds."""
    if isinstance(discriminator, str):
        return discriminator
    if callable(discriminator):
        return None
    paths = [path if isinstance(path, list) else [path] for path in discriminator]
    return paths[0][0] if len(paths) == 1 and len(paths[0]) == 1 and isinstance(paths[0][0], str) else None


def fields_of(schema: Schema) -> Iterator[tuple[str, Schema, bool]]:
    """Yield the fields of a model, dataclass or typed dict: name, schema, and whether they must be there."""
    found = schema["fields"]
    named = found.items() if isinstance(found, Mapping) else [(field["name"], field) for field in found]
    typed_dict = schema["type"] == "typed-dict"
    for name, field in named:
        must = field.get("required", schema.get("total", True)) if typed_dict else field.get("init", True)
        yield name, field, must and not has_default(field["schema"])


def object_name(schema: Schema) -> str:
    """Return the name of the class of a model, dataclass or typed dict."""
    return str(schema.get("model_name") or schema.get("dataclass_name") or getattr(schema.get("cls"), "__name__", ""))


def module(schema: Schema) -> str:
    """Return where the function of a schema comes from."""
    return str(getattr(_called(schema), "__module__", ""))


def validator(schema: Schema) -> str:
    """Return the function of a schema, in the words of its author."""
    function = _called(schema)
    if isinstance(function, type):
        return f"that it is a valid {function.__name__}"
    if module(schema).partition(".")[0] == "pydantic":
        return "its format"
    name = getattr(function, "__name__", type(function).__name__)
    return "a validator" if name == "<lambda>" else f"validator {name}"


def _called(schema: Schema) -> Any:
    """Return the function of a schema that has one, without the object that it is bound to."""
    function = schema["function"]["function"]
    return getattr(function, "__func__", function)
