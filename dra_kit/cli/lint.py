"""Commands that check manifests and the order of devices: lint, with ``--fix`` and ``--diff``, and advise."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource
from msgspec import Struct
from msgspec.structs import replace

from dra_kit.author.context import NodeInfo
from dra_kit.author.driver import Driver
from dra_kit.author.target import load_driver
from dra_kit.cli.app import value_of
from dra_kit.cli.options import (
    Releases,
    TargetCommand,
    cluster_options,
    complete_target,
    credentials_of,
    discovery_timeout_option,
    output_option,
    path,
    print_json,
    silenced_log,
)
from dra_kit.cli.sandbox_drivers import sandbox_driver
from dra_kit.diagnosis.device_order import OrderAdvice, OrderSearch, PublishedDevices
from dra_kit.diagnosis.explain.cluster import ClusterDocuments
from dra_kit.diagnosis.explain.text import ReportWriter
from dra_kit.diagnosis.lint.check import LintResult, check, diff, fix_files, replace_text, require_writable
from dra_kit.diagnosis.lint.devices import LintContext
from dra_kit.diagnosis.lint.findings import fixed_as_text, format_github, format_json, format_text, summary
from dra_kit.diagnosis.lint.releases import (
    check_releases,
    format_oldest,
    format_releases,
    format_unrendered,
    objects_on_releases,
    unrendered,
)
from dra_kit.diagnosis.live_cluster import ReadScope, read_live
from dra_kit.diagnosis.node_templates import template_slices
from dra_kit.diagnosis.selector_mistakes.device_rules import Advertised
from dra_kit.diagnosis.snapshot import load, load_devices
from dra_kit.diagnosis.workload import (
    ClaimWorkload,
    Measure,
    default_workload,
    kinds_of,
    large_of,
    read_workload,
    workload_of_claims,
)
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.manifests.documents import SourceFile, source_files
from dra_kit.kubernetes.manifests.files import STDIN
from dra_kit.kubernetes.release import DEFAULT, NEWEST, OLDEST, SUPPORTED, KubernetesVersion, Release
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.matching import Node
from dra_kit.kubernetes.resource.slice_reader import LazySlice
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.node.first_inventory import NODE, discover_once
from dra_kit.process import logging as process_logging
from dra_kit.sandbox.drivers.sandbox_driver import device_classes
from dra_kit.text import align_columns, counted, did_you_mean, escape_unprintable, shorten


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
@click.option(
    "--kubernetes",
    "versions",
    type=Releases(several=True),
    metavar="RELEASE[..RELEASE]",
    help=f"check for this release, or compare several: {OLDEST}..{NEWEST}  [default: {DEFAULT}]",
)
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
    versions: tuple[KubernetesVersion, ...] | None,
    alpha: bool,
    timeout: float,
) -> None:
    """Check manifests: claims, templates, classes, slices, taint rules, and the pods that use them.

    FILES are files or folders with YAML or JSON; - is standard input. No cluster is needed. With --driver TARGET
    (module:attr, ./file.py, a folder with a pyproject.toml, or a file of globs), selectors are checked against the
    devices that the driver finds on this machine with the settings of its project's sandbox; with --from, against the
    output of "dra-kit snapshot" or "kubectl get resourceslices,deviceclasses -o yaml".

    With --kubernetes 1.34..1.36, the objects are checked for each of these releases. A problem that only some of them
    have names them, and a table shows what works where. For a folder and standard input, the last line is the oldest
    release on which all of it works.

    --fix corrects mistakes with only one possible meaning. Everything else in the file stays unchanged, including
    comments and layout. For standard input it prints the corrected text.

    Exit code 0: no errors; 1: errors (with --fix: errors that remain), or with --strict warnings; 2: the check failed,
    or a file could not be written.
    """
    if diff and style != "text":
        raise click.UsageError(f"--diff cannot be combined with --format {style}")
    if (diff or fix) and versions is not None and len(versions) > 1:
        raise click.UsageError("--kubernetes with several releases cannot be combined with --fix or --diff: name one")
    sources = [source for item in files for source in _sources(item)]
    driver: Driver[Any, Any] | None = ctx.meta.get("driver")
    given: dict[str, object] = ctx.meta.get("driver_settings", {})
    classes: dict[str, v1.DeviceClass] = {}
    for file in device_classes(target) if target is not None else ():
        classes.update(load_devices(file)[1])
    with tempfile.TemporaryDirectory(prefix="dra-kit-") as directory:
        settings = None  # those of the sandbox of the driver's project, overridden by the given ones
        if driver is not None and target:
            settings = sandbox_driver(target, driver, given, 1).settings_on(NODE, Path(directory))
        release_of = Release.alpha if alpha else Release.of
        releases = [release_of(version) for version in versions or (DEFAULT,)]
        surroundings = _surroundings(driver, settings, saved, classes, releases[-1], timeout=timeout)
    if diff:
        outcome = check(sources, surroundings)
        show_diff(sources, outcome, surroundings)
    elif fix:
        outcome = fix_and_report(sources, surroundings, quiet=style != "text")
        _report(outcome, style, to_stderr=_has_stdin(sources))
    else:
        contexts = [replace(surroundings, release=release) for release in releases]
        outcome = check_releases(_once(sources), contexts)
        _report(outcome, style)
        if style == "text":
            if versions is None and (_has_stdin(sources) or any(item.is_dir() for item in files)):
                releases = [release_of(version) for version in SUPPORTED]
            _report_releases(sources, releases, compare=versions is not None)
    failing = {"error", "warning"} if strict else {"error"}
    ctx.exit(1 if any(found.level in failing for found in outcome.findings) else 0)


def _sources(path: Path) -> list[SourceFile]:
    """Return the manifests of an argument; a folder without any is an error, because it is mostly a wrong folder."""
    found = list(source_files(path, tree=True))
    if not found:
        raise ConfigurationError(f"{path} has no YAML or JSON file to check; name the files, or another folder")
    return found


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


def _report_releases(sources: Sequence[SourceFile], releases: Sequence[Release], *, compare: bool) -> None:
    """Print how many files were not checked, and on which of several releases the objects work.

    To compare the releases, a table is printed, too.
    """
    templates = unrendered(_once(sources))
    objects = objects_on_releases(_once(sources), releases) if len(releases) > 1 else []
    if compare and (table := list(format_releases(objects, releases))):
        click.echo("\n".join(["", *table, ""]))
    for line in (format_unrendered(templates), format_oldest(objects, releases, templates=templates)):
        if line:
            click.echo(line)


def _surroundings(
    driver: Driver[Any, Any] | None,
    settings: Any,
    saved: Path | None,
    classes: dict[str, v1.DeviceClass],
    release: Release,
    *,
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
        release=release,
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


IMPROVABLE: Final = 3
"""Exit code if a better order was found."""
_ADVICE_KINDS: Final = ("ResourceSlice", "DeviceClass", "ResourceClaim", "Node")
_VISIBLE: Final = 0.05
"""Numbers that are not rounded to zero."""
_WIDE: Final = 48
"""Maximum bytes of a name in a table."""
_SHOWN: Final = 6
"""Kinds of claims, and names of devices, in the report."""


class _Published(Struct, frozen=True):
    """What devices are published, and what is known about requests for them.

    Attributes:
        origin: where a workload is from if it is not in a file, for the report.
    """

    devices: PublishedDevices
    workload: ClaimWorkload
    origin: str


@click.command(cls=TargetCommand)
@click.argument("target", required=False, shell_complete=complete_target)
@click.option(
    "--from",
    "saved",
    type=path(exists=True),
    metavar="PATH",
    help="instead of TARGET: saved ResourceSlices and DeviceClasses: a file, a folder, or output of dra-kit snapshot",
)
@click.option("--driver", "name", help="without TARGET: the driver to advise  [default: the only one]")
@click.option(
    "--workload",
    "file",
    type=path(exists=True, dir_okay=False),
    metavar="FILE",
    help="YAML file with the kinds of claims and their weights  [default: the claims of the cluster, else requests "
    "made from the devices]",
)
@click.option("--nodes", default=1, show_default=True, type=click.IntRange(1, 64), help="number of nodes to simulate")
@click.option(
    "--seed", default=0, show_default=True, help="of the random arrivals; the same seed gives the same report"
)
@click.option("--alpha", is_flag=True, help="assume that the alpha features of resource.k8s.io are on")
@cluster_options
@output_option
@discovery_timeout_option
@click.pass_context
def advise(ctx: click.Context, /, target: str | None, **options: Any) -> None:
    """Find an order of devices that leaves more room for large requests.

    The scheduler takes the first device that fits. So the order in which a driver publishes its devices decides which
    ones remain for large requests. The command simulates claims that arrive and leave at random, with the devices of
    TARGET, of saved ResourceSlices or of a cluster, and compares orders. It only reads.

    Exit code 0: no better order was found; 3: a better one was found; 1 or 2: no advice is possible.

    \b
      dra-kit advise .
      dra-kit advise ./driver.py --workload workload.yaml
      dra-kit advise --from cluster.tar.gz --driver gpu.example.com
      dra-kit advise --kubeconfig admin.conf -o json
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    for name, flag in _NOT_WITH_TARGET.items():
        if target is not None and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"TARGET cannot be combined with {flag}.")
    process_logging.configure("text", logging.WARNING)  # for the driver's own code
    # the simulations make millions of objects without cycles
    gc.disable()
    try:
        source = _of_target(ctx, target, options) if target is not None else _of_cluster(options)
        kinds = kinds_of(source.workload, source.devices)
        advice = OrderSearch(source.devices, kinds, source.workload.load, options["seed"]).run()
    finally:
        gc.enable()
    if options["output"] == "json":
        print_json({**advice.document(), "load": source.workload.load, "seed": options["seed"]})
    else:
        for text in _advice_report(source, advice, options["seed"]):
            click.echo(text)
    ctx.exit(IMPROVABLE if advice.helps else 0)


_NOT_WITH_TARGET: Final = {"saved": "--from", "name": "--driver", "kubeconfig": "--kubeconfig", "context": "--context"}


def _of_target(ctx: click.Context, target: str, options: Mapping[str, Any]) -> _Published:
    """Return what the driver of TARGET publishes on simulated nodes."""
    driver: Driver[Any, Any] = ctx.meta["driver"]
    count: int = options["nodes"]
    prepared = sandbox_driver(target, driver, ctx.meta.get("driver_settings", {}), count)
    classes: list[v1.DeviceClass] = []
    for manifest in device_classes(target):
        classes += load_devices(manifest)[1].values()
    release = Release.alpha(DEFAULT) if options["alpha"] else Release.of(DEFAULT)
    names = [f"node-{number + 1}" for number in range(count)]
    slices: list[v1.ResourceSlice] = []
    for node, each in zip(names, prepared.drivers, strict=True):
        with tempfile.TemporaryDirectory(prefix="dra-kit-") as folder, silenced_log():
            settings = prepared.settings_on(node, Path(folder))
            inventory = discover_once(each, settings, options["timeout"], NodeInfo(node))
        slices += template_slices(each, inventory, node, release.version)
    devices = PublishedDevices(slices, classes, driver.name, [Node(name) for name in names], release)
    return _with_workload(devices, options["file"], ())


def _of_cluster(options: Mapping[str, Any]) -> _Published:
    """Return what a cluster has, live or saved."""
    objects = load(options["saved"]) if options["saved"] is not None else asyncio.run(_read_cluster(options))
    objects = replace(objects, alpha=objects.alpha or options["alpha"])
    cluster = objects.cluster()  # checks the structure of the objects
    version = objects.release.version
    slices = [
        v1.ResourceSlice.model_validate(each, context=version) for each in objects.documents.get("ResourceSlice", ())
    ]
    driver = _driver_to_advise(slices, options["name"])
    named = {each.spec.node_name for each in slices if each.spec.driver == driver and each.spec.devices}
    nodes = sorted((node for node in cluster.nodes if not named - {None} or node.name in named), key=lambda n: n.name)
    nodes = nodes[: options["nodes"]] or [Node(next(iter(sorted(filter(None, named))), "node-1"))]
    known = {None, "", *(node.name for node in nodes)}
    pools = {_pool_of(each) for each in slices if each.spec.node_name in known}
    slices = [each for each in slices if _pool_of(each) in pools]  # without one of its slices a pool is incomplete
    classes = [
        v1.DeviceClass.model_validate(each, context=version) for each in objects.documents.get("DeviceClass", ())
    ]
    devices = PublishedDevices(slices, classes, driver, nodes, objects.release)
    return _with_workload(devices, options["file"], objects.documents.get("ResourceClaim", ()))


def _pool_of(each: v1.ResourceSlice) -> tuple[str, str]:
    return each.spec.driver, each.spec.pool.name


async def _read_cluster(options: Mapping[str, Any]) -> ClusterDocuments:
    credentials = await credentials_of(options["kubeconfig"], options["context"])
    scope = ReadScope(credentials.connection.namespace or "default", _ADVICE_KINDS)
    return await read_live(credentials, scope, alpha=options["alpha"])


def _driver_to_advise(slices: Sequence[v1.ResourceSlice], name: str | None) -> str:
    """Return the driver of ``--driver``, or the only one."""
    known = sorted({each.spec.driver for each in slices if each.spec.devices})
    if name is not None:
        if name not in known:
            hint = did_you_mean(name, known) or f"; drivers with devices: {', '.join(known) or 'none'}"
            raise ConfigurationError(f"--driver {name}: no ResourceSlice has devices of this driver{hint}")
        return name
    if len(known) != 1:
        raise ConfigurationError(
            f"the ResourceSlices have devices of {', '.join(known)}; select one with --driver"
            if known
            else "no ResourceSlice has devices; a driver must publish some first"
        )
    return known[0]


def _with_workload(devices: PublishedDevices, file: Path | None, claims: Sequence[ObjectView]) -> _Published:
    if file is not None:
        return _Published(devices, read_workload(file), f"of {file}")
    found = workload_of_claims(claims, devices)
    if found is not None:
        return _Published(devices, found, "from the claims of the cluster")
    return _Published(devices, default_workload(devices), "made from the devices (or --workload FILE)")


def _advice_report(source: _Published, advice: OrderAdvice, seed: int) -> Iterator[str]:
    """Yield the parts of the report for people; code is not wrapped."""
    devices = source.devices
    page = _page()
    sets = len({each.name for pool in devices.pools for item in pool.slices for each in item.spec.shared_counters})
    parts = [counted(len(devices), "device"), *([counted(sets, "counter set")] if sets else [])]
    if len(devices.pools) > len(devices.nodes):
        parts.append(counted(len(devices.pools), "pool"))
    where = devices.nodes[0].name if len(devices.nodes) == 1 else counted(len(devices.nodes), "node")
    page.line(f"{devices.driver}: {', '.join(parts)} on {where}", bold=True)
    page.line()
    page.line(f"workload {source.origin}, load {source.workload.load:.0%}:")
    kinds = sorted(advice.kinds, key=lambda kind: -kind.weight)
    for line in align_columns(
        [(f"{kind.weight:4}x", shorten(kind.name, _WIDE), f"{kind.fits} fit") for kind in kinds[:_SHOWN]]
    ):
        page.line(line, indent=2)
    if len(kinds) > _SHOWN:
        page.line(f"and {counted(len(kinds) - _SHOWN, 'kind')} more", indent=4)
    page.line()
    for line in align_columns(list(_comparison(advice))):
        page.line(line, indent=2)
    page.line()
    if advice.helps:
        page.good(f"publish the devices {advice.description}")
        yield f"{page}\n"
        yield textwrap.indent(escape_unprintable(advice.code, keep="\n"), "    ")
        page = _page()
        _render_order(page, advice)
    elif advice.steps:
        page.good(f"keep the order: the best other one is not certainly better: {advice.description}")
    else:
        page.good("keep the order: no other one is better")
    if advice.steps:
        compared = advice.comparison
        page.line(
            f"score {100 * compared.gain:+.1f} ± {100 * compared.spread:.1f}, better in {compared.better} of "
            f"{len(compared.gains)} seeds, worse in {compared.worse}",
            indent=2,
        )
    page.line(f"{counted(advice.tried, 'other order')} tried, --seed {seed}", indent=2)
    yield str(page)


def _page() -> ReportWriter:
    return ReportWriter(shutil.get_terminal_size().columns, colour=sys.stdout.isatty())


def _comparison(advice: OrderAdvice) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the comparison, with two columns if another order helps."""
    compared = advice.comparison
    measures = [compared.before, compared.after] if advice.helps else [compared.before]
    large = large_of(advice.kinds)
    yield ("", "published", *(["proposed"] if advice.helps else []))
    yield ("score, of 100", *(f"{100 * each.score:.1f}" for each in measures))
    yield ("requests that get devices, by size", *(f"{each.served:.1%}" for each in measures))
    for place, kind in enumerate(large):
        yield (
            f"still fit: {shorten(kind.name, _WIDE)}",
            *(f"{each.fitting[place]:.1f} of {kind.fits}" for each in measures),
        )
    yield (f"stranded: {shorten(large[0].name, _WIDE)}", *(_stranded(each) for each in measures))


def _stranded(measure: Measure) -> str:
    text = f"{measure.stranded:.1f}"
    return f"{text}, {measure.constrained:.1f} by constraints" if measure.constrained >= _VISIBLE else text


def _render_order(page: ReportWriter, advice: OrderAdvice) -> None:
    """Write the first devices of a pool in both orders, and the names of pools that have to change."""
    changed = ((published, proposed) for _, published, proposed in advice.orders() if published != proposed)
    for label, names in zip(("published", "proposed"), next(changed, ()), strict=False):
        page.line(f"{label:10} {', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''}", indent=2, hang=11)
    if len(advice.devices.pools) > 1:
        page.line("the other pools likewise", indent=2)
    if advice.renamed_pools:
        text = shorten(", ".join(advice.renamed_pools), 400)
        page.line(f"rename the pools so that their names sort in this order: {text}", indent=2)
