"""Images of drivers, built by their Dockerfiles on a base image of Debian's packages, without any registry."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.find import REPOSITORY, Found

TAG = "0.1.0"
"""What the values of the examples say."""
BASE_IMAGE = "localhost/python:3.11-bookworm"
BASE_PYTHON = "3.11"
BUILD_TOOLS = ("buildah", "debootstrap")
PROJECT = REPOSITORY / "examples" / "pizza-driver"
BUILD = ("--isolation", "chroot", "--build-arg", f"BASE_IMAGE={BASE_IMAGE}", "--build-arg", "NO_INDEX=1")
"""Flags of ``buildah build``: nothing is downloaded."""
PINS = [REPOSITORY / "requirements" / name for name in ("build.txt", "runtime.txt")]
"""What the build of any project needs."""


class CannotBuild(Exception):
    """A requirement of an image build is missing; the message names it."""


def load_image(found: Found, state: Path, directory: Path, project: Path = PROJECT, more: Sequence[str] = ()) -> str:
    """Build an example driver's image, and load it into the node.

    Args:
        found: has a ``cluster`` tool.
        state: folder of the cluster that the tool started.
        directory: for the files of the build.
        project: of the driver.
        more: packages that it needs beside dra-kit's, of those that are pinned for the development.

    Returns:
        The image's name with its tag.

    Raises:
        CannotBuild: naming the packages or the tool that are missing.
    """
    image = build_image(found, directory, project, more)
    load_built(found, state, image, image, directory)
    return image


def build_image(found: Found, directory: Path, project: Path = PROJECT, more: Sequence[str] = ()) -> str:
    """Build an example driver's image of the sources as they are.

    Args:
        found: has a ``cluster`` tool.
        directory: for the files of the build.
        project: of the driver.
        more: packages that it needs beside dra-kit's, of those that are pinned for the development.

    Returns:
        The image's name with its tag.

    Raises:
        CannotBuild: naming the packages or the tool that are missing.
    """
    with _alone("images"):
        make_base_image(found)
    context, image = directory / "context", f"docker.io/library/{project.name}:{TAG}"
    shutil.copytree(project, context, ignore=shutil.ignore_patterns("__pycache__", "tests", ".*_cache"))
    fill_wheelhouse(context / "wheelhouse", more)
    run("buildah", "build", *BUILD, "--tag", image, context)
    shutil.rmtree(context)
    return image


def make_base_image(found: Found) -> None:
    """Make the base image, if it is not there yet.

    Raises:
        CannotBuild: naming the packages or the tool that are missing.
    """
    missing = [name for name in BUILD_TOOLS if not shutil.which(name)]
    if missing:
        raise CannotBuild(f"no image can be built here: install {' and '.join(missing)}")
    if found.tool is None or not (python_image := found.tool.with_name("python-image")).exists():
        raise CannotBuild(
            f"python-image, which creates the base image, is missing next to the cluster tool: {found.why}"
        )
    run(python_image, BASE_IMAGE)


def load_built(found: Found, state: Path, built: str, name: str, directory: Path) -> None:
    """Load an image that was built into the node, under the name that pods have for it."""
    assert found.tool is not None
    archive = directory / "image.tar"
    try:
        run("buildah", "push", built, f"docker-archive:{archive}:{name}")
    finally:
        run("buildah", "rmi", built)
    run(found.tool, "--dir", state, "load", archive)
    archive.unlink()


def fill_wheelhouse(wheelhouse: Path, more: Sequence[str] = ()) -> None:
    """What the build of a project would download otherwise, for the base image's Python, and dra-kit itself."""
    # the other ones separately, so that drivers with and without them share the downloads
    shutil.copytree(_downloaded(PINS), wheelhouse, copy_function=os.link, dirs_exist_ok=True)
    if more:
        pins = wheelhouse / "more.txt"
        pins.write_text(_pinned(more), encoding="utf-8")
        shutil.copytree(_downloaded([pins]), wheelhouse, copy_function=os.link, dirs_exist_ok=True)
    run(
        sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
        "--wheel-dir", wheelhouse, REPOSITORY,
    )  # fmt: skip


def _downloaded(pins: Sequence[Path]) -> Path:
    """The folder with the wheels of some requirements; they are downloaded once for each content of these."""
    content = hashlib.sha256(b"".join(path.read_bytes() for path in pins)).hexdigest()
    wheels = REPOSITORY / "build" / f"wheels-{content[:16]}"
    with _alone("downloads"):
        if not wheels.exists():
            unfinished = wheels.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            run(
                sys.executable, "-m", "pip", "download", "--quiet", "--dest", unfinished, "--require-hashes",
                "--no-deps", "--only-binary", ":all:", "--python-version", BASE_PYTHON,
                *(word for path in pins for word in ("-r", path)),
            )  # fmt: skip
            unfinished.rename(wheels)
    return wheels


@contextmanager
def _alone(what: str) -> Iterator[None]:
    """Keep other test processes from doing the same at the same time."""
    folder = REPOSITORY / "build"
    folder.mkdir(exist_ok=True)
    with (folder / f"{what}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _pinned(packages: Sequence[str]) -> str:
    """Their entries in the requirements of the development, with their hashes."""
    entries = re.split(r"\n(?=\S)", (REPOSITORY / "requirements" / "dev.txt").read_text(encoding="utf-8"))
    found = [entry for entry in entries if entry.partition("==")[0] in packages]
    assert len(found) == len(packages), f"requirements/dev.txt does not pin all of {', '.join(packages)}"
    return "\n".join(found) + "\n"


def run(*command: object) -> None:
    """Run a command that must succeed; its own words are in the error when it fails."""
    words = [str(word) for word in command]
    environment = {"STORAGE_DRIVER": "overlay", **os.environ}
    result = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=600)
    if result.returncode:
        raise RuntimeError(f"{shlex.join(words)} ended with {result.returncode}:\n{result.stdout}\n{result.stderr}")
