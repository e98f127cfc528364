"""``dra-kit lint --fix`` and ``--diff``: what is mended, in files and as a diff."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dra_kit.kubernetes.manifests.files import STDIN
from dra_kit.text import escape_unprintable

if TYPE_CHECKING:
    from dra_kit.kubernetes.manifests.documents import SourceFile
    from dra_kit.lint.check import Outcome
    from dra_kit.lint.surroundings import Surroundings


def fix_files(sources: Sequence[SourceFile], surroundings: Surroundings, *, quiet: bool) -> Outcome:
    """Write what is sure, tell what was mended, and give what is left.

    Args:
        sources: the files.
        surroundings: what they are checked against.
        quiet: whether standard output is for other programs.

    Raises:
        ConfigurationError: a file cannot be written; it is as it was.
    """
    from dra_kit.lint.findings.report import fixed_as_text
    from dra_kit.lint.fixes.files import replace_text, require_writable
    from dra_kit.lint.fixes.mending import mend

    sources = _once(sources)
    mended = mend(sources, surroundings)
    changed = [pair for pair in zip(sources, mended.files, strict=True) if pair[0].text != pair[1].text]
    require_writable([before.name for before, _ in changed])
    for before, after in changed:
        if after.name != STDIN:
            replace_text(Path(after.name), before.text, after.text)
    for after in mended.files:
        if after.name == STDIN:
            click.echo(after.text, nl=False)
    _print_templates(mended.templates)
    aside = quiet or any(source.name == STDIN for source in sources)
    for line in fixed_as_text(mended.fixed):
        click.echo(line, err=aside)
    if mended.fixed:
        click.echo("", err=aside)
    return mended.outcome


def show_diff(sources: Sequence[SourceFile], outcome: Outcome, surroundings: Surroundings) -> None:
    """Print what would be written as a diff, and how many findings there are on standard error."""
    from dra_kit.lint.findings.report import summary
    from dra_kit.lint.fixes.files import diff
    from dra_kit.lint.fixes.mending import mend

    sources = _once(sources)
    mended = mend(sources, surroundings)
    for before, after in zip(sources, mended.files, strict=True):
        for line in diff(before, after):
            # a diff for a program is as the files are
            click.echo(f"{escape_unprintable(line[:-1])}\n" if sys.stdout.isatty() else line, nl=False)
    _print_templates(mended.templates)
    click.echo(summary(outcome.findings, files=outcome.files, objects=outcome.objects), err=True)


def _once(sources: Sequence[SourceFile]) -> list[SourceFile]:
    return list({source.name: source for source in sources}.values())


def _print_templates(names: Sequence[str]) -> None:
    for name in names:
        click.echo(f"warning: {name} is left as it is: it has {{{{ in it, as templates of Helm have", err=True)
