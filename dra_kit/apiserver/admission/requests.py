"""One write as webhooks and policies see it, and which of them apply to it.

Sources: k8s.io/apiserver 0.37 ``pkg/admission/plugin/cel/condition.go`` and ``compile.go``; k8s.io/apiserver 0.37
``pkg/admission/plugin/webhook/predicates`` and ``pkg/admission/plugin/policy/matching``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

from dra_kit.apiserver.api import AdmissionAttributes, Api
from dra_kit.apiserver.authentication import User
from dra_kit.apiserver.authorization import AuthorizationAttributes as Authorized
from dra_kit.apiserver.selectors import required_fields
from dra_kit.kubernetes.cel.admission import PolicyRequest, to_cel_value
from dra_kit.kubernetes.cel.functions.authorization import (
    AccessDecision,
    AccessQuestion,
    AuthorizerValue,
    ResourceCheck,
)
from dra_kit.kubernetes.resource.matching import parse_label_selector
from dra_kit.kubernetes.resource.validation.fields import subdomain_problems
from dra_kit.kubernetes.values.json import Object

_NAMESPACE_METADATA: Final = (
    "name", "generateName", "namespace", "labels", "annotations", "uid", "creationTimestamp",
    "deletionGracePeriodSeconds", "deletionTimestamp", "generation", "resourceVersion", "finalizers",
)  # fmt: skip


class RequesterAuthorizer:
    """Answers authorization checks of CEL expressions.

    See :class:`dra_kit.kubernetes.cel.functions.authorization.AccessReviewer`.
    """

    def __init__(self, api: Api, user: User) -> None:
        self._api, self._user = api, user

    def ask(self, question: AccessQuestion) -> AccessDecision:
        """Return whether the user may do it."""
        attributes = Authorized(
            question.verb, question.group, question.resource, question.subresource, question.namespace,
            question.name, question.path, bool(question.path), required_fields(question.field_selector),
        )  # fmt: skip
        decision = self._api.rbac.authorize(self._user, attributes)
        return AccessDecision(decision.allowed, decision.reason)

    def service_account(self, namespace: str, name: str) -> RequesterAuthorizer:
        """Return the same checks for a service account.

        Raises:
            ValueError: there can be none of this name.
        """
        for text in (namespace, name):
            if problems := subdomain_problems(text):
                raise ValueError(f"invalid service account name: {problems[0]}")
        return RequesterAuthorizer(self._api, User.service_account(namespace, name))


class VersionedWrite:
    """A write in the versions that policies request; each is converted once."""

    def __init__(self, write: AdmissionAttributes) -> None:
        self._write = write
        self._objects: dict[str, tuple[Any, Any]] = {}

    def request(self, api_version: str, params: Any) -> PolicyRequest:
        """Return the write in a version, with a parameter."""
        write = self._write
        if api_version not in self._objects:
            self._objects[api_version] = self._value(write.obj, api_version), self._value(write.old, api_version)
        obj, old = self._objects[api_version]
        questions = RequesterAuthorizer(write.api, write.request.user)
        target, kind = write.request.target, write.kind
        about = AccessQuestion("", kind.group, kind.plural, target.subresource, target.namespace, write.name)
        shown = admission_request(write, api_version)
        if write.name:
            shown["name"] = write.name
        return PolicyRequest(
            to_cel_value(shown), obj, old, self._namespace, params,
            AuthorizerValue(questions), ResourceCheck(questions, about),
        )  # fmt: skip

    def _value(self, obj: Object | None, api_version: str) -> Any:
        write = self._write
        return None if obj is None else to_cel_value(write.api.wire(write.kind, obj, api_version))

    @cached_property
    def _namespace(self) -> Any:
        target = self._write.request.target
        found = self._write.api.lookup("namespaces", target.namespace) if target.namespace else None
        if found is None:
            return None
        metadata = found["metadata"]
        return to_cel_value({
            "metadata": {name: metadata[name] for name in _NAMESPACE_METADATA if name in metadata},
            "spec": found.get("spec") or {}, "status": found.get("status") or {},
        })  # fmt: skip


def admission_request(write: AdmissionAttributes, api_version: str) -> Object:
    """Return the parts of an AdmissionRequest that webhooks and policies see alike."""
    kind, target = write.kind, write.request.target

    def of(version: str) -> tuple[Object, Object]:
        group, _, name = version.rpartition("/")
        where = {"group": group, "version": name}
        return {**where, "kind": kind.kind}, {**where, "resource": kind.plural}

    shown_kind, shown_resource = of(api_version)
    asked_kind, asked_resource = of(target.api_version)
    if write.obj is not None and target.subresource in _OTHER_KINDS:
        shown_kind = asked_kind = of(write.obj["apiVersion"])[0]
    body: Object = {
        "kind": shown_kind, "resource": shown_resource, "requestKind": asked_kind, "requestResource": asked_resource,
        "operation": write.operation, "userInfo": write.request.user.info(), "dryRun": write.dry_run,
        "options": _options(write),
    }  # fmt: skip
    if target.namespace:
        body["namespace"] = target.namespace
    if target.subresource:
        body["subResource"] = body["requestSubResource"] = target.subresource
    return body


_OTHER_KINDS: Final = ("binding", "eviction", "token")
"""Subresources whose objects have a group of their own."""


def _options(write: AdmissionAttributes) -> Object:
    query = write.request.query
    options: Object = {"kind": f"{write.operation.capitalize()}Options", "apiVersion": "meta.k8s.io/v1"}
    if write.dry_run:
        options["dryRun"] = ["All"]
    for name in ("fieldManager", "fieldValidation"):
        if write.operation != "DELETE" and query.text(name):
            options[name] = query.text(name)
    return options


_GROUP: Final = "admissionregistration.k8s.io"
VALIDATING: Final = f"validatingwebhookconfigurations.{_GROUP}"
MUTATING: Final = f"mutatingwebhookconfigurations.{_GROUP}"
POLICIES: Final = f"validatingadmissionpolicies.{_GROUP}"
BINDINGS: Final = f"validatingadmissionpolicybindings.{_GROUP}"


def matching_version(rules: Sequence[Object], policy: str | None, write: AdmissionAttributes) -> str | None:
    """Return the ``apiVersion`` in which the object is shown, None when no rule matches.

    Args:
        rules: any of them is enough.
        policy: ``Exact``, or ``Equivalent``: then a rule for another version of the resource matches, too.
        write: what is asked for.
    """
    kind, asked = write.kind, write.request.target.version
    if any(_rule_matches(rule, write, asked) for rule in rules):
        return kind.api_version(asked)
    if policy == "Exact":
        return None
    others = (kind.api_version(other) for rule in rules for other in kind.types if _rule_matches(rule, write, other))
    return next(others, None)


def _rule_matches(rule: Object, write: AdmissionAttributes, version: str) -> bool:
    def has(field: str, value: str) -> bool:
        return bool({"*", value} & set(rule.get(field) or ()))

    kind, target = write.kind, write.request.target
    scope = rule.get("scope", "*")
    if scope != "*" and (scope == "Namespaced") != kind.namespaced:
        return False
    names = {"*/*", kind.plural if not target.subresource else f"{kind.plural}/{target.subresource}"}
    names |= {f"*/{target.subresource}", f"{kind.plural}/*"} if target.subresource else {"*", f"{kind.plural}/*"}
    wanted = rule.get("resourceNames")
    return (
        has("operations", write.operation)
        and has("apiGroups", kind.group)
        and has("apiVersions", version)
        and bool(names & set(rule.get("resources") or ()))
        and (not wanted or write.name in wanted)
    )


def is_selected(selectors: Object, write: AdmissionAttributes) -> bool:
    """Return whether namespace and object have the labels that ``namespaceSelector`` and ``objectSelector`` ask for.

    Objects of no namespace have them all; of the object it is enough that it has them before or afterwards.
    """
    kind, target = write.kind, write.request.target
    selector = parse_label_selector(selectors.get("namespaceSelector"))
    if selector:
        namespace = None
        if kind.resource == "namespaces":
            namespace = write.obj or write.old
        elif kind.namespaced:
            namespace = write.api.lookup("namespaces", target.namespace)
        if namespace is not None and not selector.matches(namespace):
            return False
    objects = parse_label_selector(selectors.get("objectSelector"))
    return not objects or any(objects.matches(obj) for obj in (write.obj, write.old) if obj is not None)
