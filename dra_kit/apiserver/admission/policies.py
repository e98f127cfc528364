"""Asks the policies about each write.

Source: k8s.io/apiserver 0.37 ``pkg/admission/plugin/policy/validating/dispatcher.go``. Audit annotations are left
out, and so is the action ``Audit``: there is no audit log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from dra_kit.apiserver.admission.configured import BINDINGS, POLICIES
from dra_kit.apiserver.admission.matching import matching_version, selected
from dra_kit.apiserver.admission.policies.params import NotConfigured, collect, kind_of
from dra_kit.apiserver.admission.policies.requests import Shown
from dra_kit.apiserver.answers import Refusal, forbidden
from dra_kit.apiserver.api import Attributes
from dra_kit.apiserver.storage import Stored
from dra_kit.kubernetes.cel.admission import CompiledPolicy, Denial, compile_policy
from dra_kit.kubernetes.values.json import Object

_CODES: Final = {"Forbidden": 403, "Invalid": 422, "RequestEntityTooLarge": 413}


class _Refused(Struct, frozen=True):
    """Why a write is refused, and by whom."""

    denial: Denial
    policy: str
    binding: str = ""

    def refusal(self, write: Attributes) -> Refusal:
        by = f"ValidatingAdmissionPolicy '{self.policy}'" + (f" with binding '{self.binding}'" if self.binding else "")
        text = f"{by} denied request: {self.denial.message}"
        refusal = forbidden(write.kind.group, write.kind.plural, write.name or "Unknown", text)
        details = {**(refusal.details or {}), "causes": [{"message": text}]}
        return Refusal(_CODES[self.denial.reason], self.denial.reason, refusal.message, details)


class Policies:
    """Evaluates the policies of a cluster; each is compiled once."""

    def __init__(self) -> None:
        self._compiled: dict[str, tuple[Stored, CompiledPolicy]] = {}

    def review(self, write: Attributes, warnings: list[str]) -> None:
        """Ask each policy that is bound.

        Raises:
            Refusal: one of them denies the write; the first one is raised.
        """
        if write.kind.resource in {POLICIES, BINDINGS}:
            return
        shown = Shown(write)
        refused = [one for name in self._bound(write) for one in self._ask(name, write, shown, warnings)]
        if refused:
            raise refused[0].refusal(write)

    @staticmethod
    def _bound(write: Attributes) -> Iterator[str]:
        """Yield the names of the policies that have bindings, in their order."""
        bindings = write.api.listed(BINDINGS)
        yield from sorted({binding["spec"].get("policyName", "") for binding in bindings})

    def _ask(self, name: str, write: Attributes, shown: Shown, warnings: list[str]) -> Iterator[_Refused]:
        stored = write.api.storage.get(POLICIES, name)
        if stored is None:
            return
        spec = stored.object["spec"]
        api_version = _matched(spec.get("matchConstraints") or {}, write)
        if api_version is None:
            return
        policy = self._policy(name, stored)
        try:
            param_kind = kind_of(write.api, spec.get("paramKind"))
        except NotConfigured as error:
            yield from _misconfigured(policy, error, name)
            return
        for binding in list(write.api.listed(BINDINGS)):
            resources = binding["spec"].get("matchResources")
            if binding["spec"].get("policyName") != name or (resources and _matched(resources, write) is None):
                continue
            bound = binding["metadata"]["name"]
            namespace = write.request.target.namespace
            try:
                params = collect(write.api, param_kind, binding["spec"].get("paramRef"), namespace)
            except NotConfigured as error:
                yield from _misconfigured(policy, error, name, bound)
                continue
            actions = binding["spec"].get("validationActions") or ()
            for param in params:
                for denial in policy.denials(shown.request(api_version, param)):
                    if "Deny" in actions:
                        yield _Refused(denial, name, bound)
                    if "Warn" in actions:
                        by = f"ValidatingAdmissionPolicy '{name}' with binding '{bound}'"
                        warnings.append(f"Validation failed for {by}: {denial.message}")

    def _policy(self, name: str, stored: Stored) -> CompiledPolicy:
        known = self._compiled.get(name)
        if known is None or known[0] is not stored:
            known = self._compiled[name] = stored, compile_policy(stored.object["spec"])
        return known[1]


def _misconfigured(policy: CompiledPolicy, error: NotConfigured, name: str, binding: str = "") -> Iterator[_Refused]:
    """Yield the refusals of what cannot be used, whatever its binding does; none if the policy lets failures pass."""
    if policy.failure_policy == "Fail":
        yield _Refused(Denial(str(error)), name, binding)


def _matched(resources: Object, write: Attributes) -> str | None:
    """Return the version of the object for which a policy is evaluated; None if it is not."""
    match = resources.get("matchPolicy")
    excluded = resources.get("excludeResourceRules") or ()
    if not selected(resources, write) or matching_version(excluded, match, write) is not None:
        return None
    rules = resources.get("resourceRules") or ()
    return matching_version(rules, match, write) if rules else write.request.target.api_version
