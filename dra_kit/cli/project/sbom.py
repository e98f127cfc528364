"""``dra-kit sbom``."""

from __future__ import annotations

import click


@click.command()
@click.option("--name", help="of the distribution that it is about, such as the driver's  [default: dra-kit]")
def command(name: str | None) -> None:
    """Print what is installed here, beside the driver too, as an SBOM: CycloneDX JSON with package URLs and licences.

    In a driver's image it tells what that image has of Python. The same environment gives the same text.

    \b
      docker run --rm registry.example/pizza-driver:0.1.0 sbom --name pizza-driver >pizza-driver.cdx.json
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    from dra_kit.errors import ConfigurationError
    from dra_kit.sbom.component import normalized
    from dra_kit.sbom.cyclonedx import document, text
    from dra_kit.sbom.sources import installed

    wanted = normalized(name or "dra-kit")
    found = installed()
    whole = next((item for item in found if item.name == wanted), None)
    if whole is None:
        raise ConfigurationError(f"there is no distribution {wanted} here; pip list names those that are")
    click.echo(text(document(whole, [item for item in found if item is not whole])), nl=False)
