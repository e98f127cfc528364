"""Fixes written into files, pass by pass, until nothing is left that is certain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from dra_kit.kubernetes.manifests.documents import SourceFile
from dra_kit.kubernetes.manifests.files import MANIFESTS, UnreadableText
from dra_kit.kubernetes.manifests.text import parse_documents
from dra_kit.lint.check import Outcome, check
from dra_kit.lint.findings.finding import Finding
from dra_kit.lint.fixes.fix import Fix, become, same, written
from dra_kit.lint.surroundings import Surroundings

_PASSES: Final = 50
"""Far more than fixes wait for each other: no rule undoes what another one writes."""
_TEMPLATE: Final = "{{"


class Mended(Struct):
    """What came of some files.

    Attributes:
        files: as they are now, in their order.
        fixed: what is mended; with the place that it had then.
        outcome: what is left.
        templates: names of files that were left as they are, because Helm or its like makes manifests of them.
    """

    files: list[SourceFile]
    fixed: list[Finding] = field(default_factory=list)
    outcome: Outcome = field(default_factory=lambda: Outcome([], 0, 0))
    templates: list[str] = field(default_factory=list)


def mend(files: Sequence[SourceFile], surroundings: Surroundings | None = None) -> Mended:
    """Return files with all fixes that are certain; nothing else of them is changed.

    Args:
        files: as :func:`check` takes them.
        surroundings: likewise.
    """
    made = Mended(list(files))
    for _ in range(_PASSES):
        made.outcome = check(made.files, surroundings)
        found: dict[str, list[Finding]] = {}
        for finding in made.outcome.findings:
            if finding.fix is not None:
                found.setdefault(finding.file, []).append(finding)
        before = len(made.fixed)
        for index, file in enumerate(made.files):
            mine = found.get(file.name, ())
            if mine and _TEMPLATE in file.text:
                if file.name not in made.templates:
                    made.templates.append(file.name)
            elif mine:
                text, fixed = _mended(file, mine)
                made.files[index] = SourceFile(file.name, text, file.explicit)
                made.fixed += fixed
        if len(made.fixed) == before:
            break
    return made


def _mended(file: SourceFile, found: Sequence[Finding]) -> tuple[str, list[Finding]]:
    """Return the text with as many fixes as do not exclude each other, and what they are for."""
    values = _values(file.text)
    if values is None:
        return file.text, []
    selected: list[Fix] = []
    for fix in _together(found):
        if not any(fix.excludes(other) for other in selected):
            selected.append(fix)
    if not _is_as_intended(file.text, values, selected):
        accepted: list[Fix] = []
        for fix in selected:
            if _is_as_intended(file.text, values, [*accepted, fix]):
                accepted.append(fix)
        selected = accepted
    edits = {fix.edits for fix in selected}
    return written(file.text, selected), [one for one in found if one.fix is not None and one.fix.edits in edits]


def _together(found: Sequence[Finding]) -> list[Fix]:
    """Return the fixes, those that write the same as one: two findings may have one cause, or one place by an alias."""
    made: dict[Any, Fix] = {}
    for fix in (finding.fix for finding in found if finding.fix is not None):
        other = made.get(fix.edits)
        more = [change for change in fix.changes if other is not None and change not in other.changes]
        made[fix.edits] = fix if other is None else replace(other, changes=(*other.changes, *more))
    return list(made.values())


def _is_as_intended(text: str, values: Sequence[Any], fixes: Sequence[Fix]) -> bool:
    """Return whether a file has the same content as before, except for what the fixes change."""
    after = _values(written(text, fixes))
    return after is not None and same(after, become(values, fixes))


def _values(text: str) -> list[Any] | None:
    try:
        return [document.value for document in parse_documents(text, MANIFESTS, places=False)]
    except UnreadableText:
        return None
