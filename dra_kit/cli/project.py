"""Commands for a driver's project: new, update, chart, docs, policy, template, sbom."""

from __future__ import annotations

import json
import logging
import re
import shlex
import sys
from collections.abc import Mapping
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, Final, get_args

import click
import yaml
from msgspec.structs import replace

from dra_kit.admission.policy.manifest import Action, manifest, policy_objects
from dra_kit.author.context import NodeInfo
from dra_kit.author.driver import Driver
from dra_kit.author.settings import author_settings
from dra_kit.author.target import load_driver
from dra_kit.cli.options import (
    TargetCommand,
    complete_target,
    discovery_timeout_option,
    kubernetes_option,
    path,
    silenced_log,
)
from dra_kit.diagnosis.node_templates import NodeProfile, node_object, read_profile, template_slices
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.release import DEFAULT, KubernetesVersion
from dra_kit.node.first_inventory import discover_once
from dra_kit.process import logging as process_logging
from dra_kit.project.chart import project_values, write_chart
from dra_kit.project.rendering import (
    SEEDS,
    Answers,
    Kind,
    chart_directory,
    check_driver_name,
    check_package_name,
    check_project_name,
    create,
    default_driver,
    default_package,
    docs_directory,
    has_config,
    installed_version,
    project_template,
    read_answers,
    refuse_taken,
    render,
)
from dra_kit.project.sbom import cyclonedx_document, cyclonedx_text, installed_components, normalized
from dra_kit.project.update import files_without_seed, uncommitted, update_project
from dra_kit.text import did_you_mean

_DEFAULT_NAME: Final = "template-node"


@click.command(cls=TargetCommand)
@click.argument("target", shell_complete=complete_target)
@click.option(
    "--profile",
    "file",
    type=path(exists=True, dir_okay=False),
    metavar="FILE",
    help="profile of the node: YAML with name, labels, taints, allocatable, and settings of the driver",
)
@click.option("--name", help=f"name of the node  [default: that of the profile, else {_DEFAULT_NAME}]")
@click.option("--with-node", is_flag=True, help="also write the Node, for KWOK and 'dra-kit explain --template'")
@kubernetes_option(f"the cluster's release; the format of counters depends on it  [default: {DEFAULT}]")
@click.option("-o", "--output", default="yaml", show_default=True, type=click.Choice(["yaml", "json"]))
@discovery_timeout_option
@click.pass_context
def template(  # noqa: PLR0917 - click passes them by name
    ctx: click.Context,
    target: str,
    file: Path | None,
    name: str | None,
    with_node: bool,
    kubernetes: KubernetesVersion | None,
    output: str,
    timeout: float,
) -> None:
    """Write the ResourceSlices that TARGET would publish on a node that does not exist yet.

    Autoscalers need them to decide whether another node would help. The driver's own provider creates them: it runs on
    this machine with the settings of the profile, which flags override.

    \b
      dra-kit template gpu_driver.driver:driver --fake-gpus h100
      dra-kit template . --profile profiles/h100.yaml --with-node >h100.yaml
      dra-kit explain pod train --template h100.yaml
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    del target
    process_logging.configure("text", logging.WARNING)  # for the driver's own code
    driver: Driver[Any, Any] = ctx.meta["driver"]
    profile = read_profile(file) if file is not None else NodeProfile(name=_DEFAULT_NAME)
    if name is not None:
        profile = profile.model_copy(update={"name": name})
    given = ctx.meta.get("driver_settings", {})
    documents = _slices(driver, profile, given, kubernetes or DEFAULT, timeout)
    if with_node:
        documents.insert(0, node_object(profile))
    if output == "json":
        click.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}, indent=2))
    else:
        click.echo(yaml.safe_dump_all(documents, sort_keys=False), nl=False)


def _slices(
    driver: Driver[Any, Any],
    profile: NodeProfile,
    given: dict[str, object],
    kubernetes: KubernetesVersion,
    timeout: float,
) -> list[dict[str, Any]]:
    settings = author_settings(driver, {**_settings(driver, profile), **given})
    with silenced_log():
        inventory = discover_once(driver, settings, timeout, NodeInfo(profile.name, profile.labels))
    return [item.to_json() for item in template_slices(driver, inventory, profile.name, kubernetes)]


def _settings(driver: Driver[Any, Any], profile: NodeProfile) -> dict[str, object]:
    known = driver.settings.model_fields if driver.settings else {}
    for name in profile.settings:
        if name not in known:
            raise ConfigurationError(
                f"profile {profile.name}: settings.{name} is not a setting of driver {driver.name}; its settings are: "
                f"{', '.join(known) or 'none'}"
            )
    return dict(profile.settings)


_KINDS: Final[Mapping[Kind, str]] = {
    "simple": "each device is allocated to one claim",
    "partitionable": "a card is divided into partitions; counters limit their combinations",
    "modes": "a card works in one of several modes at a time; counters exclude the others and share a budget",
    "shared": "several claims use a device at the same time, each with a part of its capacity",
    "network": "network interfaces, which are moved into the pod: a complete driver",
    "cpu": "CPUs, which are given to containers when they start: a complete driver",
}


@click.command()
@click.argument("name")
@click.option("--driver", help="name of the driver, in a domain that you own  [default: NAME.example.com]")
@click.option("--package", help="name of the Python package  [default: NAME with _ instead of -]")
@click.option(
    "--kind",
    type=click.Choice(get_args(Kind)),
    help="kind of the devices: each allocated to one claim (simple), divided into partitions (partitionable), in "
    "modes that exclude each other (modes), shared by several claims (shared), network interfaces (network), or CPUs "
    "(cpu); the last two are complete drivers  [default: simple]",
)
@click.option(
    "--webhook/--no-webhook",
    default=None,
    help="reject invalid config when applied  [default: --webhook if the kind has config]",
)
@click.option("--directory", type=path(file_okay=False), help="folder of the project  [default: NAME]")
@click.option("--defaults", is_flag=True, help="use the defaults instead of asking")
def new(  # noqa: PLR0917 - click passes them by name
    name: str,
    driver: str | None,
    package: str | None,
    kind: Kind | None,
    webhook: bool | None,
    directory: Path | None,
    defaults: bool,
) -> None:
    """Create the driver project NAME: code, tests, image and chart values, in a new folder.

    In a terminal, the command asks for everything that no option sets; otherwise it uses the defaults.
    """
    check_project_name(name)
    folder = directory or Path(name)
    refuse_taken(folder)
    ask = not defaults and sys.stdin.isatty() and sys.stdout.isatty()
    driver = check_driver_name(driver or _driver(ask, default_driver(name)))
    package = check_package_name(package or _text(ask, "Python package", default_package(name), check_package_name))
    kind = kind or _kind(ask)
    webhook = _webhook(ask, kind) if webhook is None else webhook
    answers = Answers(name, driver, package, kind, webhook)
    create(folder, render(project_template(), answers, installed_version()))
    files = sum(path.is_file() for path in folder.rglob("*"))
    click.echo(f"Created {folder}: driver {answers.driver}, {files} files. {_edit_first(folder, answers)}")
    click.echo("\nNext steps:")
    click.echo(f"  cd {shlex.quote(str(folder))}")
    click.echo("  make test       # test that a pod gets a device, in a cluster in one process")
    click.echo("  make sandbox    # run the same cluster, and show what happens")


def _edit_first(folder: Path, answers: Answers) -> str:
    if answers.kind in SEEDS:
        return f"It is a complete driver.\n  {folder}/README.md   what to change first"
    return (
        "Edit these files first:\n"
        f"  {folder}/src/{answers.package}/driver.py   which devices exist, and what containers get\n"
        f"  {folder}/src/{answers.package}/config.py   what a claim may configure"
    )


def _text(ask: bool, question: str, default: str, check: Any) -> str:
    if not ask:
        return default

    def checked(value: str) -> str:
        try:
            found: str = check(value.strip())
        except ConfigurationError as error:
            raise click.UsageError(str(error)) from None  # click prints it and prompts again
        return found

    answer: str = click.prompt(question, default=default, value_proc=checked)
    return answer


def _driver(ask: bool, default: str) -> str:
    if ask:
        click.echo("Name of the driver, in a domain that you own; clusters store it, so you cannot change it later")
    return _text(ask, "Name of the driver", default, check_driver_name)


def _kind(ask: bool) -> Kind:
    default: Kind = "simple"
    if not ask:
        return default
    click.echo("Kinds of devices:")
    for kind, meaning in _KINDS.items():
        click.echo(f"  {kind:<13}  {meaning}")
    answer: Kind = click.prompt("Devices", type=click.Choice(get_args(Kind)), default=default)
    return answer


def _webhook(ask: bool, kind: Kind) -> bool:
    if not ask or not has_config(kind):
        return has_config(kind)
    return click.confirm("Reject invalid config when it is applied", default=True)


@click.command()
@click.argument("folder", type=path(file_okay=False, exists=True), default=Path())
@click.option("--force", is_flag=True, help="update even if the project has uncommitted changes")
@click.pass_context
def update(ctx: click.Context, folder: Path, force: bool) -> None:
    """Update the project in FOLDER, which `dra-kit new` created, to the template of this release.

    Your changes are merged. If you and the template changed the same lines, the file gets git's conflict markers, and
    the exit code is 1.

    The command writes and removes only files in FOLDER. It does not follow links, and runs neither code of the project
    nor programs from its git configuration.
    """
    answers, made_by = read_answers(folder)
    name = folder.resolve().name
    if not force and (lines := list(islice(uncommitted(folder), 3))):
        raise ConfigurationError(
            f"{name} has uncommitted changes ({'; '.join(map(str.strip, lines))}), which would be mixed with those "
            "of the template; commit them, or use --force"
        )
    version = installed_version()
    new, of_author = render(project_template(), answers, version), frozenset[PurePosixPath]()
    plain = new
    if answers.kind in SEEDS:
        plain = render(project_template(), replace(answers, kind="simple"), version)
        of_author = files_without_seed(folder, new, plain)
    if of_author:
        new = plain
        click.echo(
            f"{name} was created when kind {answers.kind} was not a complete driver yet: its code stays as it is, and "
            f"its kind becomes simple. For the complete driver, use: dra-kit new NAME --kind {answers.kind}"
        )
    changes = update_project(folder, new, project=f"dra-kit {made_by}", of_author=of_author)
    for change in changes:
        click.echo(f"{change.outcome:<9} {change.path}{f' ({change.why})' if change.why else ''}")
    conflicts = sum(change.outcome == "conflict" for change in changes)
    if conflicts:
        files = "1 file has conflicts" if conflicts == 1 else f"{conflicts} files have conflicts"
        click.echo(f"{files}; search for <<<<<<< and resolve them", err=True)
        ctx.exit(1)
    click.echo(f"{name} was updated to dra-kit {version}, with your changes" if changes else "nothing to do")


@click.command()
@click.argument("target", required=False, shell_complete=complete_target)
@click.option(
    "--values",
    "file",
    type=path(dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="write all values of TARGET for this chart to FILE; - is stdout",
)
@click.option("--directory", type=path(file_okay=False), metavar="FOLDER", help="write the chart of TARGET to FOLDER")
def chart(target: str | None, file: Path | None, directory: Path | None) -> None:
    """Print the folder of the helm chart of this release, or write the values or the chart of one driver.

    The values of TARGET consist of its deploy/values.yaml, the DeviceClasses in its deviceclasses.yaml, and the rights
    that its code needs. The chart of TARGET contains them as defaults, and a schema with the driver's settings, so that
    helm rejects invalid ones.

    \b
      dra-kit chart . --values values.yaml && helm install pizza "$(dra-kit chart)" --values values.yaml
      dra-kit chart . --directory build/chart && helm install pizza build/chart
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    if (target is None) != (file is None and directory is None):
        raise click.UsageError("TARGET requires --values or --directory, and they require TARGET.")
    if target is None:
        click.echo(chart_directory())
        return
    driver = load_driver(target)
    text = project_values(target, driver, chart_directory(), lambda given: author_settings(driver, given))
    if file == Path("-"):
        click.echo(text, nl=False)
    elif file is not None:
        try:
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(
                f"{file} cannot be written: {error.strerror}; choose another file with --values"
            ) from None
        click.echo(f'Wrote {file}, the values of driver {driver.name}: helm install NAME "$(dra-kit chart)" -f {file}')
    if directory is not None:
        write_chart(
            chart_directory(), directory, driver=driver.name, settings=driver.settings, values=yaml.safe_load(text)
        )
        click.echo(f"Wrote {directory}, the chart of driver {driver.name}: helm install NAME {directory}")


def _complete_page(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in _pages() if name.startswith(incomplete)]


def _pages() -> dict[str, Path]:
    """Return the pages of the documentation by their paths without suffix.

    Those of the Python API contain names of classes only; ``dra-kit api`` shows the classes.
    """
    folder = docs_directory()
    files = (file for file in sorted(folder.rglob("*.md")) if file.parent.name != "api")
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


_SHORT: Final = 2  # letters of a word that is on most pages


def _pages_that_mention(word: str, pages: Mapping[str, Path]) -> list[str]:
    """Return up to three pages with a word: those with it in their names first, then those with it most often."""
    begins = re.compile(rf"\b{re.escape(word)}", re.IGNORECASE).findall
    ranks = {name: (bool(begins(name)), len(begins(file.read_text(encoding="utf-8")))) for name, file in pages.items()}
    return sorted((name for name, rank in ranks.items() if any(rank)), key=ranks.__getitem__, reverse=True)[:3]


@click.command()
@click.argument("page", required=False, shell_complete=_complete_page)
def docs(page: str | None) -> None:
    """List the pages of this release's documentation, or show one in the pager.

    PAGE is a name of the list, or a path in a message or a link to it. The folder may be left out where only one page
    has the name.

    \b
      dra-kit docs how-to/write-a-driver
      dra-kit docs troubleshooting
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    pages = _pages()
    if page is None:
        width = max(map(len, pages))
        for name, file in pages.items():
            title = file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
            click.echo(f"{name:{width}}  {title}")
        click.echo(f"\nTo read a page, run: dra-kit docs PAGE. The pages are in {docs_directory()}")
        return
    wanted = re.sub(r"^(\.{1,2}/)*(docs/)?|(\.md)?(#.*)?$", "", page)
    found = [wanted] if wanted in pages else [name for name in pages if name.endswith(f"/{wanted}")]
    if len(found) > 1:
        raise click.UsageError(f"There are {len(found)} pages {page!r}; name one of {', '.join(found)}.")
    if not found:
        mentions = _pages_that_mention(wanted, pages) if len(wanted) > _SHORT else []
        hint = (
            f"; pages that mention it: {', '.join(mentions)}."
            if mentions
            else did_you_mean(wanted, [*pages, *(name.rpartition("/")[2] for name in pages)])
        )
        raise click.UsageError(f"No page {page!r}{hint or ';'} 'dra-kit docs' lists all pages.")
    click.echo_via_pager(pages[found[0]].read_text(encoding="utf-8"))


@click.command()
@click.option("--name", help="distribution that the SBOM describes, such as the driver's  [default: dra-kit]")
def sbom(name: str | None) -> None:
    """Print an SBOM of all installed Python packages: CycloneDX JSON with package URLs and licences.

    In a driver's image, it describes the Python part of the image. The output is reproducible: the same environment
    gives the same text.

    \b
      docker run --rm registry.example/pizza-driver:0.1.0 sbom --name pizza-driver >pizza-driver.cdx.json
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    wanted = normalized(name or "dra-kit")
    found = installed_components()
    whole = next((item for item in found if item.name == wanted), None)
    if whole is None:
        raise ConfigurationError(f"distribution {wanted} is not installed; pip list shows the installed ones")
    click.echo(cyclonedx_text(cyclonedx_document(whole, [item for item in found if item is not whole])), nl=False)


@click.command(cls=TargetCommand)
@click.argument("target", shell_complete=complete_target)
@click.option(
    "--action",
    default="Deny",
    show_default=True,
    type=click.Choice(["Deny", "Warn", "Audit"]),
    help="what happens to an object that violates a rule; Warn and Audit accept it",
)
@click.pass_context
def policy(ctx: click.Context, target: str, action: Action) -> None:
    """Write a ValidatingAdmissionPolicy and its binding that check configuration for TARGET, as YAML.

    For clusters without a webhook: the API server itself checks types, ranges, patterns and keys of opaque.parameters.
    Only the nodes check the other rules of the driver's models; comments at the top of the output list those rules.

    \b
      dra-kit policy gpu_driver.driver:driver >policy.yaml
      kubectl apply -f policy.yaml
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    del target
    driver: Driver[Any, Any] = ctx.meta["driver"]
    click.echo(manifest(policy_objects(driver, [action]), driver.name), nl=False)
