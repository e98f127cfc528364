"""Findings: their rules, levels and fixes, and reports as text, GitHub annotations and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from dra_kit.diagnosis.lint.structure import Enclose, Enlist, Remedy, Rename, Replace, Rewrite, Unwrap
from dra_kit.diagnosis.lint.yaml_edits import Edit, enclose, enlist, quote_scalar, replaced, rewrite_scalar, unwrap
from dra_kit.kubernetes.manifests.documents import ManifestDocument, SourceFile
from dra_kit.kubernetes.manifests.positions import FieldPosition, TextSpan, content_start
from dra_kit.kubernetes.manifests.yaml_reader import ScalarNode
from dra_kit.kubernetes.values.json import value_at
from dra_kit.text import counted, escape_unprintable

Keys: TypeAlias = tuple[str | int, ...]
"""The keys and indices that lead to a value of a document."""


class ValueChange(Struct, frozen=True):
    """The new value of a field.

    Attributes:
        keys: the keys and indices that lead to the field in its document.
        part: the range of characters that ``value`` replaces in a string; None replaces all of it.
    """

    keys: Keys
    value: Any
    part: tuple[int, int] | None = None

    def excludes(self, other: ValueChange) -> bool:
        """Return whether the two changes overlap."""
        shorter = min(len(self.keys), len(other.keys))
        if self.keys[:shorter] != other.keys[:shorter]:
            return False
        if self.part is None or other.part is None:
            return True
        return self.part[0] <= other.part[1] and other.part[0] <= self.part[1]


class Fix(Struct, frozen=True):
    """The fix of a finding; applied completely or not at all.

    Attributes:
        document: the number of the document in its file, from 0.
        changes: the changes of the document's value that the edits must result in.
    """

    document: int
    edits: tuple[Edit, ...]
    changes: tuple[ValueChange, ...]

    def excludes(self, other: Fix) -> bool:
        """Return whether one of the two must wait until the other one is applied."""
        if any(mine.overlaps(its) for mine in self.edits for its in other.edits):
            return True
        same = self.document == other.document
        return same and any(mine.excludes(its) for mine in self.changes for its in other.changes)


def apply_fixes_to_text(text: str, fixes: Iterable[Fix]) -> str:
    """Return a text with fixes that do not exclude each other."""
    for edit in sorted((edit for fix in fixes for edit in fix.edits), key=lambda edit: edit.start, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def apply_fixes_to_values(values: Sequence[Any], fixes: Iterable[Fix]) -> list[Any]:
    """Return the values of a file's documents with fixes that do not exclude each other."""
    made = deepcopy(list(values))
    ordered = sorted(
        ((fix.document, change) for fix in fixes for change in fix.changes),
        key=lambda one: one[1].part or (0, 0),
        reverse=True,  # from the end of a string, so that earlier positions stay valid
    )
    for document, change in ordered:
        keys: Keys = (document, *change.keys)
        holder = value_at(made, keys[:-1])
        if change.part is None:
            holder[keys[-1]] = deepcopy(change.value)
        else:
            start, end = change.part
            before = holder[keys[-1]]
            holder[keys[-1]] = before[:start] + change.value + before[end:]
    return made


def same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return whether two files have the same content; 1 and true differ."""
    return json.dumps(one, sort_keys=True, default=str) == json.dumps(other, sort_keys=True, default=str)


def fix_of(document: ManifestDocument, remedies: Iterable[Remedy]) -> Fix | None:
    """Return the fix that applies remedies; None if there are none or one of them is not certain."""
    edits: list[Edit] = []
    changes: list[ValueChange] = []
    for remedy in remedies:
        made = _made(document, remedy)
        if made is None or made[0] is None:
            return None
        edits.append(made[0])
        changes.append(made[1])
    return Fix(document.number, tuple(edits), tuple(changes)) if edits else None


_Made: TypeAlias = tuple[Edit | None, ValueChange] | None
"""The edit and the change that apply a remedy; None if one of them is not certain."""


def _made(document: ManifestDocument, remedy: Remedy) -> _Made:
    field = document.positions.find(remedy.path)
    if not field.exact:
        return None
    match remedy:
        case Rename(_, name):
            return _renamed(document, field, name)
        case Rewrite(_, value):
            return _rewritten(document, field, value)
        case Replace(_, start, end, text):
            if not isinstance(field.value, ScalarNode):
                return None
            edit = replaced(document.positions, field.value, (start, end), text)
            return edit, ValueChange(field.keys, text, (start, end))
        case Enclose(_, keys, under):
            return _enclosed(document, field, keys, under)
        case Unwrap(_, key):
            return _unwrapped(document, field, key)
        case Enlist():
            return enlist(document.file.text, field.value), ValueChange(field.keys, [field.value.value])


def _renamed(document: ManifestDocument, field: FieldPosition, name: str) -> _Made:
    holder = document.positions.holder(field)
    if not isinstance(field.key, ScalarNode) or not isinstance(holder, Mapping) or name in holder:
        return None
    start = content_start(document.file.text, field.key)
    edit = Edit(start, field.key.end, quote_scalar(name, field.key.style))
    value = {name if key == field.keys[-1] else key: item for key, item in holder.items()}
    return edit, ValueChange(field.keys[:-1], value)


def _rewritten(document: ManifestDocument, field: FieldPosition, value: str | int | bool | None) -> _Made:
    if not isinstance(field.value, ScalarNode):
        return None
    edit = rewrite_scalar(document.file.text, field.value, value)
    return edit, ValueChange(field.keys, field.value.text if value is None else value)


def _enclosed(document: ManifestDocument, field: FieldPosition, keys: tuple[str, ...], under: str) -> _Made:
    value: Any = field.value.value
    if not isinstance(value, Mapping) or not set(keys) <= value.keys():
        return None
    inner = value.get(under, {})
    if not isinstance(inner, Mapping) or not inner.keys().isdisjoint(keys):
        return None
    edit = enclose(document.file.text, document.positions.root, field.value, keys, under)
    moved = {**inner, **{key: value[key] for key in keys}}
    rest = {key: item for key, item in value.items() if key not in keys}
    return edit, ValueChange(field.keys, {**rest, under: moved})


def _unwrapped(document: ManifestDocument, field: FieldPosition, key: str) -> _Made:
    value: Any = field.value.value
    inner = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(inner, Mapping) or not inner or not (value.keys() - {key}).isdisjoint(inner):
        return None
    edit = unwrap(document.file.text, field.value, key)
    rest = {name: item for name, item in value.items() if name != key}
    return edit, ValueChange(field.keys, {**rest, **inner})


Level: TypeAlias = Literal["error", "warning", "note"]
"""``error``: the API server rejects it, or it cannot work. ``warning``: it is most likely not intended. ``note``: it is
valid and may be intended; it never changes the exit code."""


class Rule(Struct, frozen=True):
    """A lint rule.

    Attributes:
        id: its name in output; the meaning of an id never changes.
        about: what it finds, in one sentence.
        fix: what ``--fix`` writes if the fix is certain; empty if it never is.
    """

    id: str
    level: Level
    about: str
    fix: str = ""


def _error(id_: str, about: str, fix: str = "") -> Rule:
    return Rule(id_, "error", about, fix)


def _warning(id_: str, about: str, fix: str = "") -> Rule:
    return Rule(id_, "warning", about, fix)


def _note(id_: str, about: str) -> Rule:
    return Rule(id_, "note", about)


GROUPS: Final[dict[str, tuple[Rule, ...]]] = {
    "Files": (
        _error("syntax", "The file is not valid YAML or JSON."),
        _warning("duplicate-key", "A mapping has the same key twice. kubectl silently uses the last one."),
        _warning("not-an-object", "A document has neither apiVersion nor kind, and was not checked."),
        _error(
            "unknown-kind",
            "The apiVersion has no such kind, or one of them is misspelt.",
            "a kind or group with one typo; the group of a kind of resource.k8s.io; v1alpha3 as v1beta1",
        ),
        _warning(
            "deprecated-version",
            "The apiVersion is deprecated: API servers serve it only with `--runtime-config`, later releases never.",
            "v1, with all fields that move; not for DeviceTaintRule, which is in v1 only since 1.37",
        ),
        _warning("version-off", "The apiVersion of the kind is off by default: it needs `--runtime-config`."),
    ),
    "Structure": (
        _error(
            "unknown-field",
            "The API has no such field there: kubectl rejects it, other clients drop it.",
            "a name with one typo; the level where it belongs",
        ),
        _error(
            "wrong-type",
            "A value has the wrong type for its field.",
            "quotes added or removed; a single value as a list",
        ),
        _error(
            "invalid-value",
            "A value violates a rule of the API server: a limit, a format, a required field.",
            "a value of an enumeration, if one letter is wrong",
        ),
        _error(
            "unqualified-attribute",
            "A constraint names an attribute without its domain.",
            "the full name, if devices have only one",
        ),
        _note("toleration-without-effect", "A toleration names no effect: before 1.38, it does not prevent eviction."),
        _warning("all-devices-twice", "A request asks for all devices of a class, and another one for some."),
        _warning("zero-count", "A request has count 0, which the API server reads as 1."),
        _warning("feature-gate", "A field is dropped, or has no effect, where its feature gate is off."),
    ),
    "CEL": (
        _error("cel-compile", "A CEL expression does not compile."),
        _error("cel-cost", "A CEL expression is too long or may cost too much: the API server refuses it."),
        _error(
            "single-equals",
            "`=`, `===` or `=~` where CEL compares with `==` or `matches()`.",
            "`==` or `!=`; not for `=~`",
        ),
        _error(
            "word-operator",
            "`and`, `or`, `not` or `is` where CEL has `&&`, `||`, `!` and `==`.",
            "`&&` or `||`; not for `not` and `is`, whose precedence differs",
        ),
        _error(
            "python-constant", "`True`, `False` or `None` where CEL has `true`, `false` and `null`.", "the constant"
        ),
        _error("missing-device", "`attributes`, `capacity` or `driver` without `device.` before it.", "`device.`"),
        _error("unknown-device-field", "`device` has no such field.", "a name with one typo"),
        _error("unknown-function", "CEL has no function of that name.", "a name with one typo"),
        _error("hyphenated-name", "A name with a hyphen, which CEL reads as a subtraction."),
        _error(
            "attribute-without-domain",
            "An attribute or capacity without its domain.",
            "the driver, if the selector, its class or the known devices determine it",
        ),
        _error(
            "domain-with-name",
            "A qualified name is used as domain. The name belongs after the bracket.",
            "the name after the bracket",
        ),
        _error(
            "quantity-comparison",
            "A quantity is compared with `<`, or with a number or string.",
            "the method, for quantities with a unit",
        ),
        _error(
            "quantity-argument",
            "A function that takes a quantity gets a string or number.",
            "`quantity(…)` around a string with a unit",
        ),
        _error("attribute-quantity", "An attribute is compared with a quantity, which only capacities are."),
        _warning("quantity-as-text", "A value that looks like a quantity is compared as a string."),
        _error(
            "attribute-field",
            "`.string`, `.bool` or another field of slices after an attribute or capacity, which is its value.",
            "the attribute or capacity alone",
        ),
        _error(
            "version-comparison",
            "A version is compared with `<`, or a function that takes a version gets a string.",
            "the method; `semver(…)` around a complete version",
        ),
        _warning("version-as-text", "A value that looks like a version is compared as a string."),
        _error("sign-method", "`sign` is called as a method, but is a function.", "the function"),
        _error("list-attribute", "`includes` or a macro on an attribute, which needs DRAListTypeAttributes."),
        _error("invalid-constant", "A string is not a valid quantity or semantic version."),
    ),
    "Devices": (
        _warning(
            "foreign-devices",
            "A selector fails for devices of other drivers, which makes the allocation fail.",
            "`device.driver == …` before it, for a driver with known devices",
        ),
        _warning("unknown-driver", "No driver of that name is known.", "a name with one typo"),
        _warning("unknown-domain", "No device has attributes or capacities in that domain.", "a name with one typo"),
        _error(
            "missing-domain",
            "A selector fails because no device has anything in a domain that it reads.",
            "a name with one typo",
        ),
        _error(
            "unknown-attribute", "No device has that attribute.", "a name with one typo; the only domain that has it"
        ),
        _error("unknown-capacity", "No device has that capacity.", "a name with one typo; the only domain that has it"),
        _error(
            "attribute-type",
            "An attribute is compared with a value of another type.",
            "the value converted to that type, if possible",
        ),
        _error("optional-attribute", "A selector fails for a device that lacks an attribute or capacity."),
        _error("cel-runtime", "A selector fails for a device for another reason."),
        _warning("matches-nothing", "No device matches a class, or any alternative of a request."),
        _warning("evicted-pod", "A toleration names no effect, and a known taint with NoExecute evicts the pod."),
        _warning("too-few-devices", "A request asks for more devices than match it."),
        _error("too-much-capacity", "A request asks for more of a capacity than any device that matches it has."),
        _error("opaque-config", "The driver rejects the opaque configuration."),
        _error(
            "config-for-other-devices",
            "Opaque configuration of a request, alternative or class has a kind that none of its devices accepts.",
        ),
        _error("class-config-replaced", "A claim's configuration replaces one that its DeviceClass enforces."),
    ),
    "References": (
        _error("shared-pool", "Several nodes publish one pool, with devices of the same names."),
        _warning("extended-name-twice", "Two classes have one extendedResourceName: only the newer is used."),
        _warning(
            "taints-all-devices",
            "A taint rule with NoExecute selects all devices of the cluster.",
        ),
        _warning("taints-no-device", "A taint rule has no selector, and taints nothing."),
        _error("admin-access", "A claim has admin access in a namespace of the files without the label for it."),
        _warning(
            "unknown-class",
            "A request names a DeviceClass that is not known.",
            "a name with one typo, if all classes are known (`--from`)",
        ),
        _error("unknown-claim", "A container names a claim that its pod does not have.", "a name with one typo"),
        _error(
            "unknown-request",
            "A container names a request that the claim does not have.",
            "a name with one typo; the request of a way to satisfy it",
        ),
        _note(
            "unused-claim", "No container of a pod uses one of its claims. Drivers that act on the whole pod need none."
        ),
        _note("shared-claim", "The pods of a workload name one claim, and share its devices."),
        _warning("unused-request", "No container of a pod uses one of the requests of its claim."),
        _warning("whole-claim", "A container names a whole claim whose requests are configured differently."),
        _error(
            "claim-reference",
            "A pod names a claim as a template, a template as a claim, both, or neither.",
            "the field for the kind in the files",
        ),
        _warning(
            "missing-claim",
            "A pod names a claim or template that the files have in another namespace, or under a name with one typo.",
        ),
    ),
}
"""All rules by category."""
RULES: Final[dict[str, Rule]] = {rule.id: rule for group in GROUPS.values() for rule in group}
"""All rules by id."""
_AROUND: Final = 500
"""Characters of the line that a finding keeps before and after its position."""


@dataclass(frozen=True, slots=True)
class LintFinding:
    """A problem in a file.

    Attributes:
        message: what is wrong, in one line.
        help: what to write instead, in one line; empty if the message says it.
        path: the field, as the API server's errors name it; empty for the whole document.
        line: from 1.
        column: the column of the first marked character, from 1.
        end_column: the column after the last marked character, in the same line.
        source: the line; for a long line, the part around the place.
        source_column: the column of the first character of that part, from 1.
        fix: a certain fix; None if there isn't one.
        releases: of Kubernetes, if only some of those that were checked have the problem.
    """

    rule: str
    message: str
    help: str
    path: str
    file: str
    line: int
    column: int
    end_column: int
    source: str
    source_column: int = 1
    fix: Fix | None = field(default=None, compare=False)
    releases: tuple[str, ...] = ()

    @property
    def level(self) -> Level:
        """``error``, ``warning`` or ``note``."""
        return RULES[self.rule].level


def finding(
    rule: str,
    file: SourceFile,
    place: TextSpan,
    message: str,
    *,
    help_: str = "",
    path: str = "",
    fix: Fix | None = None,
) -> LintFinding:
    """Return a finding at a place of a file."""
    line, begin, end = file.line(place.start)
    column = place.start - begin + 1
    shown = max(begin, place.start - _AROUND)
    return LintFinding(
        rule=rule,
        message=" ".join(message.split()),
        help=" ".join(help_.split()),
        path=path,
        file=file.name,
        line=line,
        column=column,
        end_column=max(min(place.end, end) - begin + 1, column + 1),
        source=file.text[shown : min(end, place.end + _AROUND, place.start + 2 * _AROUND)],
        source_column=shown - begin + 1,
        fix=fix,
    )


_RED: Final = "\x1b[1;31m"
_YELLOW: Final = "\x1b[1;33m"
_BLUE: Final = "\x1b[34m"
_BOLD: Final = "\x1b[1m"
_RESET: Final = "\x1b[0m"
_WIDTH: Final = 110
"""Columns of a source line that are shown; of a longer line, the part around the finding."""
_MARGIN: Final = 30


def format_text(findings: Sequence[LintFinding], *, files: int, objects: int, colour: bool = False) -> str:
    """Return each finding with its line of the file and its remedy, then the number of findings."""
    lines = [line for found in findings for line in _lines(found, colour=colour)]
    return "\n".join([*lines, summary(findings, files=files, objects=objects)])


def summary(findings: Sequence[LintFinding], *, files: int, objects: int) -> str:
    """Return the number of findings, and of those that ``--fix`` can fix."""
    counts = {level: sum(found.level == level for found in findings) for level in ("error", "warning", "note")}
    verdict = " and ".join(counted(number, level) for level, number in counts.items() if number) or "no findings"
    where = f"in {counted(objects, 'object')} of {counted(files, 'file')}"
    sure = sum(found.fix is not None for found in findings)
    which = "all of them" if sure > 1 else "it"
    fixes = f"; --fix can fix {which if sure == len(findings) else f'{sure} of them'}" if sure else ""
    return f"{verdict} {where}{fixes}"


def fixed_as_text(fixed: Sequence[LintFinding]) -> list[str]:
    """Return one line for each fixed finding, with its place before the fix."""
    return [
        f"{escape_unprintable(one.file)}:{one.line}:{one.column}: fixed: {escape_unprintable(one.message)} [{one.rule}]"
        for one in fixed
    ]


def _lines(found: LintFinding, *, colour: bool) -> Iterator[str]:
    tint = {"error": _RED, "warning": _YELLOW, "note": _BLUE}[found.level]
    level = _painted(found.level, tint, colour)
    where = _painted(f"{escape_unprintable(found.file)}:{found.line}:{found.column}:", _BOLD, colour)
    yield f"{where} {level}: {escape_unprintable(found.message)} [{found.rule}]"
    number = str(found.line)
    gutter = " " * len(number)
    source, column = _window(found)
    if source.strip():
        mark = "^" * max(min(found.end_column - found.column, _WIDTH - column + 1), 1)
        # tabs are kept, so that the marker is below the text
        indent = "".join("\t" if character == "\t" else " " for character in source[: column - 1])
        bar = _painted("|", _BLUE, colour)
        yield f"  {_painted(number, _BLUE, colour)} {bar} {source}"
        yield f"  {gutter} {bar} {indent}{_painted(mark, tint, colour)}"
    if found.help:
        yield f"  {gutter} {_painted('help:', _BLUE, colour)} {escape_unprintable(found.help)}"
    yield ""


def _window(found: LintFinding) -> tuple[str, int]:
    """Return the part of the line that is shown, and the column of the finding in it."""
    source = "".join(
        char if char.isprintable() or char == "\t" else "\N{REPLACEMENT CHARACTER}" for char in found.source
    )
    column = found.column - found.source_column + 1
    if len(source) <= _WIDTH and found.source_column == 1:
        return source, column
    begin = max(0, min(column - 1 - _MARGIN, len(source) - _WIDTH))
    shown = source[begin : begin + _WIDTH]
    cut = begin or found.source_column > 1
    return (f"…{shown[1:]}" if cut else shown), column - begin


def _painted(text: str, code: str, colour: bool) -> str:
    return f"{code}{text}{_RESET}" if colour else text


_COMMANDS: Final[dict[Level, str]] = {"error": "error", "warning": "warning", "note": "notice"}


def format_github(findings: Sequence[LintFinding]) -> str:
    """Return workflow commands of GitHub Actions, which shows them next to the changed lines."""
    return "\n".join(
        f"::{_COMMANDS[found.level]} file={_property(found.file)},line={found.line},col={found.column},"
        f"endColumn={found.end_column},title={_property(f'dra-kit lint: {found.rule}')}::"
        f"{_data(found.message + (f'{chr(10)}help: {found.help}' if found.help else ''))}"
        for found in findings
    )


def _data(text: str) -> str:
    return escape_unprintable(text, keep="\r\n").replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def format_json(findings: Sequence[LintFinding]) -> str:
    """Return a JSON list of objects."""
    return json.dumps([_object(found) for found in findings], indent=2)


def _object(found: LintFinding) -> dict[str, Any]:
    return {
        "file": found.file,
        "line": found.line,
        "column": found.column,
        "endColumn": found.end_column,
        "level": found.level,
        "rule": found.rule,
        "path": found.path,
        "message": found.message,
        "help": found.help,
        "fixable": found.fix is not None,
        **({"kubernetes": list(found.releases)} if found.releases else {}),
    }
