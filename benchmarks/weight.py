"""``python -m benchmarks.weight [--image]``: megabytes of the installed distributions, with their purpose."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
MEGABYTE = 1_000_000
ROLES = {
    "node": "dra_kit.node.agent",
    "controller": "dra_kit.controller.agent",
    "webhook": "dra_kit.admission.agent",
}
WITHOUT_IMPORT = {"kubernetes_asyncio"}
"""Every role loads its configuration by file path (dra_kit/client/credentials.py)."""


@dataclass(frozen=True)
class Package:
    """An installed distribution.

    Attributes:
        name: of it.
        code: bytes of its files.
        bytecode: bytes that Python adds to them.
        roles: that import it, or something that needs it; none: only the author's tools do.
    """

    name: str
    code: int
    bytecode: int
    roles: tuple[str, ...]


def measured(site_packages: Path) -> list[Package]:
    """Return all distributions, the largest first."""
    installed = {normalized(found.name): found for found in distributions(path=[str(site_packages)])}
    needed = {role: needs(module, installed) for role, module in ROLES.items()}
    packages = []
    for name, found in installed.items():
        files = [Path(str(found.locate_file(path))) for path in found.files or ()]
        code = [path for path in files if path.suffix != ".pyc"]
        compiled = {path for file in code if file.suffix == ".py" for path in bytecode_of(file)}
        roles = tuple(role for role, names in needed.items() if name in names)
        packages.append(Package(name, size(code), size(compiled), roles))
    return sorted(packages, key=lambda package: -package.code - package.bytecode)


def needs(module: str, installed: Mapping[str, Distribution]) -> set[str]:
    """Return the names of distributions that dra-kit imports at any time, and of their dependencies."""
    graph = grimp.build_graph(
        "dra_kit", include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None
    )
    imported = {name.split(".")[0] for name in graph.find_upstream_modules(module)} | WITHOUT_IMPORT | {"dra_kit"}
    owners = {
        top: name
        for name, found in installed.items()
        for top in {path.parts[0].removesuffix(".py") for path in found.files or () if path.suffix == ".py"}
    }
    # several distributions share `google`
    owners |= {"google": "protobuf"}
    found: set[str] = set()
    to_do = [owners[top] for top in imported if top in owners]
    while to_do:
        name = to_do.pop()
        if name in installed and name not in found:
            found.add(name)
            # dra-kit's own requirements are found by its imports
            to_do += requirements(installed[name]) if name != "dra-kit" else []
    return found


def requirements(found: Distribution) -> Iterator[str]:
    """Return the requirements of a distribution without its extras."""
    for text in found.requires or ():
        if "extra ==" not in text and (name := re.match(r"[\w.-]+", text)):
            yield normalized(name.group())


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def bytecode_of(file: Path) -> Iterator[Path]:
    yield from (file.parent / "__pycache__").glob(f"{file.stem}.cpython-*.pyc")


def size(files: set[Path] | list[Path]) -> int:
    return sum(path.stat().st_size for path in files if path.is_file())


def environment(directory: Path) -> Path:
    """Install these sources with the tested versions; return site-packages."""
    venv = directory / "venv"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(venv / "bin/python")]
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    run(*pip, "install", "--require-hashes", "--no-deps", "-r", ROOT / "requirements" / "runtime.txt")
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run(*wheel, "--wheel-dir", directory, ROOT)
    run(*pip, "install", "--no-deps", *directory.glob("*.whl"))
    (found,) = venv.glob("lib/python3*/site-packages")
    return found


def show(packages: list[Package]) -> None:
    print(f"{'package':22} {'files':>7} {'bytecode':>9}   MB; used by")
    for package in packages:
        weight = f"{package.code / MEGABYTE:7.1f} {package.bytecode / MEGABYTE:9.1f}"
        print(f"{package.name:22} {weight}   {' '.join(package.roles) or 'tools'}")
    for what, some in (
        ("all: an author", packages),
        ("the node role", [package for package in packages if "node" in package.roles]),
    ):
        code, bytecode = (sum(getattr(package, field) for package in some) for field in ("code", "bytecode"))
        print(f"{what:22} {code / MEGABYTE:7.1f} {bytecode / MEGABYTE:9.1f}   {(code + bytecode) / MEGABYTE:.0f} MB")


def show_image(directory: Path) -> None:
    """Build the image of examples/pizza-driver, and print its size and that of its base image."""
    from tests.cluster.find import find
    from tests.cluster.image import BASE_IMAGE, build_image, run

    image = build_image(find(), directory)
    try:
        for name, what in ((BASE_IMAGE, "base image"), (image, "image of the driver")):
            shown = ["buildah", "images", "--format", "{{.Size}}", name]
            variables = {"STORAGE_DRIVER": "overlay", **os.environ}
            told = subprocess.run(shown, env=variables, capture_output=True, text=True, check=True).stdout
            print(f"{what:22} {told.strip()}")
    finally:
        run("buildah", "rmi", image)


def run(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.weight", description=__doc__)
    parser.add_argument("--image", action="store_true", help="build an image, too (root, buildah and debootstrap)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        show(measured(environment(Path(directory))))
        if options.image:
            show_image(Path(directory))


if __name__ == "__main__":
    main()
