"""``dra-kit new``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_args

import click

from dra_kit.scaffold.answers import Answers, Kind
from dra_kit.scaffold.names import check_driver, check_package, check_project, default_driver, default_package

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
def command(  # noqa: PLR0917 - click passes them by name
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
    from dra_kit.scaffold.rendering import installed_version, render
    from dra_kit.scaffold.share import template
    from dra_kit.scaffold.writing import create, refuse_taken

    check_project(name)
    folder = directory or Path(name)
    refuse_taken(folder)
    ask = not defaults and sys.stdin.isatty() and sys.stdout.isatty()
    answers = Answers(
        project=name,
        driver=check_driver(driver) if driver else _driver(ask, default_driver(name)),
        package=check_package(package)
        if package
        else _text(ask, "Python package", default_package(name), check_package),
        kind=kind or _kind(ask),
        webhook=webhook if webhook is not None else _webhook(ask),
    )
    create(folder, render(template(), answers, installed_version()))
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
        from dra_kit.errors import ConfigurationError

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
    return _text(ask, "Name of the driver", default, check_driver)


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
