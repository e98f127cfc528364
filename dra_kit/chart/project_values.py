"""All values of a driver, from its project's files and its code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from dra_kit.admission.review import review_configs
from dra_kit.author.driver import Driver
from dra_kit.author.target import GLOB_SUFFIXES
from dra_kit.chart.driver_values import driver_values
from dra_kit.chart.of_driver import complete_values
from dra_kit.chart.rights import declared_rights
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.manifests.documents import SourceFile, read_values, source_file
from dra_kit.kubernetes.values.json import value_at
from dra_kit.sandbox.driver.settings.project import project_of


def project_values(
    target: str,
    driver: Driver[Any, Any],
    chart: Path,
    settings: Callable[[Mapping[str, object]], BaseModel | None],
) -> str:
    """Return all values that a cluster needs for a driver, as YAML.

    Args:
        target: the TARGET that names the driver; ``deploy/values.yaml`` and the DeviceClasses are those of its project.
        driver: what it names.
        chart: for all drivers.
        settings: makes the driver's settings of their values.

    Raises:
        ConfigurationError: a file cannot be read, a value or the config in a DeviceClass is wrong, or settings that
            rights depend on are missing.
    """
    if target.endswith(GLOB_SUFFIXES):
        return driver_values("", {"globs": source_file(Path(target)).text}, {})
    facts = {"driverName": driver.name}
    written = SourceFile("deploy/values.yaml", "")
    project = project_of(target)
    if project is not None:
        module, attribute = project.driver
        facts |= {"target": f"{module}:{attribute}"} if module else {}
        file = project.folder / "deploy" / "values.yaml"
        written = source_file(file) if file.exists() else written
        classes = [source_file(path) for path in project.classes]
        _check_configs(classes, driver)
        text = "".join(file.text for file in classes)
        facts |= {"deviceClasses": text} if text else {}
    documents = read_values(written)
    given = (documents[0] if documents else None) or {}
    if len(documents) > 1 or not isinstance(given, dict):
        raise ConfigurationError(f"{written.name} is no mapping of values; correct it")
    complete_values(chart, facts | given)
    try:
        rights = declared_rights(driver, lambda: settings(value_at(given, ("node", "settings")) or {}))
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{error}; its effects' rights depend on it: write it under node.settings in deploy/values.yaml"
        ) from None
    return driver_values(written.text, facts, rights)


def _check_configs(classes: Sequence[SourceFile], driver: Driver[Any, Any]) -> None:
    """Check what the webhook would: when the classes are made with the release, it cannot answer yet."""
    for file in classes:
        for document in read_values(file):
            found = review_configs(document, driver) if isinstance(document, dict) else None
            if found is not None and found.problems:
                name = value_at(document, ("metadata", "name"))
                raise ConfigurationError(f"{file.name}: DeviceClass {name}: {found}; correct it")
