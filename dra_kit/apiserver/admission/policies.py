"""ValidatingAdmissionPolicies: their bindings, parameters and verdicts.

The server does not write an audit log: the action ``Audit`` does nothing, and an audit annotation can only fail.

Sources: k8s.io/apiserver 0.37 ``pkg/admission/plugin/policy/validating/dispatcher.go``; k8s.io/apiserver 0.37
``pkg/admission/plugin/policy/generic/policy_dispatcher.go``, ``CollectParams``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from dra_kit.apiserver.admission.requests import BINDINGS, POLICIES, VersionedWrite, is_selected, matching_version
from dra_kit.apiserver.api import AdmissionAttributes, Api
from dra_kit.apiserver.kinds.kind import Kind
from dra_kit.apiserver.status_errors import StatusError, forbidden_object
from dra_kit.apiserver.storage import StoredObject
from dra_kit.kubernetes.cel.admission import CompiledPolicy, Denial, compile_policy, to_cel_value
from dra_kit.kubernetes.resource.matching import parse_label_selector
from dra_kit.kubernetes.values.json import Object

_CODES: Final = {"Forbidden": 403, "Invalid": 422, "RequestEntityTooLarge": 413}


class PolicyDenial(Struct, frozen=True):
    """The reason for a denial, and the policy."""

    denial: Denial
    policy: str
    binding: str = ""

    def refusal(self, write: AdmissionAttributes) -> StatusError:
        """Return the error that the client gets."""
        by = f"ValidatingAdmissionPolicy '{self.policy}'" + (f" with binding '{self.binding}'" if self.binding else "")
        text = f"{by} denied request: {self.denial.message}"
        refusal = forbidden_object(write.kind.group, write.kind.plural, write.name or "Unknown", text)
        details = {**(refusal.details or {}), "causes": [{"message": text}]}
        return StatusError(_CODES[self.denial.reason], self.denial.reason, refusal.message, details)


class PolicyAdmission:
    """Evaluates the policies of a cluster; each is compiled once."""

    def __init__(self) -> None:
        self._compiled: dict[str, tuple[StoredObject, CompiledPolicy]] = {}

    def review(self, write: AdmissionAttributes, warnings: list[str]) -> None:
        """Evaluate each policy that has a binding.

        Raises:
            StatusError: one of them denies the write; the first one is raised.
        """
        if write.kind.resource in {POLICIES, BINDINGS}:
            return
        shown = VersionedWrite(write)
        bound = sorted({binding["spec"].get("policyName", "") for binding in write.api.listed(BINDINGS)})
        refused = [one for name in bound for one in self._ask(name, write, shown, warnings)]
        if refused:
            raise refused[0].refusal(write)

    def _ask(
        self, name: str, write: AdmissionAttributes, shown: VersionedWrite, warnings: list[str]
    ) -> Iterator[PolicyDenial]:
        stored = write.api.storage.get(POLICIES, name)
        if stored is None:
            return
        spec = stored.object["spec"]
        api_version = _matched(spec.get("matchConstraints") or {}, write)
        if api_version is None:
            return
        policy = self._policy(name, stored, write)
        try:
            param_kind = find_param_kind(write.api, spec.get("paramKind"))
        except PolicyNotConfigured as error:
            yield from _misconfigured(policy, error, name)
            return
        for binding in list(write.api.listed(BINDINGS)):
            resources = binding["spec"].get("matchResources")
            if binding["spec"].get("policyName") != name or (resources and _matched(resources, write) is None):
                continue
            bound = binding["metadata"]["name"]
            namespace = write.request.target.namespace
            try:
                params = collect_params(write.api, param_kind, binding["spec"].get("paramRef"), namespace)
            except PolicyNotConfigured as error:
                yield from _misconfigured(policy, error, name, bound)
                continue
            actions = binding["spec"].get("validationActions") or ()
            for param in params:
                asked = shown.request(api_version, param)
                for denial in policy.denials(asked):
                    if "Deny" in actions:
                        yield PolicyDenial(denial, name, bound)
                    if "Warn" in actions:
                        by = f"ValidatingAdmissionPolicy '{name}' with binding '{bound}'"
                        warnings.append(f"Validation failed for {by}: {denial.message}")
                yield from (PolicyDenial(failure, name, bound) for failure in policy.annotation_failures(asked))

    def _policy(self, name: str, stored: StoredObject, write: AdmissionAttributes) -> CompiledPolicy:
        known = self._compiled.get(name)
        if known is None or known[0] is not stored:
            compiled = compile_policy(stored.object["spec"], write.api.release.version)
            known = self._compiled[name] = stored, compiled
        return known[1]


def _misconfigured(
    policy: CompiledPolicy, error: PolicyNotConfigured, name: str, binding: str = ""
) -> Iterator[PolicyDenial]:
    """Yield denials because of an unusable policy or binding; none if the policy ignores failures."""
    if policy.failure_policy == "Fail":
        yield PolicyDenial(Denial(str(error)), name, binding)


def _matched(resources: Object, write: AdmissionAttributes) -> str | None:
    """Return the version of the object for which a policy is evaluated; None if it is not."""
    match = resources.get("matchPolicy")
    excluded = resources.get("excludeResourceRules") or ()
    if not is_selected(resources, write) or matching_version(excluded, match, write) is not None:
        return None
    rules = resources.get("resourceRules") or ()
    return matching_version(rules, match, write) if rules else write.request.target.api_version


class PolicyNotConfigured(Exception):
    """A policy or binding cannot be used; the text is the API server's."""


def find_param_kind(api: Api, wanted: Object | None) -> tuple[Kind, str] | None:
    """Return the kind of a policy's parameters and their ``apiVersion``; None for a policy without any.

    Raises:
        PolicyNotConfigured: the kind does not exist.
    """
    if not wanted:
        return None
    api_version = wanted.get("apiVersion", "")
    kind = api.registry.by_kind(api_version, wanted.get("kind", ""))
    if kind is None or api_version.rpartition("/")[2] not in kind.types:
        shown = f"{api_version}, Kind={wanted.get('kind', '')}"
        text = f"failed to find resource referenced by paramKind: '{shown}'"
        raise PolicyNotConfigured(f"failed to configure policy: {text}")
    return kind, api_version


def collect_params(
    api: Api, params: tuple[Kind, str] | None, reference: Object | None, namespace: str
) -> Sequence[Any]:
    """Return the parameters of a binding as CEL values; a single None if policy or binding have none.

    Raises:
        PolicyNotConfigured: they cannot be found.
    """
    if params is None or not reference:
        return [None]
    kind, api_version = params
    where = reference.get("namespace") or (namespace if kind.namespaced else "")
    if kind.namespaced and not where:
        raise _binding("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources")
    if not kind.namespaced and where:
        raise _binding("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
    if name := reference.get("name"):
        found = api.lookup(kind.resource, kind.key(where, name))
        objects = [] if found is None else [found]
    else:
        wanted = parse_label_selector(reference.get("selector"))
        prefix = f"{where}/" if kind.namespaced else ""
        objects = [obj for obj in api.listed(kind.resource, prefix) if wanted.matches(obj)]
    if not objects and reference.get("parameterNotFoundAction") == "Deny":
        raise _binding("no params found for policy binding with `Deny` parameterNotFoundAction")
    return [to_cel_value(api.wire(kind, obj, api_version)) for obj in objects]


def _binding(text: str) -> PolicyNotConfigured:
    return PolicyNotConfigured(f"failed to configure binding: {text}")
