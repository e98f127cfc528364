"""The policy and its binding as YAML, with what they leave to the node as comments on top."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any, Final

import yaml

from dra_kit.policy.objects import PolicyObjects

_WIDTH: Final = 118
_ALWAYS: Final = (
    "keys that stand twice in one object",
    "a rule that costs more than the API server spends on one object (failurePolicy: Ignore)",
)


class _Folded(str):
    """A text that YAML folds over several lines, without quotes."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    """Writes expressions folded, and no anchors."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - of the base class
        """Return True: every part is written where it stands."""
        return True


_Dumper.add_representer(_Folded, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style=">"))


def manifest(objects: PolicyObjects, driver: str) -> str:
    """Return what ``kubectl apply -f`` takes.

    Args:
        objects: to be written.
        driver: its name.
    """
    documents = [_folded(objects.policy), objects.binding]
    text: str = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True)
    return "".join(f"{line}\n" for line in _comments(objects, driver)) + text


def _folded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _Folded(item) if key == "expression" else _folded(item) for key, item in value.items()}
    return [_folded(item) for item in value] if isinstance(value, list) else value


def _comments(objects: PolicyObjects, driver: str) -> Iterator[str]:
    yield from _wrapped(
        f"Made by dra-kit policy from the config models of driver {driver}; make it again with each release of the "
        "driver. It refuses nothing that the nodes take. Left to the nodes, where a pod waits with the reason in its "
        "Events:"
    )
    for kind, notes in objects.left.items():
        if notes:
            yield f"#   {_plain(kind)}"
        for note in notes:
            path = f"{note.path}: " if note.path else ""
            yield from _wrapped(_plain(f"{path}{note.text}"), indent=4)
    yield "#   every config" if objects.left else "#   nothing"
    for text in _ALWAYS if objects.left else ():
        yield from _wrapped(text, indent=4)


def _wrapped(text: str, indent: int = 0) -> Iterator[str]:
    first = f"# {' ' * indent}"
    following = f"{first}  " if indent else first
    yield from textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=following, break_long_words=False, break_on_hyphens=False
    )


def _plain(text: str) -> str:
    """Return a text that ends no comment: patterns and aliases are the author's."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
