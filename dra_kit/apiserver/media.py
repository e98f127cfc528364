"""Media types: what a client accepts, and in which form it gets an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dra_kit.apiserver.answers import not_acceptable

JSON: Final = "application/json"
YAML: Final = "application/yaml"
ACCEPTED: Final = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf")
_FORMS: Final = {
    ("Table", "meta.k8s.io", "v1"),
    ("Table", "meta.k8s.io", "v1beta1"),
    ("PartialObjectMetadata", "meta.k8s.io", "v1"),
    ("PartialObjectMetadata", "meta.k8s.io", "v1beta1"),
    ("PartialObjectMetadataList", "meta.k8s.io", "v1"),
    ("PartialObjectMetadataList", "meta.k8s.io", "v1beta1"),
}


@dataclass(frozen=True, slots=True)
class Form:
    """The form of an answer.

    Attributes:
        media_type: JSON or YAML.
        kind: ``Table``, ``PartialObjectMetadata`` or empty for the object itself.
        version: of meta.k8s.io for those.
        pretty: whether JSON is indented.
    """

    media_type: str = JSON
    kind: str = ""
    version: str = "v1"
    pretty: bool = False


@dataclass(frozen=True, slots=True)
class Clause:
    """One of the alternatives of an Accept header."""

    media_type: str
    parameters: dict[str, str]


def clauses(accept: str) -> list[Clause]:
    """The alternatives, the preferred ones first."""
    found: list[tuple[float, Clause]] = []
    for part in accept.split(","):
        media_type, *rest = (item.strip() for item in part.split(";"))
        parameters = {key.strip(): value.strip().strip('"') for key, _, value in (item.partition("=") for item in rest)}
        try:
            quality = float(parameters.pop("q", "1"))
        except ValueError:
            quality = 0
        if media_type:
            found.append((-quality, Clause(media_type.lower(), parameters)))
    return [clause for _, clause in sorted(found, key=lambda pair: pair[0])]


def negotiate(accept: str) -> Form:
    """The first alternative that can be served; JSON when there is no header.

    Raises:
        Refusal: 406, there is none.
    """
    if not accept:
        return Form()
    for clause in clauses(accept):
        form = _form(clause)
        if form is not None:
            return form
    raise not_acceptable(ACCEPTED)


def _form(clause: Clause) -> Form | None:
    media_type = {"*/*": JSON, "application/*": JSON, JSON: JSON, YAML: YAML}.get(clause.media_type)
    if media_type is None:
        return None
    parameters = clause.parameters
    pretty = parameters.get("pretty") in {"1", "true"}
    if "as" not in parameters:
        return Form(media_type, pretty=pretty)
    wanted = (parameters["as"], parameters.get("g", ""), parameters.get("v", ""))
    if wanted not in _FORMS:
        return None
    return Form(media_type, wanted[0].removesuffix("List"), wanted[2], pretty)
