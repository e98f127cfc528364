"""One served kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field

from dra_kit.apiserver.kinds.strategy import Strategy
from dra_kit.apiserver.selectors.fields import FieldReader, reader
from dra_kit.kubernetes.values.json import Object


class Column(Struct, frozen=True):
    """A column of the table that ``kubectl get`` prints.

    Attributes:
        name: its heading.
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
        plural: the name in paths.
        kind: the kind.
        namespaced: whether its objects live in namespaces.
        types: for each served version the name of its type in the schema table, the preferred one first.
        storage: the ``apiVersion`` that is stored.
        storage_type: its type.
        strategy: its rules.
        short_names: for kubectl.
        categories: such as ``all``.
        status: whether it has the subresource ``status``.
        generation: whether ``metadata.generation`` counts the changes of its spec.
        unconditional_update: whether an update may come without a resource version.
        unconditional_versions: those of its versions in which it may, although it may not in the others.
        create_on_update: whether a PUT may create an object.
        collection_deletion: whether all objects of a collection can be deleted at once.
        deletion_status: whether a deletion is answered with a Status instead of the object.
        fields: what it can be selected by, beyond name and namespace.
        own_selectors: whether it names its version when it refuses a field selector.
        columns: its table.
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
        """Where its objects are stored."""
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
        """Return where an object is stored."""
        return f"{namespace}/{name}" if self.namespaced else name


def readers(*paths: str) -> dict[str, FieldReader]:
    """Return selectable fields whose labels are their paths."""
    return {path: reader(path) for path in paths}
