"""The names and answers of a project, and its files: from the template, or a reference driver; written atomically.

The names of a reference driver are replaced by those of the project.
"""

from __future__ import annotations

import errno
import json
import keyword
import os
import re
import shutil
import stat
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatch
from functools import partial
from importlib.metadata import version as version_of
from pathlib import Path, PurePosixPath
from posixpath import normpath
from types import SimpleNamespace
from typing import Any, Final, Literal, TypeAlias, get_args

import yaml
from jinja2 import Environment, StrictUndefined
from msgspec import Struct
from msgspec.structs import asdict

from dra_kit.errors import ConfigurationError, InternalError
from dra_kit.kubernetes.manifests.documents import read_values, source_file
from dra_kit.kubernetes.manifests.files import MANIFESTS, read_file
from dra_kit.kubernetes.resource.names import driver_name

_PROJECT: Final = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?").fullmatch
"""A valid helm release and package name, short enough for suffixes."""
_PACKAGE_NAME: Final = re.compile(r"[a-z][a-z0-9_]*").fullmatch
TAKEN_MODULES: Final = frozenset(
    """
    aiohappyeyeballs aiohttp aiosignal annotated_types ast_serialize attr attrs certifi cffi click cryptography dateutil
    dra_kit editables frozenlist google grpc hatchling hypothesis idna iniconfig iso8601 jinja2 jsonpatch jsonpatch_cli
    jsonpointer kopf kubernetes kubernetes_asyncio librt markdown_it markupsafe mdurl msgspec multidict mypy
    mypy_extensions mypyc packaging pathspec pip pkg_resources pluggy prometheus_client propcache py pycparser pydantic
    pydantic_core pygments pyroute2 pytest pytest_asyncio pythonjsonlogger re2 rich ruff setuptools six sortedcontainers
    tests tomlkit trove_classifiers trustme typing_extensions typing_inspection tzdata urllib3 uvloop yaml yarl
    """.split()  # noqa: SIM905 - a list would be a word on each line
)
"""Modules in a project's environment: a driver of the same name would hide them, or they would hide the driver."""
TAKEN_PROJECTS: Final = frozenset(
    {
        *(name.replace("_", "-") for name in TAKEN_MODULES),
        *("google-re2", "grpcio", "markdown-it-py", "protobuf", "python-dateutil", "python-json-logger", "pyyaml"),
        "types-pyyaml",
    }
)
"""Packages that a project requires: pip would mistake a project of the same name for them."""


def check_project_name(name: str) -> str:
    """Check the name of a project.

    Raises:
        ConfigurationError: it is invalid; the message suggests a valid name.
    """
    if _PROJECT(name) and name not in TAKEN_PROJECTS:
        return name
    near = re.sub(r"-+", "-", re.sub(r"[^a-z0-9-]", "-", name.lower())).lstrip("-0123456789")[:40].strip("-")
    near = f"{near}-driver" if near in TAKEN_PROJECTS else near
    remedy = f"use {near!r}" if near and _PROJECT(near) else "use for example 'led-driver'"
    problem = "it is the name of a package that the project requires"
    if name not in TAKEN_PROJECTS:
        problem = (
            "it must consist of at most 40 lower-case letters, digits and '-', begin with a letter, and end with a "
            "letter or digit"
        )
    raise ConfigurationError(f"project name {name!r}: {problem}; {remedy}", code="invalid-name")


def check_driver_name(name: str) -> str:
    """Check the name of a driver.

    Raises:
        ConfigurationError: the name is not a DNS subdomain of at most 63 bytes, or lacks a domain.
    """
    problems = [error.body for error in driver_name(name, "name")]
    if not problems and name != name.lower():
        problems = ["it must be lower case"]
    if not problems and "." not in name:
        problems = ["it lacks a domain, so that another driver could have the same name"]
    if not problems:
        return name
    near = re.sub(r"[^a-z0-9.-]", "-", name.lower()).strip(".-") or "my-driver"
    near = near if "." in near else f"{near}.example.com"
    fits = not driver_name(near, "name")
    raise ConfigurationError(
        f"driver name {name!r}: {'; '.join(problems)}; "
        + (f"use {near!r}, with a domain that you own" if fits else "use for example 'led.example.com'"),
        code="invalid-name",
    )


def check_package_name(name: str) -> str:
    """Check the name of a Python package.

    Raises:
        ConfigurationError: the name is not an identifier, or is already in use.
    """
    if _PACKAGE_NAME(name) and not _is_taken(name):
        return name
    if keyword.iskeyword(name):
        problem = "it is a keyword of Python"
    elif _is_taken(name):
        problem = "it is the name of another module"
    else:
        problem = "it must consist of lower-case letters, digits and '_', and begin with a letter"
    near = re.sub(r"[^a-z0-9_]", "_", name.lower()).lstrip("_0123456789").rstrip("_") or "led_driver"
    near = f"{near}_driver" if _is_taken(near) else near
    raise ConfigurationError(f"package name {name!r}: {problem}; use {near!r}", code="invalid-name")


def _is_taken(name: str) -> bool:
    return keyword.iskeyword(name) or name in TAKEN_MODULES or name in sys.stdlib_module_names


def default_driver(project: str) -> str:
    """Return the default name of the driver, in a reserved domain that the author must replace."""
    return f"{project}.example.com"


def default_package(project: str) -> str:
    """Return the default name of the package."""
    package = project.replace("-", "_")
    try:
        return check_package_name(package)
    except ConfigurationError:
        return f"{package}_driver"


Kind: TypeAlias = Literal["simple", "partitionable", "modes", "shared", "network", "cpu"]
"""Kind of the devices: one claim each; divided by counters; in modes; shared by capacity; network interfaces; CPUs."""
FILE: Final = ".dra-kit.yml"
"""The answers file in the project's folder, for dra-kit and for copier."""
_VERSION: Final = "_dra_kit"


class Answers(Struct, frozen=True):
    """The answers to the questions of ``dra-kit new``, as in copier.yml; invalid ones raise a ConfigurationError.

    ``project`` is also the name of the folder and the helm release. With ``webhook``, invalid config is rejected when
    it is applied.
    """

    project: str
    driver: str
    package: str
    kind: Kind = "simple"
    webhook: bool = True

    def __post_init__(self) -> None:
        check_project_name(self.project)
        check_driver_name(self.driver)
        check_package_name(self.package)
        if self.kind not in get_args(Kind):
            raise ConfigurationError(
                f"kind {self.kind!r} is invalid; use one of {', '.join(get_args(Kind))}", code="invalid-name"
            )


def read_answers(folder: Path) -> tuple[Answers, str]:
    """Return the answers from which a project was created, and the version of dra-kit that created it.

    Raises:
        ConfigurationError: the project has no answers, or they are invalid.
    """
    path = folder / FILE
    if path.is_symlink():
        raise ConfigurationError(f"{path} is a link, which is not followed; restore the file that `dra-kit new` wrote")
    if not path.is_file():
        raise ConfigurationError(
            f"{path} does not exist: `dra-kit new` did not create {folder}; pass the folder of a project"
        )
    try:
        [found] = read_values(source_file(path))
        given = {key: value for key, value in found.items() if not key.startswith("_")}
        return Answers(**given), str(found.get(_VERSION, ""))
    except (AttributeError, ConfigurationError, TypeError, ValueError) as error:
        problem = " ".join(str(error).split())
        raise ConfigurationError(f"{path} has no valid answers of `dra-kit new`: {problem}; restore it") from None


def answers_file(answers: Answers, version: str) -> dict[str, Any]:
    """Return the content of the file of answers."""
    return {_VERSION: version, **asdict(answers)}


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
    return ConfigurationError(
        f"{folder} cannot be created: {error.strerror or error}; choose another folder with --directory"
    )


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
