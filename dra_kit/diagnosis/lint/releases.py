"""Where manifests work: each release of Kubernetes admits the objects, and the answers are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from dra_kit.diagnosis.lint.check import LintResult, check, may_be_template
from dra_kit.diagnosis.lint.devices import LintContext
from dra_kit.diagnosis.lint.findings import LintFinding
from dra_kit.diagnosis.lint.objects import (
    LintedObject,
    dropped_paths,
    ignored_paths,
    is_on,
    lint_object,
    template_problems,
    version_problems,
)
from dra_kit.kubernetes.manifests.documents import SourceFile, read_documents
from dra_kit.kubernetes.release import KubernetesVersion, Release
from dra_kit.kubernetes.resource.new_object import check_new_object
from dra_kit.text import align_columns, counted, escape_unprintable, shorten

_WIDEST: Final = 72
"""Bytes of the name of an object in a table."""
_LONGEST: Final = 40
"""Objects in a table."""


AdmissionVerdict: TypeAlias = Literal["yes", "drops", "ignores", "no"]
"""Whether an API server stores an object as written, without some fields, with fields without effect, or rejects it."""
_REJECTED: Final = frozenset({"invalid-value", "not-an-object", "unknown-field", "unknown-kind", "wrong-type"})
"""Rules about objects that an API server rejects."""


def judge_admission(manifest: LintedObject, release: Release) -> AdmissionVerdict | None:
    """Return what an API server of this release does with an object, without other objects.

    None for an object of another kind without known mistakes.
    """
    if manifest.known is None:
        problems = (*manifest.problems, *template_problems(manifest, release))
        return "no" if any(problem.rule in _REJECTED for problem in problems) else None
    if any(problem.rule in _REJECTED for problem in (*manifest.problems, *version_problems(manifest, release))):
        return "no"
    if manifest.obj is not None and not is_on(manifest.kind, manifest.api_version, release):
        return "no"
    answered = check_new_object(manifest.content, manifest.known, release)
    if answered.errors:
        return "no"
    if any(True for _ in dropped_paths(manifest, answered)):
        return "drops"
    return "ignores" if any(True for _ in ignored_paths(manifest, answered, release)) else "yes"


class ObjectOnReleases(Struct, frozen=True):
    """What the API server of each release does with an object.

    Attributes:
        file: its file.
        title: its kind and name.
        verdicts: by release.
    """

    file: str
    title: str
    verdicts: Mapping[KubernetesVersion, AdmissionVerdict]

    @property
    def works_on_all(self) -> bool:
        """Whether each release stores the whole object, and its fields have an effect."""
        return all(verdict == "yes" for verdict in self.verdicts.values())


def objects_on_releases(files: Iterable[SourceFile], releases: Sequence[Release]) -> list[ObjectOnReleases]:
    """Return what the API servers of releases do with the objects of files that are known, or wrong.

    A file that cannot be read works on none. Helm templates are left out.
    """
    found = []
    for file in files:
        reading = read_documents(file)
        if reading.problem and may_be_template(file):
            continue
        for document in reading.documents:
            judged = [(lint_object(document, release.version), release) for release in releases]
            verdicts: dict[KubernetesVersion, AdmissionVerdict | None] = {
                release.version: judge_admission(made, release) for made, release in judged
            }
            if any(verdicts.values()):
                known: dict[KubernetesVersion, AdmissionVerdict] = {
                    version: verdict or "yes" for version, verdict in verdicts.items()
                }
                found.append(ObjectOnReleases(file.name, _title(judged[0][0]), known))
        if reading.problem:
            found.append(ObjectOnReleases(file.name, "cannot be read", {each.version: "no" for each in releases}))
    return found


def unrendered(files: Iterable[SourceFile]) -> int:
    """Return how many files are Helm templates, which no release has judged."""
    return sum(may_be_template(file) and bool(read_documents(file).problem) for file in files)


def _title(made: LintedObject) -> str:
    return f"{made.kind} {made.name}".rstrip() or f"document {made.document.number}"


def check_releases(files: Sequence[SourceFile], contexts: Sequence[LintContext]) -> LintResult:
    """Check manifests for several releases; a finding that only some of them have begins with their names.

    Releases that differ in message or help have findings of their own.

    Args:
        files: as for :func:`dra_kit.diagnosis.lint.check.check`.
        contexts: what is known in each release, oldest first.
    """
    versions = tuple(context.release.version for context in contexts)
    results = {context.release.version: check(files, context) for context in contexts}
    found: dict[tuple[object, ...], dict[KubernetesVersion, LintFinding]] = {}
    for version, result in results.items():
        repeated: Counter[tuple[object, ...]] = Counter()
        for each in result.findings:
            place = (each.file, each.line, each.column, each.rule, each.path, each.message, each.help)
            repeated[place] += 1
            found.setdefault((*place, repeated[place]), {})[version] = each
    newest = results[versions[-1]]
    order = {file.name: number for number, file in enumerate(files)}
    merged = sorted(
        (_merged(by_version, versions) for by_version in found.values()),
        key=lambda each: (order[each.file], each.line, each.column),
    )
    return LintResult(merged, newest.files, newest.objects)


def _merged(found: Mapping[KubernetesVersion, LintFinding], versions: Sequence[KubernetesVersion]) -> LintFinding:
    newest = found[max(found)]
    if len(found) == len(versions):
        return newest
    named = f"in Kubernetes {named_releases(sorted(found))}: {newest.message}"
    return replace(newest, message=named, releases=tuple(map(str, sorted(found))), fix=None)


def named_releases(versions: Sequence[KubernetesVersion]) -> str:
    """Return ``1.34``, ``1.34 and 1.35`` or ``1.34 to 1.36 and 1.38`` for releases, oldest first."""
    runs: list[list[KubernetesVersion]] = []
    for version in versions:
        if runs and runs[-1][-1] == version.before:
            runs[-1].append(version)
        else:
            runs.append([version])
    parts = list[str]()
    for run in runs:
        parts += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run)
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def format_releases(objects: Sequence[ObjectOnReleases], releases: Sequence[Release]) -> Iterator[str]:
    """Yield a table of the objects that do not work on all releases."""
    partly = [each for each in objects if not each.works_on_all]
    if not partly:
        return
    versions = [release.version for release in releases]
    rows = [["works on Kubernetes", *map(str, versions)]]
    for each in partly[:_LONGEST]:
        title = shorten(escape_unprintable(f"{each.file} {each.title}"), _WIDEST)
        rows.append([title, *(each.verdicts[version] for version in versions)])
    yield from align_columns(rows)
    if len(partly) > _LONGEST:
        yield f"… and {counted(len(partly) - _LONGEST, 'other object')}"


def format_unrendered(number: int) -> str:
    """Return that Helm templates were not checked, and how to do it; empty without any."""
    if not number:
        return ""
    what = f"{counted(number, 'Helm template')} {'is' if number == 1 else 'are'} not checked"
    return f"{what}: render the chart, as in 'helm template NAME CHART | dra-kit lint -'"


def format_oldest(objects: Sequence[ObjectOnReleases], releases: Sequence[Release], *, templates: int = 0) -> str:
    """Return on which releases all objects work, as a sentence; empty without objects.

    Args:
        objects: the objects.
        releases: oldest first, all with their default gates or all with others.
        templates: how many files were not checked, since they are Helm templates.
    """
    if not objects:
        return ""
    versions = [release.version for release in releases]
    working = [version for version in versions if all(each.verdicts[version] == "yes" for each in objects)]
    everything = "all that was checked" if templates else "all of it"
    if not working:
        is_default = all(release == Release.of(release.version) for release in releases)
        gates = "its default feature gates" if is_default else "the alpha features that it has"
        return f"{everything} works on no release of Kubernetes {named_releases(versions)} with {gates}"
    if working == versions[-len(working) :]:
        return f"the oldest release on which {everything} works is Kubernetes {working[0]}"
    return f"{everything} works only on Kubernetes {named_releases(working)}"
