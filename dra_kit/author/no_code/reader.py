"""Reads a file of globs and reports each problem with its line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from dra_kit.author.config_problems import Problem, find_config_problems, format_path, short_json
from dra_kit.author.device import Device
from dra_kit.author.no_code.matching import AttributeUnavailable, Value, convert_value, read_default
from dra_kit.author.no_code.model import (
    DEVICE,
    PLACE,
    AttributeSource,
    GlobEntry,
    GlobFile,
    build_capacity,
    placeholders,
)
from dra_kit.author.prepared import ContainerEdits
from dra_kit.errors import ConfigurationError, DraKitError
from dra_kit.kubernetes.manifests.documents import TextDocument, decode_utf8, parse_documents
from dra_kit.kubernetes.manifests.files import MANIFESTS, UnreadableText, read_file
from dra_kit.kubernetes.manifests.positions import Positions
from dra_kit.text import did_you_mean

_CODE: Final = "invalid-globs"
_MOST_SHOWN: Final = 5
_EXAMPLE: Final = "write driver: NAME, and a list of devices: with paths: /dev/… each"


def read_globs(file: Path) -> GlobFile:
    """Return the content of a file of globs.

    Raises:
        ConfigurationError: it cannot be read or is invalid; each problem with file, line, key and remedy (code
            ``invalid-globs``).
    """
    text, document = _document(file)
    try:
        globs = GlobFile.model_validate(document.value)
    except ValidationError as error:
        raise _with_lines(file, text, document, find_config_problems(error, GlobFile, document.value)) from None
    if mistakes := list(_mistakes(globs)):
        raise _with_lines(file, text, document, mistakes)
    return globs


def describe_problem(file: Path, path: str, problem: str) -> str:
    """Return a problem with file, line and path of the field; without the line if the file is unreadable."""
    try:
        text, document = _document(file)
    except ConfigurationError:
        return f"{file}: {path}: {problem}"
    return _shown(file, _line(text, Positions(text, document.root), path), path, problem)


def _document(file: Path) -> tuple[str, TextDocument]:
    try:
        content = read_file(file, MANIFESTS)
    except ConfigurationError as error:
        raise _wrong(str(error)) from None
    text = ""
    try:
        text = decode_utf8(content)
        found = list(islice(parse_documents(text), 2))
        repeated = next(found[0].repeated(), None) if found else None
    except UnreadableText as error:
        line = text.count("\n", 0, error.start)
        # the most common cause here, which no parser can detect
        braces = any(placeholders("".join(text.splitlines()[line : line + 1])))
        remedy = "; put a text with a placeholder in quotes where braces are around it" if braces else ""
        raise _wrong(f"{file}:{line + 1}: {error.problem}{remedy}") from None
    if not found or found[0].value is None:
        raise _wrong(f"{file}:1: the file is empty; {_EXAMPLE}")
    first = found[0].value
    if isinstance(first, dict) and {"apiVersion", "kind"} <= first.keys():
        raise _wrong(
            f"{file}:1: it is a manifest of kind {short_json(first['kind'])}, not a file of globs; "
            "dra-kit sandbox applies it with -f, and dra-kit lint checks it"
        )
    if len(found) > 1:
        line = text.count("\n", 0, found[1].root.start) + 1
        raise _wrong(f"{file}:{line}: a second document begins; write each driver into its own file")
    if repeated is not None:
        path, node = repeated
        raise _wrong(f"{file}:{text.count(chr(10), 0, node.start) + 1}: {path}: occurs twice; remove one")
    if not isinstance(found[0].value, dict):
        raise _wrong(f"{file}:1: not a mapping; {_EXAMPLE}")
    return text, found[0]


def _with_lines(file: Path, text: str, document: TextDocument, problems: Iterable[Problem]) -> ConfigurationError:
    positions = Positions(text, document.root)
    first = sorted((_line(text, positions, path), path, what) for path, what in problems)[:_MOST_SHOWN]
    return _wrong("; ".join(_shown(file, *one) for one in first))


def _line(text: str, positions: Positions, path: str) -> int:
    return text.count("\n", 0, positions.place(path).start) + 1


def _shown(file: Path, line: int, path: str, what: str) -> str:
    return f"{file}:{line}: {f'{path}: ' if path else ''}{what}"


def _wrong(text: str) -> ConfigurationError:
    return ConfigurationError(text, code=_CODE)


def _mistakes(globs: GlobFile) -> Iterator[Problem]:
    """Yield problems between several parts, and violations of the rules of the API."""
    for index, entry in enumerate(globs.devices):
        for path, text in (*_placeholder_mistakes(entry), *_api_mistakes(entry)):
            yield f"devices[{index}].{path}" if path else f"devices[{index}]", text


def _placeholder_mistakes(entry: GlobEntry) -> Iterator[Problem]:
    groups = list(re.compile(entry.pattern).groupindex) if entry.pattern is not None else []
    for group in groups:
        if group in DEVICE:
            yield "pattern", f"its group {group} has the name of a built-in placeholder; rename it"
    for path, template, known in _templates(entry):
        for name in placeholders(template):
            if name not in {*known, *groups}:
                names = [*known, *groups]
                yield (
                    path,
                    (
                        f"{{{name}}} is not a placeholder{did_you_mean(name, names)}; use "
                        f"{', '.join(f'{{{one}}}' for one in names)}, or a named group of the pattern"
                    ),
                )


def _templates(entry: GlobEntry) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield every text with placeholders, with its path and the placeholders allowed in addition to groups."""
    if entry.name is not None:
        yield "name", entry.name, PLACE
    yield from ((f"with[{index}]", text, PLACE) for index, text in enumerate(entry.with_))
    for name, source in entry.attributes.items():
        if isinstance(source.value, str):
            yield format_path(("attributes", name)), source.value, DEVICE
        if source.read is not None:
            yield format_path(("attributes", name, "read")), source.read, DEVICE
    if entry.container_path is not None:
        yield "containerPath", entry.container_path, DEVICE
    for name, text in entry.env.items():
        yield format_path(("env", name)), name, DEVICE
        yield format_path(("env", name)), text, DEVICE
    for index, mount in enumerate(entry.mounts):
        yield f"mounts[{index}].hostPath", mount.host_path, DEVICE
        yield f"mounts[{index}].containerPath", mount.container_path, DEVICE


def _api_mistakes(entry: GlobEntry) -> Iterator[Problem]:
    """Yield what the API would reject for every device of the entry."""
    samples: dict[str, Value] = {}
    wrong = False
    for name, source in entry.attributes.items():
        try:
            samples[name] = _sample(source)
            Device(name="sample", attributes={name: samples[name]})
        except (AttributeUnavailable, DraKitError) as error:
            wrong = True
            yield format_path(("attributes", name)), _rule(str(error))
    shared = entry.allow_multiple_allocations
    for name, given in entry.capacity.items():
        if shared and given.request_policy is None:
            wrong = True
            yield (
                format_path(("capacity", name)),
                (
                    "the first claim would take all of it, since allowMultipleAllocations is set; write {value: "
                    f"{given.value}, requestPolicy: {{default: 1}}}}, for what a claim takes that asks for nothing"
                ),
            )
            continue
        try:
            capacity = {name: build_capacity(given)}
            Device(name="sample", capacity=capacity, allow_multiple_allocations=shared or None)
        except DraKitError as error:
            wrong = True
            yield format_path(("capacity", name)), _rule(str(error))
    for name, text in entry.env.items():
        try:
            ContainerEdits(env={name: text})
        except DraKitError as error:
            yield format_path(("env", name)), _rule(str(error))
    if not wrong:
        try:
            Device(
                name="sample",
                attributes=samples,
                capacity={name: build_capacity(given) for name, given in entry.capacity.items()},
                allow_multiple_allocations=shared or None,
            )
        except DraKitError as error:
            yield "", _rule(str(error))


def _sample(source: AttributeSource) -> Any:
    """Return an example of a value that the attribute may have."""
    read_default(source)
    if isinstance(source.value, str) and not any(placeholders(source.value)) and source.match is None:
        return convert_value(source.value, source.as_)
    if source.value is not None and not isinstance(source.value, str):
        return source.value
    return {"string": "text", "int": 1, "bool": True, "version": convert_value("1.0.0", "version")}[source.as_]


def _rule(text: str) -> str:
    """Return the rule without the name of the model, which does not occur in the file."""
    return re.sub(
        r"^(?:ContainerEdits|Device|DeviceCapacity|CapacityRequestPolicy(?:Range)?)(?: 'sample')?: ", "", text
    )
