"""The variables and validations of a policy for one config model: one for each field, with a message."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

from msgspec import Struct, field

from dra_kit.policy.expressions import TRUE, Term, all_of, each, of_type
from dra_kit.policy.rules import Part, key_rules, own, parts
from dra_kit.policy.shapes import Anything, Object, Shape, Tagged, Union, is_distinguishable, members
from dra_kit.policy.wording import of_keys, wanted

_ITEM: Final = "c"
"""A config, or an object inside of one, in an expression."""

_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_]")

_Within: TypeAlias = Callable[[Term], Term]
"""A rule for a value as a rule for all configs of the kind."""


class Variable(Struct, frozen=True):
    """A list of objects: the configs of a kind, or what they have in one field."""

    name: str
    expression: str


class Check(Struct, frozen=True):
    """A rule for one field, and the message where it is broken."""

    expression: str
    message: str


class KindChecks(Struct):
    """What is checked of the configs of one apiVersion and kind.

    Attributes:
        kind: as messages call it.
        taken: names of variables that there are already; those that are made come to them.
        variables, checks: what was made.
    """

    kind: str
    taken: set[str]
    variables: list[Variable] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    def objects(self, name: str, expression: str, shape: Object | Tagged, path: str = "opaque.parameters") -> None:
        """Make a variable of objects, and the checks of each of them.

        Args:
            name: of the variable, unless it is taken.
            expression: the objects; they are known to be objects.
            shape: what each must be.
            path: where they stand.
        """
        variable = self._untaken(name)
        self.variables.append(Variable(variable, expression))

        def within(term: Term) -> Term:
            return each(_ITEM, f"variables.{variable}", term)

        self._keys(shape, _ITEM, path, within, 0, known=True)
        for part in parts(shape, _ITEM, known=True):
            place = path + part.below
            self._own(part, place, within, 0)
            inner = _then(within, part.where_present)
            self._inside(self._without_objects(part, variable, place), part.value, place, inner, 1)

    def _without_objects(self, part: Part, variable: str, path: str) -> Shape:
        """Return the checks of a part, once its objects are in a variable of their own."""
        shape = part.shape
        found = [one for one in members(shape) if isinstance(one, Object | Tagged)]
        if len(found) != 1 or (isinstance(shape, Union) and not is_distinguishable(shape)):
            return shape
        there = all_of(part.present, of_type(part.value, "map") if part.below else TRUE)
        expression = f"variables.{variable}.filter({_ITEM}, {there.text})"
        if part.below:
            expression += f".map({_ITEM}, {part.value})"
        name = part.below.removeprefix(".") or getattr(found[0], "name", "")
        self.objects(_NO_NAME.sub("_", f"{variable}_{name}"), expression, found[0], path)
        return Union(tuple(one for one in members(shape) if one is not found[0]))

    def _inside(self, shape: Shape, value: str, path: str, within: _Within, depth: int) -> None:
        """Add the checks of what is inside of a value."""
        self._keys(shape, value, path, within, depth)
        for part in parts(shape, value, depth):
            place = path + part.below
            self._own(part, place, within, depth)
            self._inside(part.shape, part.value, place, _then(within, part.where_present), depth + 1)

    def _own(self, part: Part, path: str, within: _Within, depth: int) -> None:
        """Add the check of a part without what is inside; a discriminator has been checked where it stands."""
        if part.below or isinstance(part.shape, Tagged):
            must = f"must be {wanted(part.shape)}"
            if part.required:
                must = "is required" if isinstance(part.shape, Anything) else f"is required, and {must}"
            self._check(within(part.of_whole(own(part.shape, part.value, depth + 1))), path, must)

    def _keys(self, shape: Shape, value: str, path: str, within: _Within, depth: int, *, known: bool = False) -> None:
        for rule in key_rules(shape, value, depth, known=known):
            self._check(within(rule.rule), path, of_keys(rule))

    def _check(self, rule: Term, path: str, text: str) -> None:
        if rule != TRUE:
            self.checks.append(Check(rule.text, f"{self.kind}: {path} {text}"))

    def _untaken(self, name: str) -> str:
        found, number = name, 1
        while found in self.taken:
            number += 1
            found = f"{name}{number}"
        self.taken.add(found)
        return found


def _then(outer: _Within, inner: _Within) -> _Within:
    return lambda term: outer(inner(term))
