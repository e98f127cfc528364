"""Bodies of requests: from bytes to an object of the kind that the path names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from json import JSONDecodeError
from typing import Any, Final

from dra_kit.apiserver.api import ApiRequest
from dra_kit.apiserver.kinds.kind import Kind, StrategyContext
from dra_kit.apiserver.requests import PROTOBUF, unsupported_media_type
from dra_kit.apiserver.status_errors import StatusError, bad_request
from dra_kit.kubernetes.manifests.documents import TextDocument, decode_utf8, parse_documents
from dra_kit.kubernetes.manifests.files import REQUESTS, UnreadableText
from dra_kit.kubernetes.resource.schema import protobuf
from dra_kit.kubernetes.resource.schema.types import StrictDecoding, TypeMismatch, decode, reaches_raw
from dra_kit.kubernetes.values.json import Object, check_json, loads, raw_object_texts

BODY_MAX: Final = REQUESTS.file_bytes


class BodyParseError(ValueError):
    """A body that cannot be parsed; the text is the API server's."""


def parse_body(body: bytes, content_type: str, types: Mapping[str, str]) -> Any:
    """Return a body as JSON value; ``types`` has the type in the schema of each kind that may come in protobuf.

    Raises:
        StatusError: 413 or 415.
        BodyParseError: it cannot be parsed.
    """
    if len(body) > BODY_MAX:
        raise StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {BODY_MAX}")
    if content_type == "application/yaml":
        try:
            document = parse_yaml(body)
        except UnreadableText as error:
            text = error.within(body.decode(errors="replace"))
            raise BodyParseError(f"error converting YAML to JSON: yaml: {text}") from None
        return None if document is None else document.value
    if content_type == PROTOBUF:
        return _from_protobuf(body, types)
    if content_type not in {"application/json", ""}:
        raise unsupported_media_type()
    try:
        return parse_json(body)
    except ValueError as error:
        text = _go_text(error, body)
        raise BodyParseError(f"couldn't get version/kind; json parse error: {text}") from None


def parse_json(body: bytes) -> Any:
    """Return a body of JSON: a DuplicateKeysObject where keys repeat, U+FFFD for half a surrogate pair as in Go.

    Raises:
        ValueError: it is none, or nested too deeply, or has too many values.
    """
    check_json(body, depth=REQUESTS.depth, values=REQUESTS.values)
    return loads(body)


def parse_yaml(body: bytes) -> TextDocument | None:
    """Return a body of YAML, or JSON: its first document; None if it has none.

    Raises:
        UnreadableText: it is none, or beyond the limits.
    """
    return next(parse_documents(decode_utf8(body), REQUESTS), None)


def _from_protobuf(body: bytes, types: Mapping[str, str]) -> Any:
    try:
        api_version, kind, message = protobuf.unpack(body)
        if kind not in types:
            raise unsupported_media_type()
        return {"apiVersion": api_version, "kind": kind} | protobuf.decode_message(message, types[kind])
    except protobuf.MalformedProtobuf as error:
        raise BodyParseError(str(error)) from None


def _go_text(error: ValueError, body: bytes) -> str:
    """Return a JSON parse error as the API server words it."""
    if not isinstance(error, JSONDecodeError):
        return str(error)
    if error.pos >= len(body.decode(errors="replace").rstrip()):
        return "unexpected end of JSON input"
    return f"invalid character {error.doc[error.pos]!r} looking for beginning of value"


def read_object(request: ApiRequest, kind: Kind, validation: str, context: StrategyContext) -> Object:
    """Return the decoded object of a create or update, in the request's version.

    Raises:
        StatusError: the body is not an object of the kind, or strict decoding rejects it.
    """
    try:
        types = {kind.kind: kind.type_of(request.target.api_version)}
        value = parse_body(request.body, request.content_type, types)
    except BodyParseError as error:
        raise _unrecognized(kind, f"{error} ({_summary(request.body)})") from None
    if value is None:
        value = {}
    if not isinstance(value, dict):
        text = "couldn't get version/kind; json parse error: json: cannot unmarshal a value that is not an object"
        raise _unrecognized(kind, text)
    _check_type(value, request, kind)
    sent: Mapping[str, str] = {}
    if request.content_type == "application/json" and reaches_raw(kind.type_of(request.target.api_version)):
        sent = raw_object_texts(request.body.decode())
    if request.content_type == PROTOBUF:
        validation = "Ignore"  # Go's decoder of protobuf skips what it does not know
    return decode_typed(value, request, kind, validation, context, sent=sent)


def _summary(body: bytes) -> str:
    """Return the beginning of a body that cannot be read, as the API server quotes it."""
    start = body[:_QUOTED]
    text = start.decode(errors="replace") if start[:1] == b"{" else start.hex()
    return (text or "<empty>") + (" ..." if len(body) > _QUOTED else "")


_QUOTED: Final = 30  # bytes


def _check_type(value: Object, request: ApiRequest, kind: Kind) -> None:
    expected = request.target.api_version
    api_version, kind_name = value.get("apiVersion") or expected, value.get("kind") or kind.kind
    if (api_version, kind_name) == (expected, kind.kind):
        return
    if kind_name == kind.kind:
        raise bad_request(
            f"the API version in the data ({api_version}) does not match the expected API version ({expected})"
        )
    raise _unrecognized(kind, f"it is a {kind_name}")


def _unrecognized(kind: Kind, cause: str) -> StatusError:
    return bad_request(f"the object provided is unrecognized (must be of type {kind.kind}): {cause}")


class WrongKindError(StatusError):
    """400: a JSON object that cannot be handled as one of its kind.

    Args:
        mistyped: the value that does not fit the type of its field, if that is why.
    """

    def __init__(self, kind: str, version: str, detail: str, *, mistyped: TypeMismatch | None = None) -> None:
        message = f'{kind} in version "{version}" cannot be handled as a {kind}: {detail}'
        super().__init__(400, "BadRequest", message)
        self.detail = detail
        self.mistyped = mistyped


def decode_typed(
    value: Object,
    request: ApiRequest,
    kind: Kind,
    validation: str,
    context: StrategyContext,
    *,
    sent: Mapping[str, str] | None = None,
    problems: Sequence[str] = (),
) -> Object:
    """Return a JSON object as an object of a kind, in the request's version.

    ``sent`` has the text of the objects inside it, by path; ``problems`` is what strict decoding has found fault with
    already.

    Raises:
        WrongKindError: it does not fit, or strict decoding finds fault with it.
    """
    strictness = StrictDecoding(context.release.version, list(problems), sent or {})
    version = request.target.version
    try:
        obj: Object = decode(value, kind.type_of(request.target.api_version), strictness)
    except TypeMismatch as error:
        raise WrongKindError(kind.kind, version, str(error), mistyped=error) from None
    found_fault = list(dict.fromkeys(strictness.problems))
    if found_fault and validation == "Strict":
        raise WrongKindError(kind.kind, version, f"strict decoding error: {', '.join(found_fault)}")
    if validation == "Warn":
        context.warnings += found_fault
    obj.setdefault("metadata", {})
    return obj
