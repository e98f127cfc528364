"""What errors carry beside their text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import dra_kit as dra


def test_a_remedy_is_a_field_and_the_end_of_the_text() -> None:
    error = dra.ConfigurationError("kubeconfig a: no server; looked in b", remedy="name another")
    assert str(error) == error.message == "kubeconfig a: no server; looked in b; name another"
    assert (error.problem, error.remedy) == ("kubeconfig a: no server; looked in b", "name another")


def test_without_one_the_problem_is_the_whole_text() -> None:
    error = dra.InvalidDevice("Device 'a': too long; shorten it")
    assert (error.problem, error.remedy, error.code) == ("Device 'a': too long; shorten it", "", "invalid-device")


def _raw_system_errors(code: str) -> Iterator[int]:
    """Yield the lines that print an OSError as it is, such as ``[Errno 2] …``, and not ``error.strerror or error``."""
    tree = ast.parse(code)
    scopes: list[tuple[ast.AST, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.name and "OSError" in ast.unparse(node.type or tree):
            scopes.append((node, node.name))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            scopes += [
                (node, each.arg)
                for each in node.args.args
                if each.annotation and ast.unparse(each.annotation) == "OSError"
            ]
    for scope, name in scopes:
        for node in ast.walk(scope):
            if isinstance(node, ast.FormattedValue) and ast.unparse(node.value) in {name, f"str({name})"}:
                yield node.lineno
            elif isinstance(node, ast.Dict):
                yield from (item.lineno for item in node.values if ast.unparse(item) == f"str({name})")


def test_node_role_words_errors_of_the_system() -> None:
    sample = 'try: pass\nexcept OSError as error: raise E(f"{error}", {"error": str(error)})'
    assert list(_raw_system_errors(sample)) == [2, 2]
    room = Path(dra.__file__).parent / "node"
    raw = {str(path): lines for path in room.rglob("*.py") if (lines := list(_raw_system_errors(path.read_text())))}
    assert raw == {}
