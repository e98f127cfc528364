"""Support bundles: the state of drivers and nodes for a bug report, without secrets.

Objects are saved after :func:`dra_kit.diagnosis.explain.cluster.reduced`: without environments, commands and most
annotations. Opaque configuration and the data of drivers in a claim's status may also be secret. Their values are
redacted in all texts, such as logs, in every form in which programs quote them, also if errors and Events abbreviate
them; so is text that looks like a credential.
"""

from __future__ import annotations

import base64
import json
import os
import re
import urllib.parse
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec import Struct, field

from dra_kit import __version__
from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials
from dra_kit.client.resources import DEVICE_CLASSES, EVENTS, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from dra_kit.diagnosis.check import CheckOptions, run_checks
from dra_kit.diagnosis.explain.cluster import reduced
from dra_kit.diagnosis.snapshot import archive_of
from dra_kit.diagnosis.status import statuses
from dra_kit.diagnosis.who import device_uses
from dra_kit.errors import ConfigurationError, DraKitError
from dra_kit.files import replace_private
from dra_kit.kubelet.sockets import operation_link
from dra_kit.node.operation_socket import METRICS, WHO, ask, ask_text

REMOVED: Final = "(removed)"
_SHORTEST: Final = 6  # shorter words occur in any text, and are not secret
_LINE: Final = 12  # shorter lines are part of many words
_WHOLE: Final = 64  # a shorter text that is a prefix of a word is more likely a name, such as a driver's
_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,39}")  # names of fields, which errors and logs need
_CUT: Final = re.compile(r"[ \t]*(?:\.\.\.|…)|[ \t]*(?=[\r\n]|\\n)|\Z")
"""What follows the beginning of an abbreviated word: a mark, or the end of the line or text."""
_RESUMED: Final = re.compile(r"(?:\.\.\.|… (?:\d+ bytes in total … )?)")
"""What precedes the end of a word whose middle was cut out."""
_SCHEMA: Final = frozenset({"apiVersion", "kind"})  # in opaque configuration, these are documented by the driver
_HIDDEN_FIELDS: Final = frozenset({"parameters", "data"})  # of opaque configuration, and of status.devices[]
_SECRET_NAMES: Final = re.compile(r"passw|secret|token|credential|api_?key|private", re.IGNORECASE)
_SETTING: Final = "DRIVER_"  # prefix of the environment variables of a driver's settings
_LOOKS_SECRET: Final = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*"),  # a JWT, such as a service account's
    re.compile(r"(?<=[Bb]earer )\S+"),
    re.compile(r"(?<=[Bb]asic )[A-Za-z0-9+/=]{8,}"),
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
    re.compile(r"(?i)(?<=password=)\S+|(?<=token=)\S+|(?<=secret=)\S+|(?<=apikey=)\S+"),
)


def redact_object(kind: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return an API object without possible secrets."""
    cleaned: dict[str, Any] = _without_hidden(reduced(kind, dict(document)))
    return cleaned


def _without_hidden(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: REMOVED if key in _HIDDEN_FIELDS and item not in (None, {}) else _without_hidden(item)
            for key, item in value.items()
        }
    return [_without_hidden(item) for item in value] if isinstance(value, list) else value


def secrets_in_objects(documents: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return all words of opaque configuration and device status data, which must be redacted everywhere."""
    return {word for document in documents for word in _hidden(document) if len(word) >= _SHORTEST}


def _hidden(document: Mapping[str, Any]) -> Iterator[str]:
    todo: list[tuple[object, bool, bool]] = [(document, False, False)]  # inside a hidden field, and its root
    while todo:  # without recursion: users nest their configuration as deeply as they like
        value, inside, root = todo.pop()
        if isinstance(value, Mapping):
            for key, item in value.items():
                if inside and not _KEY.fullmatch(key):
                    yield key
                if not (root and key in _SCHEMA):
                    todo.append((item, inside or key in _HIDDEN_FIELDS, key == "parameters"))
        elif isinstance(value, list):
            todo += [(item, inside, False) for item in value]
        elif inside and isinstance(value, str | int | float) and not isinstance(value, bool):
            yield str(value)
            if not isinstance(value, str):
                yield from {json.dumps(value), f"{value:,}", f"{value:g}"}


def secrets_of_pods(pods: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return values from the environment of pods that may be secrets."""
    return {
        str(variable["value"])
        for pod in pods
        for key in ("initContainers", "containers")
        for container in pod["spec"].get(key) or ()
        for variable in container.get("env") or ()
        if is_secret(variable["name"]) and len(str(variable.get("value") or "")) >= _SHORTEST
    }


def secrets_of_environment(environment: Mapping[str, str]) -> set[str]:
    """Return values of this process's own variables that may be secrets."""
    return {value for name, value in environment.items() if is_secret(name) and len(value) >= _SHORTEST}


def is_secret(name: str) -> bool:
    """Return whether a variable may hold a secret: it is a driver's setting, or its name suggests a secret."""
    return name.startswith(_SETTING) or _SECRET_NAMES.search(name) is not None


def _forms_of(word: str) -> Iterator[str]:
    """Yield a word in all forms that texts may contain: unchanged, on one line, line by line, quoted, and encoded."""
    plain = {word, " ".join(word.split()), "; ".join(filter(None, map(str.strip, word.splitlines())))}
    quoted = set(plain)
    for _ in range(2):  # JSON in a text that is quoted in JSON
        quoted |= {json.dumps(form, ensure_ascii=escaped)[1:-1] for form in quoted for escaped in (False, True)}
    quoted |= {repr(form)[1:-1] for form in quoted} | {ascii(form)[1:-1] for form in plain}
    # repr uses other quotes if the surrounding text contains some
    quoted |= {repr(f"{form}\"'")[1:-4] for form in plain}
    # like Go's encoding/json, and programs that write JSON into web pages
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
    """Words to redact in any form, also truncated, indexed to be found in long texts."""

    def __init__(self, words: Iterable[str]) -> None:
        self._known: set[str] = set()
        self._by_beginning: dict[str, list[str]] = {}
        self._by_end: dict[str, list[str]] = {}
        self._long: list[str] = []
        self.add(words)

    def add(self, words: Iterable[str]) -> None:
        """Redact more words from now on; known ones are not stored again."""
        new = set(words) - self._known
        self._known |= new
        for form in sorted({form for word in new for form in _forms_of(word)}):
            if len(form) < _SHORTEST:
                continue
            self._by_beginning.setdefault(form[:_SHORTEST], []).append(form)
            self._by_end.setdefault(form[-_SHORTEST:], []).append(form)
            if len(form) > _LINE:
                self._long.append(form)

    def safe_text(self, text: str) -> str:
        """Return a text, such as a log, without these words and without text that looks like a credential."""
        text = self.without_words(text)
        for pattern in _LOOKS_SECRET:
            text = pattern.sub(REMOVED, text)
        return text

    def without_words(self, text: str) -> str:
        """Return a text without these words."""
        if not self._by_beginning:
            return text
        return self._without_parts(self._without_beginnings(self._without_ends(text)))

    def safe_json(self, text: str) -> str:
        """Return JSON without these words and credentials; a redacted number becomes a string."""
        return json.dumps(self.safe_value(json.loads(text)), indent=1, ensure_ascii=False) + "\n"

    def safe_value(self, value: Any) -> Any:
        """Return a JSON value without these words and credentials; a redacted number becomes a string."""
        match value:
            case Mapping():
                return {self.safe_text(key): self.safe_value(item) for key, item in value.items()}
            case list():
                return [self.safe_value(item) for item in value]
            case str():
                return self.safe_text(value)
            case bool() | None:
                return value
        written = json.dumps(value)
        return REMOVED if any(self._whole_at(written, at) for at in range(len(written))) else value

    def _whole_at(self, text: str, at: int) -> int:
        """Return the length of the longest word at a position; 0 if there is none."""
        forms = self._by_beginning.get(text[at : at + _SHORTEST], ())
        return max((len(form) for form in forms if text.startswith(form, at)), default=0)

    def _without_beginnings(self, text: str) -> str:
        """Remove words, and the beginnings of abbreviated ones."""
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
        """Return the length of the beginning of an abbreviated word at a position; 0 if there is none."""
        length = max(_common(form, text, at) for form in forms)
        if at == 0 and length == len(text) < _WHOLE:
            return 0
        # the mark may begin with the word's next character, such as a dot
        return next((size for size in range(length, _SHORTEST - 1, -1) if _CUT.match(text, at + size)), 0)

    def _without_ends(self, text: str) -> str:
        """Remove the ends of words whose beginning was cut off."""
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
        """Remove lines that are part of a word, such as a wrapped one."""
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
    """Return the length of the common prefix of a form and a text at a position."""
    low, high = _SHORTEST, min(len(form), len(text) - at)
    while low < high:
        middle = (low + high + 1) // 2
        if text.startswith(form[:middle], at):
            low = middle
        else:
            high = middle - 1
    return low


def write_archive(path: Path, files: Mapping[str, str]) -> None:
    """Write texts by name into a .tar.gz, below a folder named like the archive.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    folder = path.name.removesuffix(".tar.gz").removesuffix(".tgz")
    try:
        replace_private(path, archive_of({f"{folder}/{name}": text for name, text in sorted(files.items())}))
    except OSError as error:
        raise ConfigurationError(
            f"support bundle {path}: {error.strerror or error}; name a file in a folder that can be written"
        ) from None


_Read = TypeVar("_Read")
LOG_LINES: Final = 5000
"""Lines of each container's log."""
_NAME_LABEL: Final = "app.kubernetes.io/name"


class SupportBundle(Struct):
    """The gathered files before redaction, what is missing and why, and the words to redact."""

    files: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    words: set[str] = field(default_factory=set)

    def add_json(self, name: str, value: object) -> None:
        """Add a document."""
        self.files[name] = json.dumps(value, indent=1, ensure_ascii=False) + "\n"

    async def attempt(self, what: str, reading: Awaitable[_Read]) -> _Read | None:
        """Return what is read; if that fails, record why, and return None."""
        try:
            return await reading
        except DraKitError as error:
            self.missing.append(f"{what}: {error}")
            return None

    def safe_files(self) -> dict[str, str]:
        """Return all files, redacted, with an index of existing and missing ones."""
        index = {"release": __version__, "files": sorted(self.files), "missing": self.missing}
        files = {**self.files, "index.json": json.dumps(index, indent=1, ensure_ascii=False) + "\n"}
        hidden = HiddenWords(self.words)
        return {
            name: hidden.safe_json(text) if name.endswith(".json") else hidden.safe_text(text)
            for name, text in files.items()
        }


async def gather(driver: str, credentials: Credentials | None, kubelet_dir: Path, why: str = "") -> SupportBundle:
    """Read everything for the bundle that may be read; ``why`` says why credentials are missing."""
    bundle = SupportBundle(words=secrets_of_environment(os.environ))
    if credentials is None:
        bundle.missing.append(f"objects and logs: {why}")
    else:
        async with Client(credentials, user_agent=f"dra-kit/{__version__} support-bundle", timeout=60) as client:
            await _of_cluster(client, driver, bundle)

    options = CheckOptions(driver=driver, kubelet_dir=_if_node(kubelet_dir))
    checked = await bundle.attempt("check", run_checks(options, credentials, why))
    if checked is not None:
        bundle.files["check.txt"] = "".join(f"{item}\n" for item in checked)
    link = operation_link(kubelet_dir, driver)
    if link.is_symlink():
        await _of_node(driver, kubelet_dir, link, bundle)
    else:
        bundle.missing.append(f"status: no driver's socket {link}; run this on a node, or in the driver's pod")
    return bundle


def _if_node(kubelet_dir: Path) -> Path | None:
    return kubelet_dir if kubelet_dir.is_dir() else None


async def _of_node(driver: str, kubelet_dir: Path, link: Path, bundle: SupportBundle) -> None:
    found = await bundle.attempt("status", statuses(kubelet_dir, driver))  # of all its processes, during an update
    if found is not None:
        documents, silent = found
        for document in documents:
            bundle.add_json("node/status.json", document)
        bundle.missing += [f"status: {line}" for line in silent]
    uses = await bundle.attempt("who", ask(link, WHO))
    if uses is not None:
        bundle.add_json("node/who.json", uses)
    metrics = await bundle.attempt("metrics", ask_text(link, METRICS))
    if metrics is not None:
        bundle.files["node/metrics.txt"] = metrics


class _Part(Struct, frozen=True):
    """Objects of one kind: the server's selection, and a filter for those of the driver."""

    resource: Resource
    keep: Callable[[Mapping[str, Any]], bool] = lambda _: True
    field_selector: str = ""
    label_selector: str = ""


async def _of_cluster(client: Client, driver: str, bundle: SupportBundle) -> None:
    parts = (
        _Part(RESOURCE_SLICES, field_selector=f"spec.driver={driver}"),
        _Part(DEVICE_CLASSES),
        _Part(RESOURCE_CLAIMS, keep=lambda claim: driver in _drivers(claim)),
        _Part(PODS, label_selector=f"{_NAME_LABEL}={driver}"),
        _Part(NODES),
        _Part(EVENTS, keep=lambda event: event.get("reportingController") == driver),
    )
    read = {part.resource.kind: await _objects(client, part, bundle) for part in parts}
    own = read["Pod"]
    bundle.words |= secrets_of_pods(own)
    uses = device_uses(read["ResourceClaim"], (), read["ResourceSlice"])
    bundle.add_json("who.json", [use.to_json() for use in uses if use.driver == driver])
    for pod in own:
        await _logs(client, pod, bundle)


async def _objects(client: Client, part: _Part, bundle: SupportBundle) -> Sequence[dict[str, Any]]:
    """Return the original objects; add redacted ones to the bundle."""
    resource = part.resource
    reading = client.list(resource, field_selector=part.field_selector, label_selector=part.label_selector)
    listed = await bundle.attempt(resource.plural, reading)
    if listed is None:
        return ()
    found = [item for item in listed.items if part.keep(item)]
    bundle.words |= secrets_in_objects(found)
    bundle.add_json(f"objects/{resource.plural}.json", [redact_object(resource.kind, item) for item in found])
    return found


def _drivers(claim: Mapping[str, Any]) -> set[str]:
    devices = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    return {result["driver"] for result in devices.get("results") or ()}


async def _logs(client: Client, pod: Mapping[str, Any], bundle: SupportBundle) -> None:
    namespace, name = pod["metadata"].get("namespace", ""), pod["metadata"]["name"]
    for container in pod["spec"].get("containers") or ():
        reading = client.log(name, namespace, container["name"], tail=LOG_LINES)
        text = await bundle.attempt(f"log of {namespace}/{name}", reading)
        if text is not None:
            bundle.files[f"logs/{namespace}_{name}_{container['name']}.log"] = text
