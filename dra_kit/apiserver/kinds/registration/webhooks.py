"""Configurations of admission webhooks: whom the API server asks before it stores an object.

Source of the rules: Kubernetes 1.37 ``pkg/apis/admissionregistration/validation`` and k8s.io/apiserver 0.37
``pkg/util/webhook/validation.go``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import SplitResult, urlsplit

from typing_extensions import override

from dra_kit.apiserver.kinds.columns import count
from dra_kit.apiserver.kinds.kind import AGE, NAME, Column, Kind
from dra_kit.apiserver.kinds.registration.match_conditions import match_conditions
from dra_kit.apiserver.kinds.registration.match_resources import rule_problems
from dra_kit.apiserver.kinds.strategy import Context, Strategy
from dra_kit.kubernetes.resource import names
from dra_kit.kubernetes.resource.field_errors import FieldError, duplicate, invalid, required, unsupported
from dra_kit.kubernetes.values.json import Object

_REVIEW_VERSIONS: Final = ("v1", "v1beta1")
_SIDE_EFFECTS: Final = ("None", "NoneOnDryRun")
_CHOICES: Final = {
    "failurePolicy": ("Fail", "Ignore"), "matchPolicy": ("Equivalent", "Exact"),
    "reinvocationPolicy": ("IfNeeded", "Never"),
}  # fmt: skip
_TIMEOUT_MAX: Final = 30
_URL_FORM: Final = "; desired format: https://host[/path]"


class WebhooksStrategy(Strategy):
    """A configuration of webhooks."""

    @override
    def validate(self, obj: Object, context: Context) -> list[FieldError]:
        """Check each of its webhooks, whose names differ."""
        errors: list[FieldError] = []
        seen: set[str] = set()
        for i, webhook in enumerate(obj.get("webhooks") or ()):
            path, name = f"webhooks[{i}]", webhook.get("name", "")
            errors += _webhook(webhook, path)
            if name in seen:
                errors.append(duplicate(f"{path}.name", name))
            seen.add(name)
        return errors

    @override
    def validate_update(self, obj: Object, old: Object, context: Context) -> list[FieldError]:
        """Check it as a new one."""
        return self.validate(obj, context)


def _webhook(webhook: Object, path: str) -> Iterator[FieldError]:
    yield from _name(webhook.get("name", ""), f"{path}.name")
    versions = webhook.get("admissionReviewVersions") or []
    accepted = ", ".join(_REVIEW_VERSIONS)
    if not versions:
        yield required(f"{path}.admissionReviewVersions", f"must specify one of {accepted}")
    elif not set(versions) & set(_REVIEW_VERSIONS):
        yield invalid(f"{path}.admissionReviewVersions", versions, f"must include at least one of {accepted}")
    for i, rule in enumerate(webhook.get("rules") or ()):
        yield from rule_problems(rule, f"{path}.rules[{i}]")
    for field, choices in _CHOICES.items():
        if webhook.get(field) is not None and webhook[field] not in choices:
            yield unsupported(f"{path}.{field}", webhook[field], choices)
    effects = webhook.get("sideEffects")
    if effects is None:
        yield required(f"{path}.sideEffects", f"must specify one of {', '.join(_SIDE_EFFECTS)}")
    elif effects not in _SIDE_EFFECTS:
        yield unsupported(f"{path}.sideEffects", effects, _SIDE_EFFECTS)
    seconds = webhook.get("timeoutSeconds")
    if seconds is not None and not 1 <= seconds <= _TIMEOUT_MAX:
        yield invalid(f"{path}.timeoutSeconds", seconds, "the timeout value must be between 1 and 30 seconds")
    yield from _client(webhook.get("clientConfig") or {}, f"{path}.clientConfig")
    from dra_kit.kubernetes.cel.admission import compile_policy  # of the first configuration: few clusters have one

    problems = {problem.path: problem for problem in compile_policy(webhook).problems}
    yield from match_conditions(webhook.get("matchConditions") or [], path, problems)


def _name(name: str, path: str) -> Iterator[FieldError]:
    if not name:
        yield required(path)
        return
    problems = names.dns_subdomain(name)
    yield from (invalid(path, name, text) for text in problems)
    if not problems and name.count(".") < 2:
        yield invalid(path, name, "should be a domain with at least three segments separated by dots")


def _client(config: Object, path: str) -> Iterator[FieldError]:
    url, service = config.get("url"), config.get("service")
    if (url is None) == (service is None):
        yield required(path, "exactly one of url or service is required")
    elif url is not None:
        yield from _url(url, f"{path}.url")
    elif service is not None:
        yield from _service(service, f"{path}.service")


def _url(url: str, path: str) -> Iterator[FieldError]:
    parts = _split(url)
    if parts is None or (not parts.scheme and ":" in url.partition("/")[0]):
        yield required(path, f'url must be a valid URL: parse "{url}": missing protocol scheme{_URL_FORM}')
        return
    if parts.scheme != "https":
        yield invalid(path, parts.scheme, f"'https' is the only allowed URL scheme{_URL_FORM}")
    user, at, host = parts.netloc.rpartition("@")
    if not host:
        yield invalid(path, host, f"host must be specified{_URL_FORM}")
    if at:
        yield invalid(path, user, "user information is not permitted in the URL")
    if parts.fragment:
        yield invalid(path, parts.fragment, "fragments are not permitted in the URL")
    if parts.query:
        yield invalid(path, parts.query, "query parameters are not permitted in the URL")


def _split(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _service(service: Object, path: str) -> Iterator[FieldError]:
    yield from (
        required(f"{path}.{field}", f"service {field} is required")
        for field in ("name", "namespace")
        if not service.get(field)
    )
    port = service.get("port", 443)
    if not 1 <= port <= 65535:
        yield invalid(f"{path}.port", port, "port is not valid: must be between 1 and 65535, inclusive")
    where = service.get("path")
    if where is None or where == "/":
        return
    if not where.startswith("/"):
        yield invalid(f"{path}.path", where, "must start with a '/'")
    for i, segment in enumerate(where[1:].removesuffix("/").split("/")):
        if not segment:
            yield invalid(f"{path}.path", where, f"segment[{i}] may not be empty")
            continue
        yield from (invalid(f"{path}.path", where, f"segment[{i}]: {text}") for text in names.dns_subdomain(segment))


def _configuration(plural: str, kind: str) -> Kind:
    return Kind("admissionregistration.k8s.io", plural, kind, False, {"v1": f"admissionregistration/v1.{kind}"},
                WebhooksStrategy(), generation=True, categories=("api-extensions",), deletion_status=True,
                columns=(NAME, Column("Webhooks", count("webhooks"), type="integer"), AGE))  # fmt: skip


KINDS: Final = (
    _configuration("mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
    _configuration("validatingwebhookconfigurations", "ValidatingWebhookConfiguration"),
)
