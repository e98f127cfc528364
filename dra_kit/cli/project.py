"""Commands for a driver's project: new, update, chart, policy, template, sbom."""

from __future__ import annotations

import json
import logging
import re
import shlex
import sys
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final, get_args

import click
import yaml

from dra_kit.admission.policy.manifest import Action, manifest, policy_objects
from dra_kit.author.context import NodeInfo
from dra_kit.author.driver import Driver
from dra_kit.author.settings import author_settings
from dra_kit.author.target import load_driver
from dra_kit.cli.driver_settings import setting_value
from dra_kit.cli.options import TargetCommand, complete_target, path
from dra_kit.client.server_version import ServerFeatures
from dra_kit.diagnosis.node_templates import NodeProfile, node_object, read_profile, template_slices
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.release import NEWEST, OLDEST
from dra_kit.node.first_inventory import discover_once
from dra_kit.process import logging as process_logging
from dra_kit.project.answers import (
    Answers,
    Kind,
    check_driver_name,
    check_package_name,
    check_project_name,
    default_driver,
    default_package,
    read_answers,
)
from dra_kit.project.chart import project_values, write_chart
from dra_kit.project.git import uncommitted
from dra_kit.project.rendering import chart_directory, create, installed_version, project_template, refuse_taken, render
from dra_kit.project.sbom import cyclonedx_document, cyclonedx_text, installed_components, normalized
from dra_kit.project.update import update_project

_DEFAULT_NAME: Final = "template-node"
_RELEASE: Final = re.compile(r"v?1\.([0-9]+)").fullmatch


@click.command(cls=TargetCommand)
@click.argument("target", shell_complete=complete_target)
@click.option(
    "--profile",
    "file",
    type=path(exists=True, dir_okay=False),
    metavar="FILE",
    help="the kind of node: YAML with name, labels, taints, allocatable, and the driver's settings there",
)
@click.option("--name", help=f"of the node  [default: that of the profile, else {_DEFAULT_NAME}]")
@click.option("--with-node", is_flag=True, help="write the Node, too, as KWOK and 'dra-kit explain --template' take it")
@click.option(
    "--kubernetes",
    default=str(NEWEST),
    show_default=True,
    metavar="RELEASE",
    help="the cluster's release: how counters are published differs",
)
@click.option("-o", "--output", default="yaml", show_default=True, type=click.Choice(["yaml", "json"]))
@click.option(
    "--timeout",
    default=10.0,
    show_default=True,
    type=click.FloatRange(min=0.1),
    help="seconds that the driver gets to find its devices",
)
@click.pass_context
def template(  # noqa: PLR0917 - click passes them by name
    ctx: click.Context,
    target: str,
    file: Path | None,
    name: str | None,
    with_node: bool,
    kubernetes: str,
    output: str,
    timeout: float,
) -> None:
    """Write the ResourceSlices that TARGET would publish on a node that does not exist yet.

    Autoscalers need them to know whether another node would help. They come from the driver's own provider, which runs
    on this machine with the settings given: those of the profile, and flags, which win.

    \b
      dra-kit template gpu_driver.driver:driver --fake-gpus h100
      dra-kit template . --profile profiles/h100.yaml --with-node >h100.yaml
      dra-kit explain pod train --template h100.yaml
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    del target
    process_logging.configure("text", logging.WARNING)  # what the driver's own code says
    driver: Driver[Any, Any] = ctx.meta["driver"]
    profile = read_profile(file) if file is not None else NodeProfile(name=_DEFAULT_NAME)
    if name is not None:
        profile = profile.model_copy(update={"name": name})
    given = ctx.meta.get("driver_settings", {})
    documents = _slices(driver, profile, given, kubernetes, timeout)
    if with_node:
        documents.insert(0, node_object(profile))
    if output == "json":
        click.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}, indent=2))
    else:
        click.echo(yaml.safe_dump_all(documents, sort_keys=False), nl=False)


def _slices(
    driver: Driver[Any, Any], profile: NodeProfile, given: dict[str, object], kubernetes: str, timeout: float
) -> list[dict[str, Any]]:
    release = _RELEASE(kubernetes)
    if release is None or int(release[1]) < OLDEST.minor:
        raise ConfigurationError(f"--kubernetes {kubernetes} is none that is supported; give {OLDEST} to {NEWEST}")
    settings = author_settings(driver, {**_settings(driver, profile), **given})
    log = logging.getLogger("dra_kit")
    level = log.level
    log.setLevel(logging.CRITICAL)  # why the driver fails is told once, by this command
    try:
        inventory = discover_once(driver, settings, timeout, NodeInfo(profile.name, profile.labels))
    finally:
        log.setLevel(level)
    return [
        item.to_json() for item in template_slices(driver, inventory, profile.name, ServerFeatures(1, int(release[1])))
    ]


def _settings(driver: Driver[Any, Any], profile: NodeProfile) -> dict[str, object]:
    known = driver.settings.model_fields if driver.settings else {}
    for name in profile.settings:
        if name not in known:
            raise ConfigurationError(
                f"profile {profile.name}: settings.{name} is no setting of driver {driver.name}; its settings: "
                f"{', '.join(known) or 'none'}"
            )
    return {
        name: setting_value(driver, name, value) if isinstance(value, str) else value
        for name, value in profile.settings.items()
    }


_KINDS: Final[Mapping[Kind, str]] = {
    "simple": "a device goes to one claim",
    "partitionable": "a card is divided; counters say which parts fit together",
    "shared": "several claims have a device at once, each with a part of its capacity",
    "network": "interfaces that are moved into the pod",
}


@click.command()
@click.argument("name")
@click.option("--driver", help="name of the driver, a DNS subdomain of yours  [default: NAME.example.com]")
@click.option("--package", help="name of the Python package  [default: NAME with _]")
@click.option(
    "--kind",
    type=click.Choice(get_args(Kind)),
    help="what the devices are like: given to one claim each (simple), divided by counters (partitionable), shared by "
    "capacity (shared), or network interfaces (network)  [default: simple]",
)
@click.option("--webhook/--no-webhook", default=None, help="refuse bad config when it is applied  [default: --webhook]")
@click.option(
    "--directory", type=click.Path(path_type=Path, file_okay=False), help="where the project is made  [default: NAME]"
)
@click.option("--defaults", is_flag=True, help="ask nothing")
def new(  # noqa: PLR0917 - click passes them by name
    name: str,
    driver: str | None,
    package: str | None,
    kind: Kind | None,
    webhook: bool | None,
    directory: Path | None,
    defaults: bool,
) -> None:
    """Make a driver's project called NAME: code, tests, image, chart values, in a folder of its own.

    Asks what no flag says, with a default; without a terminal it takes the defaults.
    """
    check_project_name(name)
    folder = directory or Path(name)
    refuse_taken(folder)
    ask = not defaults and sys.stdin.isatty() and sys.stdout.isatty()
    answers = Answers(
        project=name,
        driver=check_driver_name(driver) if driver else _driver(ask, default_driver(name)),
        package=check_package_name(package)
        if package
        else _text(ask, "Python package", default_package(name), check_package_name),
        kind=kind or _kind(ask),
        webhook=webhook if webhook is not None else _webhook(ask),
    )
    create(folder, render(project_template(), answers, installed_version()))
    click.echo(f"{folder}: driver {answers.driver}, {_counted(folder)} files. Yours to write:")
    click.echo(f"  {folder}/src/{answers.package}/driver.py   which devices exist, what a container gets")
    click.echo(f"  {folder}/src/{answers.package}/config.py   what a claim may configure")
    click.echo("\nNext:")
    click.echo(f"  cd {shlex.quote(str(folder))}")
    click.echo("  make test       # a pod gets a device, in a cluster of one process")
    click.echo("  make sandbox    # the same, to watch")


def _text(ask: bool, question: str, default: str, check: Any) -> str:
    if not ask:
        return default

    def checked(value: str) -> str:
        try:
            found: str = check(value.strip())
        except ConfigurationError as error:
            raise click.UsageError(str(error)) from None  # it is asked again
        return found

    answer: str = click.prompt(question, default=default, value_proc=checked)
    return answer


def _driver(ask: bool, default: str) -> str:
    if ask:
        click.echo("Name of the driver, in a domain of yours: clusters keep it, so that it cannot be changed later")
    return _text(ask, "Name of the driver", default, check_driver_name)


def _kind(ask: bool) -> Kind:
    default: Kind = "simple"
    if not ask:
        return default
    click.echo("What the devices are like:")
    for kind, meaning in _KINDS.items():
        click.echo(f"  {kind:<13}  {meaning}")
    answer: Kind = click.prompt("Devices", type=click.Choice(get_args(Kind)), default=default)
    return answer


def _webhook(ask: bool) -> bool:
    return click.confirm("Refuse bad config when it is applied", default=True) if ask else True


def _counted(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False, exists=True), default=Path())
@click.option("--force", is_flag=True, help="also when the project has changes that are not committed")
@click.pass_context
def update(ctx: click.Context, folder: Path, force: bool) -> None:
    """Bring the project in FOLDER, which `dra-kit new` made, to the template of this release.

    What you changed stays. Where the template changed the same lines, both are kept between git's marks, and the exit
    code is 1.

    Only files in FOLDER are written or removed. Links are kept, and not followed. No code of the project is run, and no
    program that its git configuration names.
    """
    answers, made_by = read_answers(folder)
    name = folder.resolve().name
    if not force and (lines := list(islice(uncommitted(folder), 3))):
        raise ConfigurationError(
            f"{name} has changes that are not committed ({'; '.join(map(str.strip, lines))}), which could not be "
            "told from the template's; commit them, or use --force"
        )
    version = installed_version()
    changes = update_project(folder, render(project_template(), answers, version), project=f"dra-kit {made_by}")
    for change in changes:
        click.echo(f"{change.outcome:<9} {change.path}{f' ({change.why})' if change.why else ''}")
    conflicts = sum(change.outcome == "conflict" for change in changes)
    if conflicts:
        files = "a file has conflicts" if conflicts == 1 else f"{conflicts} files have conflicts"
        click.echo(f"{files}: look for <<<<<<<", err=True)
        ctx.exit(1)
    click.echo(
        f"{name} is as the template of dra-kit {version} makes it, with your changes" if changes else "nothing to do"
    )


_STDOUT: Final = Path("-")


@click.command()
@click.argument("target", required=False, shell_complete=complete_target)
@click.option(
    "--values",
    "file",
    type=path(dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="write all values of TARGET for this chart there; -: to stdout",
)
@click.option("--directory", type=path(file_okay=False), metavar="FOLDER", help="write the chart of TARGET there")
def chart(target: str | None, file: Path | None, directory: Path | None) -> None:
    """Print the folder of the helm chart that comes with this release, or write the values or the chart of one driver.

    The values of TARGET are those of its deploy/values.yaml, where there is one, the DeviceClasses of its
    deviceclasses.yaml, and the rights that its code needs: a cluster needs nothing else. The chart of TARGET has them
    built in, and a schema that knows the driver's settings: helm refuses a wrong one.

    \b
      dra-kit chart . --values values.yaml && helm install pizza "$(dra-kit chart)" --values values.yaml
      dra-kit chart . --directory build/chart && helm install pizza build/chart
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    if (target is None) != (file is None and directory is None):
        raise click.UsageError("TARGET goes together with --values or --directory: what is made is written there.")
    if target is None:
        click.echo(chart_directory())
        return
    driver = load_driver(target)
    text = project_values(target, driver, chart_directory(), lambda given: author_settings(driver, given))
    if file == _STDOUT:
        click.echo(text, nl=False)
    elif file is not None:
        try:
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"{file} cannot be written: {error}; choose another by --values") from None
        click.echo(f'Made {file}, the values of driver {driver.name}: helm install NAME "$(dra-kit chart)" -f {file}')
    if directory is not None:
        write_chart(
            chart_directory(), directory, driver=driver.name, settings=driver.settings, values=yaml.safe_load(text)
        )
        click.echo(f"Made {directory}, the chart of driver {driver.name}: helm install NAME {directory}")


@click.command()
@click.option("--name", help="of the distribution that it is about, such as the driver's  [default: dra-kit]")
def sbom(name: str | None) -> None:
    """Print what is installed here, beside the driver too, as an SBOM: CycloneDX JSON with package URLs and licences.

    In a driver's image it tells what that image has of Python. The same environment gives the same text.

    \b
      docker run --rm registry.example/pizza-driver:0.1.0 sbom --name pizza-driver >pizza-driver.cdx.json
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    wanted = normalized(name or "dra-kit")
    found = installed_components()
    whole = next((item for item in found if item.name == wanted), None)
    if whole is None:
        raise ConfigurationError(f"there is no distribution {wanted} here; pip list names those that are")
    click.echo(cyclonedx_text(cyclonedx_document(whole, [item for item in found if item is not whole])), nl=False)


@click.command(cls=TargetCommand)
@click.argument("target", shell_complete=complete_target)
@click.option(
    "--action",
    default="Deny",
    show_default=True,
    type=click.Choice(["Deny", "Warn", "Audit"]),
    help="what happens to an object that breaks a rule; Warn and Audit let it pass",
)
@click.pass_context
def policy(ctx: click.Context, target: str, action: Action) -> None:
    """Write a ValidatingAdmissionPolicy and its binding that check configuration for TARGET, as YAML.

    For clusters that want no webhook: the API server checks types, ranges, patterns and keys of opaque.parameters by
    itself. What the driver's models say beyond that is left to the nodes, and listed on top.

    \b
      dra-kit policy gpu_driver.driver:driver >policy.yaml
      kubectl apply -f policy.yaml
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    del target
    driver: Driver[Any, Any] = ctx.meta["driver"]
    click.echo(manifest(policy_objects(driver, [action]), driver.name), nl=False)
