"""Each rule that changed between releases is asked for in one place of the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from dra_kit.kubernetes.release import NEWEST, OLDEST, Change, KubernetesVersion

PACKAGE = Path(__file__).parents[4] / "dra_kit"
ASKED_TWICE_OR_MORE = {
    "CAPACITY_NAMES_NORMALIZED": ["allocator/devices.py", "allocator/state.py"],  # what is asked; what claims hold
    "LONG_LISTS_ARE_NOT_READ": ["resource/validation/fields.py"] * 2,  # lists; lists and choices after their refusal
    "RULES_ARE_DECLARED": [
        "resource/conversion.py",  # where errors are,
        "resource/validation/fields.py",  # and which there are
    ],
    "SLICES_HAVE_DEVICES_OR_COUNTERS": [
        "allocator/pools.py",  # the scheduler reads slices like that,
        "resource/validation/slices.py",  # the API server checks it,
        "slices/planning.py",  # and drivers publish accordingly
    ],
}


def _places(pattern: str) -> dict[str, list[str]]:
    """Return the module of each match of a pattern in the package, by the name in its group."""
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name != "release.py":
            module = path.relative_to(PACKAGE).as_posix().removeprefix("kubernetes/")
            for name in re.findall(pattern, path.read_text()):
                found.setdefault(name, []).append(module)
    return found


def test_every_change_is_asked_for_in_one_place() -> None:
    places = _places(r"has\(\s*Change\.([A-Z_0-9]+)")

    assert {change.name for change in Change} == set(places)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == ASKED_TWICE_OR_MORE


def test_a_release_is_asked_and_not_its_version() -> None:
    assert _places(r"(\w*release)\.version\.has\(") == {}


def test_no_rule_has_a_release_by_default() -> None:
    for path in (PACKAGE / "kubernetes" / "resource").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                taken = [*node.args.posonlyargs, *node.args.args]
                optional = taken[len(taken) - len(node.args.defaults) :]
                pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
                optional += [argument for argument, default in pairs if default is not None]
                assert "release" not in [argument.arg for argument in optional], f"{path.name}: {node.name}"


def test_every_change_has_a_release() -> None:
    newer = KubernetesVersion(NEWEST.major, NEWEST.minor + 1)

    for change in Change:
        assert newer.has(change)
        assert not OLDEST.before.has(change)  # new expressions are compiled for the release before
