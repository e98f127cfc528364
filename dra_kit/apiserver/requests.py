"""The parts of a request: path, verb, query, resource version, media types and format of the response."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from urllib.parse import parse_qsl, unquote

from msgspec import Struct

from dra_kit.apiserver.status_errors import StatusError, bad_request, invalid_object
from dra_kit.kubernetes.resource.field_errors import (
    ErrorKind,
    FieldError,
    forbidden,
    go_quote,
    invalid,
    required,
    too_long,
    unsupported,
)

_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get", "HEAD": "get"}
_NAMESPACE_SUBRESOURCES: Final = {"status", "finalize"}
_FIELD_MANAGER_MAX: Final = 128
_FIELD_VALIDATIONS: Final = ("", "Ignore", "Strict", "Warn")


class Query(Struct, frozen=True):
    """The query; the first value of a repeated parameter counts."""

    values: Mapping[str, Sequence[str]]

    @classmethod
    def parse(cls, text: str) -> Query:
        """Read the part of a URL after the question mark."""
        values: dict[str, list[str]] = {}
        for name, value in parse_qsl(text, keep_blank_values=True):
            values.setdefault(name, []).append(value)
        return cls(values)

    def text(self, name: str) -> str:
        """Return a parameter, empty when it is missing."""
        return next(iter(self.values.get(name, ())), "")

    def flag(self, name: str) -> bool:
        """Return a boolean parameter: missing, ``0`` and ``false`` (in any case) are false, everything else is true."""
        return name in self.values and self.text(name).lower() not in {"0", "false"}

    def number(self, name: str) -> int | None:
        """Return an integer parameter, None when it is missing or empty.

        Raises:
            StatusError: 400, the value is not an integer.
        """
        text = self.text(name)
        return integer(text) if text else None


def integer(text: str) -> int:
    """Return an int64 as Go reads it (``strconv.ParseInt``).

    Raises:
        StatusError: 400, it is none.
    """
    valid = re.fullmatch(r"[+-]?\d+", text, re.ASCII) is not None
    if valid and -(2**63) <= (number := int(text)) < 2**63:
        return number
    why = "value out of range" if valid else "invalid syntax"
    raise bad_request(f"strconv.ParseInt: parsing {go_quote(text)}: {why}")


class Target(Struct, frozen=True):
    """The resource that a path names.

    Attributes:
        rest: the segments after the subresource.
        watch: whether the path has ``watch`` before the resource: an old way to ask for a watch, of one object too.
    """

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    rest: tuple[str, ...] = ()
    watch: bool = False

    @property
    def api_version(self) -> str:
        """``<group>/<version>``; the version alone in the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @classmethod
    def parse(cls, path: str) -> Target | None:
        """Parse ``/api/v1/...`` and ``/apis/<group>/<version>/...``; None for other paths."""
        parts = [unquote(part) for part in path.strip("/").split("/")]
        if parts[0] == "api" and len(parts) >= 3:
            group, version, *rest = "", *parts[1:]
        elif parts[0] == "apis" and len(parts) >= 4:
            group, version, *rest = parts[1:]
        else:
            return None
        watch = rest[0] == "watch" and len(rest) > 1
        rest = rest[1:] if watch else rest
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in _NAMESPACE_SUBRESOURCES:
            namespace, rest = rest[1], rest[2:]
        plural, name, subresource, *more = [*rest, "", "", ""][: max(3, len(rest))]
        return cls(group, version, plural, namespace, name, subresource, tuple(more), watch)


def request_verb(method: str, target: Target, query: Query) -> str:
    """Return the Kubernetes verb of a request, as in RBAC rules."""
    found = _VERBS.get(method, method.lower())
    if target.watch and found == "get":
        return "watch"
    if not target.name:
        if found == "get":
            return "watch" if query.flag("watch") else "list"
        if found == "delete":
            return "deletecollection"
    return found


class WriteOptions(Struct, frozen=True):
    """Options of a write.

    Attributes:
        field_manager: who owns the fields that it sets.
        field_validation: ``Ignore``, ``Warn`` or ``Strict``.
    """

    dry_run: bool = False
    field_manager: str = ""
    field_validation: str = "Warn"
    force: bool = False

    @classmethod
    def parse(cls, query: Query, kind: str, agent: str, *, apply: bool = False) -> WriteOptions:
        """Read ``CreateOptions``, ``UpdateOptions`` or ``PatchOptions``, maybe of an apply, from a query.

        The user agent names the manager when the query does not.

        Raises:
            StatusError: 422, an option has no such value.
        """
        errors: list[FieldError] = []
        manager = query.text("fieldManager")
        if kind == "PatchOptions":
            if "force" in query.values and not apply:
                errors.append(forbidden("force", "may not be specified for non-apply patch"))
            if apply and not manager:
                errors.append(required("fieldManager", "is required for apply patch"))
        if len(manager.encode()) > _FIELD_MANAGER_MAX:
            errors.append(too_long("fieldManager", manager, _FIELD_MANAGER_MAX))
        unprintable = next((char for char in manager if not char.isprintable()), None)
        if unprintable is not None:
            detail = f"invalid character U+{ord(unprintable):04X} (at position {manager.index(unprintable)})"
            errors.append(invalid("fieldManager", manager, detail))
        dry_run = query.values.get("dryRun", ())
        if any(value != "All" for value in dry_run):
            detail = 'supported values: "All"'
            errors.append(FieldError("dryRun", ErrorKind.UNSUPPORTED, list(dry_run), detail))
        validation = query.text("fieldValidation")
        if validation not in _FIELD_VALIDATIONS:
            errors.append(unsupported("fieldValidation", validation, _FIELD_VALIDATIONS))
        if errors:
            raise invalid_object("meta.k8s.io", kind, "", errors)
        return cls(
            dry_run=bool(dry_run),
            field_manager=manager or agent.partition("/")[0][:_FIELD_MANAGER_MAX],
            field_validation=validation or "Warn",
            force=query.flag("force"),
        )


EXPIRED: Final = "The resourceVersion for the provided list is too old."
CONTINUE_EXPIRED: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


def parse_resource_version(text: str, refusal: Callable[[FieldError], StatusError]) -> int:
    """Return a resource version; empty is 0.

    Raises:
        StatusError: the text is not a number of 64 bits; as ``refusal`` words it.
    """
    if not text:
        return 0
    problem = ""
    if not (text.isascii() and text.isdecimal()):
        problem = "invalid syntax"
    elif len(text) > _VERSION_DIGITS or int(text) >= 1 << 64:
        problem = "value out of range"
    if problem:
        raise refusal(invalid("resourceVersion", text, f"strconv.ParseUint: parsing {go_quote(text)}: {problem}"))
    return int(text)


_VERSION_DIGITS: Final = 20


def too_large(asked: int, current: int) -> StatusError:
    """Return 504 for a future resource version."""
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version", "field": ""}
    return StatusError(504, "Timeout", message, {"causes": [cause], "retryAfterSeconds": 1})


JSON: Final = "application/json"
YAML: Final = "application/yaml"
PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
ACCEPTED: Final = (JSON, YAML, PROTOBUF)
"""The media types of bodies and answers."""
_STREAMS: Final = (f"{JSON};stream=watch", f"{PROTOBUF};stream=watch")


def not_acceptable() -> StatusError:
    """Return 406."""
    message = f"only the following media types are accepted: {', '.join(ACCEPTED)}"
    return StatusError(406, "NotAcceptable", message)


def unsupported_media_type() -> StatusError:
    """Return 415."""
    message = f"the body of the request was in an unknown format - accepted media types include: {', '.join(ACCEPTED)}"
    return StatusError(415, "UnsupportedMediaType", message)


class ResponseFormat(Struct, frozen=True):
    """The format of a response.

    Attributes:
        kind: ``Table``, ``PartialObjectMetadata`` or empty for the object itself.
        list: whether the metadata of a list are asked for.
        version: of meta.k8s.io for those.
    """

    media_type: str = JSON
    kind: str = ""
    version: str = "v1"
    list: bool = False


class AcceptClause(Struct, frozen=True):
    """One of the alternatives of an Accept header."""

    media_type: str
    parameters: dict[str, str]


def accept_clauses(accept: str) -> list[AcceptClause]:
    """Return the alternatives, the preferred ones first."""
    found: list[tuple[float, AcceptClause]] = []
    for part in accept.split(","):
        media_type, *rest = (item.strip() for item in part.split(";"))
        parameters = {key.strip(): value.strip().strip('"') for key, _, value in (item.partition("=") for item in rest)}
        try:
            quality = float(parameters.pop("q", "1"))
        except ValueError:
            quality = 0
        if media_type:
            clause = AcceptClause(media_type, parameters)
            before = len(found)
            while before and _is_preferred(quality, clause, *found[before - 1]):
                before -= 1
            found.insert(before, (quality, clause))
    return [clause for _, clause in found]


def _is_preferred(quality: float, clause: AcceptClause, than_quality: float, than: AcceptClause) -> bool:
    """Return whether an alternative moves in front of an earlier one: by its quality, or because that is a wildcard.

    Of two alternatives each may be preferred to the other: then the later one comes first.

    Source: github.com/munnerz/goautoneg, ``ParseAccept``, and the insertion sort of Go's package ``sort``.
    """
    (type_, _, subtype), (than_type, _, than_subtype) = (one.media_type.partition("/") for one in (clause, than))
    return quality > than_quality or (type_ != "*" and than_type == "*") or (subtype != "*" and than_subtype == "*")


def check(accept: str, offered: tuple[str, ...], *, streams: bool = False) -> None:
    """Reject a client that accepts none of the offered media types; without ``Accept`` it accepts all.

    Letters count, and only ``*/*`` stands for others. With ``streams``, watches are offered too.

    Raises:
        StatusError: 406.
    """
    if accept and not any(clause.media_type in {"*/*", *offered} for clause in accept_clauses(accept)):
        shown = ", ".join((*offered, *(_STREAMS if streams else ())))
        raise StatusError(406, "NotAcceptable", f"406: Not Acceptable\n\nAvailable representations: {shown}", {})


def check_plain(accept: str) -> None:
    """Reject a client that does not accept the document's media type.

    Raises:
        StatusError: 406.
    """
    types = {"*/*", "application/*", JSON, YAML}
    if accept and not any(item.media_type in types and "as" not in item.parameters for item in accept_clauses(accept)):
        raise not_acceptable()


def preferred_media_type(accept: str, kind: str = "") -> str:
    """Return JSON or YAML, which a client accepts first for objects as they are or as a kind; JSON without either."""
    types = {JSON: JSON, YAML: YAML, "*/*": JSON, "application/*": JSON}
    clauses = (clause for clause in accept_clauses(accept) if clause.parameters.get("as", "") == kind)
    return next((types[clause.media_type] for clause in clauses if clause.media_type in types), JSON)


def negotiate(accept: str, *, streams: bool = False, typed: bool = False) -> ResponseFormat:
    """Return the first alternative that can be served; JSON without a header.

    With ``streams``, watches are offered too; with ``typed``, whole objects can be had in protobuf.

    Raises:
        StatusError: 406, no alternative can be served.
    """
    if not accept:
        return ResponseFormat()
    check(accept, ACCEPTED, streams=streams)
    for clause in accept_clauses(accept):
        if typed and clause.media_type == PROTOBUF and "as" not in clause.parameters:
            return ResponseFormat(PROTOBUF)
        form = _form(clause)
        if form is not None:
            return form
    raise not_acceptable()


def _form(clause: AcceptClause) -> ResponseFormat | None:
    media_type = {"*/*": JSON, "application/*": JSON, JSON: JSON, YAML: YAML}.get(clause.media_type)
    if media_type is None:
        return None
    if "as" not in clause.parameters:
        return ResponseFormat(media_type)
    kind, group, version = (clause.parameters.get(name, "") for name in ("as", "g", "v"))
    known = kind in {"Table", "PartialObjectMetadata", "PartialObjectMetadataList"}
    if not known or group != "meta.k8s.io" or version not in {"v1", "v1beta1"}:
        return None
    return ResponseFormat(media_type, kind.removesuffix("List"), version, kind.endswith("List"))
