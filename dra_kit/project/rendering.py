"""Render a project from the template, and write it to disk atomically."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import tempfile
import unicodedata
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version as version_of
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, Final

import yaml
from jinja2 import Environment, StrictUndefined
from msgspec.structs import asdict

from dra_kit.errors import ConfigurationError, InternalError
from dra_kit.kubernetes.manifests.files import MANIFESTS, read_file
from dra_kit.project.answers import FILE, Answers, Kind, answers_file, read_answers
from dra_kit.project.seeds import SEEDS, read_seedling

BASE: Final = ".dra-kit.base.json"
"""The template's unchanged output, from which ``dra-kit update`` determines the author's changes."""


def create(folder: Path, files: Mapping[PurePosixPath, str]) -> None:
    """Write a new project.

    Raises:
        ConfigurationError: the folder is not empty, or cannot be written.
    """
    refuse_taken(folder)
    _check(files)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise _not_created(folder, error) from None
    try:
        made.chmod(0o777 & ~_umask())
        for path, text in files.items():
            write(made, path, text)
        write_base(made, files)
        made.rename(folder)  # replaces an empty folder; fails if it is not empty
    except OSError as error:
        raise _not_created(folder, error) from None
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _not_created(folder: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"{folder} cannot be created: {error}; choose another folder with --directory")


def refuse_taken(folder: Path) -> None:
    """Check that a folder is empty or does not exist.

    Raises:
        ConfigurationError: it exists and is not an empty folder.
    """
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise ConfigurationError(
            f"{folder} already exists and is not an empty folder; choose another name, or another folder with "
            "--directory"
        )


def write(folder: Path, path: PurePosixPath, text: str) -> None:
    """Write one file of a project; an existing file retains its permissions, and a new script can be run.

    Raises:
        OSError: the file cannot be written, or its path contains a link; the file is unchanged.
    """
    link = link_in(folder, path)
    if link is not None:
        raise OSError(errno.ELOOP, f"{link} is a link, and links are not followed")
    place = folder / path
    place.parent.mkdir(parents=True, exist_ok=True)
    new = 0o777 if text.startswith("#!") else 0o666
    mode = stat.S_IMODE(place.stat().st_mode) & 0o777 if place.exists() else new & ~_umask()
    descriptor, name = tempfile.mkstemp(prefix=".dra-kit-", dir=place.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(mode)
        Path(name).replace(place)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def link_in(folder: Path, path: PurePosixPath) -> PurePosixPath | None:
    """Return the first part of a path in a project that is a symbolic link; None if there is none."""
    places = [*reversed(path.parents), path][1:]
    return next((place for place in places if (folder / place).is_symlink()), None)


def write_base(folder: Path, files: Mapping[PurePosixPath, str]) -> None:
    """Write the template's output to :data:`BASE`."""
    base = {str(path): text for path, text in sorted(files.items())}
    write(folder, PurePosixPath(BASE), json.dumps(base, indent=1, ensure_ascii=False) + "\n")


def read_base(folder: Path) -> dict[PurePosixPath, str]:
    """Return the previous output of the template.

    Raises:
        ConfigurationError: the file is missing, or names a file outside of the project.
    """
    path = folder / BASE
    try:
        if path.is_symlink():
            raise ConfigurationError(f"{path} is a link")  # noqa: TRY301 - as if it were missing
        found = json.loads(read_file(path, MANIFESTS))
        if not all(isinstance(text, str) for text in found.values()):
            raise ConfigurationError(f"{path} is not a mapping of paths to texts")  # noqa: TRY301 - likewise
    except (ConfigurationError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigurationError(
            f"cannot determine your changes without {path}: {error}; restore the file, or, if copier created the "
            "project, run `copier update`"
        ) from None
    return {_own_path(path, name): text for name, text in found.items()}


def _own_path(base: Path, name: str) -> PurePosixPath:
    """Return the path of a name in the base; fail if it cannot be a file of the project."""
    path = PurePosixPath(name)
    problem = ""
    if path.is_absolute() or ".." in path.parts:
        problem = "which is not in the project"
    elif str(path) != name or not path.parts or "\\" in name or not name.isprintable():
        problem = "which dra-kit does not write"
    elif any(_is_git(part) for part in path.parts):
        problem = "which belongs to git"
    if problem:
        raise ConfigurationError(
            f"{base} names {name!r}, {problem}; nothing was changed. `dra-kit new` did not write this line: remove it "
            "if you trust the rest of the project"
        )
    return path


def _is_git(part: str) -> bool:
    """Return whether a file system may treat a name as ``.git``; git has the same check."""
    seen = "".join(char for char in part if unicodedata.category(char) != "Cf").casefold().rstrip(". ").split(":")[0]
    return seen in {".git", "git~1"}


def _check(files: Mapping[PurePosixPath, str]) -> None:
    """Check that the rendered Python files compile."""
    for path, text in files.items():
        try:
            if path.suffix == ".py":
                compile(text, str(path), "exec")
        except SyntaxError as error:
            raise InternalError(f"the template created {path}, which is not valid Python: {error}") from error


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


_SUFFIX: Final = ".jinja"


def installed_version() -> str:
    """Return the version of dra-kit that is installed."""
    return version_of("dra-kit")


def version_range(version: str) -> str:
    """Return the versions that a new project requires: this minor release."""
    major, minor, *_ = version.split(".")
    return f">={major}.{minor},<{major}.{int(minor) + 1}"


def render(template: Path, answers: Answers, version: str) -> dict[PurePosixPath, str]:
    """Return the text of each file, by its path in a project that requires a version of dra-kit.

    Files whose name ends in ``.jinja`` are rendered, all others are copied; paths are rendered too. The rules are
    those of copier, which can render the same template (``_envops`` in copier.yml). A kind with a reference driver has
    the files of that driver.

    Raises:
        ConfigurationError: the driver name is too long for this kind.
    """
    environment = Environment(  # noqa: S701 - no HTML
        undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["to_nice_yaml"] = partial(yaml.safe_dump, sort_keys=False)
    context: dict[str, Any] = {
        **asdict(answers),
        "dra_kit_range": version_range(version),
        "_copier_answers": answers_file(answers, version),
        "_copier_conf": SimpleNamespace(answers_file=FILE),
    }
    root = template / "project"
    seed, seedling = SEEDS.get(answers.kind), None
    if seed is not None:
        gitignore = (root / ".gitignore").read_text(encoding="utf-8")
        seedling = read_seedling(_find(seed.folder), seed, answers, gitignore)
        context["reference"] = seedling.reference
    files = {}
    for source in sorted(path for path in root.rglob("*") if path.is_file()):
        path = environment.from_string(source.relative_to(root).as_posix()).render(context)
        text = source.read_text(encoding="utf-8")
        if path.endswith(_SUFFIX):
            path, text = path.removesuffix(_SUFFIX), environment.from_string(text).render(context)
        files[PurePosixPath(path)] = text
    return files if seedling is None else seedling.completed(files, webhook=answers.webhook)


def has_config(kind: Kind) -> bool:
    """Return whether projects of a kind begin with configuration of claims, which a webhook can reject."""
    seed = SEEDS.get(kind)
    return seed is None or read_answers(_find(seed.folder))[0].webhook


_PACKAGE: Final = Path(__file__).parents[1]


def project_template() -> Path:
    """Return the folder of the project template, with its copier.yml."""
    return _find("templates/driver")


def chart_directory() -> Path:
    """Return the folder of the helm chart."""
    return _find("charts/dra-driver")


def docs_directory() -> Path:
    """Return the folder of the documentation."""
    return _find("docs")


def _find(name: str) -> Path:
    # a wheel has it in the package, a checkout next to the package
    for found in (_PACKAGE / "share" / name, _PACKAGE.parent / name):
        if found.is_dir():
            return found
    raise InternalError(f"{name} is missing in this installation of dra-kit; install it again")
