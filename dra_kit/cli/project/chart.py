"""``dra-kit chart``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from dra_kit.cli.options.common import complete_target, path

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
def command(target: str | None, file: Path | None, directory: Path | None) -> None:
    """Print the folder of the helm chart that comes with this release, or write the values or the chart of one driver.

    The values of TARGET are those of its deploy/values.yaml, where there is one, the DeviceClasses of its
    deviceclasses.yaml, and the rights that its code needs: a cluster needs nothing else. The chart of TARGET has them
    built in, and a schema that knows the driver's settings: helm refuses a wrong one.

    \b
      dra-kit chart . --values values.yaml && helm install pizza "$(dra-kit chart)" --values values.yaml
      dra-kit chart . --directory build/chart && helm install pizza build/chart
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    from dra_kit.scaffold.share import chart

    if (target is None) != (file is None and directory is None):
        raise click.UsageError("TARGET goes together with --values or --directory: what is made is written there.")
    if target is None:
        click.echo(chart())
        return
    import yaml

    from dra_kit.author.settings import author_settings
    from dra_kit.author.target import load_driver
    from dra_kit.chart.of_driver import write_chart
    from dra_kit.chart.project_values import project_values
    from dra_kit.errors import ConfigurationError

    driver = load_driver(target)
    text = project_values(target, driver, chart(), lambda given: author_settings(driver, given))
    if file == _STDOUT:
        click.echo(text, nl=False)
    elif file is not None:
        try:
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"{file} cannot be written: {error}; choose another by --values") from None
        click.echo(f'Made {file}, the values of driver {driver.name}: helm install NAME "$(dra-kit chart)" -f {file}')
    if directory is not None:
        write_chart(chart(), directory, driver=driver.name, settings=driver.settings, values=yaml.safe_load(text))
        click.echo(f"Made {directory}, the chart of driver {driver.name}: helm install NAME {directory}")
