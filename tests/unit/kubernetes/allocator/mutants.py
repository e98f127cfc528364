"""Functions with a part removed."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, TypeAlias

Function: TypeAlias = Callable[..., Any]


def without_each_item(function: Function) -> Iterator[tuple[str, CodeType]]:
    """Remove each innermost item of a function's tuples, lists and sets.

    Yields:
        The name of the function with the text of the item, and the code.
    """
    tree = _tree(function)
    for node in ast.walk(tree):
        for place, item in enumerate(_items(node)):
            if not any(_items(inner) for inner in ast.walk(item)):
                del _items(node)[place]
                yield f"{function.__qualname__}: {ast.unparse(item)}", _code(ast.unparse(tree), function)
                _items(node).insert(place, item)


def with_text(function: Function, text: str, instead: str) -> CodeType:
    """Replace a text in the source of a function; raises ValueError if it does not occur."""
    source = ast.unparse(_tree(function))
    if text not in source:
        raise ValueError(f"{function.__qualname__}: {text!r} is not in its source")
    return _code(source.replace(text, instead), function)


def _tree(function: Function) -> ast.Module:
    return ast.parse(textwrap.dedent(inspect.getsource(function)))


def _items(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Set) or (isinstance(node, ast.Tuple | ast.List) and isinstance(node.ctx, ast.Load)):
        return node.elts
    return []


def _code(source: str, function: Function) -> CodeType:
    found: dict[str, FunctionType] = {}
    exec(source, function.__globals__, found)  # noqa: S102 - it is the project's own
    return found[function.__name__].__code__
