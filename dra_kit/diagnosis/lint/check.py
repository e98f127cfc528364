"""Check all documents of a file or folder, and what drivers and administrators publish; fix files.

Published are pools of slices, taint rules, names of classes. The result of fixes is checked before a file is written.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from dra_kit.diagnosis.lint.devices import (
    LintContext,
    class_problems,
    drivers_intended,
    expressions,
    known_classes,
    selector_mistakes,
    written_choices,
)
from dra_kit.diagnosis.lint.findings import (
    Fix,
    LintFinding,
    apply_fixes_to_text,
    apply_fixes_to_values,
    finding,
    fix_of,
    same,
)
from dra_kit.diagnosis.lint.objects import LintedObject, lint_object, validate
from dra_kit.diagnosis.lint.references import pod_problems
from dra_kit.diagnosis.lint.requests import (
    all_devices_problems,
    capacity_problems,
    constraint_problems,
    count_problems,
    misplaced_configs,
    opaque_config_problems,
    refused_replacements,
    toleration_problems,
)
from dra_kit.diagnosis.lint.structure import FieldProblem, Replace
from dra_kit.diagnosis.selector_mistakes.catalogue import mistakes
from dra_kit.diagnosis.selector_mistakes.expression import ManifestExpression, Mistake, Replacement
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.cel.failures import CompileFailure
from dra_kit.kubernetes.cel.parser import parse
from dra_kit.kubernetes.manifests.documents import SourceFile, parse_documents, read_documents
from dra_kit.kubernetes.manifests.files import MANIFESTS, STDIN, UnreadableText
from dra_kit.kubernetes.manifests.positions import TextSpan
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.values.json import value_at


class LintResult(Struct, frozen=True):
    """The findings of a check, in file order without duplicates, and the numbers of files and objects."""

    findings: list[LintFinding]
    files: int
    objects: int


def check(files: Iterable[SourceFile], surroundings: LintContext) -> LintResult:
    """Return all problems of YAML or JSON manifests, which may refer to each other."""
    order: dict[str, int] = {}
    findings: list[LintFinding] = []
    manifests: list[LintedObject] = []
    for file in files:
        order.setdefault(file.name, len(order))
        reading = read_documents(file)
        if reading.problem and may_be_template(file):
            continue  # not a manifest yet
        manifests += [lint_object(document, surroundings.release.version) for document in reading.documents]
        for document in {one.number: one for one in reading.documents}.values():
            findings += [
                finding("duplicate-key", file, place, f"{path} is twice in one mapping", help_="remove one", path=path)
                for path, place in document.duplicates
            ]
        if reading.problem:
            findings.append(finding("syntax", file, reading.place, f"the file cannot be read: {reading.problem}"))
    classes = known_classes(manifests, surroundings)
    findings += _findings(manifests, replace(surroundings, classes=classes))
    unique = dict.fromkeys(findings)
    ordered = sorted(unique, key=lambda found: (order[found.file], found.line, found.column))
    return LintResult(ordered, len(order), sum(1 for made in manifests if made.kind))


def may_be_template(file: SourceFile) -> bool:
    """Return whether a file that cannot be read is a Helm template, which the user has not named."""
    return "{{" in file.text and not file.explicit


def _findings(manifests: Sequence[LintedObject], surroundings: LintContext) -> Iterator[LintFinding]:
    together = [*pod_problems(manifests, surroundings), *published_problems(manifests, surroundings)]
    reported = {(id(made), problem.path) for made, problem in together}
    evicting = evicting_taints(manifests)
    for made in manifests:
        precise = (
            *made.problems,
            *class_problems(made, surroundings),
            *count_problems(made, surroundings),
            *capacity_problems(made, surroundings),
            *constraint_problems(made, surroundings),
            *toleration_problems(made, surroundings, evicting),
            *all_devices_problems(made),
            *opaque_config_problems(made, surroundings),
            *misplaced_configs(made, surroundings),
            *refused_replacements(made, surroundings),
        )
        paths = {problem.path for problem in precise}
        for problem in (*precise, *validate(made, surroundings.release)):
            # a problem is reported once, by the most precise rule
            is_precise = problem.rule != "invalid-value"
            if is_precise or not (problem.path in paths or (id(made), problem.path) in reported):
                yield _at_field(made, problem)
        yield from _of_expressions(made, surroundings)
    for made, problem in together:
        yield _at_field(made, problem)


def _of_expressions(made: LintedObject, surroundings: LintContext) -> Iterator[LintFinding]:
    found = list(expressions(made, surroundings.release))
    drivers = drivers_intended(made, found, surroundings)
    wrong: set[str] = set()
    for expression in found:
        for mistake in mistakes(expression, surroundings.advertised, drivers.get(expression.path, "")):
            wrong.add(expression.path)
            yield _in_expression(made, expression, mistake)
    for expression, mistake in selector_mistakes(made, found, surroundings):
        # a problem of an expression is reported once, by the most precise rule
        if expression.path not in wrong:
            yield _in_expression(made, expression, mistake)


def _at_field(made: LintedObject, problem: FieldProblem) -> LintFinding:
    positions, file = made.document.positions, made.document.file
    place: TextSpan = (positions.key if problem.key else positions.place)(problem.path)
    help_ = problem.help
    if problem.quoted:  # as it is written: YAML takes n and no for false
        help_ = f'write it in quotes: "{file.text[place.start : place.end]}"'
    fix = fix_of(made.document, problem.remedies)
    return finding(problem.rule, file, place, problem.message, help_=help_, path=problem.path, fix=fix)


def _in_expression(made: LintedObject, expression: ManifestExpression, mistake: Mistake) -> LintFinding:
    place = made.document.positions.inside(expression.path, mistake.start, mistake.end)
    fix = mistake.fix if expression.root is None or (mistake.fix and _parses(expression.text, mistake.fix)) else ()
    remedies = [Replace(expression.path, one.start, one.end, one.text) for one in fix]
    return finding(
        mistake.rule,
        made.document.file,
        place,
        mistake.message,
        help_=mistake.help,
        path=expression.path,
        fix=fix_of(made.document, remedies),
    )


def _parses(text: str, fix: Sequence[Replacement]) -> bool:
    """Return whether an expression is valid after its mistake is fixed."""
    for one in sorted(fix, key=lambda one: one.start, reverse=True):
        text = text[: one.start] + one.text + text[one.end :]
    try:
        parse(text)
    except (CompileFailure, RecursionError):
        return False
    return True


def published_problems(
    manifests: Sequence[LintedObject], surroundings: LintContext
) -> Iterator[tuple[LintedObject, FieldProblem]]:
    """Yield problems that slices, classes and taint rules of the files have together or with the known ones."""
    yield from _pool_problems(manifests)
    yield from _extended_names(manifests, surroundings)
    yield from _admin_access(manifests)
    for manifest in manifests:
        if isinstance(manifest.obj, v1.DeviceTaintRule):
            written = value_at(manifest.document.body, ("spec", "deviceSelector"))
            yield from ((manifest, problem) for problem in _taint_rule_problems(manifest.obj, written))


def _pool_problems(manifests: Sequence[LintedObject]) -> Iterator[tuple[LintedObject, FieldProblem]]:
    """Yield slices of pools that several nodes publish, each as its own, with devices of the same names."""
    pools: dict[tuple[str, str], list[tuple[LintedObject, v1.ResourceSliceSpec]]] = {}
    for manifest in manifests:
        if isinstance(manifest.obj, v1.ResourceSlice) and manifest.obj.spec.pool.name:
            spec = manifest.obj.spec
            pools.setdefault((spec.driver, spec.pool.name), []).append((manifest, spec))
    for (driver, pool), slices in pools.items():
        newest = max(spec.pool.generation for _, spec in slices)
        current = [(manifest, spec) for manifest, spec in slices if spec.pool.generation == newest]
        nodes = sorted({spec.node_name for _, spec in current if spec.node_name})
        names = Counter(device.name for _, spec in current for device in spec.devices)
        repeated = sorted(name for name, number in names.items() if number > 1)
        if len(nodes) > 1 and repeated:
            shown = ", ".join([*nodes[:4], "…"] if len(nodes) > 4 else nodes)
            text = (
                f"{len(nodes)} nodes publish pool {pool} of driver {driver}: {shown}; their devices of one name, such "
                f"as {repeated[0]}, are one device, which only one claim can get"
            )
            problem = FieldProblem("spec.pool.name", "shared-pool", text, "name the pool after its node")
            yield from ((manifest, problem) for manifest, _ in current)


def _extended_names(
    manifests: Sequence[LintedObject], surroundings: LintContext
) -> Iterator[tuple[LintedObject, FieldProblem]]:
    """Yield classes that have the extended resource name of another class."""
    owners: dict[str, set[str]] = {}
    for name, device_class in surroundings.classes.items():
        if device_class is not None and device_class.spec.extended_resource_name:
            owners.setdefault(device_class.spec.extended_resource_name, set()).add(name)
    for manifest in manifests:
        if not isinstance(manifest.obj, v1.DeviceClass):
            continue
        extended = manifest.obj.spec.extended_resource_name
        others = sorted(owners.get(extended or "", set()) - {manifest.name})
        if extended and others:
            text = f"DeviceClass {others[0]} has this extendedResourceName too: the scheduler uses only the newer class"
            wish = "give each class its own name"
            yield manifest, FieldProblem("spec.extendedResourceName", "extended-name-twice", text, wish)


def _taint_rule_problems(rule: v1.DeviceTaintRule, written: object) -> Iterator[FieldProblem]:
    if written is None:
        text = "the rule taints no device: it has no deviceSelector"
        yield FieldProblem("spec", "taints-no-device", text, "name the driver, pool or device in deviceSelector")
    elif rule.spec.taint.effect == "NoExecute" and written == {}:
        text = "an empty deviceSelector selects all devices of the cluster: NoExecute evicts the pods that use them"
        wish = (
            "name the driver, pool or device; with effect: None, the status of the rule shows how many pods it affects"
        )
        yield FieldProblem("spec.deviceSelector", "taints-all-devices", text, wish, key=True)


def evicting_taints(manifests: Sequence[LintedObject]) -> Sequence[v1.DeviceTaint]:
    """Return the taints of taint rules in the files that evict pods."""
    rules = [manifest.obj for manifest in manifests if isinstance(manifest.obj, v1.DeviceTaintRule)]
    return [rule.spec.taint for rule in rules if rule.spec.taint.effect == "NoExecute"]


_ADMIN_LABEL: Final = "resource.kubernetes.io/admin-access"


def _admin_access(manifests: Sequence[LintedObject]) -> Iterator[tuple[LintedObject, FieldProblem]]:
    """Yield requests with admin access in namespaces of the files that do not allow it."""
    labels: dict[str, list[object]] = {}
    for manifest in manifests:
        if manifest.kind == "Namespace" and manifest.api_version == "v1" and manifest.name:
            found = value_at(manifest.document.body, ("metadata", "labels", _ADMIN_LABEL))
            labels.setdefault(manifest.name, []).append(found)
    for manifest in manifests:
        found_in_files = labels.get(manifest.namespace)
        if not found_in_files or "true" in found_in_files:
            continue  # several files may be alternatives
        for body in written_choices(manifest):
            if getattr(body.asked, "admin_access", None):
                text = f"the API server rejects admin access in namespace {manifest.namespace}, which lacks a label"
                wish = f'label the Namespace: {_ADMIN_LABEL}: "true"'
                yield manifest, FieldProblem(f"{body.path}.adminAccess", "admin-access", text, wish)


_PASSES: Final = 50
"""Fixes that exclude each other wait for the next pass. No rule undoes another one's fix."""


class FixedFiles(Struct):
    """The result of fixing files.

    Attributes:
        files: the files after the fixes, in order.
        fixed: the fixed findings, with their places before the fix.
        outcome: the remaining findings.
        templates: names of files left unchanged because they are templates of Helm or a similar tool.
    """

    files: list[SourceFile]
    fixed: list[LintFinding] = field(default_factory=list)
    outcome: LintResult = field(default_factory=lambda: LintResult([], 0, 0))
    templates: list[str] = field(default_factory=list)


def fix_files(files: Sequence[SourceFile], surroundings: LintContext) -> FixedFiles:
    """Return files with all certain fixes; arguments as for :func:`check`."""
    made = FixedFiles(list(files))
    for _ in range(_PASSES):
        made.outcome = check(made.files, surroundings)
        found: dict[str, list[LintFinding]] = {}
        for each in made.outcome.findings:
            if each.fix is not None:
                found.setdefault(each.file, []).append(each)
        before = len(made.fixed)
        for index, file in enumerate(made.files):
            mine = found.get(file.name, ())
            if mine and "{{" in file.text:
                if file.name not in made.templates:
                    made.templates.append(file.name)
            elif mine:
                text, fixed = _fixed(file, mine)
                made.files[index] = SourceFile(file.name, text, file.explicit)
                made.fixed += fixed
        if len(made.fixed) == before:
            break
    return made


def _fixed(file: SourceFile, found: Sequence[LintFinding]) -> tuple[str, list[LintFinding]]:
    """Return the text with as many compatible fixes as possible, and the fixed findings."""
    values = _values(file.text)
    if values is None:
        return file.text, []
    selected: list[Fix] = []
    for fix in _merged(found):
        if not any(fix.excludes(other) for other in selected):
            selected.append(fix)
    if not _is_as_intended(file.text, values, selected):
        accepted: list[Fix] = []
        for fix in selected:
            if _is_as_intended(file.text, values, [*accepted, fix]):
                accepted.append(fix)
        selected = accepted
    edits = {fix.edits for fix in selected}
    return apply_fixes_to_text(file.text, selected), [
        one for one in found if one.fix is not None and one.fix.edits in edits
    ]


def _merged(found: Sequence[LintFinding]) -> list[Fix]:
    """Return the fixes, with equal edits merged: two findings may have one cause, or one position by an alias."""
    made: dict[Any, Fix] = {}
    for fix in (each.fix for each in found if each.fix is not None):
        other = made.get(fix.edits)
        more = [change for change in fix.changes if other is not None and change not in other.changes]
        made[fix.edits] = fix if other is None else replace(other, changes=(*other.changes, *more))
    return list(made.values())


def _is_as_intended(text: str, values: Sequence[Any], fixes: Sequence[Fix]) -> bool:
    """Return whether a file has the same content as before, except for what the fixes change."""
    after = _values(apply_fixes_to_text(text, fixes))
    return after is not None and same(after, apply_fixes_to_values(values, fixes))


def _values(text: str) -> list[Any] | None:
    try:
        return [document.value for document in parse_documents(text, MANIFESTS, places=False)]
    except UnreadableText:
        return None


_WRITABLE: Final = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")
_MARK: Final = "\ufeff"


def require_writable(names: Sequence[str]) -> None:
    """Check that files can be written; standard input is ignored.

    Raises:
        ConfigurationError: one is read-only.
    """
    for name in names:
        if name != STDIN and not _is_writable(Path(name)):
            raise ConfigurationError(
                f"{name} cannot be written: it is read-only; no file was changed; make it writable, or use --diff"
            )


def _is_writable(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & _WRITABLE) and os.access(path, os.W_OK)
    except OSError:
        return True  # the error is reported when the file is written


def diff(before: SourceFile, after: SourceFile) -> Iterator[str]:
    """Yield the lines of a unified diff, each with its line break."""
    old, new = (_LINE.findall(source.text) for source in (before, after))
    for line in unified_diff(old, new, before.name, after.name):
        if line.endswith("\n"):
            yield line
        else:
            yield f"{line}\n"
            yield "\\ No newline at end of file\n"


def replace_text(path: Path, before: str, after: str) -> None:
    """Replace the text of a file, which was ``before``, atomically; retain its mode, follow links.

    Raises:
        ConfigurationError: the file cannot be written, or has changed since it was read; it is left unchanged.
    """
    try:
        path = path.resolve(strict=True)
        content = path.read_bytes()
        mark = _MARK if content.startswith(_MARK.encode()) else ""
        now = content.removeprefix(_MARK.encode())
        if now == before.encode():
            _replace(path, f"{mark}{after}".encode())
        elif now != after.encode():  # else it was written by another of its names
            raise ConfigurationError(f"{path} was changed by another process; it was left unchanged; try again")
    except OSError as error:
        why = error.strerror or error
        raise ConfigurationError(f"{path} cannot be written: {why}; it was not changed") from None


def _replace(path: Path, content: bytes) -> None:
    found = path.stat()
    handle, name = tempfile.mkstemp(prefix=".dra-kit-", dir=path.parent)
    try:
        with open(handle, "wb") as file:  # noqa: PTH123 - of a handle
            file.write(content)
            file.flush()
            os.fchmod(handle, stat.S_IMODE(found.st_mode))
            if (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()):
                with contextlib.suppress(PermissionError):
                    os.fchown(handle, found.st_uid, found.st_gid)
            os.fsync(handle)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
