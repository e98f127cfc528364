"""A kind: its names, versions and strategy, and the columns and cells that kubectl prints.

Source: k8s.io/apimachinery 0.37 ``pkg/util/duration``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import Struct, field

from dra_kit.apiserver.kinds.strategy import Strategy
from dra_kit.apiserver.selectors import FieldReader, reader
from dra_kit.kubernetes.values.json import Object, value_at


class Column(Struct, frozen=True):
    """A column of the table that ``kubectl get`` prints.

    Attributes:
        cell: the value for an object in storage version; None for the age.
        type: ``string``, ``integer`` or ``date``.
        format: ``name`` for the column of names.
        priority: 1 for columns that only ``-o wide`` shows.
    """

    name: str
    cell: Callable[[Object], Any] | None
    type: str = "string"
    format: str = ""
    priority: int = 0


NAME = Column("Name", lambda obj: obj["metadata"].get("name", ""), format="name")
AGE = Column("Age", None)


class Kind(Struct, frozen=True):
    """One kind, in all its served versions.

    Attributes:
        group: API group, empty for the core group.
        types: for each served version the name of its type in the schema table, the preferred one first.
        storage: the ``apiVersion`` that is stored.
        generation: whether ``metadata.generation`` counts the changes of its spec.
        unconditional_update: whether an update may come without a resource version.
        unconditional_versions: those of its versions in which it may, although it may not in the others.
        create_on_update: whether a PUT may create an object.
        collection_deletion: whether all objects of a collection can be deleted at once.
        deletion_status: whether a deletion is answered with a Status instead of the object.
        fields: what it can be selected by, beyond name and namespace.
        own_selectors: whether it names its version when it refuses a field selector.
        deprecated: warning for each deprecated version.
        stored_as: the resource whose objects it shows, when that is another.
        schemas: for each version of a custom kind the OpenAPI schema of its definition.
        list_kind: the kind of its lists, when that is not the kind and ``List``.
    """

    group: str
    plural: str
    kind: str
    namespaced: bool
    types: Mapping[str, str]
    strategy: Strategy = field(default_factory=Strategy)
    storage: str = ""
    storage_type: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    status: bool = False
    generation: bool = False
    unconditional_update: bool = True
    unconditional_versions: tuple[str, ...] = ()
    create_on_update: bool = False
    collection_deletion: bool = True
    deletion_status: bool = False
    fields: Mapping[str, FieldReader] = field(default_factory=dict)
    own_selectors: bool = False
    columns: tuple[Column, ...] = (NAME, AGE)
    deprecated: Mapping[str, str] = field(default_factory=dict)
    stored_as: str = ""
    schemas: Mapping[str, Object] = field(default_factory=dict)
    list_kind: str = ""

    @property
    def singular(self) -> str:
        """The kind in lower case."""
        return self.kind.lower()

    @property
    def full_name(self) -> str:
        """``<plural>.<group>``; the plural alone in the core group."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def resource(self) -> str:
        """The storage resource of its objects."""
        return self.stored_as or self.full_name

    def api_version(self, version: str) -> str:
        """Return ``apiVersion`` of its objects in one of its versions."""
        return f"{self.group}/{version}" if self.group else version

    @property
    def storage_api_version(self) -> str:
        """``apiVersion`` of its stored objects."""
        return self.storage or self.api_version(next(iter(self.types)))

    @property
    def stored_type(self) -> str:
        """Type of its stored objects."""
        return self.storage_type or next(iter(self.types.values()))

    def type_of(self, api_version: str) -> str:
        """Return the type of one of its served versions."""
        return self.types[api_version.rpartition("/")[2]]

    def key(self, namespace: str, name: str) -> str:
        """Return the storage key of an object."""
        return f"{namespace}/{name}" if self.namespaced else name


def readers(*paths: str) -> dict[str, FieldReader]:
    """Return selectable fields whose labels are their paths."""
    return {path: reader(path) for path in paths}


NONE: Final = "<none>"


def value_at_path(path: str) -> Callable[[Object], Any]:
    """Return the value at a path, None if it is missing."""
    names = path.split(".")
    return lambda obj: value_at(obj, names)


def text_cell(path: str) -> Callable[[Object], str]:
    """Return the value at a path as text, empty if it is missing."""
    read = value_at_path(path)

    def cell(obj: Object) -> str:
        value = read(obj)
        return "" if value is None else str(value)

    return cell


def count_cell(path: str) -> Callable[[Object], int]:
    """Return the number of items at a path."""
    read = value_at_path(path)
    return lambda obj: len(read(obj) or ())


def number_cell(path: str) -> Callable[[Object], int]:
    """Return the number at a path, 0 if it is missing."""
    read = value_at_path(path)
    return lambda obj: read(obj) or 0


def selector_cell(path: str) -> Callable[[Object], str]:
    """Return a LabelSelector at a path as kubectl writes it."""
    read = value_at_path(path)

    return lambda obj: written_selector(read(obj)) or NONE


def written_selector(selector: Object | None) -> str:
    """Return a LabelSelector as text, sorted by key; empty if it selects everything."""
    wanted = selector or {}
    parts = [(key, f"{key}={value}") for key, value in sorted((wanted.get("matchLabels") or {}).items())]
    parts += [(item["key"], _requirement(item)) for item in wanted.get("matchExpressions") or ()]
    return ",".join(text for _, text in sorted(parts, key=lambda part: part[0]))


def _requirement(item: Object) -> str:
    match item["operator"]:
        case "Exists":
            return str(item["key"])
        case "DoesNotExist":
            return f"!{item['key']}"
        case operator:
            return f"{item['key']} {operator.lower()} ({','.join(sorted(item.get('values') or ()))})"


def labels_cell(path: str) -> Callable[[Object], str]:
    """Return a map of labels at a path."""
    read = value_at_path(path)
    return lambda obj: ",".join(f"{key}={value}" for key, value in sorted((read(obj) or {}).items())) or NONE


def _containers(field: str) -> Callable[[Object], str]:
    read = value_at_path("spec.template.spec.containers")
    return lambda obj: ",".join(item.get(field, "") for item in read(obj) or ())


TEMPLATE: Final = (
    Column("Containers", _containers("name"), priority=1),
    Column("Images", _containers("image"), priority=1),
)
"""The columns of a pod template that only ``-o wide`` shows."""
SELECTOR: Final = Column("Selector", selector_cell("spec.selector"), priority=1)
"""The selector of a workload, which only ``-o wide`` shows."""
_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86_400, 31_536_000
UNKNOWN: Final = "<unknown>"


def format_age(timestamp: str | None, moment: datetime) -> str:
    """Return how long ago a ``Time`` or ``MicroTime`` was, as kubectl prints it."""
    if not timestamp:
        return UNKNOWN
    return format_duration(int((moment - datetime.fromisoformat(timestamp)).total_seconds()))


def format_duration(seconds: int) -> str:
    """Return seconds in one or two units, such as ``5m10s`` and ``3d4h``."""
    if seconds < 0:
        return "0s" if seconds >= -1 else "<invalid>"
    if seconds < 2 * _MINUTE:
        return f"{seconds}s"
    if seconds < 10 * _MINUTE:
        return _two(seconds, _MINUTE, "m", 1, "s")
    if seconds < 3 * _HOUR:
        return f"{seconds // _MINUTE}m"
    if seconds < 8 * _HOUR:
        return _two(seconds, _HOUR, "h", _MINUTE, "m")
    if seconds < 2 * _DAY:
        return f"{seconds // _HOUR}h"
    if seconds < 8 * _DAY:
        return _two(seconds, _DAY, "d", _HOUR, "h")
    if seconds < 2 * _YEAR:
        return f"{seconds // _DAY}d"
    if seconds < 8 * _YEAR:
        return _two(seconds, _YEAR, "y", _DAY, "d")
    return f"{seconds // _YEAR}y"


def _two(seconds: int, unit: int, name: str, small: int, small_name: str) -> str:
    rest = seconds % unit // small
    return f"{seconds // unit}{name}" + (f"{rest}{small_name}" if rest else "")
