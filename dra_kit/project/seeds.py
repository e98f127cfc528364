"""Projects that begin as a copy of a reference driver, whose names are replaced by those of the project."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Final

from msgspec import Struct

from dra_kit.errors import ConfigurationError
from dra_kit.project.answers import FILE, Answers, Kind, check_driver_name, read_answers

SHARED: Final = frozenset(
    {".dockerignore", ".github", ".gitignore", FILE, "Dockerfile", "Makefile", "README.md", "kind", "renovate.json"}
)
"""Files and folders that the template renders for all kinds alike; all others are those of the reference driver."""
README: Final = PurePosixPath("README.md")
_MAKEFILE: Final = PurePosixPath("Makefile")
_VALUES: Final = PurePosixPath("deploy/values.yaml")
_ENVIRONMENT: Final = "$(BIN)/python"
"""The target of the Makefile that only a checkout needs."""
_OWN_INSTALLATION: Final = "Install it"
"""The section of the README that is true in a checkout only."""


class Seed(Struct, frozen=True):
    """A reference driver with which projects of a kind begin.

    Attributes:
        folder: its project, as in a checkout.
        without: files and folders in it that need other projects of the checkout.
        drivers: the names of its further drivers, with the label that is put before the driver name of a new project
            to name them, unless that is the driver name of the reference driver.
        classes: the same for DeviceClasses whose names do not contain the name of a driver.
    """

    folder: str
    without: tuple[str, ...] = ()
    drivers: Mapping[str, str] = {}
    classes: Mapping[str, str] = {}


SEEDS: Final[Mapping[Kind, Seed]] = {
    "network": Seed("examples/nic-driver", without=("stories/gpu-and-nic", "tests/test_with_gpus.py")),
    "cpu": Seed(
        "examples/cpu-driver",
        drivers={"dra.memory": "memory"},
        classes={"dra.hugepages-2m": "hugepages-2m", "dra.hugepages-1g": "hugepages-1g"},
    ),
}


class Seedling(Struct, frozen=True):
    """The files of a reference driver, with the names of a new project.

    Attributes:
        project: the name of the new project.
        files: all that are not in :data:`SHARED`.
        reference: the part of the README that describes the driver.
        makefile: the Makefile, as in a checkout.
        webhook: whether the driver has configuration that a webhook can check.
    """

    project: str
    files: Mapping[PurePosixPath, str]
    reference: str
    makefile: str
    webhook: bool

    def completed(self, shared: Mapping[PurePosixPath, str], *, webhook: bool) -> dict[PurePosixPath, str]:
        """Return all files of the new project.

        Args:
            shared: what the template rendered; only files in :data:`SHARED` are used, and the webhook's values.
            webhook: whether the webhook is to run.
        """
        files = {path: text for path, text in shared.items() if path.parts[0] in SHARED} | dict(self.files)
        files[_MAKEFILE] = _of_project(self.makefile, files[_MAKEFILE], self.project)
        if webhook != self.webhook:
            start = "\nwebhook:\n"
            files[_VALUES] = files[_VALUES].partition(start)[0] + start + shared[_VALUES].partition(start)[2]
        return files


def read_seedling(folder: Path, seed: Seed, answers: Answers, gitignore: str) -> Seedling:
    """Read the reference driver in a folder for a project with other names.

    Args:
        folder: its project.
        seed: what the new project takes of it.
        answers: the names of the new project.
        gitignore: patterns of files that are not part of a project, such as caches.

    Raises:
        ConfigurationError: the driver name of the project is too long for its further drivers.
    """
    own, _ = read_answers(folder)
    others: dict[str, str] = {}
    if answers.driver != own.driver:
        others = {name: f"{label}.{answers.driver}" for name, label in seed.classes.items()}
        others |= {name: _further_driver(label, answers) for name, label in seed.drivers.items()}
    rename = _renaming(
        {own.project: answers.project, own.driver: answers.driver, own.package: answers.package, **others}
    )
    found = {
        path: (folder / path).read_text(encoding="utf-8")
        for path in _files(folder, gitignore.split())
        if not any(path.is_relative_to(left) for left in seed.without)
    }
    there = {*found, *(parent for path in found for parent in path.parents)}
    files = {}
    for path, text in found.items():
        new = rename(_without_dead_links(text, path, there) if path.suffix == ".md" else text)
        new = _with_laid_out_imports(new, answers.package) if path.suffix == ".py" else new
        files[PurePosixPath(rename(str(path)))] = new
    return Seedling(
        project=answers.project,
        files={path: text for path, text in files.items() if path.parts[0] not in SHARED},
        reference=_reference(files[README]),
        makefile=files[_MAKEFILE],
        webhook=own.webhook,
    )


def _further_driver(label: str, answers: Answers) -> str:
    name = f"{label}.{answers.driver}"
    try:
        return check_driver_name(name)
    except ConfigurationError:
        raise ConfigurationError(
            f"driver name {answers.driver!r}: it is too long for kind {answers.kind}, whose projects have a second "
            f"driver, here {name!r}, with more than 63 bytes; use a shorter name",
            code="invalid-name",
        ) from None


def _files(folder: Path, ignored: list[str]) -> Iterator[PurePosixPath]:
    """Yield the files of a project that git does not ignore, without those of dra-kit itself."""

    def is_taken(path: PurePosixPath) -> bool:
        names = (pattern.rstrip("/") for pattern in ignored)
        return not path.name.startswith(".dra-kit") and not any(
            str(path) == name[1:] if name.startswith("/") else fnmatch(path.name, name) for name in names
        )

    for place, folders, files in os.walk(folder):
        here = PurePosixPath(Path(place).relative_to(folder).as_posix())
        folders[:] = sorted(name for name in folders if is_taken(here / name))
        yield from (here / name for name in sorted(files) if is_taken(here / name))


def _renaming(names: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that replaces names in a text, all at once: a new one may contain an old one."""
    pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, names))})(?![\w-])")
    return lambda text: pattern.sub(lambda match: names[match[0]], text)


def _without_dead_links(text: str, path: PurePosixPath, there: set[PurePosixPath]) -> str:
    """Replace links to files that the new project does not have by their text."""

    def if_there(match: re.Match[str]) -> str:
        target = match["target"].partition("#")[0]
        local = PurePosixPath(normpath(path.parent / target)) if ":" not in target else path
        return match[0] if local in there else match["text"]

    return re.sub(r"\[(?P<text>[^\]\n]+)\]\((?P<target>[^)\s]+)\)", if_there, text)


_LINE: Final = 120
"""The longest line, as in the pyproject.toml of a project."""


def _with_laid_out_imports(text: str, package: str) -> str:
    """Sort and wrap imports from the package and from ``tests`` as ruff does: their order depends on the name."""
    module = rf"(?P<module>(?:{package}|tests)[.\w]*)"
    statement = rf"(?P<indent> *)from {module} import (?P<names>\([^)]*\)|[^(#\n]*)(?P<comment>#.*)?\n"

    def laid_out(match: re.Match[str]) -> str:
        line = match[0]
        if len(line) <= _LINE + 1 or match["names"].startswith("("):
            return line
        names = [name.strip() for name in match["names"].split(", ")]
        comment = f"  {match['comment']}" if match["comment"] else ""
        opening, behind = ("", comment) if len(names) == 1 else (comment, "")
        lines = "".join(f"{match['indent']}    {name},{behind}\n" for name in names)
        return f"{match['indent']}from {match['module']} import ({opening}\n{lines}{match['indent']})\n"

    def block(match: re.Match[str]) -> str:
        return "".join(map(laid_out, sorted(re.finditer(statement, match[0]), key=lambda found: found["module"])))

    return re.sub(rf"^(?:{statement})+", block, text, flags=re.MULTILINE)


def _reference(readme: str) -> str:
    """Return the table of files and the sections that describe a driver, from its README."""
    before, *sections = readme.split("\n## ")
    table = "".join(line for line in before.splitlines(keepends=True) if line.startswith("|"))
    described = (section for section in sections if section.partition("\n")[0] != _OWN_INSTALLATION)
    return "\n## ".join([table, *(f"{section.rstrip()}\n" for section in described)])


def _of_project(makefile: str, template: str, project: str) -> str:
    """Return a reference driver's Makefile, installed as the template installs a project: not from a checkout."""
    blocks = {_target(block): block for block in template.split("\n\n")}
    installation = {target: blocks[target] for target in ("image", f"$(BIN)/.{project}")}
    others = ((_target(block), block) for block in makefile.split("\n\n"))
    return "\n\n".join(installation.get(target, block) for target, block in others if target != _ENVIRONMENT)


def _target(block: str) -> str:
    """Return the target that a block of a Makefile is about."""
    lines = (line for line in block.splitlines() if not line.startswith(("#", ".PHONY")))
    return next(lines, "").partition(":")[0]
