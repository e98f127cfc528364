"""Functions with a piece taken out."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, TypeAlias

Function: TypeAlias = Callable[..., Any]


def without_each_item(function: Function) -> Iterator[tuple[str, CodeType]]:
    """A function without each item of its tuples, lists and sets that has no tuple, list or set in it.

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
    """A function with other words, wherever a text stands in it.

    Raises:
        ValueError: it stands nowhere.
    """
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
