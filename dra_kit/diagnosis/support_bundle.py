"""What must not leave the cluster, taken out of objects and texts; pure.

Objects are saved as :func:`dra_kit.explain.cluster.objects.reduced` leaves them: no environment, no command, no
annotation but two of Kubernetes. Beyond that, opaque configuration and what drivers write into a claim's status may
hold anything. Texts, such as logs, are searched for those very values, in every form in which programs quote them, and
for what looks like a credential. Long values are cut in errors and Events: their beginnings and ends are found, too.
"""

from __future__ import annotations

import base64
import json
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from dra_kit.explain.cluster.objects import reduced

REMOVED: Final = "(removed)"

_SHORTEST: Final = 6  # shorter words are found in any text, and hide nothing
_LINE: Final = 12  # characters of a line that is a part of a word: shorter ones are in many words
_WHOLE: Final = 64  # a text that is itself the beginning of a word is more likely a name, such as a driver's
_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,39}")  # names of fields, which errors and logs need
_CUT: Final = re.compile(r"[ \t]*(?:\.\.\.|…)|[ \t]*(?=[\r\n]|\\n)|\Z")
"""What follows the beginning of a word that was cut: a mark, or the end of the line or of the text."""
_RESUMED: Final = re.compile(r"(?:\.\.\.|… (?:\d+ bytes in all … )?)")
"""What comes before the end of a word whose middle was cut out."""
_SCHEMA: Final = frozenset({"apiVersion", "kind"})  # of opaque configuration: the driver's documentation has them
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


def _hidden(value: object, *, inside: bool = False, root: bool = False) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if inside and not _KEY.fullmatch(key):
                yield key
            if not (root and key in _SCHEMA):
                yield from _hidden(item, inside=inside or key in _HIDDEN_FIELDS, root=key == "parameters")
    elif isinstance(value, list):
        for item in value:
            yield from _hidden(item, inside=inside)
    elif inside and isinstance(value, str | int | float) and not isinstance(value, bool):
        yield str(value)
        if not isinstance(value, str):
            yield from {json.dumps(value), f"{value:,}", f"{value:g}"}


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


def _forms_of(word: str) -> Iterator[str]:
    """Yield a word in the forms in which texts have it: as it is, on one line, line by line, quoted, and encoded."""
    plain = {word, " ".join(word.split()), "; ".join(filter(None, map(str.strip, word.splitlines())))}
    quoted = set(plain)
    for _ in range(2):  # JSON in a text that is quoted in JSON
        quoted |= {json.dumps(form, ensure_ascii=escaped)[1:-1] for form in quoted for escaped in (False, True)}
    quoted |= {repr(form)[1:-1] for form in quoted} | {ascii(form)[1:-1] for form in plain}
    # quoted by repr in the other quotes, since the text around it has some of these
    quoted |= {repr(f"{form}\"'")[1:-4] for form in plain}
    # as Go's encoding/json has it, and programs that write JSON into web pages
    quoted |= {form.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e") for form in quoted}
    yield from quoted
    yield from word.splitlines()
    content = word.encode("utf-8", "surrogatepass")
    yield base64.b64encode(content).decode().rstrip("=")
    yield base64.urlsafe_b64encode(content).decode().rstrip("=")
    yield content.hex()
    yield urllib.parse.quote(content, safe="")
    yield urllib.parse.quote_plus(content)


class HiddenWords:
    """Words that no text may have, indexed to be found in long texts.

    Args:
        words: each of which is found in every form, and where it is cut.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._by_beginning: dict[str, list[str]] = {}
        self._by_end: dict[str, list[str]] = {}
        self._long: list[str] = []
        for form in sorted({form for word in words for form in _forms_of(word)}):
            if len(form) < _SHORTEST:
                continue
            self._by_beginning.setdefault(form[:_SHORTEST], []).append(form)
            self._by_end.setdefault(form[-_SHORTEST:], []).append(form)
            if len(form) > _LINE:
                self._long.append(form)

    def safe_text(self, text: str) -> str:
        """Return a text, such as a log, without these words, and without what looks like a credential."""
        if self._by_beginning:
            text = self._without_parts(self._without_beginnings(self._without_ends(text)))
        for pattern in _LOOKS_SECRET:
            text = pattern.sub(REMOVED, text)
        return text

    def safe_json(self, text: str) -> str:
        """Return JSON without these words, and without what looks like a credential; a hidden number becomes a text."""
        return json.dumps(self._safe_value(json.loads(text)), indent=1, ensure_ascii=False) + "\n"

    def _safe_value(self, value: Any) -> Any:
        match value:
            case Mapping():
                return {self.safe_text(key): self._safe_value(item) for key, item in value.items()}
            case list():
                return [self._safe_value(item) for item in value]
            case str():
                return self.safe_text(value)
            case bool() | None:
                return value
        written = json.dumps(value)
        return REMOVED if any(self._whole_at(written, at) for at in range(len(written))) else value

    def _whole_at(self, text: str, at: int) -> int:
        """Return the length of the longest word at a place; 0 where there is none."""
        forms = self._by_beginning.get(text[at : at + _SHORTEST], ())
        return max((len(form) for form in forms if text.startswith(form, at)), default=0)

    def _without_beginnings(self, text: str) -> str:
        """Remove words, and their beginnings where they are cut."""
        found: list[str] = []
        done = at = 0
        while at <= len(text) - _SHORTEST:
            forms = self._by_beginning.get(text[at : at + _SHORTEST])
            length = (self._whole_at(text, at) or self._cut_at(text, at, forms)) if forms else 0
            if length:
                found += [text[done:at], REMOVED]
                done = at = at + length
            else:
                at += 1
        return "".join([*found, text[done:]])

    def _cut_at(self, text: str, at: int, forms: Iterable[str]) -> int:
        """Return the length of the beginning of a word that is cut at a place; 0 where it goes on otherwise."""
        length = max(_common(form, text, at) for form in forms)
        if at == 0 and length == len(text) < _WHOLE:
            return 0
        # a mark may begin as the word goes on: with a dot, for example
        return next((size for size in range(length, _SHORTEST - 1, -1) if _CUT.match(text, at + size)), 0)

    def _without_ends(self, text: str) -> str:
        """Remove the ends of words whose beginning was cut off, with the middle that is left."""
        places = [(found.end(), text.find("\n", found.end())) for found in _RESUMED.finditer(text)]
        for begin, stop in reversed(places):
            line = text[begin : stop if stop >= 0 else len(text)]
            length = max(
                (
                    end + _SHORTEST
                    for end in range(len(line) - _SHORTEST + 1)
                    for form in self._by_end.get(line[end : end + _SHORTEST], ())
                    if form.endswith(line[: end + _SHORTEST])
                ),
                default=0,
            )
            if length:
                text = f"{text[:begin]}{REMOVED}{text[begin + length :]}"
        return text

    def _without_parts(self, text: str) -> str:
        """Remove lines that are a part of a word, as where it is wrapped."""
        if "\n" not in text or not self._long:
            return text
        known: dict[str, bool] = {}
        lines = text.split("\n")
        for number, line in enumerate(lines):
            part = line.strip(" \t\r\\\"'|>")
            if len(part) < _LINE:
                continue
            if part not in known:
                known[part] = any(part in form for form in self._long)
            if known[part]:
                lines[number] = line.replace(part, REMOVED)
        return "\n".join(lines)


def _common(form: str, text: str, at: int) -> int:
    """Return how many characters of a form are at a place of a text."""
    low, high = _SHORTEST, min(len(form), len(text) - at)
    while low < high:
        middle = (low + high + 1) // 2
        if text.startswith(form[:middle], at):
            low = middle
        else:
            high = middle - 1
    return low
