"""The authorizer of admission policies: access checks and decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from dra_kit.kubernetes.cel import types
from dra_kit.kubernetes.cel.failures import EvaluationFailure, no_such_overload
from dra_kit.kubernetes.cel.types import Library
from dra_kit.kubernetes.cel.values import RUNTIME_TYPES

LIBRARY: Final = Library()


class AccessQuestion(Struct, frozen=True):
    """An access check: may a user perform an action?

    Attributes:
        verb: such as ``create``; for a path the HTTP method in lower case.
        group: API group.
        resource: plural of the kind, or ``*``.
        subresource: empty for the resource itself.
        namespace: empty for the whole cluster.
        name: name of the object; empty for all.
        path: path of a non-resource request; otherwise empty.
        field_selector: of a list; it may be one that does not read.
    """

    verb: str = ""
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    field_selector: str = ""


class AccessDecision(Struct, frozen=True):
    """The result of an access check."""

    allowed: bool
    reason: str = ""
    error: str = ""
    """Error of the check; empty if it succeeded."""


class AccessReviewer(Protocol):
    """Answers access checks for one user."""

    def ask(self, question: AccessQuestion) -> AccessDecision:
        """Return whether the user may do it."""
        ...

    def service_account(self, namespace: str, name: str) -> AccessReviewer:
        """Return the reviewer for a service account; raises ValueError if the name is invalid."""
        ...


class _Incomparable(Struct, frozen=True, eq=False):  # noqa: PLW1641 - as keys of maps, they are compared by identity
    """A value without an equality operator."""

    def __eq__(self, _: object) -> NoReturn:
        raise no_such_overload()


class AuthorizerValue(_Incomparable, frozen=True, eq=False):
    """``authorizer``."""

    asking: AccessReviewer


class _PathCheck(_Incomparable, frozen=True, eq=False):
    asking: AccessReviewer
    path: str


class _GroupCheck(_Incomparable, frozen=True, eq=False):
    asking: AccessReviewer
    group: str


class ResourceCheck(_Incomparable, frozen=True, eq=False):
    """``authorizer.requestResource``, and the result of ``resource()``: an access check without a verb."""

    asking: AccessReviewer
    question: AccessQuestion = field(default_factory=AccessQuestion)


class _Decision(_Incomparable, frozen=True, eq=False):
    ruling: AccessDecision


RUNTIME_TYPES.update({
    AuthorizerValue: types.AUTHORIZER, _PathCheck: types.PATH_CHECK, _GroupCheck: types.GROUP_CHECK,
    ResourceCheck: types.RESOURCE_CHECK, _Decision: types.DECISION,
})  # fmt: skip


@LIBRARY.method("authorizer_path", "path(authorizer, string) -> path_check")
def _path(authorizer: AuthorizerValue, path: str) -> _PathCheck:
    if not path:
        raise EvaluationFailure("path must not be empty")
    return _PathCheck(authorizer.asking, path)


@LIBRARY.method("authorizer_group", "group(authorizer, string) -> group_check")
def _group(authorizer: AuthorizerValue, group: str) -> _GroupCheck:
    return _GroupCheck(authorizer.asking, group)


@LIBRARY.method("authorizer_serviceaccount", "serviceAccount(authorizer, string, string) -> authorizer")
def _service_account(authorizer: AuthorizerValue, namespace: str, name: str) -> AuthorizerValue:
    try:
        return AuthorizerValue(authorizer.asking.service_account(namespace, name))
    except ValueError as error:
        raise EvaluationFailure(str(error)) from None


@LIBRARY.method("groupcheck_resource", "resource(group_check, string) -> resource_check")
def _resource(check: _GroupCheck, resource: str) -> ResourceCheck:
    return ResourceCheck(check.asking, AccessQuestion(group=check.group, resource=resource))


def _refining(part: str) -> Callable[[ResourceCheck, str], ResourceCheck]:
    return lambda check, value: replace(check, question=replace(check.question, **{part: value}))


for _part in ("subresource", "namespace", "name"):
    _signature = f"{_part}(resource_check, string) -> resource_check"
    LIBRARY.declare(f"resourcecheck_{_part}", _signature, _refining(_part), member=True)
LIBRARY.declare(
    "authorizer_fieldselector",
    "fieldSelector(resource_check, string) -> resource_check",
    _refining("field_selector"),
    member=True,
)


# no authorizer looks at labels
@LIBRARY.method("authorizer_labelselector", "labelSelector(resource_check, string) -> resource_check")
def _label_selector(check: ResourceCheck, _: str) -> ResourceCheck:
    return check


@LIBRARY.method("resourcecheck_check", "check(resource_check, string) -> decision")
def _check_resource(check: ResourceCheck, verb: str) -> _Decision:
    return _Decision(check.asking.ask(replace(check.question, verb=verb)))


@LIBRARY.method("pathcheck_check", "check(path_check, string) -> decision")
def _check_path(check: _PathCheck, verb: str) -> _Decision:
    return _Decision(check.asking.ask(AccessQuestion(verb=verb, path=check.path)))


LIBRARY.methods(
    {
        "decision_errored": ("errored(decision) -> bool", lambda decision: bool(decision.ruling.error)),
        "decision_error": ("error(decision) -> string", lambda decision: decision.ruling.error),
        "decision_allowed": ("allowed(decision) -> bool", lambda decision: decision.ruling.allowed),
        "decision_reason": ("reason(decision) -> string", lambda decision: decision.ruling.reason),
    }
)
