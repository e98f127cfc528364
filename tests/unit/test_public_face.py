"""What a driver's author may import: ``dra_kit``, and nothing behind it."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import dra_kit

ROOT = Path(dra_kit.__file__).parent
PUBLIC_MODULES = {"dra_kit", "dra_kit.cel", "dra_kit.testing"}


def python(code: str) -> object:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


def names_for_type_checkers() -> dict[str, str]:
    """name to home, from the imports below ``if TYPE_CHECKING``."""
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    (block,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    )
    return {
        alias.asname or alias.name: str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_all_is_sorted_and_has_no_name_twice() -> None:
    assert list(dra_kit.__all__) == sorted(set(dra_kit.__all__))


def test_type_checkers_and_python_find_the_same_names_in_the_same_homes() -> None:
    loaded = {name: f"dra_kit.{home}" for name, home in dra_kit._HOME_OF.items()}
    assert names_for_type_checkers() == loaded
    assert set(dra_kit.__all__) == set(loaded)


@pytest.mark.parametrize("name", dra_kit.__all__)
def test_a_name_is_the_one_of_its_home(name: str) -> None:
    home = importlib.import_module(f"dra_kit.{dra_kit._HOME_OF[name]}")
    public = getattr(dra_kit, name)
    assert public is getattr(home, name)
    assert public.__module__ == home.__name__  # defined there, not passed on


@pytest.mark.parametrize("name", dra_kit.__all__)
def test_a_name_says_what_it_is_for(name: str) -> None:
    documentation = inspect.getdoc(getattr(dra_kit, name))
    assert documentation
    assert documentation.endswith((".", "```", ")")) or "\n" in documentation


def test_dir_shows_the_names_and_no_machinery() -> None:
    assert dir(dra_kit) == sorted({*dra_kit.__all__, "__version__"})


def test_missing_name_is_reported() -> None:
    with pytest.raises(AttributeError, match=r"^module 'dra_kit' has no attribute 'Devices'$"):
        dra_kit.Devices  # type: ignore[attr-defined]  # noqa: B018


def test_all_public_names_come_with_a_star() -> None:
    code = "import json\nfrom dra_kit import *\nprint(json.dumps(sorted(name for name in dir() if name[0] != '_')))"
    assert python(code) == sorted([*dra_kit.__all__, "json"])


def test_the_errors_an_author_meets_are_public() -> None:
    from dra_kit import errors

    raised = {
        node.exc.func.id
        for file in sorted((ROOT / "author").glob("*.py"))
        if file.name != "target.py"  # commands call it, no driver does
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name)
    }
    ours = {name for name in raised if hasattr(errors, name)}
    assert ours
    assert ours <= set(dra_kit.__all__)


@pytest.mark.parametrize("module", sorted(PUBLIC_MODULES - {"dra_kit"}))
def test_a_public_module_says_what_is_public_in_it(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not in this release")
    public = importlib.import_module(module)
    assert public.__all__ == sorted(set(public.__all__))
    assert [name for name in public.__all__ if not hasattr(public, name)] == []


def test_examples_import_public_modules_only() -> None:
    found = set()
    for file in sorted((ROOT.parent / "examples").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            found |= {(file.name, name) for name in modules if name.split(".")[0] == "dra_kit"}
    assert found
    assert {(file, name) for file, name in found if name not in PUBLIC_MODULES} == set()


HEAVY = ("grpc", "kopf", "aiohttp", "pydantic", "kubernetes_asyncio", "google.protobuf", "yaml", "click")


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = python("import json, sys, dra_kit\nprint(json.dumps(sorted(sys.modules)))")
    assert isinstance(loaded, list)
    assert [name for name in loaded if name.startswith(HEAVY)] == []


def test_declaring_a_driver_loads_no_client_and_no_server() -> None:
    code = "import json, sys, dra_kit\n[getattr(dra_kit, name) for name in dra_kit.__all__]\n"
    loaded = python(f"{code}print(json.dumps(sorted(sys.modules)))")
    assert isinstance(loaded, list)
    without_models = tuple(name for name in HEAVY if name not in ("pydantic", "yaml"))  # models, and CDI specs
    assert [name for name in loaded if name.startswith(without_models)] == []


@pytest.mark.parametrize("module", ["dra_kit", "dra_kit.testing"])
def test_a_name_is_the_same_whichever_is_asked_for_first(module: str) -> None:
    """Python puts an imported submodule into its package, in the place of a name that is spelt like it."""
    package = importlib.import_module(module)
    assert package.__spec__ is not None
    submodules = {found.name for found in pkgutil.iter_modules(package.__spec__.submodule_search_locations)}
    assert not submodules & set(package.__all__)
