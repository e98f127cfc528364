"""``dra-kit lint``, with ``--fix`` and ``--diff``."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from dra_kit.author.driver import Driver
from dra_kit.author.target import load_driver
from dra_kit.cli.app import value_of
from dra_kit.cli.options import TargetCommand, complete_target, discovery_timeout_option, path, silenced_log
from dra_kit.cli.sandbox_drivers import sandbox_driver
from dra_kit.diagnosis.lint.check import LintResult, check, diff, fix_files, replace_text, require_writable
from dra_kit.diagnosis.lint.devices import LintContext
from dra_kit.diagnosis.lint.findings import fixed_as_text, format_github, format_json, format_text, summary
from dra_kit.diagnosis.selector_mistakes.device_rules import Advertised
from dra_kit.diagnosis.snapshot import load_devices
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.manifests.documents import SourceFile, source_files
from dra_kit.kubernetes.manifests.files import STDIN
from dra_kit.kubernetes.release import Release
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.slice_reader import LazySlice
from dra_kit.node.first_inventory import NODE, discover_once
from dra_kit.sandbox.drivers.sandbox_driver import device_classes
from dra_kit.text import escape_unprintable


class LintCommand(TargetCommand):
    """Takes the driver from ``--driver``; its arguments are the files to check."""

    def load(self, own: Sequence[click.Parameter], args: Sequence[str]) -> Driver[Any, Any] | None:
        """Return the driver of ``--driver``."""
        del own
        target = value_of("--driver", args)
        return None if target is None else load_driver(target)


@click.command(cls=LintCommand)
@click.argument("files", nargs=-1, required=True, type=path(exists=True, allow_dash=True))
@click.option(
    "--driver",
    "target",
    metavar="TARGET",
    shell_complete=complete_target,
    help="driver to check names, types and opaque configuration against",
)
@click.option(
    "--from",
    "saved",
    type=path(exists=True),
    metavar="PATH",
    help="saved ResourceSlices and DeviceClasses to check against: a folder, a file, or output of dra-kit snapshot",
)
@click.option(
    "--format",
    "style",
    default="text",
    show_default=True,
    type=click.Choice(["text", "github", "json"]),
    help="plain text, annotations of GitHub Actions, or JSON",
)
@click.option("--fix", is_flag=True, help="write unambiguous fixes to the files, and report the remaining findings")
@click.option("--diff", is_flag=True, help="print what --fix would change, and write nothing")
@click.option("--strict", is_flag=True, help="also fail on warnings")
@click.option("--alpha", is_flag=True, help="check for an API server with all alpha features of resource.k8s.io on")
@discovery_timeout_option
@click.pass_context
def lint(
    ctx: click.Context,
    /,
    files: tuple[Path, ...],
    target: str | None,
    saved: Path | None,
    style: str,
    *,
    fix: bool,
    diff: bool,
    strict: bool,
    alpha: bool,
    timeout: float,
) -> None:
    """Check manifests: claims, templates, classes, slices, taint rules, and the pods that use them.

    FILES are files or folders with YAML or JSON; - is standard input. No cluster is needed. With --driver TARGET
    (module:attr, ./file.py, a folder with a pyproject.toml, or a file of globs), selectors are checked against the
    devices that the driver finds on this machine with the settings of its project's sandbox; with --from, against the
    output of "dra-kit snapshot" or "kubectl get resourceslices,deviceclasses -o yaml".

    --fix corrects mistakes with only one possible meaning. Everything else in the file stays unchanged, including
    comments and layout. For standard input it prints the corrected text.

    Exit code 0: no errors; 1: errors (with --fix: errors that remain), or with --strict warnings; 2: the check failed,
    or a file could not be written.
    """
    if diff and style != "text":
        raise click.UsageError(f"--diff cannot be combined with --format {style}")
    sources = [source for item in files for source in source_files(item, tree=True)]
    driver: Driver[Any, Any] | None = ctx.meta.get("driver")
    given: dict[str, object] = ctx.meta.get("driver_settings", {})
    classes: dict[str, v1.DeviceClass] = {}
    for file in device_classes(target) if target is not None else ():
        classes.update(load_devices(file)[1])
    with tempfile.TemporaryDirectory(prefix="dra-kit-") as directory:
        settings = None  # those of the sandbox of the driver's project, overridden by the given ones
        if driver is not None and target:
            settings = sandbox_driver(target, driver, given, 1).settings_on(NODE, Path(directory))
        surroundings = _surroundings(driver, settings, saved, classes, alpha=alpha, timeout=timeout)
    if diff:
        outcome = check(sources, surroundings)
        show_diff(sources, outcome, surroundings)
    elif fix:
        outcome = fix_and_report(sources, surroundings, quiet=style != "text")
        _report(outcome, style, to_stderr=_has_stdin(sources))
    else:
        outcome = check(sources, surroundings)
        _report(outcome, style)
    failing = {"error", "warning"} if strict else {"error"}
    ctx.exit(1 if any(found.level in failing for found in outcome.findings) else 0)


def _has_stdin(sources: Sequence[SourceFile]) -> bool:
    return any(source.name == STDIN for source in sources)


def _report(outcome: LintResult, style: str, *, to_stderr: bool = False) -> None:
    findings = outcome.findings
    if style == "json":
        click.echo(format_json(findings), err=to_stderr)
    elif style == "github":
        if findings:
            click.echo(format_github(findings), err=to_stderr)
    else:
        colour = (sys.stderr if to_stderr else sys.stdout).isatty() and not os.environ.get("NO_COLOR")
        text = format_text(findings, files=outcome.files, objects=outcome.objects, colour=colour)
        click.echo(text, err=to_stderr, color=colour)


def _surroundings(
    driver: Driver[Any, Any] | None,
    settings: Any,
    saved: Path | None,
    classes: dict[str, v1.DeviceClass],
    *,
    alpha: bool,
    timeout: float,
) -> LintContext:
    slices: list[LazySlice] = []
    complete = False
    if saved is not None:
        slices, found = load_devices(saved)
        complete = bool(found)
        classes = {**classes, **found}
    if driver is not None:
        # manifests are also checked on machines without the hardware; configuration can be checked there
        why = "it finds no device on this machine"
        found_here: list[LazySlice] = []
        try:
            found_here += _found(driver, settings, timeout)
        except ConfigurationError as error:
            why = str(error)
        if not found_here:
            click.echo(f"warning: cannot check against devices of {driver.name}: {escape_unprintable(why)}", err=True)
        slices += found_here
    try:
        advertised = Advertised(slices, complete=saved is not None) if any(map(len, slices)) else None
    except ValueError as error:
        raise ConfigurationError(f"--from {saved} contains an invalid device: {error}") from None
    return LintContext(
        gates=Release.alpha() if alpha else Release.of(),
        advertised=advertised,
        classes=classes,
        complete=complete,
        configs={driver.name: driver.configs.with_settings(settings)} if driver is not None else {},
    )


def _found(driver: Driver[Any, Any], settings: Any, timeout: float) -> Iterator[LazySlice]:
    with silenced_log():
        inventory = discover_once(driver, settings, timeout)
    for pool in inventory.pools:
        if pool.devices:
            yield LazySlice.of_pool(driver.name, pool.name or "", [device.to_v1() for device in pool.devices])


def fix_and_report(sources: Sequence[SourceFile], surroundings: LintContext, *, quiet: bool) -> LintResult:
    """Write the fixes, print them, and return the result for the fixed files; with ``quiet`` print to stderr only.

    Raises:
        ConfigurationError: a file cannot be written; it is unchanged.
    """
    sources = _once(sources)
    fixed = fix_files(sources, surroundings)
    changed = [pair for pair in zip(sources, fixed.files, strict=True) if pair[0].text != pair[1].text]
    require_writable([before.name for before, _ in changed])
    for before, after in changed:
        if after.name != STDIN:
            replace_text(Path(after.name), before.text, after.text)
    for after in fixed.files:
        if after.name == STDIN:
            click.echo(after.text, nl=False)
    _print_templates(fixed.templates)
    to_stderr = quiet or _has_stdin(sources)
    for line in fixed_as_text(fixed.fixed):
        click.echo(line, err=to_stderr)
    if fixed.fixed:
        click.echo("", err=to_stderr)
    return fixed.outcome


def show_diff(sources: Sequence[SourceFile], outcome: LintResult, surroundings: LintContext) -> None:
    """Print the fixes as a diff, and the number of findings on standard error."""
    sources = _once(sources)
    fixed = fix_files(sources, surroundings)
    for before, after in zip(sources, fixed.files, strict=True):
        for line in diff(before, after):
            # a diff for a program must match the files
            click.echo(f"{escape_unprintable(line[:-1])}\n" if sys.stdout.isatty() else line, nl=False)
    _print_templates(fixed.templates)
    click.echo(summary(outcome.findings, files=outcome.files, objects=outcome.objects), err=True)


def _once(sources: Sequence[SourceFile]) -> list[SourceFile]:
    return list({source.name: source for source in sources}.values())


def _print_templates(names: Sequence[str]) -> None:
    for name in names:
        click.echo(f"warning: {name} is unchanged: it contains {{{{, so it is a Helm template", err=True)
