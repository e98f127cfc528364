"""The rules: what each finding is about, and whether it fails the check."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import Struct

Level: TypeAlias = Literal["error", "warning"]
"""``error``: the API server refuses it, or it cannot work. ``warning``: it is most likely not what is intended."""


class Rule(Struct, frozen=True):
    """A rule.

    Attributes:
        id: its name in output; never changes its meaning.
        level: how bad a finding is.
        about: what is found, in one sentence.
        mends: what ``--fix`` writes where it is sure; empty if it never is.
    """

    id: str
    level: Level
    about: str
    mends: str = ""


_FILES: Final = (
    Rule("syntax", "error", "The file is no YAML and no JSON."),
    Rule(
        "duplicate-key", "warning", "A key stands twice in one mapping: kubectl takes the last one, and says nothing."
    ),
    Rule("not-an-object", "warning", "A document has neither apiVersion nor kind, so that it was not checked."),
    Rule(
        "unknown-kind",
        "error",
        "The apiVersion and kind of an object do not fit each other, or one is misspelt.",
        "a kind or group with one slip; the group of a kind of resource.k8s.io; v1alpha3 as v1beta1",
    ),
    Rule(
        "deprecated-version",
        "warning",
        "The apiVersion is an old one that a later Kubernetes does not serve.",
        "v1 with all that moves; not of DeviceTaintRule, which is in v1 since 1.37 only",
    ),
)
_STRUCTURE: Final = (
    Rule(
        "unknown-field",
        "error",
        "The API has no such field there: kubectl refuses it, other clients lose it.",
        "a name with one slip; the level where it belongs",
    ),
    Rule(
        "wrong-type",
        "error",
        "A value has a type that the field cannot hold.",
        "quotes, or none; one value as a list of it",
    ),
    Rule(
        "invalid-value",
        "error",
        "A value breaks a rule of the API server: a limit, a format, a missing field.",
        "a word of a closed list, of one with one slip",
    ),
    Rule("zero-count", "warning", "A request asks for no device, which the API server takes for one."),
    Rule("feature-gate", "warning", "A field is dropped by an API server whose feature gate for it is off."),
)
_COMPILING: Final = (
    Rule("cel-compile", "error", "A CEL expression does not compile."),
    Rule("cel-cost", "error", "A CEL expression is too long or may cost too much: the API server refuses it."),
    Rule(
        "single-equals",
        "error",
        "`=`, `===` or `=~` where CEL compares with `==` or `matches()`.",
        "`==` or `!=`; not for `=~`",
    ),
    Rule(
        "word-operator",
        "error",
        "`and`, `or`, `not` or `is` where CEL has `&&`, `||`, `!` and `==`.",
        "`&&` or `||`; not for `not` and `is`, which bind otherwise",
    ),
    Rule(
        "python-constant",
        "error",
        "`True`, `False` or `None` where CEL has `true`, `false` and `null`.",
        "the constant",
    ),
    Rule("missing-device", "error", "`attributes`, `capacity` or `driver` without `device.` before it.", "`device.`"),
    Rule("unknown-device-field", "error", "`device` has no such field.", "a name with one slip"),
    Rule("unknown-function", "error", "CEL has no function of that name.", "a name with one slip"),
    Rule("hyphenated-name", "error", "A name with a hyphen, which CEL reads as a subtraction."),
    Rule(
        "attribute-without-domain",
        "error",
        "An attribute or capacity without the domain it belongs to.",
        "the driver, if the selector, its class or the known devices tell it",
    ),
    Rule(
        "domain-with-name",
        "error",
        "A qualified name used as domain: the name goes behind the bracket.",
        "the name behind the bracket",
    ),
    Rule(
        "quantity-comparison",
        "error",
        "A quantity compared with `<`, or with a number or text.",
        "the method, for quantities with a unit",
    ),
    Rule(
        "quantity-argument",
        "error",
        "A text or number where a function takes a quantity.",
        "`quantity(…)` around a text with a unit",
    ),
    Rule(
        "version-comparison",
        "error",
        "A version compared with `<`, or a text where a function takes a version.",
        "the method; `semver(…)` around a whole version",
    ),
    Rule("version-as-text", "warning", "What looks like a version is compared as a text."),
    Rule("sign-method", "error", "`sign` called as a method; it is a function.", "the function"),
    Rule("list-attribute", "error", "`includes` or a macro on an attribute, which needs DRAListTypeAttributes."),
    Rule("invalid-constant", "error", "A text that is no quantity, or no semantic version."),
)
_DEVICES: Final = (
    Rule(
        "foreign-devices",
        "warning",
        "A selector fails for devices of other drivers, and with it the allocation.",
        "`device.driver == …` before it, of a driver with known devices",
    ),
    Rule("unknown-driver", "warning", "No driver of that name is known.", "a name with one slip"),
    Rule("unknown-domain", "warning", "No device has attributes or capacities in that domain.", "a name with one slip"),
    Rule(
        "missing-domain",
        "error",
        "A selector fails, because no device has anything in a domain that it reads.",
        "a name with one slip",
    ),
    Rule(
        "unknown-attribute",
        "error",
        "No device has that attribute.",
        "a name with one slip; the only domain that has it",
    ),
    Rule(
        "unknown-capacity", "error", "No device has that capacity.", "a name with one slip; the only domain that has it"
    ),
    Rule(
        "attribute-type",
        "error",
        "An attribute is compared with a value of another type.",
        "the value as one of that type, if it is one",
    ),
    Rule("optional-attribute", "error", "A selector fails for a device that lacks an attribute or capacity."),
    Rule("cel-runtime", "error", "A selector fails for a device for some other reason."),
    Rule("matches-nothing", "warning", "No device matches a class, or a request with all its alternatives."),
    Rule("too-few-devices", "warning", "A request asks for more devices than match it."),
    Rule("too-much-capacity", "error", "A request asks for more of a capacity than any device that matches it has."),
    Rule("opaque-config", "error", "Opaque configuration that the driver refuses."),
    Rule(
        "config-for-other-devices",
        "error",
        "Opaque configuration names a request or alternative, or stands in a class, of which no device takes its kind.",
    ),
    Rule("class-config-replaced", "error", "A claim's configuration replaces one that its DeviceClass enforces."),
)
_REFERENCES: Final = (
    Rule(
        "unknown-class",
        "warning",
        "A request names a DeviceClass that is not known.",
        "a name with one slip, if all classes are known (`--from`)",
    ),
    Rule("unknown-claim", "error", "A container names a claim that its pod does not have.", "a name with one slip"),
    Rule(
        "unknown-request",
        "error",
        "A container names a request that the claim does not have.",
        "a name with one slip; the request of a way to satisfy it",
    ),
    Rule("unused-claim", "warning", "No container of a pod uses one of its claims."),
    Rule("unused-request", "warning", "No container of a pod uses one of the requests of its claim."),
    Rule(
        "whole-claim", "warning", "A container names a claim whose requests are configured differently, and no request."
    ),
    Rule(
        "claim-reference",
        "error",
        "A pod names a claim as a template, a template as a claim, or both, or neither.",
        "the field for the kind that the files have",
    ),
    Rule("missing-claim", "warning", "A pod names a claim or template that the files have under another name."),
)

GROUPS: Final[dict[str, tuple[Rule, ...]]] = {
    "Files": _FILES,
    "Structure": _STRUCTURE,
    "CEL": _COMPILING,
    "Devices": _DEVICES,
    "References": _REFERENCES,
}
"""All rules, by what they look at."""

RULES: Final[dict[str, Rule]] = {rule.id: rule for group in GROUPS.values() for rule in group}
"""All rules by id."""
