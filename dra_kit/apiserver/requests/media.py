"""Media types: what a client accepts, and in which form it gets an answer."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from dra_kit.apiserver.answers import Refusal, not_acceptable

JSON: Final = "application/json"
YAML: Final = "application/yaml"
PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
ACCEPTED: Final = (JSON, YAML, PROTOBUF)
_STREAMS: Final = (f"{JSON};stream=watch", f"{PROTOBUF};stream=watch")
_FORMS: Final = {
    ("Table", "meta.k8s.io", "v1"),
    ("Table", "meta.k8s.io", "v1beta1"),
    ("PartialObjectMetadata", "meta.k8s.io", "v1"),
    ("PartialObjectMetadata", "meta.k8s.io", "v1beta1"),
    ("PartialObjectMetadataList", "meta.k8s.io", "v1"),
    ("PartialObjectMetadataList", "meta.k8s.io", "v1beta1"),
}


class Form(Struct, frozen=True):
    """The form of an answer.

    Attributes:
        media_type: JSON or YAML.
        kind: ``Table``, ``PartialObjectMetadata`` or empty for the object itself.
        list: whether the metadata of a list are asked for.
        version: of meta.k8s.io for those.
        pretty: whether JSON is indented.
    """

    media_type: str = JSON
    kind: str = ""
    version: str = "v1"
    pretty: bool = False
    list: bool = False


class Clause(Struct, frozen=True):
    """One of the alternatives of an Accept header."""

    media_type: str
    parameters: dict[str, str]


def clauses(accept: str) -> list[Clause]:
    """Return the alternatives, the preferred ones first."""
    found: list[tuple[float, Clause]] = []
    for part in accept.split(","):
        media_type, *rest = (item.strip() for item in part.split(";"))
        parameters = {key.strip(): value.strip().strip('"') for key, _, value in (item.partition("=") for item in rest)}
        try:
            quality = float(parameters.pop("q", "1"))
        except ValueError:
            quality = 0
        if media_type:
            found.append((-quality, Clause(media_type, parameters)))
    return [clause for _, clause in sorted(found, key=lambda pair: pair[0])]


def check(accept: str, offered: tuple[str, ...], *, streams: bool = False) -> None:
    """Refuse a client that takes nothing of what is offered; no ``Accept`` takes everything.

    Args:
        accept: the header.
        offered: media types; letters count, and only ``*/*`` stands for others.
        streams: whether watches are offered too.

    Raises:
        Refusal: 406.
    """
    if accept and not any(clause.media_type in {"*/*", *offered} for clause in clauses(accept)):
        shown = ", ".join((*offered, *(_STREAMS if streams else ())))
        raise Refusal(406, "NotAcceptable", f"406: Not Acceptable\n\nAvailable representations: {shown}", {})


def check_plain(accept: str) -> None:
    """Refuse a client that does not take a document as it is.

    Raises:
        Refusal: 406.
    """
    types = {"*/*", "application/*", JSON, YAML}
    if accept and not any(item.media_type in types and "as" not in item.parameters for item in clauses(accept)):
        raise not_acceptable(ACCEPTED)


def negotiate(accept: str, *, streams: bool = False) -> Form:
    """Return the first alternative that can be served; JSON when there is no header.

    Args:
        accept: the header.
        streams: whether the resource can be watched where it is asked for.

    Raises:
        Refusal: 406, there is none.
    """
    if not accept:
        return Form()
    check(accept, ACCEPTED, streams=streams)
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
    return Form(media_type, wanted[0].removesuffix("List"), wanted[2], pretty, wanted[0].endswith("List"))
