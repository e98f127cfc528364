"""ResourcePoolStatusRequest (KEP-5677)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dra_kit.resource.fielderror import FieldError, declarative, invalid
from dra_kit.resource.validation.fields.formats import declared_driver_name, declared_pool_name, full_name

if TYPE_CHECKING:
    from dra_kit.resource import v1alpha3

LIMIT_MAX: Final = 1000
_IMMUTABLE: Final = "field is immutable"


def validate_pool_status_request(request: v1alpha3.ResourcePoolStatusRequest) -> list[FieldError]:
    """Check all rules of the API server (Kubernetes 1.37) for a new request; a driver may have 253 bytes here."""
    spec = request.spec
    errors = declared_driver_name(spec.driver, "spec.driver", max_length=None)
    if spec.pool_name is not None:
        errors += declared_pool_name(spec.pool_name, "spec.poolName")
    if spec.limit is not None and spec.limit < 1:
        errors += declarative([invalid("spec.limit", spec.limit, "must be greater than or equal to 1")])
    elif spec.limit is not None and spec.limit > LIMIT_MAX:
        errors += declarative([invalid("spec.limit", spec.limit, f"must be less than or equal to {LIMIT_MAX}")])
    if spec.default_partition_type_attribute is not None:
        attribute = spec.default_partition_type_attribute
        errors += declarative(full_name(attribute, "spec.defaultPartitionTypeAttribute"))
    return errors


def validate_pool_status_request_update(
    request: v1alpha3.ResourcePoolStatusRequest, old: v1alpha3.ResourcePoolStatusRequest
) -> list[FieldError]:
    """Check that a request stays as it was made."""
    if request.spec == old.spec:
        return []
    return declarative([invalid("spec", None, _IMMUTABLE)])


def validate_pool_status(status: Any, old: Any) -> list[FieldError]:
    """Check that a request is answered once."""
    return [invalid("status", status, _IMMUTABLE)] if old and status != old else []
