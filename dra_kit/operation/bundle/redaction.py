"""What must not leave the cluster, taken out of objects and texts; pure.

Objects are saved as :func:`dra_kit.explain.cluster.objects.reduced` leaves them: no environment, no command, no
annotation but two of Kubernetes. Beyond that, opaque configuration and what drivers write into a claim's status may
hold anything. Texts, such as logs, are searched for those very values, and for what looks like a credential.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from dra_kit.explain.cluster.objects import reduced

REMOVED: Final = "(removed)"

_SHORTEST: Final = 6  # shorter words are found in any text, and hide nothing
_HIDDEN_FIELDS: Final = frozenset({"parameters", "data"})  # of opaque configuration, and of status.devices[]
_SECRET_NAMES: Final = re.compile(r"passw|secret|token|credential|api_?key|private", re.IGNORECASE)
_SETTING: Final = "DRIVER_"  # what the environment variables of an author's settings begin with
_LOOKS_SECRET: Final = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*"),  # a JWT, such as a service account's
    re.compile(r"(?<=[Bb]earer )\S+"),
    re.compile(r"(?<=[Bb]asic )[A-Za-z0-9+/=]{8,}"),
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
    re.compile(r"(?i)(?<=password=)\S+|(?<=token=)\S+|(?<=secret=)\S+|(?<=apikey=)\S+"),
)


def safe_object(kind: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object without what may be secret.

    Args:
        kind: of the object.
        document: as the API server sends it.
    """
    cleaned: dict[str, Any] = _without_hidden(reduced(kind, dict(document)))
    return cleaned


def _without_hidden(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: REMOVED if key in _HIDDEN_FIELDS and item not in (None, {}) else _without_hidden(item)
            for key, item in value.items()
        }
    return [_without_hidden(item) for item in value] if isinstance(value, list) else value


def hidden_words(documents: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return all words of opaque configuration and of devices' status data, which no text may repeat.

    Args:
        documents: objects as the API server sends them.
    """
    return {word for document in documents for word in _hidden(document) if len(word) >= _SHORTEST}


def _hidden(value: object, *, inside: bool = False) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _hidden(item, inside=inside or key in _HIDDEN_FIELDS)
    elif isinstance(value, list):
        for item in value:
            yield from _hidden(item, inside=inside)
    elif inside and isinstance(value, str | int | float) and not isinstance(value, bool):
        yield str(value)


def words_of_pods(pods: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the words of the environment of the driver's own pods, except those that Kubernetes itself puts there."""
    return {
        str(variable["value"])
        for pod in pods
        for key in ("initContainers", "containers")
        for container in pod["spec"].get(key) or ()
        for variable in container.get("env") or ()
        if is_secret(variable["name"]) and len(str(variable.get("value") or "")) >= _SHORTEST
    }


def words_of_environment(environment: Mapping[str, str]) -> set[str]:
    """Return values of this process's own variables that may be secrets."""
    return {value for name, value in environment.items() if is_secret(name) and len(value) >= _SHORTEST}


def is_secret(name: str) -> bool:
    """Return whether a variable of that name may hold a secret: a driver's settings, and names that sound like one."""
    return name.startswith(_SETTING) or _SECRET_NAMES.search(name) is not None


def _written(word: str) -> set[str]:
    """Return a word as it is, as JSON writes it, and as JSON writes a text in which JSON quotes it."""
    found = {word}
    for _ in range(2):
        found |= {json.dumps(form, ensure_ascii=escaped)[1:-1] for form in found for escaped in (False, True)}
    return found


def safe_text(text: str, words: Iterable[str]) -> str:
    """Return a text, such as a log, without these words, and without what looks like a credential.

    Args:
        text: the text.
        words: what must not be in it.
    """
    return _safe(text, _forms(words))


def safe_json(text: str, words: Iterable[str]) -> str:
    """Return JSON without these words, and without what looks like a credential; a hidden number becomes a text.

    Args:
        text: the JSON.
        words: what must not be in it.
    """
    return json.dumps(_safe_value(json.loads(text), _forms(words)), indent=1, ensure_ascii=False) + "\n"


def _safe_value(value: Any, forms: Sequence[str]) -> Any:
    match value:
        case Mapping():
            return {_safe(key, forms): _safe_value(item, forms) for key, item in value.items()}
        case list():
            return [_safe_value(item, forms) for item in value]
        case str():
            return _safe(value, forms)
        case bool() | None:
            return value
    return REMOVED if any(form in json.dumps(value) for form in forms) else value


def _forms(words: Iterable[str]) -> list[str]:
    return sorted({form for word in words for form in _written(word)}, key=len, reverse=True)


def _safe(text: str, forms: Sequence[str]) -> str:
    for form in forms:
        text = text.replace(form, REMOVED)
    for pattern in _LOOKS_SECRET:
        text = pattern.sub(REMOVED, text)
    return text
