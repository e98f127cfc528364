"""``dra-kit chart``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dra_kit.cli.options.common import complete_target, path


@click.command()
@click.argument("target", required=False, shell_complete=complete_target)
@click.option("--directory", type=path(file_okay=False), metavar="FOLDER", help="write the chart of TARGET there")
def command(target: str | None, directory: Path | None) -> None:
    """Print the folder of the helm chart that comes with this release, or write the chart of one driver.

    The chart of TARGET has the values of its deploy/values.yaml and the DeviceClasses of its deviceclasses.yaml, where
    they are, so that it needs no other; and a schema that knows the driver's settings: helm refuses a wrong one.

    \b
      helm install pizza "$(dra-kit chart)" --values values.yaml
      dra-kit chart . --directory build/chart && helm install pizza build/chart
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    from dra_kit.scaffold.share import chart

    if (target is None) != (directory is None):
        raise click.UsageError("TARGET and --directory go together: the chart of a driver is written somewhere.")
    if target is None or directory is None:
        click.echo(chart())
        return
    from dra_kit.chart.of_driver import write_chart
    from dra_kit.process.target import load_driver

    driver = load_driver(target)
    write_chart(chart(), directory, driver=driver.name, settings=driver.settings, values=_values(target, driver.name))
    click.echo(f"Made {directory}, the chart of driver {driver.name}: helm install NAME {directory}")


def _values(target: str, driver: str) -> dict[str, Any]:
    """Return the values of the driver's project."""
    from dra_kit.errors import ConfigurationError
    from dra_kit.manifests.documents import values
    from dra_kit.manifests.sources import source_file
    from dra_kit.sandbox.driver.settings.project import project_of

    project = project_of(target)
    if project is None:
        return {"driverName": driver}
    file = project.folder / "deploy" / "values.yaml"
    documents = values(source_file(file)) if file.exists() else []
    found = documents[0] if documents else None
    classes = "".join(source_file(path).text for path in project.classes)
    if len(documents) > 1 or not isinstance(found or {}, dict):
        raise ConfigurationError(f"{file} is no mapping of values; correct it")
    return {"driverName": driver, **({"deviceClasses": classes} if classes else {}), **(found or {})}
