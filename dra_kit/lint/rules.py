"""The rules: what each finding is about, and whether it fails the check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Level: TypeAlias = Literal["error", "warning"]
"""``error``: the API server refuses it, or it cannot work. ``warning``: it is most likely not what is meant."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule.

    Attributes:
        id: its name in output; never changes its meaning.
        level: how bad a finding is.
        about: what is found, in one sentence.
    """

    id: str
    level: Level
    about: str


_FILES: Final = (
    Rule("syntax", "error", "The file is no YAML and no JSON."),
    Rule(
        "duplicate-key", "warning", "A key stands twice in one mapping: kubectl takes the last one, and says nothing."
    ),
    Rule("not-an-object", "warning", "A document has neither apiVersion nor kind, so that it was not checked."),
    Rule("unknown-kind", "error", "The apiVersion and kind of an object do not fit each other, or one is misspelt."),
    Rule("deprecated-version", "warning", "The apiVersion is an old one that a later Kubernetes does not serve."),
)
_STRUCTURE: Final = (
    Rule("unknown-field", "error", "The API has no such field there: kubectl refuses it, other clients lose it."),
    Rule("wrong-type", "error", "A value has a type that the field cannot hold."),
    Rule("invalid-value", "error", "A value breaks a rule of the API server: a limit, a format, a missing field."),
    Rule("zero-count", "warning", "A request asks for no device, which the API server takes for one."),
    Rule("feature-gate", "warning", "A field is dropped by an API server whose feature gate for it is off."),
)
_COMPILING: Final = (
    Rule("cel-compile", "error", "A CEL expression does not compile."),
    Rule("cel-cost", "error", "A CEL expression is too long or may cost too much: the API server refuses it."),
    Rule("single-equals", "error", "`=`, `===` or `=~` where CEL compares with `==` or `matches()`."),
    Rule("word-operator", "error", "`and`, `or`, `not` or `is` where CEL has `&&`, `||`, `!` and `==`."),
    Rule("python-constant", "error", "`True`, `False` or `None` where CEL has `true`, `false` and `null`."),
    Rule("missing-device", "error", "`attributes`, `capacity` or `driver` without `device.` before it."),
    Rule("unknown-device-field", "error", "`device` has no such field."),
    Rule("unknown-function", "error", "CEL has no function of that name."),
    Rule("hyphenated-name", "error", "A name with a hyphen, which CEL reads as a subtraction."),
    Rule("attribute-without-domain", "error", "An attribute or capacity without the domain it belongs to."),
    Rule("domain-with-name", "error", "A qualified name used as domain: the name goes behind the bracket."),
    Rule("quantity-comparison", "error", "A quantity compared with `<`, or with a number or text."),
    Rule("quantity-argument", "error", "A text or number where a function takes a quantity."),
    Rule("version-comparison", "error", "A version compared with `<`, or a text where a function takes a version."),
    Rule("version-as-text", "warning", "What looks like a version is compared as a text."),
    Rule("sign-method", "error", "`sign` called as a method; it is a function."),
    Rule("list-attribute", "error", "`includes` or a macro on an attribute, which needs DRAListTypeAttributes."),
    Rule("invalid-constant", "error", "A text that is no quantity, or no semantic version."),
)
_DEVICES: Final = (
    Rule("foreign-devices", "warning", "A selector fails for devices of other drivers, and with it the allocation."),
    Rule("unknown-driver", "warning", "No driver of that name is known."),
    Rule("unknown-domain", "warning", "No device has attributes or capacities in that domain."),
    Rule("missing-domain", "error", "A selector fails, because no device has anything in a domain that it reads."),
    Rule("unknown-attribute", "error", "No device has that attribute."),
    Rule("unknown-capacity", "error", "No device has that capacity."),
    Rule("attribute-type", "error", "An attribute is compared with a value of another type."),
    Rule("optional-attribute", "error", "A selector fails for a device that lacks an attribute or capacity."),
    Rule("cel-runtime", "error", "A selector fails for a device for some other reason."),
    Rule("matches-nothing", "warning", "No device matches the selectors of a class or request."),
    Rule("too-few-devices", "warning", "A request asks for more devices than match it."),
    Rule("opaque-config", "error", "Opaque configuration that the driver refuses."),
)
_REFERENCES: Final = (
    Rule("unknown-class", "warning", "A request names a DeviceClass that is not known."),
    Rule("unknown-claim", "error", "A container names a claim that its pod does not have."),
    Rule("unknown-request", "error", "A container names a request that the claim does not have."),
    Rule("unused-claim", "warning", "No container of a pod uses one of its claims."),
    Rule("unused-request", "warning", "No container of a pod uses one of the requests of its claim."),
    Rule(
        "whole-claim", "warning", "A container names a claim whose requests are configured differently, and no request."
    ),
    Rule("claim-reference", "error", "A pod names a claim as a template, a template as a claim, or both, or neither."),
    Rule("missing-claim", "warning", "A pod names a claim or template that the files have under another name."),
)

GROUPS: Final = {
    "Files": _FILES,
    "Structure": _STRUCTURE,
    "CEL": _COMPILING,
    "Devices": _DEVICES,
    "References": _REFERENCES,
}
"""All rules, by what they look at."""

RULES: Final = {rule.id: rule for group in GROUPS.values() for rule in group}
"""All rules by id."""
