"""What the kinds of resource.k8s.io have in common: versions, defaults and feature gates."""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override

from dra_kit.apiserver.kinds.strategy import Context, Strategy
from dra_kit.kubernetes.resource.conversion import errors_in_version, from_v1, to_v1
from dra_kit.kubernetes.resource.defaulting import set_defaults
from dra_kit.kubernetes.resource.dropping import drop_disabled_fields
from dra_kit.kubernetes.resource.field_errors import FieldError
from dra_kit.kubernetes.resource.new_object import validate_new_object
from dra_kit.kubernetes.values.json import Object

GROUP = "resource.k8s.io"


class ResourceStrategy(Strategy):
    """A kind of resource.k8s.io.

    Attributes:
        kind: its name.
    """

    kind: ClassVar[str]

    @override
    def default(self, obj: Object, context: Context) -> None:
        """Set the defaults of ``resource/defaults``."""
        set_defaults(obj, self.kind, context.api_version, context.now)

    @override
    def to_storage(self, obj: Object, api_version: str) -> Object:
        """Convert to the content of v1."""
        return to_v1(obj, self.kind, api_version)

    @override
    def from_storage(self, obj: Object, api_version: str) -> Object:
        """Convert from the content of v1."""
        return from_v1(obj, self.kind, api_version)

    @override
    def prepare_for_create(self, obj: Object, context: Context) -> None:
        """Drop the fields of features that are off."""
        super().prepare_for_create(obj, context)
        obj.update(drop_disabled_fields(obj, None, context.gates))

    @override
    def prepare_for_update(self, obj: Object, old: Object, context: Context) -> None:
        """Prepare it as a new object, unless the old one uses the feature."""
        super().prepare_for_update(obj, old, context)
        obj.update(drop_disabled_fields(obj, old, context.gates))

    @override
    def prepare_for_status(self, obj: Object, old: Object, context: Context) -> None:
        """Prepare it as for an update."""
        super().prepare_for_status(obj, old, context)
        obj.update(drop_disabled_fields(obj, old, context.gates))

    @override
    def validate(self, obj: Object, context: Context) -> list[FieldError]:
        """Check the rules of ``resource/validation``."""
        return validate_new_object(obj, self.kind, context.gates)

    @override
    def reported(self, errors: list[FieldError], context: Context) -> list[FieldError]:
        """Return hand-written errors first; declarative ones have the paths of the request's version."""
        return errors_in_version(errors, context.api_version)
