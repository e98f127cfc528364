"""Mistakes that are visible in the text of an expression, without devices."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Final

from msgspec import Struct

from dra_kit.diagnosis.selector_mistakes.expression import (
    COMPARISONS,
    EQUAL,
    ORDERED,
    SWAPPED,
    ManifestExpression,
    Mistake,
    Read,
    Replacement,
    comparison_of,
    constant_text,
    is_number,
    operator_span,
    quoted,
    read_of,
    reads,
    replacing,
    string_constant,
    value_read,
)
from dra_kit.kubernetes.cel.device import DEVICE_FIELDS
from dra_kit.kubernetes.cel.environment import functions
from dra_kit.kubernetes.cel.tree import CallNode, ComprehensionNode, IdentNode, LiteralNode, SelectNode, SyntaxNode
from dra_kit.kubernetes.values.quantity import InvalidQuantity, Quantity
from dra_kit.kubernetes.values.semver import Version
from dra_kit.text import did_you_mean, suggest_names, unambiguous_correction

_METHODS: Final = {">": "isGreaterThan", "<": "isLessThan"}
COMPARING: Final = frozenset({"isGreaterThan", "isLessThan", "compareTo"})
"""Methods of quantities and versions that take another one."""
_OF_QUANTITIES: Final = frozenset({"add", "asApproximateFloat", "asInteger", "isInteger", "sub"})
"""Methods that only quantities have."""
_TYPES: Final = {int: "int", float: "double", str: "string"}
_DECIMAL: Final = frozenset("kMGTPE")
"""Suffixes of powers of 1000; each has a counterpart for powers of 1024."""


def is_quantity(node: SyntaxNode) -> bool:
    """Return whether a node is certainly a quantity: a capacity, or created by ``quantity()``."""
    read = value_read(node)
    if read is not None:
        return read.kind == "capacity"
    return _is_made_by("quantity", node)


def _is_made_by(function: str, node: SyntaxNode) -> bool:
    return isinstance(node, CallNode) and node.function == function and node.target is None


def quantity_comparison(node: SyntaxNode, expression: ManifestExpression) -> Iterator[Mistake]:
    """``capacity >= 80``, ``capacity == "80Gi"``, ``capacity > quantity("80Gi")``."""
    sides = comparison_of(node, is_quantity)
    if sides is None:
        return
    quantity, operator, right = sides
    if operator in EQUAL.values() and is_quantity(right):
        return
    if (read := value_read(right)) is not None and read.kind == "attributes":
        return  # an attribute is never a quantity
    if any(any(attribute_field(side, expression)) for side in (quantity, right)):
        return
    other = "another quantity" if is_quantity(right) else _described(right)
    begin, end = operator_span(node, expression)
    text = expression.text
    wish = compared(quantity.text(text), operator, _as_quantity(right, text))
    message = f"a quantity cannot be compared with {other} by {text[begin:end]}"
    # a number without unit is ambiguous
    sure = is_quantity(right) or _has_unit(right)
    fix = replacing(node, wish) if sure and _is_whole(node, expression) else ()
    yield Mistake("quantity-comparison", begin, end, message, f"write {wish}", fix)


def quantity_argument(node: SyntaxNode, expression: ManifestExpression) -> Iterator[Mistake]:
    """``capacity.isGreaterThan("80Gi")`` and ``quantity(80)``."""
    if not isinstance(node, CallNode) or len(node.arguments) != 1:
        return
    text, argument = expression.text, node.arguments[0]
    given = _as_quantity(argument, text)
    if is_number(argument) and _is_made_by("quantity", node):
        yield Mistake("quantity-argument", argument.start, argument.end, "quantity() takes a string", f"write {given}")
    elif (
        node.function in COMPARING
        and node.target is not None
        and is_quantity(node.target)
        and isinstance(argument, LiteralNode)
    ):
        message = f"{node.function} of a quantity takes a quantity, not {_described(argument)}"
        wish = f"write {node.target.text(text)}.{node.function}({given})"
        fix = replacing(argument, given) if _has_unit(argument) else ()
        yield Mistake("quantity-argument", argument.start, argument.end, message, wish, fix)


class CapacityUse(Struct, frozen=True):
    """A comparison of an attribute with a quantity, a string with a unit, or a number.

    Attributes:
        read: the attribute.
        node: the comparison.
        text: the same comparison for a capacity of that name.
        is_quantity: whether it can only be meant for a capacity.
        fix: the edit that writes ``text``; empty for numbers, which have no unit.
    """

    read: Read
    node: SyntaxNode
    text: str
    is_quantity: bool
    fix: tuple[Replacement, ...]


def capacity_use(node: SyntaxNode, expression: ManifestExpression) -> CapacityUse | None:
    """Return the use of an attribute as if it were a capacity; None for any other node."""
    text = expression.text
    if sides := comparison_of(node, _attribute):
        left, operator, right = sides
        read, given = _attribute(left), _as_quantity(right, text)
        if read is None or not (_is_made_by("quantity", right) or _has_unit(right) or is_number(right)):
            return None
        capacity = _of_capacity(read, text)
        is_equality = operator in EQUAL.values()
        whole = f"{capacity} {operator} {given}" if is_equality else compared(capacity, operator, given)
        sure = not is_number(right) and _is_whole(node, expression)
        return CapacityUse(read, node, whole, _is_made_by("quantity", right), replacing(node, whole) if sure else ())
    return _capacity_method(node, expression) if isinstance(node, CallNode) and node.target is not None else None


def _capacity_method(node: CallNode, expression: ManifestExpression) -> CapacityUse | None:
    """``attribute.compareTo(quantity(…))``, ``quantity(…).compareTo(attribute)`` and ``attribute.asInteger()``."""
    text, target = expression.text, node.target
    read, whole = _attribute(target) if target is not None else None, ""
    if read is not None and node.function in _OF_QUANTITIES and len(node.arguments) <= 1:
        given = "".join(argument.text(text) for argument in node.arguments)
        whole = f"{_of_capacity(read, text)}.{node.function}({given})"
    elif node.function in COMPARING and len(node.arguments) == 1 and target is not None:
        argument = node.arguments[0]
        if read is not None and (_is_made_by("quantity", argument) or _has_unit(argument)):
            whole = f"{_of_capacity(read, text)}.{node.function}({_as_quantity(argument, text)})"
        elif (read := _attribute(argument)) is not None and _is_made_by("quantity", target):
            whole = f"{target.text(text)}.{node.function}({_of_capacity(read, text)})"
    if read is None or not whole:
        return None
    fix = replacing(node, whole) if _is_whole(node, expression) else ()
    return CapacityUse(read, node, whole, is_quantity=True, fix=fix)


def _attribute(node: SyntaxNode) -> Read | None:
    read = value_read(node)
    return read if read is not None and read.kind == "attributes" else None


def _of_capacity(read: Read, text: str) -> str:
    return read.node.text(text).replace("device.attributes", "device.capacity", 1)


def attribute_quantity(node: SyntaxNode, expression: ManifestExpression) -> Iterator[Mistake]:
    """``attribute >= quantity("80Gi")`` and ``attribute.compareTo(quantity("80Gi"))``."""
    use = capacity_use(node, expression)
    if use is not None and use.is_quantity:
        name = use.read.name or "it"
        message = "an attribute is a string, a number, a boolean or a version, and never a quantity"
        yield Mistake("attribute-quantity", node.start, node.end, message, f"if {name} is a capacity, write {use.text}")


def quantity_as_text(node: SyntaxNode, expression: ManifestExpression) -> Iterator[Mistake]:
    """``attribute >= "80Gi"``."""
    use, sides = capacity_use(node, expression), comparison_of(node, _attribute)
    if use is None or sides is None or sides[1] not in ORDERED.values() or not _has_unit(sides[2]):
        return
    text = expression.text
    message = f'{sides[1]} compares strings character by character ("100Gi" < "40Gi"), and fails for other attributes'
    of_string = compared(f"quantity({sides[0].text(text)})", sides[1], _as_quantity(sides[2], text))
    wish = f"if {use.read.name or 'it'} is a capacity, write {use.text}; if it is a string, write {of_string}"
    yield Mistake("quantity-as-text", node.start, node.end, message, wish)


_VALUE_FIELDS: Final = frozenset({
    "string", "int", "bool", "version", "value", "strings", "ints", "bools", "versions",
    "StringValue", "IntValue", "BoolValue", "VersionValue", "stringValue", "intValue", "boolValue", "versionValue",
})  # fmt: skip
"""Fields that the value of an attribute or capacity has in a ResourceSlice or in Go, and not in CEL."""


def attribute_field(node: SyntaxNode, expression: ManifestExpression) -> Iterator[Mistake]:
    """``attribute.bool == true`` and ``capacity.value``."""
    if not isinstance(node, SelectNode) or node.field not in _VALUE_FIELDS:
        return
    if (unqualified := read_of(node)) is not None and is_attribute_name(unqualified, expression):
        yield _without_domain(unqualified, expression)
        return
    read, text = read_of(node.operand), expression.text
    is_test = isinstance(node.operand, SelectNode) and node.operand.test_only
    if read is None or read.last or is_test or (read.kind == "capacity" and node.field != "value"):
        return
    whole = read.node.text(text)
    start = text.find(node.field, node.operand.end, node.end)
    message = f"{read.name or 'it'} has no .{node.field} in CEL: an attribute or capacity is its value"
    fix = replacing(node, whole) if not node.test_only and start >= 0 else ()
    wish = f"write has({whole})" if node.test_only else f"write {whole}"
    yield Mistake("attribute-field", max(start, node.start), node.end, message, wish, fix)


def sign_method(node: SyntaxNode, expression: ManifestExpression) -> Iterator[Mistake]:
    """``capacity.sign()``."""
    if isinstance(node, CallNode) and node.function == "sign" and node.target is not None and not node.arguments:
        begin, end = operator_span(node, expression)
        whole = f"sign({node.target.text(expression.text)})"
        fix = replacing(node, whole) if _is_whole(node, expression) else ()
        yield Mistake("sign-method", begin, end, "sign is a function, not a method", f"write {whole}", fix)


def invalid_constant(node: SyntaxNode, _: ManifestExpression) -> Iterator[Mistake]:
    """``quantity("80 GB")`` and ``semver("1.2")``."""
    if not isinstance(node, CallNode) or len(node.arguments) != 1:
        return
    argument = node.arguments[0]
    constant = string_constant(argument)
    if constant is None:
        return
    if node.function == "quantity" and not _is_quantity_text(constant):
        what, wish = "quantity", f"write a number and a suffix, such as {_nearest(constant)}"
    elif node.function == "semver" and not is_version(constant):
        what, wish = "semantic version", f"write all three numbers: {as_version(constant)}"
    else:
        return
    message = f"{json.dumps(constant)} is not a {what}"
    yield Mistake("invalid-constant", argument.start, argument.end, message, wish)


def _is_quantity_text(text: str) -> bool:
    try:
        Quantity(text)
    except InvalidQuantity:
        return False
    return True


def _has_unit(node: SyntaxNode) -> bool:
    """Return whether it is a string with a quantity that has a unit, such as "80Gi"."""
    constant = string_constant(node) or ""
    return constant[-1:].isalpha() and _is_quantity_text(constant)


def _is_whole(node: SyntaxNode, expression: ManifestExpression) -> bool:
    """Return whether the text of a node is the node alone; parentheses do not belong to it."""
    text = node.text(expression.text)
    return text.count("(") == text.count(")")


def _nearest(text: str) -> str:
    """Return the quantities that a string may mean: ``80 GB`` is ``80G`` or ``80Gi``, ``80 GiB`` is ``80Gi``."""
    tried = text.replace(" ", "").removesuffix("B").removesuffix("b")
    for candidate in (tried, tried.capitalize(), tried.upper()):
        if _is_quantity_text(candidate):
            if candidate[-1] in _DECIMAL:
                return f"{json.dumps(candidate)} or {json.dumps(f'{candidate[:-1]}{candidate[-1].upper()}i')}"
            return json.dumps(candidate)
    return '"80Gi"'


def _described(node: SyntaxNode) -> str:
    kind = _TYPES.get(type(node.value)) if isinstance(node, LiteralNode) else None
    return f"{'an' if kind == 'int' else 'a'} {kind}" if kind else "that"


def _as_quantity(node: SyntaxNode, text: str) -> str:
    constant = constant_text(node)
    return node.text(text) if constant is None else f"quantity({json.dumps(constant)})"


_STRINGS: Final = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'', re.DOTALL)
_WORDS: Final = {"and": "&&", "or": "||", "not": "!", "is": "==", "like": "matches()", "equals": "=="}
_WORD: Final = re.compile(rf"(?<![\w.])({'|'.join(_WORDS)})(?![\w(])", re.IGNORECASE)
_EQUALS: Final = re.compile(r"===|!==|=~|(?<![=!<>])=(?!=)|<>")
_SIGNS: Final = {"===": "==", "!==": "!=", "=": "==", "<>": "!=", "=~": ".matches()"}
_CONSTANTS: Final = {"True": "true", "False": "false", "None": "null", "TRUE": "true", "FALSE": "false", "nil": "null"}
_MACROS: Final = frozenset({"all", "exists", "exists_one", "filter", "has", "map", "bind", "sortBy"})
_SYNONYMS: Final = {
    "len": "size", "length": "size", "count": "size", "lower": "lowerAscii", "tolower": "lowerAscii",
    "tolowercase": "lowerAscii", "upper": "upperAscii", "toupper": "upperAscii", "asint": "asInteger",
    "toint": "asInteger", "asnumber": "asApproximateFloat", "asfloat": "asApproximateFloat", "match": "matches",
    "regex": "matches", "isgreater": "isGreaterThan", "isless": "isLessThan", "compare": "compareTo",
    "substr": "substring", "version": "semver", "semantic": "semver",
}  # fmt: skip


def single_equals(expression: ManifestExpression) -> Iterator[Mistake]:
    """``model = "x"``, ``model === "x"``, ``model =~ "x.*"``."""
    for match in _unparsed(expression, _EQUALS):
        sign = _SIGNS[match[0]]
        fix = () if match[0] == "=~" else (Replacement(match.start(), match.end(), sign),)
        yield Mistake("single-equals", match.start(), match.end(), f"CEL has no {match[0]}", f"write {sign}", fix)


def word_operator(expression: ManifestExpression) -> Iterator[Mistake]:
    """Yield a mistake for each operator that is a word: ``a and b``, ``not a``."""
    for match in _unparsed(expression, _WORD):
        sign = _WORDS[match[1].lower()]
        # not and is have another precedence than ! and ==
        fix = (Replacement(match.start(), match.end(), sign),) if sign in {"&&", "||"} else ()
        yield Mistake(
            "word-operator", match.start(), match.end(), f"CEL has no operator {match[1]}", f"write {sign}", fix
        )


def _unparsed(expression: ManifestExpression, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    return pattern.finditer(_STRINGS.sub(lambda match: '"' * len(match[0]), expression.text))


def python_constant(node: SyntaxNode, _: ManifestExpression) -> Iterator[Mistake]:
    """``x == True``."""
    if isinstance(node, IdentNode) and node.name in _CONSTANTS:
        message = f"{node.name} is not known to CEL"
        word = _CONSTANTS[node.name]
        yield Mistake("python-constant", node.start, node.end, message, f"write {word}", replacing(node, word))


def missing_device(expression: ManifestExpression) -> Iterator[Mistake]:
    """``attributes["d"].model`` and ``driver == "d"``."""
    bound = {node.accumulator for node in expression.nodes() if isinstance(node, ComprehensionNode)}
    for node in expression.nodes():
        if isinstance(node, IdentNode) and node.name in DEVICE_FIELDS and node.name not in bound:
            message, wish = f"{node.name} is a field of device", f"device.{node.name}"
            yield Mistake("missing-device", node.start, node.end, message, f"write {wish}", replacing(node, wish))


def unknown_device_field(node: SyntaxNode, expression: ManifestExpression) -> Iterator[Mistake]:
    """``device.model``."""
    if not isinstance(node, SelectNode) or not isinstance(node.operand, IdentNode) or node.operand.name != "device":
        return
    if node.field not in DEVICE_FIELDS:
        start = expression.text.find(node.field, node.place, node.end)
        wish = did_you_mean(node.field, DEVICE_FIELDS).removeprefix("; ")
        wish = wish or f'an attribute is device.attributes["<driver>"].{node.field}'
        message = f"device has no field {node.field}; it has {', '.join(DEVICE_FIELDS)}"
        suggestion = unambiguous_correction(node.field, DEVICE_FIELDS)
        fix = (Replacement(start, start + len(node.field), suggestion),) if suggestion and start >= 0 else ()
        yield Mistake("unknown-device-field", max(start, node.start), node.end, message, wish, fix)


def unknown_function(node: SyntaxNode, expression: ManifestExpression) -> Iterator[Mistake]:
    """``model.startswith("x")``, ``len(model)``."""
    if not isinstance(node, CallNode) or not re.fullmatch(r"[A-Za-z]\w*", node.function):
        return
    if expression.declarations.overloads(node.function) or node.function in functions():
        return
    if any(name.endswith(f".{node.function}") for name in functions()):
        return
    synonym = _SYNONYMS.get(node.function.lower().replace("_", ""))
    names = [name for name in (*functions(), *_MACROS) if name.isidentifier()]
    near = suggest_names(node.function, names)
    wish = f"write {synonym}" if synonym else near or "see docs/reference/cel.md"
    begin, end = operator_span(node, expression)
    if node.target is None:
        begin, end = node.start, node.start + len(node.function)
    suggestion = unambiguous_correction(node.function, names)
    sure = suggestion and expression.text[begin:end] == node.function
    fix = (Replacement(begin, end, suggestion),) if sure else ()
    yield Mistake("unknown-function", begin, end, f"CEL has no function {node.function}", wish, fix)


def hyphenated_name(node: SyntaxNode, expression: ManifestExpression) -> Iterator[Mistake]:
    """``device.attributes["d"].gpu-model``."""
    if not (isinstance(node, CallNode) and node.function == "_-_" and len(node.arguments) == 2):
        return
    left, right = node.arguments
    tight = expression.text[left.end : right.start] == "-"
    if tight and isinstance(left, SelectNode) and isinstance(right, IdentNode) and read_of(left) is not None:
        name = f"{left.field}-{right.name}"
        message = f"{name} is read as {left.field} minus {right.name}: names of attributes have no hyphens"
        begin = left.end - len(left.field)
        yield Mistake("hyphenated-name", begin, right.end, message, f"write {name.replace('-', '_')}")


_NUMBERS: Final = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?")


def version_comparison(node: SyntaxNode, expression: ManifestExpression) -> Iterator[Mistake]:
    """``attribute > semver("1.2.3")`` and ``attribute.isGreaterThan("1.2.3")``."""
    text = expression.text
    if sides := comparison_of(node, partial(_is_made_by, "semver")):
        version, operator, other = sides
        if operator not in EQUAL.values():
            begin, end = operator_span(node, expression)
            whole = compared(other.text(text), SWAPPED[operator], version.text(text))
            fix = replacing(node, whole) if value_read(other) is not None else ()
            message = f"versions have no {text[begin:end]}"
            yield Mistake("version-comparison", begin, end, message, f"write {whole}", fix)
    elif isinstance(node, CallNode) and node.function in COMPARING and len(node.arguments) == 1:
        read = value_read(node.target) if node.target is not None else None
        argument = node.arguments[0]
        constant = constant_text(argument)
        if read is not None and read.kind == "attributes" and constant is not None:
            message = f"{node.function} takes a version, not {json.dumps(constant)} as string or number"
            given = as_version(constant)
            wish = f"write {read.node.text(text)}.{node.function}({given})"
            fix = replacing(argument, given) if string_constant(argument) is not None and is_version(constant) else ()
            yield Mistake("version-comparison", argument.start, argument.end, message, wish, fix)


def version_as_text(node: SyntaxNode, expression: ManifestExpression) -> Iterator[Mistake]:
    """``attribute >= "1.2.3"``: fails for a version, and compares the characters of a string."""
    sides = comparison_of(node, value_read)
    if sides is None or sides[1] not in ORDERED.values():
        return
    left, operator, right = sides
    read, constant = value_read(left), string_constant(right)
    if read is not None and read.kind == "attributes" and constant is not None and is_version(constant):
        text = expression.text
        begin, end = operator_span(node, expression)
        message = f'{text[begin:end]} compares strings character by character ("10" < "9"), and fails for versions'
        wish = f"if it is a version, write {compared(left.text(text), operator, as_version(constant))}"
        yield Mistake("version-as-text", begin, end, message, wish)


def as_version(constant: str) -> str:
    """Return a version as CEL: ``1.2`` is ``semver("1.2.0")``."""
    if not is_version(constant):
        match = _NUMBERS.fullmatch(constant)
        parts = [str(int(part or 0)) for part in match.groups()] if match else ["1", "2", "3"]
        constant = ".".join(parts)
    return f"semver({json.dumps(constant)})"


def compared(left: str, operator: str, right: str) -> str:
    """Return the comparison of two versions or quantities in CEL."""
    method = _METHODS.get(operator)
    return f"{left}.{method}({right})" if method else f"{left}.compareTo({right}) {operator} 0"


def is_version(text: str) -> bool:
    """Return whether a string is a semantic version."""
    try:
        Version(text)
    except ValueError:
        return False
    return True


SOME_DRIVER: Final = "<driver>"
"""Placeholder in a remedy for a driver that the expression does not name."""
_OF_OPTIONALS: Final = frozenset({"orValue", "or", "hasValue", "value"})


def attribute_without_domain(node: SyntaxNode, expression: ManifestExpression) -> Iterator[Mistake]:
    """``device.attributes["model"] == "x"``, ``device.attributes.model == "x"``, and calls of methods on them."""
    if not isinstance(node, CallNode):
        return
    used: list[SyntaxNode] = []
    if node.function in COMPARISONS:
        used = node.arguments
    elif node.target is not None and node.function not in _OF_OPTIONALS:
        used = [node.target]
    for side in used:
        read = read_of(side)
        if read is not None and read.last and not read.tested and read.domain and "/" not in read.domain:
            yield _without_domain(read, expression)


def _without_domain(read: Read, expression: ManifestExpression) -> Mistake:
    message = f"{read.domain} is in the place of the domain, which is mostly the driver's name"
    if read.name:
        message += f"; an attribute or capacity is its value, without .{read.name}"
    wish = f'write device.{read.kind}["{SOME_DRIVER}"].{read.domain}'
    whole = f"device.{read.kind}[{quoted(SOME_DRIVER, expression.text)}].{read.domain}"
    plain = read.domain is not None and read.domain.isidentifier() and read.domain.isascii()
    fix = replacing(read.node, whole) if plain else ()
    return Mistake("attribute-without-domain", *read.domain_span(), message, wish, fix)


def is_attribute_name(read: Read, expression: ManifestExpression) -> bool:
    """Return whether the domain of a read is a name, because ``.string`` or the like is after it."""
    if read.last or read.tested or not read.domain or read.name not in _VALUE_FIELDS or re.search(r"[./]", read.domain):
        return False
    constants = [string_constant(node) for node in expression.nodes() if node is not read.domain_node]
    return read.domain not in constants  # as in device.driver == "gpu"


def domain_with_name(expression: ManifestExpression) -> Iterator[Mistake]:
    """``device.attributes["gpu.example.com/model"]``."""
    seen = set()
    for read in reads(expression):
        if read.domain and "/" in read.domain and read.domain_span() not in seen:
            seen.add(read.domain_span())
            domain, _, name = read.domain.partition("/")
            message = f"no domain contains a slash, so {read.domain} is never found"
            has_field = not read.last and not read.tested and read.name in _VALUE_FIELDS
            if has_field:
                message += f"; an attribute or capacity is its value, without .{read.name}"
            wish = f'write device.{read.kind}["{domain}"].{name}'
            if read.tested and read.last:
                wish = f'write "{name}" in device.{read.kind}["{domain}"]'
            plain = (read.last or has_field) and not read.tested and name.isidentifier() and name.isascii()
            whole = f"device.{read.kind}[{quoted(domain, expression.text)}].{name}"
            fix = replacing(read.node, whole) if plain else ()
            yield Mistake("domain-with-name", *read.domain_span(), message, wish, fix)


_WITH_LISTS: Final = "; dra-kit lint --alpha checks for an API server with lists"


def name_with_domain(expression: ManifestExpression) -> Iterator[Mistake]:
    """``device.attributes["gpu.example.com"]["gpu.example.com/model"]``."""
    for read in reads(expression):
        if read.name and "/" in read.name and not read.tested and not read.last:
            domain, _, name = read.name.partition("/")
            message = f"no name contains a slash, so {read.name} is never found"
            whole = f"device.{read.kind}[{quoted(domain, expression.text)}].{name}"
            fix = replacing(read.node, whole) if name.isidentifier() and name.isascii() else ()
            yield Mistake("domain-with-name", *read.name_span(expression.text), message, f"write {whole}", fix)


_PLAIN_QUANTITY: Final = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:[KMGTPE]i|[kMGTPE])(?!\w)")


def plain_quantity(expression: ManifestExpression) -> Iterator[Mistake]:
    """``device.capacity["d"].memory >= 40Gi``."""
    for match in _unparsed(expression, _PLAIN_QUANTITY):
        message = f"{match[0]} is not a constant of CEL, which has quantities only as strings"
        wish = f'write quantity("{match[0]}"), and compare it by compareTo'
        yield Mistake("quantity-argument", match.start(), match.end(), message, wish)


def list_attribute(node: SyntaxNode, expression: ManifestExpression) -> Iterator[Mistake]:
    """``attribute.includes(x)`` and ``attribute.exists(x, …)`` where attributes are not lists."""
    if expression.declarations.list_type_attributes:
        return
    text = expression.text
    if isinstance(node, CallNode) and node.function == "includes" and node.target is not None:
        begin, end = operator_span(node, expression)
        argument = node.arguments[0].text(text) if node.arguments else "…"
        message = "the API server accepts includes only if its feature gate DRAListTypeAttributes is on"
        wish = f"for a string, write {node.target.text(text)}.contains({argument}){_WITH_LISTS}"
        yield Mistake("list-attribute", begin, end, message, wish)
    elif isinstance(node, ComprehensionNode) and not node.is_bind:
        read = read_of(node.iteration_range)
        if read is not None and read.kind == "attributes" and not read.last:
            message = "attributes are lists only if the feature gate DRAListTypeAttributes is on"
            wish = f"compare the value itself: {node.iteration_range.text(text)} == …{_WITH_LISTS}"
            yield Mistake("list-attribute", node.place, node.place + 1, message, wish)
