"""Check all documents of a file or folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dra_kit.diagnosis.lint.devices import (
    LintContext,
    class_problems,
    drivers_intended,
    expressions,
    known_classes,
    selector_mistakes,
)
from dra_kit.diagnosis.lint.findings import LintFinding, finding
from dra_kit.diagnosis.lint.fixes import fix_of
from dra_kit.diagnosis.lint.objects import LintedObject, lint_object, validate
from dra_kit.diagnosis.lint.published import evicting_taints, published_problems
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
from dra_kit.kubernetes.cel.failures import CompileFailure
from dra_kit.kubernetes.cel.parser import parse
from dra_kit.kubernetes.manifests.documents import SourceFile, read_documents
from dra_kit.kubernetes.manifests.positions import TextSpan


class LintResult(Struct, frozen=True):
    """The findings of a check, in file order without duplicates, and the numbers of files and objects."""

    findings: list[LintFinding]
    files: int
    objects: int


def check(files: Iterable[SourceFile], surroundings: LintContext | None = None) -> LintResult:
    """Return all problems of YAML or JSON manifests, which may refer to each other."""
    surroundings = surroundings or LintContext()
    order: dict[str, int] = {}
    findings: list[LintFinding] = []
    manifests: list[LintedObject] = []
    for file in files:
        order.setdefault(file.name, len(order))
        reading = read_documents(file)
        if reading.problem and not file.explicit and "{{" in file.text:
            continue  # a Helm template, not a manifest yet
        manifests += map(lint_object, reading.documents)
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
        for problem in (*precise, *validate(made, surroundings.gates)):
            # a problem is reported once, by the most precise rule
            is_precise = problem.rule != "invalid-value"
            if is_precise or not (problem.path in paths or (id(made), problem.path) in reported):
                yield _at_field(made, problem)
        yield from _of_expressions(made, surroundings)
    for made, problem in together:
        yield _at_field(made, problem)


def _of_expressions(made: LintedObject, surroundings: LintContext) -> Iterator[LintFinding]:
    found = list(expressions(made, surroundings.gates))
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
