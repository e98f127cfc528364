"""Each rule that changed between releases is asked for in one place of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

from dra_kit.kubernetes.release import NEWEST, OLDEST, Change, KubernetesVersion
from dra_kit.kubernetes.resource.conversion import GATED_FIELDS
from dra_kit.kubernetes.resource.schema.types import read_table

PACKAGE = Path(__file__).parents[4] / "dra_kit"
ASKED_TWICE_OR_MORE = {
    "CAPACITY_NAMES_NORMALIZED": ["allocator/devices.py", "allocator/state.py"],  # what is asked; what claims hold
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


OUTERMOST = {
    "author/model.py",  # an author's object, before its cluster is known
    "kubernetes/cel/device.py",  # of dra_kit.cel
    "kubernetes/cel/environment.py",  # of dra_kit.cel
    "kubernetes/values/quantity.py",  # dra_kit.Quantity
    "cli/dev.py",
    "cli/explain.py",
    "cli/lint.py",
    "cli/project.py",
    "cli/recordings.py",  # a recording without a header
    "cli/sandbox.py",
    "conformance/cluster.py",
    "conformance/kubelet.py",
    "diagnosis/snapshot.py",  # objects that were saved with kubectl
    "testing/bed.py",
    "testing/bench.py",
    "apiserver/server.py",  # these are started alone
    "sandbox/cluster.py",
    "sandbox/control_plane.py",
}
"""Where a user may name no release."""
OF_ANY_RELEASE = {
    "author/device.py",  # an author's quantities
    "author/model.py",
    "testing/bench.py",
    "diagnosis/explain/devices.py",  # a text
    "diagnosis/selector_mistakes/device_rules.py",  # whether a text is a quantity
    "diagnosis/selector_mistakes/text_rules.py",
    "diagnosis/workload.py",  # a whole number
    "sandbox/stories/verdict.py",  # equality is exact
    "sandbox/views/devices.py",  # a text
}
"""Where it makes no difference by which release a quantity is read."""


def _modules_with(matches: Callable[[ast.AST], bool], words: str) -> set[str]:
    """Return the modules of the package that have a matching node, and so one of the words."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        module, text = path.relative_to(PACKAGE).as_posix(), path.read_text()
        if (
            module != "kubernetes/release.py"
            and re.search(words, text)
            and any(map(matches, ast.walk(ast.parse(text))))
        ):
            found.add(module)
    return found


def _is_default_release(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in {"DEFAULT", "UNMODIFIED"}
    if not isinstance(node, ast.Call) or node.args or node.keywords:
        return False
    return ast.unparse(node.func) in {"Release.of", "Release.alpha"}


def _lacks_release(node: ast.AST) -> bool:
    """Return whether a quantity is read by the default release, and is not written in the code itself."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Quantity"):
        return False
    return len(node.args) == 1 and not isinstance(node.args[0], ast.Constant | ast.JoinedStr) and not node.keywords


def test_only_the_outermost_code_has_a_default_release() -> None:
    assert _modules_with(_is_default_release, r"\b(DEFAULT|UNMODIFIED|Release\.(of|alpha)\(\))") == OUTERMOST


def test_quantities_are_read_by_the_release_of_their_cluster() -> None:
    assert _modules_with(_lacks_release, r"\bQuantity\(") == OF_ANY_RELEASE


def test_all_newer_fields_of_the_group_depend_on_gates() -> None:
    gated = {path.split(".")[-1] for _, paths in GATED_FIELDS for path in paths}
    newer = {
        (kind, field)
        for kind, fields in read_table("since").items()
        for field in fields
        if kind.startswith("resource/") and field != "status" and not kind.endswith(".PoolStatus")
    }

    assert {(kind, field) for kind, field in newer if field not in gated} == set()
