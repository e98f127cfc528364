"""Strategy: the rules of a kind for writes of its objects."""

# ruff: noqa: ARG002 - the arguments are for the kinds that override a method
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from msgspec import Struct, field
from typing_extensions import override

from dra_kit.apiserver.authentication import ADMIN, User
from dra_kit.apiserver.authorization import Rbac
from dra_kit.kubernetes.release import FeatureGates
from dra_kit.kubernetes.resource import names
from dra_kit.kubernetes.resource.field_errors import FieldError
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

    gates: FeatureGates
    api_version: str
    now: str
    lookup: Callable[[str, str], Object | None]
    listed: Callable[[str], Iterable[Object]]
    rbac: Rbac
    user: User = ADMIN
    verb: str = ""
    warnings: list[str] = field(default_factory=list)


def _spec(obj: Object) -> Object:
    return {key: value for key, value in obj.items() if key not in {"metadata", "status", "kind", "apiVersion"}}


class Strategy:
    """The rules of a kind; the base class is a plain object with a DNS subdomain as name.

    Objects passed to the mutating methods are the caller's own and changed in place. ``old`` is the stored object and
    never changed. All but :meth:`default`, :meth:`to_storage` and :meth:`from_storage` see the storage version.

    Attributes:
        metadata_with_status: the fields of the metadata that a write of the status may change.
        graceful: whether a deletion first marks the object, even one that goes at once.
    """

    metadata_with_status: ClassVar[tuple[str, ...]] = ()
    graceful: ClassVar[bool] = False

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

    def same_spec(self, obj: Object, old: Object) -> bool:
        """Return whether two objects in storage version have no difference that ``metadata.generation`` counts."""
        return _spec(obj) == _spec(old)

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
        if name in {".", ".."}:
            return [f"may not be '{name}'"]
        return [f"may not contain '{char}'" for char in "/%" if char in name]
