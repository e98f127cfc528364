"""``OpaqueConfig`` and its decoder, which the node, the webhook and ``dra-kit lint`` share."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, ClassVar, Final, Generic, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic.errors import PydanticUndefinedAnnotation
from pydantic_core import CoreSchema
from typing_extensions import TypeVar

from dra_kit.author.config_problems import (
    MOST_PROBLEMS,
    TEXT_BYTES,
    Problem,
    find_config_problems,
    find_duplicate_keys,
    list_values,
    loggable_path,
    one_line,
    short_json,
    suggest_values,
    usable_json,
)
from dra_kit.author.model import AUTHOR_RELEASE, short_repr, with_lax_containers
from dra_kit.errors import ConfigurationError, DraKitError, InvalidConfig
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.names import qualified_name
from dra_kit.kubernetes.values.quantity import QUANTITY_SCHEMA, Quantity, as_quantity
from dra_kit.text import shorten

ForDevices: TypeAlias = Mapping[str, tuple[bool | int | str, ...]]
"""Attributes by name, each with the values that a device may have; validated."""


class OpaqueConfig(BaseModel):
    """The author's model of opaque parameters; the class name is the kind.

    Strict: unknown keys, duplicate keys, keys in the wrong case and values of the wrong JSON type are rejected, by
    both the webhook and the node, in nested models too. Field names are the keys of the manifest
    (pydantic's aliases and ``alias_generator`` work as usual).

    Class arguments:
        api_version: ``group/version`` that manifests write, for example ``kitchen.pizza.example/v1``; inherited.
        kind: the kind that manifests write, if it differs from the class name (two versions of one kind).
        upgrades_from: older versions that are still accepted; each has an ``upgrade`` method.
        for_devices: attributes that a device must publish for this config to apply to it, ``{"type": "mig"}`` or
            ``{"type": ["gpu", "mig"]}``; inherited. An entry for all requests is ignored for other devices. An entry
            that names the request of such a device is rejected when the claim is prepared, and by ``dra-kit lint`` if
            the request cannot get a matching device. Default: the config applies to all devices.

    Raises:
        ConfigurationError: when the class is declared, naming what is invalid.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    api_version_: ClassVar[str] = ""
    kind_: ClassVar[str] = ""
    upgrades_from_: ClassVar[tuple[type[OpaqueConfig], ...]] = ()
    for_devices_: ClassVar[ForDevices] = {}

    def __init_subclass__(
        cls,
        *,
        api_version: str | None = None,
        kind: str | None = None,
        upgrades_from: Sequence[type[OpaqueConfig]] = (),
        for_devices: Wanted | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init_subclass__(**kwargs)
        if "[" in cls.__name__:  # pydantic's class for a generic model with its arguments: the same config
            return
        if api_version is not None:
            group, slash, version = api_version.partition("/")
            if not (group and slash and version) or "/" in version:
                raise ConfigurationError(
                    f"config {cls.__name__}: api_version {api_version!r} is not of the form group/version; "
                    "write for example 'kitchen.pizza.example/v1'"
                )
            cls.api_version_ = api_version
        elif (kind is not None or upgrades_from) and not cls.api_version_:
            raise ConfigurationError(f"config {cls.__name__}: kind= and upgrades_from= need api_version= beside them")
        cls.kind_ = kind or cls.__name__
        cls.upgrades_from_ = tuple(upgrades_from)
        if for_devices is not None:
            cls.for_devices_ = check_for_devices(cls.__name__, for_devices)
        for older in cls.upgrades_from_:
            if older.upgrade is OpaqueConfig.upgrade or inspect.iscoroutinefunction(older.upgrade):
                raise ConfigurationError(
                    f"config {cls.__name__}: {older.__name__} in upgrades_from has no plain upgrade() method; "
                    f"write 'def upgrade(self)' that returns a {cls.__name__}"
                )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return with_lax_containers(source, handler)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Reject fields that a manifest cannot set."""
        super().__pydantic_init_subclass__(**kwargs)
        for name, field in cls.model_fields.items():
            if (field.alias or name) in {"apiVersion", "kind"}:
                raise ConfigurationError(
                    f"config {cls.__name__}: field {name} would be in the manifest as {field.alias or name!r}, "
                    "which says which config it is; give the field another name"
                )

    def upgrade(self) -> OpaqueConfig:
        """Return this config as an object of the next version; only for old versions. A plain ``def`` without I/O."""
        raise ConfigurationError(f"config {type(self).__name__} is the newest version and has no upgrade")

    def refusal_of(self, config: Self) -> str:
        """Return why a claim's config must not replace this one, from its DeviceClass; empty if it may.

        By default a claim's config replaces its class's config, as the API specifies. A driver that lets administrators
        restrict claims overrides this method, for example with a field ``enforced``. It is called for devices without
        admin access, on the DeviceClass's strongest config of this class. It must be a pure function and a plain
        ``def``: ``dra-kit lint`` calls it too.

        Args:
            config: the claim's config, of the same class as this one.
        """
        del config
        return ""


class NoConfig(OpaqueConfig):
    """The config of a ``Preparer`` without a type argument: parameters are rejected."""


ConfigT_co = TypeVar("ConfigT_co", bound=OpaqueConfig, default=NoConfig, covariant=True)


@dataclass(frozen=True, slots=True)
class ConfigEntry(Generic[ConfigT_co]):
    """One entry of a claim's allocation that configures a device, with its source.

    Devices that share one entry may form a group, such as those that share a daemon. Devices of different entries may
    not, even if their configs are equal. ``str()`` names the entry for use in error messages.

    Attributes:
        config: the decoded config; devices of one entry have the identical object.
        source: who wrote it: the ``DeviceClass`` of the request, or the ``claim``, which takes precedence.
        index: its index in ``status.allocation.devices.config`` of the claim, the same for all devices it applies to.
        requests: the requests that it names, ``name`` or ``name/subrequest``. An entry of the claim has them as written
            there; an entry of a class names the requests of that class. Empty: all requests.
    """

    config: ConfigT_co
    source: Literal["class", "claim"] = "claim"
    index: int = 0
    requests: tuple[str, ...] = ()

    def __str__(self) -> str:
        owner = "the claim" if self.source == "claim" else "the DeviceClass"
        wanted = f"for {', '.join(self.requests)}" if self.requests else "for all requests"
        return f"{type(self.config).kind_} of {owner}, {wanted}"


Wanted: TypeAlias = Mapping[str, bool | int | str | Sequence[bool | int | str]]
"""Attributes by name, each with the values that a device may have."""


def check_for_devices(config: str, wanted: Wanted) -> ForDevices:
    """Return the attribute values that a config requires of its devices; ``config`` is the name of its class.

    Raises:
        ConfigurationError: no device can have such a value.
    """
    example = 'for_devices={"type": "mig"}'
    if not isinstance(wanted, Mapping) or not wanted:
        raise ConfigurationError(
            f"config {config}: for_devices {short_repr(wanted)} names no attribute; write {example}, or leave it out"
        )
    found: dict[str, tuple[bool | int | str, ...]] = {}
    for name, value in wanted.items():
        wrong = qualified_name(name, "name", AUTHOR_RELEASE) if isinstance(name, str) else []
        if wrong or not isinstance(name, str):
            text = f": {wrong[0].detail}" if wrong else ""
            raise ConfigurationError(
                f"config {config}: for_devices: {short_repr(name)} is not an attribute name{text}; write {example}"
            )
        values = (value,) if isinstance(value, bool | int | str) else tuple(value) if _is_list(value) else ()
        if not values or not all(isinstance(item, bool | int | str) for item in values):
            raise ConfigurationError(
                f"config {config}: for_devices: {name} is {short_repr(value)}; "
                "write a bool, int or str, or a list of them"
            )
        # for an enum use its value, which is what devices publish
        found[name] = tuple(item if isinstance(item, int) else str.__str__(item) for item in values)
    return found


def matches_device(wanted: ForDevices, device: v1.Device, driver: str) -> bool:
    """Return whether a published device has all required attributes; names without a domain belong to ``driver``."""
    own = {_in_domain(name, driver): attribute for name, attribute in device.attributes.items()} if wanted else {}
    return all(
        (attribute := own.get(_in_domain(name, driver))) is not None and _has_one(attribute, values)
        for name, values in wanted.items()
    )


def describe_for_devices(wanted: ForDevices) -> str:
    """Return the required attributes for an error message: ``type mig``, ``type gpu or mig and model A100``."""
    return " and ".join(f"{name} {' or '.join(map(_text, values))}" for name, values in wanted.items())


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, bytes | bytearray)


def _in_domain(name: str, driver: str) -> str:
    return name if "/" in name else f"{driver}/{name}"


def _has_one(attribute: v1.DeviceAttribute, values: Sequence[bool | int | str]) -> bool:
    published: Any = next(iter(attribute.to_json().values()), None)
    there = published if isinstance(published, list | tuple) else (published,)
    # True equals 1 in Python, but not in the API
    return any(isinstance(one, bool) == isinstance(item, bool) and one == item for one in there for item in values)


def _text(value: bool | int | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


ConfigT = TypeVar("ConfigT", bound=OpaqueConfig)


class ConfigDecoder(Generic[ConfigT]):
    """Decodes ``opaque.parameters`` by ``apiVersion`` and ``kind``, and upgrades old versions.

    Args:
        kinds: the models that a preparer accepts; none means that parameters are rejected.

    Attributes:
        models: by ``apiVersion`` and ``kind``: those of ``kinds`` and the older versions that upgrade to them.

    Raises:
        ConfigurationError: for a model without api_version, two models of one api_version and kind, or a model that a
            crafted claim could keep busy without limit.
    """

    def __init__(self, kinds: Sequence[type[ConfigT]]) -> None:
        self.kinds: tuple[type[ConfigT], ...] = tuple(kinds)
        self.models: dict[tuple[str, str], type[OpaqueConfig]] = {}
        for model in _with_older(kinds):
            if not model.api_version_:
                raise ConfigurationError(
                    f"config {model.__name__} has no api_version; write class {model.__name__}"
                    '(dra_kit.OpaqueConfig, api_version="<group>/v1")'
                )
            key = (model.api_version_, model.kind_)
            if self.models.setdefault(key, model) is not model:
                raise ConfigurationError(
                    f"configs {self.models[key].__name__} and {model.__name__} are both {key[0]}, kind {key[1]}; "
                    "give one another kind= or api_version="
                )

            check_validation(model)
        self._older = frozenset(self.models.values()) - frozenset(kinds)
        self._settings: BaseModel | None = None

    def with_settings(self, settings: BaseModel | None) -> Self:
        """Return a decoder whose validators get the driver's settings as ``info.context``; None without settings."""
        other = copy.copy(self)
        other._settings = settings  # noqa: SLF001
        return other

    def decode(self, parameters: Any) -> ConfigT:
        """Return an instance of the newest model for parameters from :func:`dra_kit.kubernetes.values.json.loads`.

        Raises:
            InvalidConfig: with the first problems as (path, text), and the number of further problems. No other
                exception is raised, no matter what the author's validators raise.
        """
        model = self._model(parameters)
        given = {key: value for key, value in parameters.items() if key not in {"apiVersion", "kind"}}
        problems = list(find_duplicate_keys(parameters))
        body, unusable = usable_json(given)
        if unusable:
            raise _invalid(model, [*problems, *unusable])
        text = json.dumps(body, allow_nan=False)
        validate = partial(model.model_validate_json, text, strict=True, extra="forbid", context=self._settings)
        config = _validated(model, body, problems, validate, self._fields_of_others(model))
        if problems:
            raise _invalid(model, problems)
        return self._upgraded(config)

    def _fields_of_others(self, model: type[OpaqueConfig]) -> dict[str, str]:
        """Return each field of the kind's other versions with the version that has it; the newest if several do."""
        return {
            field.alias or name: other.api_version_
            for other in reversed(self.models.values())
            if other is not model and other.kind_ == model.kind_
            for name, field in other.model_fields.items()
        }

    def _model(self, parameters: Any) -> type[OpaqueConfig]:
        if not self.models:
            raise _invalid(None, [("", "this driver takes no configuration; remove the config entry")])
        if not isinstance(parameters, Mapping):
            raise _invalid(None, [("", f"must be an object, not {short_json(parameters)}")])
        problems = []
        wanted = {"apiVersion": {key[0] for key in self.models}, "kind": {key[1] for key in self.models}}
        for key, accepted in wanted.items():
            value = parameters.get(key)
            if not isinstance(value, str) or value not in accepted:
                found = f"{short_json(value)} is not known" if key in parameters else "is missing"
                problems.append((key, f"{found}{suggest_values(value, accepted)}"))
        if problems:
            raise _invalid(None, problems)
        model = self.models.get((parameters["apiVersion"], parameters["kind"]))
        if model is None:
            versions = {key[0] for key in self.models if key[1] == parameters["kind"]}
            problem = (
                f"{short_json(parameters['apiVersion'])} has no kind {parameters['kind']}; {list_values(versions)}"
            )
            raise _invalid(None, [("apiVersion", problem)])
        return model

    def _upgraded(self, config: OpaqueConfig) -> ConfigT:
        passed = set()
        while not isinstance(config, self.kinds) or type(config) in self._older:
            cls = type(config)
            passed.add(cls)
            try:
                config = config.upgrade()
            except Exception as error:
                raise _invalid(cls, [("", _raised(f"{cls.__name__}.upgrade", error))]) from error
            if not isinstance(config, OpaqueConfig) or type(config) in passed:
                text = f"{cls.__name__}.upgrade returned a {type(config).__name__}, which is not a newer version of it"
                raise _invalid(cls, [("", text)])
        if not passed or self._settings is None:
            return config
        # upgrade() created it without the settings
        model, fields = type(config), dict(config)
        validate = partial(model.model_validate, fields, strict=True, by_name=True, context=self._settings)
        checked: ConfigT = _validated(model, fields, [], validate, {})
        return checked


def _with_older(kinds: Iterable[type[OpaqueConfig]]) -> Iterable[type[OpaqueConfig]]:
    for kind in kinds:
        yield kind
        yield from _with_older(kind.upgrades_from_)


def _validated(
    model: type[OpaqueConfig],
    body: Mapping[str, Any],
    problems: Sequence[Problem],
    validate: Callable[[], Any],
    elsewhere: Mapping[str, str],
) -> Any:
    """Return the validated model; ``elsewhere`` maps fields that another version of the kind has to that version.

    Raises:
        InvalidConfig: with the problems already known and those found here.
    """
    try:
        return validate()
    except ValidationError as error:
        count = len(problems) + error.error_count()
        found = find_config_problems(error, model, body, elsewhere)
        raise _first_of(model, chain(problems, found), count) from None
    except Exception as error:
        raise _invalid(model, [*problems, ("", _raised(f"validator of {model.__name__}", error))]) from error


def _invalid(model: type[OpaqueConfig] | None, problems: Sequence[Problem]) -> InvalidConfig:
    return _first_of(model, problems, len(problems))


def _first_of(model: type[OpaqueConfig] | None, problems: Iterable[Problem], count: int) -> InvalidConfig:
    """Return the error with the first problems, up to the limit; the others are not formatted."""
    found = iter(problems)
    reported = list(islice(found, MOST_PROBLEMS))
    omitted = count - len(reported) if next(found, None) else 0
    texts = [f"{path}: {text}" if path else text for path, text in reported]
    if omitted:
        texts.append(f"… and {omitted} more")
    # without a model the problem is in apiVersion or kind
    places = [loggable_path(path, model) if model is not None else path for path, _ in reported]
    return InvalidConfig(
        f"{model.kind_ if model is not None else 'parameters'}: " + "; ".join(texts),
        problems=reported, omitted=omitted, places=places,
    )  # fmt: skip


def _raised(where: str, error: Exception) -> str:
    text = one_line(str(error))
    if not (isinstance(error, DraKitError) and text):
        text = f"{where} raised {type(error).__name__}{f': {text}' if text else ''}"
    return shorten(text, TEXT_BYTES)


Schema = dict[str, Any]
"""A schema of pydantic-core; every schema has a ``type``."""
_NO_SCHEMAS: Final = frozenset({"cls", "config", "default", "expected", "function", "metadata", "serialization"})
_SHAPES: Final = {
    **dict.fromkeys(("model", "model-fields", "typed-dict", "dataclass", "dataclass-args", "dict"), "object"),
    **dict.fromkeys(("list", "tuple", "set", "frozenset", "generator"), "array"),
}
"""The JSON type that a schema accepts, for schemas that can contain others."""


@dataclass(frozen=True)
class _Place:
    """A schema and its location: the innermost model and the field; empty if there is none."""

    schema: Schema
    model: str
    field: str

    def __str__(self) -> str:
        return f"field {self.field} of {self.model}" if self.field else f"a type in {self.model}"


def check_validation(model: type[BaseModel]) -> None:
    """Reject a model whose validation can take more than linear time or must fail, at any level of nesting.

    Raises:
        ConfigurationError: naming model, field and remedy; or a reference of the model that is not defined.
    """
    try:
        model.model_rebuild()
    except PydanticUndefinedAnnotation as error:
        raise ConfigurationError(
            f"config {model.__name__}: {error.name} is not defined; define it before the Driver is made"
        ) from error
    root: Any = model.__pydantic_core_schema__
    places = list(_places(_Place(root, model.__name__, "")))
    definitions = {place.schema["ref"]: place.schema for place in places if "ref" in place.schema}
    for place in places:
        _check_patterns(model.__name__, place)
        if place.schema["type"] == "function-after":
            _check_limit(model.__name__, place)
        if place.schema["type"] == "union":
            _check_union(model.__name__, place, definitions)


def _check_patterns(config: str, place: _Place) -> None:
    schema = place.schema
    if "python-re" in {schema.get("regex_engine"), (schema.get("config") or {}).get("regex_engine")}:
        what = f"{place.model} has regex_engine='python-re'; remove it"
    elif not isinstance(schema.get("pattern", ""), str):
        what = f"{place} has a compiled pattern; give the pattern as text"
    else:
        return
    raise ConfigurationError(
        f"config {config}: {what}: Python's regular expressions take exponential time on some texts, and anyone who "
        "may create a claim writes them; what pydantic's own patterns lack (look-around, back references), a "
        "field_validator can check"
    )


def _check_limit(config: str, place: _Place) -> None:
    try:
        quantity_limit(place.schema)
    except ValueError as error:
        raise ConfigurationError(
            f"config {config}: {place} has a limit that a quantity cannot have: {error}; write ge, gt, le, lt or "
            'multiple_of with a quantity, such as Field(ge="1Gi")'
        ) from None


def _check_union(config: str, place: _Place, definitions: Mapping[str, Schema]) -> None:
    again: dict[str, list[str]] = {}
    for choice in (item[0] if isinstance(item, tuple) else item for item in place.schema["choices"]):
        if any(inner is place.schema for inner in _reachable(choice, definitions)):
            for shape in _shapes(choice, definitions):
                again.setdefault(shape, []).append(_name(choice, definitions))
    for members in again.values():
        if len(members) > 1:
            raise ConfigurationError(
                f"config {config}: {place} is a union whose members "
                f"{' and '.join(members)} lead back to it: all are tried at each level, so that {len(members)} to the "
                "power of the depth are tried; tell them apart by a field, with pydantic.Field(discriminator=…)"
            )


def _places(place: _Place) -> Iterator[_Place]:
    """Yield a schema and all schemas nested in it; references are not followed."""
    schema = place.schema
    model, field = place.model, place.field
    if isinstance(cls := schema.get("cls"), type):
        model, field = cls.__name__, ""
    field = field or str(schema.get("name", ""))  # the fields of a dataclass are a list
    yield _Place(schema, model, field)
    for name, inner in _inside(schema):
        yield from _places(_Place(inner, model, name or field))


def _inside(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Yield the schemas directly inside a schema, each with the name of its field."""
    for key, value in schema.items():
        if key in _NO_SCHEMAS:
            continue
        items: list[tuple[str, Any]] = [("", value)]
        if isinstance(value, list | tuple):
            # a choice of the union may be a pair with a label
            items = [("", item[0] if isinstance(item, tuple) else item) for item in value]
        elif isinstance(value, dict) and not isinstance(value.get("type"), str):
            items = [(str(name) if key == "fields" else "", item) for name, item in value.items()]
        for name, item in items:
            if isinstance(item, dict) and isinstance(item.get("type"), str):
                yield name, item


def _resolved(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    return definitions[schema["schema_ref"]] if schema["type"] == "definition-ref" else schema


def _reachable(schema: Schema, definitions: Mapping[str, Schema], *, shallow: bool = False) -> Iterator[Schema]:
    """Yield a schema and all that validation can reach from it; ``shallow`` stops at objects and arrays."""
    seen: set[int] = set()
    waiting = [schema]
    while waiting:
        current = _resolved(waiting.pop(), definitions)
        if id(current) not in seen:
            seen.add(id(current))
            yield current
            if not (shallow and _shape(current)):
                waiting += [inner for _, inner in _inside(current)]


def _shapes(schema: Schema, definitions: Mapping[str, Schema]) -> set[str]:
    """Return which of JSON's objects and arrays a schema accepts, ignoring wrapper schemas."""
    return set(filter(None, map(_shape, _reachable(schema, definitions, shallow=True))))


def _shape(schema: Schema) -> str:
    return "" if schema.get("root_model") else _SHAPES.get(schema["type"], "")


def _name(schema: Schema, definitions: Mapping[str, Schema]) -> str:
    schema = _resolved(schema, definitions)
    return schema["cls"].__name__ if "cls" in schema else str(schema["type"])


_LIMITS: Final = frozenset({"ge", "gt", "le", "lt", "multiple_of"})


def quantity_limit(schema: Mapping[str, Any]) -> tuple[str, Quantity] | None:
    """Return the limit of a quantity that pydantic's schema of a validator checks: ``("ge", Quantity("1Gi"))``.

    Returns:
        None for a validator of any other kind, and for one around something that is not a quantity.

    Raises:
        ValueError: the limit is not a quantity, is a multiple of zero, or is none that quantities have.
    """
    function, inner = schema["function"]["function"], schema["schema"]
    if not isinstance(function, partial) or not function.func.__module__.startswith("pydantic."):
        return None
    while inner["type"] in {"function-after", "nullable"}:
        inner = inner["schema"]
    if inner["type"] != "function-plain" or not QUANTITY_SCHEMA.items() <= (inner.get("metadata") or {}).items():
        return None
    [(name, given)] = function.keywords.items()
    if name not in _LIMITS:
        raise ValueError(f"{name} does not apply to quantities")
    limit = as_quantity(given)
    if name == "multiple_of" and not limit.sign:
        raise ValueError("multiple_of is 0")
    return name, limit
