"""Errors as the API server sends them: a Status with reason, code and details.

Source: k8s.io/apimachinery 0.37, ``pkg/api/errors``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dra_kit.kubernetes.resource.field_errors import FieldError
from dra_kit.kubernetes.values.json import Object


class StatusError(Exception):
    """A request that fails with a Status; never raised outside this package.

    Args:
        code: HTTP status.
        reason: ``reason`` of the Status; empty for none.
        message: one line.
        details: ``details`` of the Status; None for none, which is not the same as empty ones.
    """

    def __init__(self, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details: dict[str, Any] | None = None if details is None else dict(details)

    def status(self) -> Object:
        """Return the Status object."""
        status: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        if self.message:
            status["message"] = self.message
        if self.reason:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = self.details
        return status | {"code": self.code}


def subject(group: str, resource: str, name: str) -> Object:
    """Return the details of a Status about an object, without what is empty."""
    return {key: value for key, value in (("name", name), ("group", group), ("kind", resource)) if value}


def _qualified(group: str, resource: str) -> str:
    return f"{resource}.{group}" if group else resource


def not_found(group: str, resource: str, name: str) -> StatusError:
    """Return 404 for an object."""
    message = f'{_qualified(group, resource)} "{name}" not found'
    return StatusError(404, "NotFound", message, subject(group, resource, name))


def no_such_resource() -> StatusError:
    """Return 404 for a path."""
    return StatusError(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(group: str, resource: str, name: str, *, deleted: bool, generated: bool) -> StatusError:
    """Return 409 for a name that is in use, maybe by an object that is being deleted.

    ``generated`` is for an object with a ``generateName``, whether it has a name or not.
    """
    message = f'{_qualified(group, resource)} "{name}" already exists'
    if deleted:
        message = f"object is being deleted: {message}"
    details = subject(group, resource, name)
    if generated:
        message += ", the server was not able to generate a unique name for the object"
        details["retryAfterSeconds"] = 1
    return StatusError(409, "AlreadyExists", message, details)


def conflict(group: str, resource: str, name: str, cause: str) -> StatusError:
    """Return 409 for an object that differs from the client's expectation."""
    message = f'Operation cannot be fulfilled on {_qualified(group, resource)} "{name}": {cause}'
    return StatusError(409, "Conflict", message, subject(group, resource, name))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def bad_request(message: str) -> StatusError:
    """Return 400."""
    return StatusError(400, "BadRequest", message)


def forbidden_object(group: str, resource: str, name: str, cause: str) -> StatusError:
    """Return 403 by a rule of admission."""
    message = f'{_qualified(group, resource)} "{name}" is forbidden: {cause}'
    return StatusError(403, "Forbidden", message, subject(group, resource, name))


def unauthorized_for(group: str, resource: str, name: str, cause: str) -> StatusError:
    """Return 403 by an authorizer; of a whole collection without a name."""
    shown = f' "{name}"' if name else ""
    message = f"{_qualified(group, resource)}{shown} is forbidden: {cause}"
    return StatusError(403, "Forbidden", message, subject(group, resource, name))


def forbidden_path(cause: str) -> StatusError:
    """Return 403 for a path that is not a resource, or before the resource of a request is known."""
    return StatusError(403, "Forbidden", f"forbidden: {cause}", {})


def unauthorized() -> StatusError:
    """Return 401: the requester is unknown."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def invalid_object(group: str, kind: str, name: str, errors: Sequence[FieldError]) -> StatusError:
    """Return 422 with one cause for each error; errors with the same text are reported once."""
    by_text = {str(error): error for error in errors}
    listed = next(iter(by_text)) if len(by_text) == 1 else f"[{', '.join(by_text)}]"
    qualified = f"{kind}.{group}" if group else kind
    causes = [{"reason": error.kind.value, "message": error.body, "field": error.path} for error in by_text.values()]
    details = subject(group, kind, name) | {"causes": causes}
    return StatusError(422, "Invalid", f'{qualified} "{name}" is invalid: {listed}', details)


def method_not_allowed() -> StatusError:
    """Return 405."""
    message = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", message, {})


def expired(message: str) -> StatusError:
    """Return 410: the requested history is gone."""
    return StatusError(410, "Expired", message)


def internal(cause: str, details: Mapping[str, Any] | None = None) -> StatusError:
    """Return 500 with a Status."""
    return StatusError(500, "InternalError", f"Internal error occurred: {cause}", details)
