"""The ValidatingAdmissionPolicy of a driver, its binding, their messages and YAML, and what both leave to the node."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import yaml
from msgspec import Struct, field
from msgspec.structs import replace

from dra_kit.admission.policy.cel_rules import (
    TRUE,
    CelTerm,
    KeyRule,
    ShapePart,
    all_of,
    each,
    key_rules,
    of_type,
    own,
    parts,
    string_literal,
)
from dra_kit.admission.policy.schema_reader import (
    AnyShape,
    ArrayShape,
    BooleanShape,
    DecimalShape,
    EnumShape,
    FloatShape,
    IntegerShape,
    KeyChoice,
    MapShape,
    NullShape,
    NumberBounds,
    ObjectShape,
    QuantityBounds,
    QuantityShape,
    Shape,
    StringShape,
    TaggedShape,
    UncheckedRule,
    UnionShape,
    is_distinguishable,
    members,
    read_model,
)
from dra_kit.admission.review import REVIEWED, VERSIONS
from dra_kit.author.driver import Driver
from dra_kit.author.model import AUTHOR_RELEASE
from dra_kit.client.resources import Resource
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.cel.admission import MAX_CODE_POINTS, compile_policy
from dra_kit.kubernetes.resource.config import CONFIG_FIELDS
from dra_kit.text import counted

Action = Literal["Deny", "Warn", "Audit"]
"""What happens to an object that breaks a rule."""
_MAX_BYTES: Final = 1_000_000
"""Of a policy as JSON; etcd takes 1.5 MiB, with managed fields, which name each field again."""


class PolicyObjects(Struct, frozen=True):
    """Policy, binding, and the checks that only the node makes, by ``kind (apiVersion)``."""

    policy: dict[str, Any]
    binding: dict[str, Any]
    left: Mapping[str, Sequence[UncheckedRule]]


def policy_objects(driver: Driver[Any, Any], actions: Sequence[Action] = ("Deny",)) -> PolicyObjects:
    """Return the policy of a driver's config models.

    It rejects no config that the node would accept. An expression that fails, such as one that exceeds the API server's
    cost limit for a request, is ignored (``failurePolicy: Ignore``), because the node decides in any case. ``actions``
    apply to objects that violate a rule.

    Raises:
        ConfigurationError: the models make a policy that the API server would not store.
    """
    models = driver.configs.models
    variables, checks = _of_all(driver.name, models)
    left: dict[str, Sequence[UncheckedRule]] = {}
    taken = {variable.name for variable in variables}
    for (api_version, kind), model in models.items():
        reading = read_model(model)
        title = f"{kind} ({api_version})"
        left[title] = [*reading.notes, *([_UPGRADE] if model not in driver.configs.kinds else [])]
        if isinstance(reading.shape, ObjectShape):
            shape = replace(reading.shape, keys=("apiVersion", "kind", *reading.shape.keys))
            of_kind = KindChecks(title if _versions(models, kind) > 1 else kind, taken)
            configs = f"variables.configs.filter(c, type(c) == map && {_is_kind(api_version, kind)})"
            of_kind.objects(_variable(api_version, kind, models), configs, shape)
            variables += of_kind.variables
            checks += of_kind.checks
    name = f"opaque-config.{driver.name}"
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Ignore",
            "matchConstraints": {"resourceRules": [_rule(resource) for resource in REVIEWED]},
            "matchConditions": [{
                "name": "has-config-of-this-driver",
                "expression": f"{_entries('object')}.exists(c, "
                f"c.?opaque.?driver.orValue('') == {string_literal(driver.name)})",
            }],
            "variables": [{"name": variable.name, "expression": variable.expression} for variable in variables],
            "validations": [{"expression": check.expression, "message": check.message} for check in checks],
        },
    }  # fmt: skip
    _check_limits(driver.name, policy)
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": list(actions)},
    }
    return PolicyObjects(policy, binding, left)


_UPGRADE: Final = UncheckedRule(
    "", "whether upgrade() accepts it, and everything that the newer version's validators check"
)


def _rule(resource: Resource) -> dict[str, Any]:
    return {
        "apiGroups": [resource.group], "apiVersions": list(VERSIONS), "resources": [resource.plural],
        "operations": list(REVIEWED[resource]),
    }  # fmt: skip


def _entries(of: str) -> str:
    """Return the list of configs of an object, where its kind has it."""
    paths = {kind: f"{of}." + ".".join(f"?{name}" for name in names) for kind, names in CONFIG_FIELDS.items()}
    *some, last = paths
    selected = "".join(f"request.kind.kind == {string_literal(kind)} ? {paths[kind]} : " for kind in some)
    return f"({selected}{paths[last]}).orValue([])"


def _of_all(driver: str, models: Mapping[tuple[str, str], object]) -> tuple[list[PolicyVariable], list[PolicyCheck]]:
    """Return the variables, and the rule for all of it: a known apiVersion and kind."""
    is_ours = f"c.?opaque.?driver.orValue('') == {string_literal(driver)}"
    ours = f".filter(c, {is_ours}).map(c, c.opaque.?parameters.orValue(null))"
    variables = [
        # configs that the stored object already has are not checked
        PolicyVariable("stored", f"oldObject == null ? [] : {_entries('oldObject')}{ours}"),
        PolicyVariable("configs", f"{_entries('object')}{ours}.filter(c, !(c in variables.stored))"),
    ]
    if not models:
        message = f"driver {driver} takes no configuration; remove the config entry"
        return variables, [PolicyCheck("variables.configs.size() == 0", message)]
    pairs = " || ".join(_is_kind(api_version, kind) for api_version, kind in models)
    known = " or ".join(f"{kind} of {api_version}" for api_version, kind in models)
    message = f"opaque.parameters for {driver} must be {known}"
    return variables, [PolicyCheck(f"variables.configs.all(c, type(c) == map && ({pairs}))", message)]


def _is_kind(api_version: str, kind: str) -> str:
    return (
        f"c.?apiVersion.orValue('') == {string_literal(api_version)} && c.?kind.orValue('') == {string_literal(kind)}"
    )


def _versions(models: Mapping[tuple[str, str], object], kind: str) -> int:
    return sum(other == kind for _, other in models)


def _variable(api_version: str, kind: str, models: Mapping[tuple[str, str], object]) -> str:
    """Return the name of the variable of a kind: the kind, with its version where there are several."""
    version = f"_{api_version.rpartition('/')[2]}" if _versions(models, kind) > 1 else ""
    name = "".join(char if char.isascii() and char.isalnum() else "_" for char in f"{kind}{version}")
    return f"{name[:1].lower()}{name[1:]}" if name[:1].isalpha() else f"kind_{name}"


def _check_limits(driver: str, policy: Mapping[str, Any]) -> None:
    spec = policy["spec"]
    holders = [*spec["matchConditions"], *spec["variables"], *spec["validations"]]
    longest = max(holders, key=lambda holder: len(holder["expression"]))
    remedy = "use the webhook (dra-kit webhook), or make the models smaller"
    if (length := len(longest["expression"])) > MAX_CODE_POINTS:
        what = longest.get("message") or longest.get("name")
        raise ConfigurationError(
            f"policy of {driver}: the rule {what!r} takes {length} characters of CEL, and the API server reads "
            f"{MAX_CODE_POINTS}; {remedy}"
        )
    if (size := len(json.dumps(policy))) > _MAX_BYTES:
        raise ConfigurationError(
            f"policy of {driver}: it has {size} bytes, more than the {_MAX_BYTES} that can be stored; {remedy}"
        )
    for problem in compile_policy(spec, AUTHOR_RELEASE.version, stored=False).problems:
        raise ConfigurationError(f"policy of {driver}: {problem.path} does not compile: {problem.message}; {remedy}")


_ITEM: Final = "c"
"""A config, or an object inside of one, in an expression."""
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_]")
_Within: TypeAlias = Callable[[CelTerm], CelTerm]
"""A rule for a value as a rule for all configs of the kind."""


class PolicyVariable(Struct, frozen=True):
    """A list of objects: the configs of a kind, or what they have in one field."""

    name: str
    expression: str


class PolicyCheck(Struct, frozen=True):
    """A rule for one field, and the message if it is violated."""

    expression: str
    message: str


class KindChecks(Struct):
    """The checks of configs of one apiVersion and kind.

    Attributes:
        kind: the kind as named in messages.
        taken: the names of existing variables; names of new variables are added.
        variables, checks: the generated variables and checks.
    """

    kind: str
    taken: set[str]
    variables: list[PolicyVariable] = field(default_factory=list)
    checks: list[PolicyCheck] = field(default_factory=list)

    def objects(
        self, name: str, expression: str, shape: ObjectShape | TaggedShape, path: str = "opaque.parameters"
    ) -> None:
        """Create a variable that holds the objects of ``expression``, and checks of each against ``shape``."""
        variable = self._untaken(name)
        self.variables.append(PolicyVariable(variable, expression))

        def within(term: CelTerm) -> CelTerm:
            return each(_ITEM, f"variables.{variable}", term)

        self._keys(shape, _ITEM, path, within, 0, known=True)
        for part in parts(shape, _ITEM, known=True):
            place = path + part.below
            self._own(part, place, within, 0)
            inner = _then(within, part.where_present)
            self._inside(self._without_objects(part, variable, place), part.value, place, inner, 1)

    def _without_objects(self, part: ShapePart, variable: str, path: str) -> Shape:
        """Return the checks of a part, once its objects are in a variable of their own."""
        shape = part.shape
        found = [one for one in members(shape) if isinstance(one, ObjectShape | TaggedShape)]
        if len(found) != 1 or (isinstance(shape, UnionShape) and not is_distinguishable(shape)):
            return shape
        there = all_of(part.present, of_type(part.value, "map") if part.below else TRUE)
        expression = f"variables.{variable}.filter({_ITEM}, {there.text})"
        if part.below:
            expression += f".map({_ITEM}, {part.value})"
        name = part.below.removeprefix(".") or getattr(found[0], "name", "")
        self.objects(_NO_NAME.sub("_", f"{variable}_{name}"), expression, found[0], path)
        return UnionShape(tuple(one for one in members(shape) if one is not found[0]))

    def _inside(self, shape: Shape, value: str, path: str, within: _Within, depth: int) -> None:
        """Add the checks of what is inside of a value."""
        self._keys(shape, value, path, within, depth)
        for part in parts(shape, value, depth):
            place = path + part.below
            self._own(part, place, within, depth)
            self._inside(part.shape, part.value, place, _then(within, part.where_present), depth + 1)

    def _own(self, part: ShapePart, path: str, within: _Within, depth: int) -> None:
        """Add the check of a part without what is inside; a discriminator has been checked where it stands."""
        if part.below or isinstance(part.shape, TaggedShape):
            must = f"must be {describe_shape(part.shape)}"
            if part.required:
                must = "is required" if isinstance(part.shape, AnyShape) else f"is required, and {must}"
            self._check(within(part.of_whole(own(part.shape, part.value, depth + 1))), path, must)

    def _keys(self, shape: Shape, value: str, path: str, within: _Within, depth: int, *, known: bool = False) -> None:
        for rule in key_rules(shape, value, depth, known=known):
            self._check(within(rule.rule), path, describe_keys(rule))

    def _check(self, rule: CelTerm, path: str, text: str) -> None:
        if rule != TRUE:
            self.checks.append(PolicyCheck(rule.text, f"{self.kind}: {path} {text}"))

    def _untaken(self, name: str) -> str:
        found, number = name, 1
        while found in self.taken:
            number += 1
            found = f"{name}{number}"
        self.taken.add(found)
        return found


def _then(outer: _Within, inner: _Within) -> _Within:
    return lambda term: outer(inner(term))


_WORDS: Final[dict[type[Shape], str]] = {
    AnyShape: "anything",
    NullShape: "null",
    BooleanShape: "true or false",
    DecimalShape: "a number, or a decimal number in a string",
}
_MOST_KEYS: Final = 40
"""Maximum known keys in a message."""


def describe_shape(shape: Shape) -> str:
    """Return what a value must be: ``an integer from 1 to 5, or null``."""
    match shape:
        case ArrayShape():
            return f"a list{_count(shape.min_length, shape.max_length, 'item')}"
        case MapShape():
            return f"an object{_count(shape.min_length, shape.max_length, 'key')}"
        case ObjectShape():
            return f"an object ({shape.name})"
        case TaggedShape():
            return f"an object whose {shape.key} is {describe_values(shape.tags.values)}"
        case UnionShape():
            members = sorted(shape.members, key=lambda member: isinstance(member, NullShape))
            texts = list(dict.fromkeys(describe_shape(member) for member in members))
            inside = "" if is_distinguishable(shape) else ", and right inside"
            return f"{', '.join(texts[:-1])}, or {texts[-1]}{inside}" if len(texts) > 1 else texts[0]
        case IntegerShape(bounds):
            return f"an integer{_bounds(bounds)}"
        case FloatShape(bounds):
            return f"a number{_bounds(bounds)}"
        case QuantityShape(limits):
            return f"a quantity{_bounds(limits) or ' such as 1Gi'}"
        case StringShape():
            return describe_string(shape)
        case EnumShape(values):
            return describe_values(values)
        case _:
            return _WORDS[type(shape)]


def describe_keys(rule: KeyRule) -> str:
    """Return what the keys of a value must be, as the end of a sentence that begins with its path."""
    match rule.what:
        case ObjectShape(keys=keys) if keys:
            shown = ", ".join(keys[:_MOST_KEYS]) + (", …" if len(keys) > _MOST_KEYS else "")
            return f"has an unknown field; known are {shown}"
        case ObjectShape():
            return "has an unknown field; it has none"
        case StringShape() as key:
            return f"has a key that is not {describe_string(key)}"
        case EnumShape(values):
            return f"has a key that is not {describe_values(values)}"
        case KeyChoice(keys, required):
            return f"must have {'one' if required else 'at most one'} of {', '.join(keys)}"


def describe_values(values: tuple[str | float | bool | None, ...]) -> str:
    """Return what to write, of a few values."""
    shown = [json.dumps(value, ensure_ascii=False) for value in values]
    return shown[0] if len(shown) == 1 else f"one of {', '.join(shown)}"


def describe_string(shape: StringShape) -> str:
    """Return what a string must be."""
    count = _count(shape.min_length, shape.max_length, "character")
    pattern = f" that matches {shape.pattern.written}" if shape.pattern is not None else ""
    return f"{shape.what}{' of ASCII' if shape.ascii_only else ''}{count}{pattern}"


def _count(least: int | None, most: int | None, what: str) -> str:
    if least is not None and least == most:
        return f" of {counted(least, what)}"
    if least is not None and most is not None:
        return f" of {least} to {most} {what}s"
    if most is not None:
        return f" of at most {counted(most, what)}"
    return f" of at least {counted(least, what)}" if least is not None else ""


def _bounds(bounds: NumberBounds | QuantityBounds) -> str:
    if bounds.ge is not None and bounds.le is not None and bounds.gt is None and bounds.lt is None:
        limits = [f"from {bounds.ge} to {bounds.le}"]
    else:
        names = {"of at least": bounds.ge, "above": bounds.gt, "of at most": bounds.le, "below": bounds.lt}
        limits = [f"{name} {limit}" for name, limit in names.items() if limit is not None]
    if isinstance(bounds, NumberBounds) and bounds.multiple_of is not None:
        limits.append(f"that is a multiple of {bounds.multiple_of}")
    return f" {' and '.join(limits)}" if limits else ""


_WIDTH: Final = 118
_ALWAYS: Final = (
    "duplicate keys in one object",
    "a rule that exceeds the API server's cost limit for one object (failurePolicy: Ignore)",
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
    """Return the objects as YAML for ``kubectl apply -f``."""
    documents = [_folded(objects.policy), objects.binding]
    text: str = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True)
    return "".join(f"{line}\n" for line in _comments(objects, driver)) + text


def _folded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _Folded(item) if key == "expression" else _folded(item) for key, item in value.items()}
    return [_folded(item) for item in value] if isinstance(value, list) else value


def _comments(objects: PolicyObjects, driver: str) -> Iterator[str]:
    yield from _wrapped(
        f"Generated by dra-kit policy from the config models of driver {driver}; generate it again for each release of "
        "the driver. It rejects nothing that the nodes accept. The nodes check the rest; a pod then waits with the "
        "reason in its Events:"
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
