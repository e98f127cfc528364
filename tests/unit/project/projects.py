"""Projects as the template makes them, committed below tests/data: ``python -m tests.unit.project.projects`` again."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from dra_kit.project.rendering import (
    Answers,
    default_driver,
    default_package,
    installed_version,
    project_template,
    render,
    write,
)

PROJECTS: Final = Path(__file__).parents[2] / "data" / "projects"


def _answers(project: str, **others: object) -> Answers:
    return Answers(project, default_driver(project), default_package(project), **others)  # type: ignore[arg-type]


ANSWERS: Final = (
    _answers("simple-driver"),
    _answers("partitionable-driver", kind="partitionable"),
    _answers("modes-driver", kind="modes"),
    _answers("shared-driver", kind="shared"),
    _answers("unguarded-driver", webhook=False),
)
"""One project of each kind without a reference driver, and one without webhook."""
SEEDED: Final = (_answers("lan-driver", kind="network"), _answers("pinning-driver", kind="cpu", webhook=False))
"""One of each kind that begins as a copy of a reference driver. They are not committed: the examples are."""


def rendered(answers: Answers) -> dict[PurePosixPath, str]:
    """What the template makes now."""
    return render(project_template(), answers, installed_version())


def committed(folder: Path) -> Mapping[PurePosixPath, str]:
    """What it made when the projects were written the last time."""
    return {
        PurePosixPath(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for path in folder.rglob("*")
        if path.is_file() and not any(part.endswith(("_cache", "__pycache__")) for part in path.parts)
    }


def main() -> None:
    """Write all projects again."""
    shutil.rmtree(PROJECTS, ignore_errors=True)
    for answers in ANSWERS:
        for path, text in rendered(answers).items():
            write(PROJECTS / answers.project, path, text)


if __name__ == "__main__":
    main()
