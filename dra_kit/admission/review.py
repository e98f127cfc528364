"""Opaque configuration of our driver in an object, checked with the model that the node decodes with.

The ValidatingWebhookConfiguration makes the API server call the webhook with these objects. It is built here, never
written.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from dra_kit.author.calls import author_location
from dra_kit.author.config_problems import MOST_PROBLEMS, find_duplicate_keys
from dra_kit.author.driver import Driver
from dra_kit.client.resources import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Resource
from dra_kit.errors import ConfigurationError, InvalidConfig
from dra_kit.kubernetes.resource.config import CONFIG_FIELDS
from dra_kit.kubernetes.values.json import value_at
from dra_kit.text import counted, shorten

logger: logging.Logger = logging.getLogger(__name__)
REVIEWED: Final[Mapping[Resource, Sequence[str]]] = {
    RESOURCE_CLAIMS: ["CREATE"],  # their spec never changes
    RESOURCE_CLAIM_TEMPLATES: ["CREATE", "UPDATE"],
    DEVICE_CLASSES: ["CREATE", "UPDATE"],
}
"""What carries configs, and the operations that can bring in one."""
VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
"""Versions of resource.k8s.io that objects may come in."""
_TITLE_BYTES: Final = 600
"""Kind, namespace and name of whatever the API server lets pass have fewer."""


class ReviewProblem(Struct, frozen=True):
    """One problem: the field, the text, and ``place``, its path for the log up to the first user-defined key."""

    path: str
    text: str
    place: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


class ReviewFindings(Struct, frozen=True):
    """The first problems, how many more were ``omitted``, and the number of configs not checked after that."""

    problems: tuple[ReviewProblem, ...] = ()
    omitted: int = 0
    unseen: int = 0

    def __str__(self) -> str:
        more = [f"{self.omitted} more"] if self.omitted else []
        if self.unseen:
            more.append(f"{counted(self.unseen, 'more config')} not looked at")
        reported = [*map(str, self.problems), *([f"… and {' and '.join(more)}"] if more else [])]
        return "; ".join(reported)


class ReviewRejection(Struct, frozen=True):
    """Why an object is rejected: ``text`` for the user, and ``fields`` for the log, without values of the user."""

    text: str
    fields: tuple[str, ...]


def object_identity(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Return kind, name and namespace of an object without its content."""
    metadata = _mapping(obj.get("metadata"))
    kept = {key: metadata[key] for key in ("name", "namespace", "generateName") if key in metadata}
    return {"apiVersion": obj.get("apiVersion"), "kind": obj.get("kind"), "metadata": kept}


def review_configs(
    obj: Mapping[str, Any], driver: Driver[Any, Any], *, stored: Mapping[str, Any] | None = None
) -> ReviewFindings:
    """Return the problems of the configs that an object carries for a driver.

    Configs of other drivers are ignored; the API server rejects entries that are not configs. For an update of the
    ``stored`` object, unchanged configs are ignored, and so are problems that a config had before, unless it has more
    problems than are reported. Both objects may be in any version; duplicate keys are seen if they were parsed by
    :func:`dra_kit.kubernetes.values.json.loads`.
    """
    before = dict(_parameters(stored, driver.name)) if stored is not None else {}
    known = {_exact(parameters) for parameters in before.values()} - {None}
    new = [item for item in _parameters(obj, driver.name) if _exact(item[1]) not in known]
    found: list[ReviewProblem] = []
    omitted = 0
    for number, (path, parameters) in enumerate(new):
        problems, more = _problems(path, parameters, driver)
        if problems and not more and path in before:
            excused, _ = _problems(path, before[path], driver)
            problems = [problem for problem in problems if problem not in excused]
        found += problems
        omitted += more
        if len(found) >= MOST_PROBLEMS:
            omitted += len(found) - MOST_PROBLEMS
            return ReviewFindings(tuple(found[:MOST_PROBLEMS]), omitted, len(new) - number - 1)
    return ReviewFindings(tuple(found), omitted)


def rejection(
    obj: Mapping[str, Any], old: Mapping[str, Any] | None, operation: str, driver: Driver[Any, Any]
) -> ReviewRejection | None:
    """Return why a request must be rejected; None if it is accepted.

    An update is checked only for what it adds: an object that was stored before its config was checked (or before the
    model became stricter) can still lose its finalizers. Claims cannot change their spec, so their updates are
    accepted, as are deletions.

    Raises:
        ValueError: another operation, or an object of another kind: it is not known what they bring in.
    """
    if operation not in {"CREATE", "UPDATE", "DELETE"} or obj.get("kind") not in CONFIG_FIELDS:
        raise ValueError(f"{operation} of a {obj.get('kind')} is not checked here")
    if operation == "DELETE" or (operation == "UPDATE" and obj.get("kind") == RESOURCE_CLAIMS.kind):
        return None
    found = review_configs(obj, driver, stored=old if operation == "UPDATE" else None)
    if not found.problems:
        return None
    return ReviewRejection(f"{_title(obj)}: {found}", tuple(dict.fromkeys(problem.place for problem in found.problems)))


def _problems(path: str, parameters: Any, driver: Driver[Any, Any]) -> tuple[list[ReviewProblem], int]:
    """Return the first problems of one config, and how many more there are."""
    try:
        driver.configs.decode(parameters)
    except InvalidConfig as error:
        if error.__cause__ is not None:  # a validator of the author's broke; the user sees one line of it
            raised = {"raised": type(error.__cause__).__name__, "at": author_location(error.__cause__)}
            logger.error("config model failed", extra={"field": path, **raised})
        problems = zip(error.problems, error.places, strict=True)
        return [
            ReviewProblem(_join(path, below), text, _join(path, at)) for (below, text), at in problems
        ], error.omitted
    return [], 0


def _exact(parameters: Any) -> tuple[object, ...] | None:
    """Return a comparable form of a config, in which ``1`` is not ``true``; None if it is nested too deeply."""
    try:
        return json.dumps(parameters), *find_duplicate_keys(parameters)
    except RecursionError:
        return None


def _parameters(obj: Mapping[str, Any], driver: str) -> Iterator[tuple[str, Any]]:
    """Yield path and value of the ``parameters`` of each config for ``driver``."""
    fields = CONFIG_FIELDS.get(str(obj.get("kind")), ())
    configs = value_at(obj, fields) if fields else None
    for index, config in enumerate(configs if isinstance(configs, list) else ()):
        opaque = _mapping(_mapping(config).get("opaque"))
        if opaque.get("driver") == driver:
            yield f"{'.'.join(fields)}[{index}].opaque.parameters", opaque.get("parameters")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _join(path: str, below: str) -> str:
    return f"{path}{below}" if below.startswith("[") or not below else f"{path}.{below}"


def _title(obj: Mapping[str, Any]) -> str:
    metadata = _mapping(obj.get("metadata"))
    name = metadata.get("name") or f"{metadata.get('generateName', '')}*"
    namespace = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    return shorten(f"{obj.get('kind')} {namespace}{name}", _TITLE_BYTES)


WEBHOOK_ID: Final = "validate-opaque-config"
WEBHOOK_PATH: Final = f"/{WEBHOOK_ID}"


def configuration_name(driver_name: str) -> str:
    """Return the name of a driver's ValidatingWebhookConfiguration."""
    return f"opaque-config.{driver_name}"


def validating_webhook_configuration(driver_name: str, *, url: str, ca_bundle: bytes | None = None) -> dict[str, Any]:
    """Return the configuration object for one driver's webhook, of admissionregistration.k8s.io/v1.

    The API server asks only about objects that carry config of this driver (``matchConditions``, beta and on since
    Kubernetes 1.28), and refuses them while the webhook cannot be reached.

    Args:
        driver_name: the driver whose config is checked.
        url: where the webhook listens, ``https://host:port``.
        ca_bundle: PEM of the authority of the webhook's certificate; None where something else fills it in, such as
            cert-manager's CA injector, or where the API server's own authorities will do.

    Raises:
        ConfigurationError: the API server would refuse the URL.
    """
    client = {"url": _checked(url) + WEBHOOK_PATH}
    if ca_bundle is not None:
        client["caBundle"] = base64.b64encode(ca_bundle).decode()
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": configuration_name(driver_name)},
        "webhooks": [_webhook(resource, driver_name, client) for resource in REVIEWED],
    }


def _webhook(resource: Resource, driver_name: str, client: dict[str, str]) -> dict[str, Any]:
    configs = "object." + ".".join(f"?{field}" for field in CONFIG_FIELDS[resource.kind])
    ours = json.dumps(driver_name)
    return {
        # the API server wants three labels at least, and a driver's name may be a single one
        "name": f"{resource.plural}.opaque-config.{driver_name}",
        "clientConfig": client,
        "rules": [
            {
                "apiGroups": [resource.group],
                "apiVersions": ["v1"],  # covers the others: the API server converts them
                "resources": [resource.plural],
                "operations": list(REVIEWED[resource]),
                "scope": "Namespaced" if resource.namespaced else "Cluster",
            }
        ],
        "matchConditions": [
            {
                "name": "has-config-of-this-driver",
                "expression": f'{configs}.orValue([]).exists(c, c.?opaque.?driver.orValue("") == {ours})',
            }
        ],
        "matchPolicy": "Equivalent",
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "timeoutSeconds": 5,
        "admissionReviewVersions": ["v1"],
    }


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname or parts.path not in {"", "/", WEBHOOK_PATH} or parts.query:
        raise ConfigurationError(f"webhook URL {url!r} is not of the form https://host:port; correct it")
    return f"https://{parts.netloc}"
