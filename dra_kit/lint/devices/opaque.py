"""Opaque configuration, checked with the models that the driver decodes it with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dra_kit.author.config_problems import ConfigKeyProblem
from dra_kit.diagnosis.selector_mistakes.device_rules import unknown_driver
from dra_kit.errors import InvalidConfig
from dra_kit.kubernetes.resource.config import CONFIG_FIELDS
from dra_kit.kubernetes.values.json import value_at
from dra_kit.lint.fixes.remedy import Rewrite
from dra_kit.lint.structure.fields import Problem
from dra_kit.lint.structure.manifest import Manifest
from dra_kit.lint.surroundings import Surroundings
from dra_kit.text import unambiguous_correction


def opaque_problems(manifest: Manifest, surroundings: Surroundings) -> Iterator[Problem]:
    """Yield what is wrong with the configurations of an object."""
    fields = CONFIG_FIELDS.get(manifest.kind, ())
    if manifest.obj is None or not fields:
        return
    where = ".".join(fields)
    entries = value_at(manifest.document.body, fields)
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        opaque = entry.get("opaque") if isinstance(entry, Mapping) else None
        if not isinstance(opaque, Mapping) or not isinstance(opaque.get("driver"), str):
            continue
        path = f"{where}[{index}].opaque"
        driver = opaque["driver"]
        decoder = surroundings.configs.get(driver)
        # that they must be an object is what the API server says
        if decoder is not None and isinstance(opaque.get("parameters"), Mapping):
            try:
                decoder.decode(opaque["parameters"])
            except InvalidConfig as error:
                for problem in error.problems:
                    below, text = problem
                    field = f"{path}.parameters{'' if not below or below.startswith('[') else '.'}{below}"
                    message = f"{below}: {text}" if below else text
                    yield Problem(field, "opaque-config", message, key=isinstance(problem, ConfigKeyProblem))
                if error.omitted:
                    yield Problem(f"{path}.parameters", "opaque-config", f"… and {error.omitted} more")
        elif decoder is None and surroundings.advertised is not None:
            wish = unknown_driver(driver, surroundings.advertised)
            if wish is not None:
                intended = unambiguous_correction(driver, surroundings.advertised.drivers)
                sure = (Rewrite(f"{path}.driver", intended),) if intended else ()
                text = f'no device is of a driver "{driver}"'
                yield Problem(f"{path}.driver", "unknown-driver", text, wish, remedies=sure)
