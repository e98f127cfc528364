"""ValidatingAdmissionPolicies without an API server; verdicts of a real one are replayed by tests/golden (E-policy)."""

from __future__ import annotations

from typing import Any

import pytest

from dra_kit.errors import CelCompileError
from dra_kit.kubernetes.cel import admission as policies
from dra_kit.kubernetes.cel.admission import (
    AdmissionEnvironment,
    AdmissionExpression,
    Denial,
    PolicyRequest,
    compile_policy,
    to_cel_value,
)
from dra_kit.kubernetes.cel.functions.authorization import (
    AccessDecision,
    AccessQuestion,
    AuthorizerValue,
    ResourceCheck,
)
from dra_kit.kubernetes.cel.program import compile_selector
from dra_kit.kubernetes.cel.values import StringMapValue
from dra_kit.kubernetes.release import DEFAULT, KubernetesVersion


class Asked:
    """Allows ``get`` and records all access checks."""

    def __init__(self) -> None:
        self.questions: list[AccessQuestion] = []

    def ask(self, question: AccessQuestion) -> AccessDecision:
        self.questions.append(question)
        return AccessDecision(question.verb == "get", "because")

    def service_account(self, namespace: str, name: str) -> Asked:
        if not name:
            raise ValueError("invalid service account name: it is empty")
        return self


def denials(spec: dict[str, Any], obj: Any = None, **more: Any) -> list[Denial]:
    compiled = compile_policy(spec, DEFAULT)
    assert compiled.problems == []
    return compiled.denials(PolicyRequest(to_cel_value({}), to_cel_value(obj or {}), None, **more))


def one(expression: str, **more: Any) -> dict[str, Any]:
    return {"validations": [{"expression": expression, **more}]}


@pytest.mark.parametrize(
    "expression",
    [
        "cel.bind(x, 1, x == 1)",
        "math.greatest(1, 2) == 2",
        "device.driver == ''",
        "request.uid == ''",
    ],
)
def test_policies_lack_functions_of_devices(expression: str) -> None:
    with pytest.raises(CelCompileError):
        AdmissionExpression(expression, AdmissionEnvironment(DEFAULT))


@pytest.mark.parametrize(("release", "stored"), [("1.36", True), ("1.37", False)])
def test_policies_lack_includes_of_a_later_compiler(release: str, stored: bool) -> None:
    environment = AdmissionEnvironment(KubernetesVersion.parse(release), stored=stored)

    with pytest.raises(CelCompileError, match="undeclared reference to 'includes'"):
        AdmissionExpression("[1].includes(1)", environment)


@pytest.mark.parametrize(("release", "stored"), [("1.37", True), ("1.38", False)])
def test_policies_have_includes(release: str, stored: bool) -> None:
    AdmissionExpression("[1].includes(1)", AdmissionEnvironment(KubernetesVersion.parse(release), stored=stored))


def test_selectors_lack_authorizer() -> None:
    with pytest.raises(CelCompileError, match="undeclared reference to 'authorizer'"):
        compile_selector("authorizer.path('/x').check('get').allowed()")


def test_compile_error_has_line_and_column() -> None:
    with pytest.raises(CelCompileError) as refused:
        AdmissionExpression("true &&\n  foo", AdmissionEnvironment(DEFAULT))

    text = "compilation failed: ERROR: <input>:2:3: undeclared reference to 'foo' (in container '')\n |   foo\n | ..^"
    assert str(refused.value) == text
    assert (refused.value.line, refused.value.column) == (2, 3)


def test_variable_is_evaluated_once_on_first_use() -> None:
    asked = Asked()
    spec = {
        "variables": [
            {"name": "used", "expression": "authorizer.group('').resource('pods').check('get').allowed()"},
            {"name": "unused", "expression": "authorizer.group('').resource('nodes').check('get').allowed()"},
        ],
        "validations": [{"expression": "variables.used"}, {"expression": "variables.used && variables.used"}],
    }

    assert denials(spec, authorizer=AuthorizerValue(asked)) == []
    assert [question.resource for question in asked.questions] == ["pods"]


def test_authorizer_checks_service_account() -> None:
    asked = Asked()
    expression = (
        "authorizer.serviceAccount('a', 'b').group('g').resource('r').subresource('s').namespace('n').name('x')"
    )

    assert denials(one(f"{expression}.check('get').allowed()"), authorizer=AuthorizerValue(asked)) == []
    assert asked.questions == [AccessQuestion("get", "g", "r", "s", "n", "x")]
    wrong = "authorizer.serviceAccount('a', '').group('g').resource('r').check('get').allowed()"
    assert [denial.message for denial in denials(one(wrong), authorizer=AuthorizerValue(asked))] == [
        f"expression '{wrong}' resulted in error: invalid service account name: it is empty"
    ]


def test_three_access_checks_exceed_cost_limit() -> None:
    check = "authorizer.requestResource.check('get').allowed()"
    given = {"authorizer": AuthorizerValue(Asked()), "resource": ResourceCheck(Asked())}

    assert denials(one(f"{check} && {check}"), **given) == []
    (denial,) = denials(one(f"{check} && {check} && {check}"), **given)
    assert denial.message.endswith("operation cancelled: actual cost limit exceeded")


def test_validations_share_cost_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "COST_BUDGET", 10)
    spec = {"validations": [{"expression": f"object.a{i} == 1"} for i in range(5)]}
    obj = {f"a{i}": 1 for i in range(5)}

    assert denials({"validations": spec["validations"][:2]}, obj) == []
    (denial,) = denials(spec, obj)
    assert denial.message.startswith("validation failed due to running out of cost budget")
    assert denials({**spec, "failurePolicy": "Ignore"}, obj) == []


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 2**63 - 1])
def test_json_numbers_beyond_64_bits_are_doubles(value: int) -> None:
    kind = "double" if not -(2**63) <= value < 2**63 else "int"

    assert denials(one(f"type(object.n) == {kind}"), {"n": value}) == []


def test_json_values_keep_their_types() -> None:
    value = to_cel_value({"a": [1, 1.0, True, None, "x", {}]})

    assert isinstance(value, StringMapValue)
    assert list(map(type, value.items["a"])) == [int, float, bool, type(None), str, StringMapValue]


def test_local_variable_may_be_named_device() -> None:
    assert denials(one("object.devices.all(device, device.name != '')"), {"devices": [{"name": "a"}]}) == []
