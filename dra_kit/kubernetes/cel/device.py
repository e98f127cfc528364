"""A published device as expressions see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from dra_kit.kubernetes.cel.failures import EvaluationFailure, no_such_key, unusable_attribute
from dra_kit.kubernetes.cel.functions.quantity_semver import Semver
from dra_kit.kubernetes.cel.values import INT_MAX, INT_MIN, DomainMapValue
from dra_kit.kubernetes.release import DEFAULT, Change, KubernetesVersion
from dra_kit.kubernetes.values.quantity import Quantity
from dra_kit.kubernetes.values.semver import Version

AttributeValue: TypeAlias = "bool | int | str | Version | Sequence[bool | int | str | Version] | Mapping[str, Any]"
"""The value of an attribute, or the API's object with one field: ``{"version": "1.2.3"}``, ``{"strings": ["a"]}``."""
DEVICE_FIELDS: Final = ("driver", "attributes", "capacity", "allowMultipleAllocations")
"""The fields of ``device`` in expressions."""
_Named = TypeVar("_Named")
_API_FIELDS: Final = frozenset({"bool", "int", "string", "version", "bools", "ints", "strings", "versions"})


class Device:
    """A device, prepared once for evaluations of any expression.

    Args:
        driver: the driver's name; the domain of names that have none.
        attributes: values by name, ``model`` or ``resource.kubernetes.io/pcieRoot``.
        capacity: quantities by name, of the same form.
        allow_multiple_allocations: the field of the same name.
        version: the release that evaluates expressions.

    Raises:
        ValueError: a ResourceSlice cannot have such a value.
    """

    __slots__ = ("allow_multiple_allocations", "attributes", "capacity", "driver", "unusable")

    driver: str
    attributes: dict[str, dict[str, Any]]
    capacity: dict[str, dict[str, Any]]
    allow_multiple_allocations: bool
    unusable: Mapping[str, frozenset[str]]

    def __init__(
        self,
        *,
        driver: str,
        attributes: Mapping[str, AttributeValue] | None = None,
        capacity: Mapping[str, Quantity | str | int] | None = None,
        allow_multiple_allocations: bool = False,
        version: KubernetesVersion = DEFAULT,
    ) -> None:
        self.driver = driver
        self.allow_multiple_allocations = bool(allow_multiple_allocations)
        self.attributes = {}
        unusable: dict[str, set[str]] = {}
        attributes, capacity = attributes or {}, capacity or {}
        if version.has(Change.FULL_NAMES_WIN):
            attributes, capacity = _full_names_last(attributes), _full_names_last(capacity)
        for name, value in attributes.items():
            domain, identifier = self._split(name)
            values = self.attributes.setdefault(domain, {})
            values.pop(identifier, None)
            unusable.get(domain, set()).discard(identifier)
            try:
                values[identifier] = _wrap(name, value)
            except ValueError:
                if not version.has(Change.UNUSABLE_VALUES_FAIL_WHERE_READ):
                    raise
                unusable.setdefault(domain, set()).add(identifier)
        if version.has(Change.EMPTY_LISTS_ARE_UNUSABLE):
            for domain, values in self.attributes.items():
                for name in [name for name, value in values.items() if value == []]:
                    del values[name]
                    unusable.setdefault(domain, set()).add(name)
        self.unusable = {domain: frozenset(names) for domain, names in unusable.items() if names}
        self.capacity = {}
        for name, quantity in capacity.items():
            domain, identifier = self._split(name)
            amount = quantity if isinstance(quantity, Quantity) else Quantity(quantity, version)
            self.capacity.setdefault(domain, {})[identifier] = amount

    @classmethod
    def of_scalars(
        cls, driver: str, attributes: dict[str, dict[str, bool | int | str]], capacity: dict[str, dict[str, Quantity]]
    ) -> Device:
        """Return a device that cannot be shared, without checking the values.

        ``explain`` of 5,000 nodes of 8 devices takes 0.7 s instead of 1.4 s (``python -m benchmarks.explain``).

        Args:
            driver: the driver's name.
            attributes: by domain and name; without versions.
            capacity: by domain and name.
        """
        device = cls.__new__(cls)
        device.driver = driver
        device.attributes = attributes
        device.capacity = capacity
        device.allow_multiple_allocations = False
        device.unusable = {}
        return device

    def not_found(self, domain: str, name: str) -> EvaluationFailure:
        """Return the failure of an expression that reads an attribute without a value here."""
        return unusable_attribute(name) if name in self.unusable.get(domain, ()) else no_such_key(name)

    def _split(self, name: str) -> tuple[str, str]:
        domain, slash, identifier = name.partition("/")
        return (domain, identifier) if slash else (self.driver, name)

    def field(self, name: str) -> Any:
        """Return a field as a CEL value; raises EvaluationFailure if it does not exist."""
        match name:
            case "driver":
                return self.driver
            case "attributes":
                return DomainMapValue(self.attributes, self.unusable)
            case "capacity":
                return DomainMapValue(self.capacity, {})
            case "allowMultipleAllocations":
                return self.allow_multiple_allocations
            case _:
                raise no_such_key(name)

    def __repr__(self) -> str:
        return f"Device(driver={self.driver!r}, attributes={self.attributes!r}, capacity={self.capacity!r})"


def _full_names_last(values: Mapping[str, _Named]) -> dict[str, _Named]:
    """Return the values with those whose names have a domain at the end, where they replace others."""
    return dict(sorted(values.items(), key=lambda item: "/" in item[0]))


def _wrap(name: str, value: AttributeValue) -> Any:
    if isinstance(value, (str, int)):
        return _scalar(name, value)
    if isinstance(value, Mapping):
        if len(value) != 1 or not value.keys() <= _API_FIELDS:
            raise ValueError(
                f"attribute {name}: an object must have one of the fields {', '.join(sorted(_API_FIELDS))}"
            )
        ((field, content),) = value.items()
        if field == "version":
            return _scalar(name, Version(content))
        if field == "versions":
            return [_scalar(name, Version(one)) for one in content]
        return _wrap(name, content)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_scalar(name, one) for one in value]
    return _scalar(name, value)


def _scalar(name: str, value: object) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and INT_MIN <= value <= INT_MAX:
        return int(value)
    if isinstance(value, str) and _is_unicode(value):
        return str(value)
    if isinstance(value, Version):
        try:
            return Semver(value)
        except EvaluationFailure as failure:
            raise ValueError(f"attribute {name}: {failure.message}") from None
    raise ValueError(f"attribute {name}: {value!r} is not a valid bool, int, string or version")


def _is_unicode(text: str) -> bool:
    """Return whether the text can be UTF-8: JSON may contain halves of characters."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
