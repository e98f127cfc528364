"""A kind: its names and versions, and the strategy of its writes. ``tables.py`` has what kubectl prints of it."""

# ruff: noqa: ARG002 - the arguments are for the kinds that override a method
from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import ClassVar, Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace
from typing_extensions import override

from dra_kit.apiserver.authentication import ADMIN, User
from dra_kit.apiserver.authorization import Rbac
from dra_kit.apiserver.selectors import FieldReader, reader
from dra_kit.apiserver.tables import AGE, NAME, Column
from dra_kit.kubernetes.release import Change, KubernetesVersion, Release
from dra_kit.kubernetes.resource import names
from dra_kit.kubernetes.resource.field_errors import FieldError
from dra_kit.kubernetes.resource.schema.types import struct
from dra_kit.kubernetes.resource.validation.fields import subdomain_problems
from dra_kit.kubernetes.values.json import Object


class StrategyContext(Struct):
    """The request that writes an object.

    Attributes:
        api_version: of the request's body and answer.
        lookup: any stored object by resource (``<plural>.<group>``) and key (``<namespace>/<name>`` or ``<name>``).
        listed: all stored objects of a resource.
        verb: of the request, as in RBAC rules; empty for none.
        warnings: texts for ``Warning`` headers of the answer.
    """

    release: Release
    api_version: str
    now: str
    lookup: Callable[[str, str], Object | None]
    listed: Callable[[str], Iterable[Object]]
    rbac: Rbac
    user: User = ADMIN
    verb: str = ""
    warnings: list[str] = field(default_factory=list)


_SUFFIX_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: no words
_SUFFIX_LENGTH: Final = 5
_GENERATE_NAME_MAX: Final = 63 - _SUFFIX_LENGTH


def generated_name(prefix: str) -> str:
    """Return ``prefix`` (cut to 58 bytes) and five random characters."""
    suffix = "".join(secrets.choice(_SUFFIX_ALPHABET) for _ in range(_SUFFIX_LENGTH))
    return prefix[:_GENERATE_NAME_MAX] + suffix


def _spec(obj: Object) -> Object:
    return {key: value for key, value in obj.items() if key not in {"metadata", "status", "kind", "apiVersion"}}


class Strategy:
    """The rules of a kind; the base class is a plain object with a DNS subdomain as name.

    Objects passed to the mutating methods are the caller's own and changed in place. ``old`` is the stored object and
    never changed. All but :meth:`default`, :meth:`to_storage` and :meth:`from_storage` see the storage version.

    Attributes:
        metadata_with_status: the fields of the metadata that a write of the status may change.
        graceful: whether a deletion first marks the object, even one that goes at once.
        counts_dropped: whether ``metadata.generation`` also counts an update that only brings what is dropped.
    """

    metadata_with_status: ClassVar[tuple[str, ...]] = ()
    graceful: ClassVar[bool] = False
    counts_dropped: ClassVar[bool] = False

    def default(self, obj: Object, context: StrategyContext) -> None:
        """Fill in defaults of the request's version, beyond those of the schema."""

    def to_storage(self, obj: Object, api_version: str) -> Object:
        """Convert a served version to the one that is stored."""
        return obj

    def from_storage(self, obj: Object, api_version: str) -> Object:
        """Convert the stored version to a served one; it must not change ``obj``."""
        return obj

    def admit(self, obj: Object, old: Object | None, context: StrategyContext, subresource: str) -> None:
        """Run admission plugins, which may change the object or raise a StatusError."""

    def permit(self, obj: Object, old: Object | None, context: StrategyContext) -> None:
        """Check the rights that the content of a write needs, beyond those for the request; may raise a StatusError.

        It comes before validation, and sees what mutating admission made of the object.
        """

    def admit_valid(self, obj: Object, context: StrategyContext) -> None:
        """Run admission plugins for valid objects, which may raise a StatusError."""

    def undeletable(self, name: str) -> str:
        """Return why an object of this name may not be deleted, even if it does not exist; empty if it may."""
        return ""

    def prepare_for_create(self, obj: Object, context: StrategyContext) -> None:
        """Remove fields that clients may not set, such as status, and fields of disabled features."""

    def prepare_for_update(self, obj: Object, old: Object, context: StrategyContext) -> None:
        """Copy from the old object the fields that this request may not change."""

    def prepare_for_status(self, obj: Object, old: Object, context: StrategyContext) -> None:
        """Do the same for a write of the status; everything else is taken from ``old`` already."""

    def validate(self, obj: Object, context: StrategyContext) -> list[FieldError]:
        """Return errors of a new object, except its metadata."""
        return []

    def validate_update(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        """Return errors of a changed object, except its metadata; by default the same as for a new one."""
        return self.validate(obj, context)

    def validate_status(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        """Return errors of a changed status."""
        return []

    def reported(self, errors: list[FieldError], context: StrategyContext) -> list[FieldError]:
        """Return the errors in the order and with the paths for the client."""
        return errors

    def warnings(self, obj: Object, old: Object | None, context: StrategyContext) -> list[str]:
        """Return texts for ``Warning`` headers."""
        return []

    def grace_period(self, obj: Object, requested: int | None) -> int:
        """Return the grace period of a deletion in seconds; 0 removes the object at once."""
        return 0

    def deleting(self, obj: Object) -> Object:
        """Mark an object as being deleted; return it or a changed copy."""
        return obj

    def same_spec(self, obj: Object, old: Object, context: StrategyContext) -> bool:
        """Return whether two objects in storage version have no difference that ``metadata.generation`` counts."""
        return _spec(obj) == _spec(old)

    def metadata_owned(self, context: StrategyContext) -> tuple[str, ...]:
        """Return the metadata that who writes the status owns: usually what the write may change."""
        return self.metadata_with_status

    def removable(self, obj: Object) -> bool:
        """Return whether an object may be removed, ignoring finalizers and grace period."""
        return True

    def name_problems(self, name: str) -> list[str]:
        """Return the API server's errors of an object's name."""
        return subdomain_problems(name)


class StatusStrategy(Strategy):
    """A kind whose status is written through its subresource only."""

    @override
    def prepare_for_create(self, obj: Object, context: StrategyContext) -> None:
        obj.pop("status", None)

    @override
    def prepare_for_update(self, obj: Object, old: Object, context: StrategyContext) -> None:
        if "status" in old:
            obj["status"] = old["status"]
        else:
            obj.pop("status", None)


class DnsLabelNameStrategy(Strategy):
    """A plain object whose name is a DNS label."""

    @override
    def name_problems(self, name: str) -> list[str]:
        return names.dns_label(name)


class PathSegmentNameStrategy(Strategy):
    """A plain object whose name may be anything that fits one segment of a path, as RBAC's."""

    @override
    def name_problems(self, name: str) -> list[str]:
        return names.path_segment(name)


class VersionLife(NamedTuple):
    """When a version of a kind begins and ends.

    Attributes:
        deprecated: the minor release since which its use is discouraged; None for none yet.
        removed: the first minor release without it, as once announced; None for none yet.
        taken_back: whether its removal is announced no more.
        introduced: the first minor release with it; 0 for all.
        stored: the first minor release that stores objects in it, if it knows no newer one; None for none yet.
    """

    deprecated: int | None = None
    removed: int | None = None
    taken_back: bool = False
    introduced: int = 0
    stored: int | None = 0

    def has_begun(self, now: KubernetesVersion) -> bool:
        """Return whether a release knows the version already."""
        return now.minor >= self.introduced

    def is_over(self, now: KubernetesVersion) -> bool:
        """Return whether a release does not serve the version any more."""
        return self.removed is not None and self._announced(now) and now.minor >= self.removed

    def deprecation(self, now: KubernetesVersion) -> str:
        """Return what a release says about a version that is deprecated; empty for one that is not yet."""
        if self.deprecated is None or now.minor < self.deprecated:
            return ""
        warning = f"deprecated in v1.{self.deprecated}+"
        return f"{warning}, unavailable in v1.{self.removed}+" if self._announced(now) else warning

    def is_stored(self, now: KubernetesVersion) -> bool:
        """Return whether a release may store objects in the version."""
        return self.stored is not None and now.minor >= self.stored

    def _announced(self, now: KubernetesVersion) -> bool:
        return not (self.taken_back and now.has(Change.REMOVALS_TAKEN_BACK))


class Kind(Struct, frozen=True):
    """One kind, in all its served versions.

    Attributes:
        group: API group, empty for the core group.
        types: for each served version the name of its type in the schema table, the preferred one first.
        storage: the ``apiVersion`` that is stored.
        discovered_storage: the version that discovery names as the stored one, when that is another.
        generation: whether ``metadata.generation`` counts the changes of its spec.
        unconditional_update: whether an update may come without a resource version.
        unconditional_versions: those of its versions in which it may, although it may not in the others.
        create_on_update: whether a PUT may create an object.
        collection_deletion: whether all objects of a collection can be deleted at once.
        deletion_status: whether a deletion is answered with a Status instead of the object.
        fields: what it can be selected by, beyond name and namespace.
        newer_fields: those of its fields that releases before a change cannot select by.
        own_selectors: whether it names its version when it refuses a field selector.
        deprecated: warning for each deprecated version; :meth:`in_release` adds those of versions with a life.
        lives: until when its versions are served, except those without an end.
        off_by_default: versions that are only served if the API server's runtime configuration asks for them.
        stored_as: the resource whose objects it shows, when that is another.
        schemas: for each version of a custom kind the OpenAPI schema of its definition.
        list_kind: the kind of its lists, when that is not the kind and ``List``.
        singular_name: its name for one object, when that is not the kind in lower case.
        gate: the feature gate without which it is not served; empty for none.
    """

    group: str
    plural: str
    kind: str
    namespaced: bool
    types: Mapping[str, str]
    strategy: Strategy = field(default_factory=Strategy)
    storage: str = ""
    discovered_storage: str = ""
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
    newer_fields: Mapping[str, Change] = field(default_factory=dict)
    own_selectors: bool = False
    columns: tuple[Column, ...] = (NAME, AGE)
    deprecated: Mapping[str, str] = field(default_factory=dict)
    lives: Mapping[str, VersionLife] = field(default_factory=dict)
    off_by_default: tuple[str, ...] = ()
    stored_as: str = ""
    schemas: Mapping[str, Object] = field(default_factory=dict)
    list_kind: str = ""
    singular_name: str = ""
    gate: str = ""

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

    def in_release(self, release: Release) -> Kind:
        """Return the kind with the versions that a release serves, and the warnings about them."""
        lives = {version: life for version, life in self.lives.items() if version in self.types}
        warnings = {
            version: f"{self.api_version(version)} {self.kind} is {warning}"
            for version, life in lives.items() if (warning := life.deprecation(release.version))
        }  # fmt: skip
        now = release.version
        lacking = {version for version, life in lives.items() if life.is_over(now) or not life.has_begun(now)}
        types = {version: name for version, name in self.types.items() if version not in lacking}
        kept = {"storage": self.storage_api_version, "storage_type": self.stored_type}
        if types and self.stored_type in {self.types[version] for version in lacking}:  # it knows other fields
            kept["storage_type"] = next(iter(types.values()))
        newer = {name for name, change in self.newer_fields.items() if not now.has(change)}
        fields = {name: read for name, read in self.fields.items() if name not in newer}
        known = [struct(name, now) for name in types.values()]
        status = self.status and not any(one is not None and "status" not in one.fields for one in known)
        kept["discovered_storage"] = next(
            (version for version in types if version in lives and lives[version].is_stored(now)), ""
        )
        return replace(
            self, types=types, deprecated={**self.deprecated, **warnings}, fields=fields, status=status, **kept
        )

    def key(self, namespace: str, name: str) -> str:
        """Return the storage key of an object."""
        return f"{namespace}/{name}" if self.namespaced else name


def readers(*paths: str) -> dict[str, FieldReader]:
    """Return selectable fields whose labels are their paths."""
    return {path: reader(path) for path in paths}


class KindRegistry:
    """Finds kinds by group, version and plural."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._kinds: dict[str, Kind] = {kind.full_name: kind for kind in kinds}
        self._custom: dict[str, Kind] = {}

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        """Return the kind that is served under group, version and plural."""
        kind = self.by_name(f"{plural}.{group}" if group else plural)
        return kind if kind is not None and version in kind.types else None

    def by_name(self, full_name: str) -> Kind | None:
        """Return the kind of ``<plural>.<group>``."""
        return self._kinds.get(full_name) or self._custom.get(full_name)

    def by_kind(self, api_version: str, name: str) -> Kind | None:
        """Return the kind of an object's ``apiVersion`` and ``kind``, in any version of the group."""
        group = api_version.rpartition("/")[0]
        return next((kind for kind in self if (kind.group, kind.kind) == (group, name)), None)

    def __iter__(self) -> Iterator[Kind]:
        yield from self._kinds.values()
        yield from self._custom.values()

    def add(self, kind: Kind) -> None:
        """Serve a custom kind, in place of an earlier one of its name."""
        self._custom[kind.full_name] = kind

    def remove(self, full_name: str) -> None:
        """Stop serving a custom kind."""
        self._custom.pop(full_name, None)

    def clear(self) -> None:
        """Stop serving all custom kinds."""
        self._custom.clear()

    def is_custom(self, kind: Kind) -> bool:
        """Return whether a CustomResourceDefinition defines it."""
        return kind.full_name in self._custom
