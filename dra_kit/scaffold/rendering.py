"""A project's files, rendered from the template."""

from __future__ import annotations

from importlib.metadata import version as version_of
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, Final

import yaml
from jinja2 import Environment, StrictUndefined

from dra_kit.scaffold.answers import FILE, Answers, answers_file

_SUFFIX: Final = ".jinja"


def installed_version() -> str:
    """Return the version of dra-kit that is installed."""
    return version_of("dra-kit")


def version_range(version: str) -> str:
    """Return the versions that a new project depends on: this minor release and newer patches of it."""
    major, minor, *_ = version.split(".")
    return f">={major}.{minor},<{major}.{int(minor) + 1}"


def render(template: Path, answers: Answers, version: str) -> dict[PurePosixPath, str]:
    """Return the text of each file, by its path in the project.

    Files whose name ends in ``.jinja`` are rendered, all others copied; in paths, too, names stand in braces. The rules
    are those of copier, which renders the same template (``_envops`` in copier.yml).

    Args:
        template: the folder with copier.yml.
        answers: to its questions.
        version: of dra-kit, which the project depends on.
    """
    environment = Environment(  # noqa: S701 - no HTML
        undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["to_nice_yaml"] = _nice_yaml
    context: dict[str, Any] = {
        **answers.as_dict(),
        "dra_kit_range": version_range(version),
        "_copier_answers": answers_file(answers, version),
        "_copier_conf": SimpleNamespace(answers_file=FILE),
    }
    root = template / "project"
    files = {}
    for source in sorted(path for path in root.rglob("*") if path.is_file()):
        path = environment.from_string(source.relative_to(root).as_posix()).render(context)
        text = source.read_text(encoding="utf-8")
        if path.endswith(_SUFFIX):
            path, text = path.removesuffix(_SUFFIX), environment.from_string(text).render(context)
        files[PurePosixPath(path)] = text
    return files


def _nice_yaml(value: object) -> str:
    text: str = yaml.safe_dump(value, sort_keys=False)
    return text
