"""What is wrong with the opaque config of an object."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.admission.review import rejection, review_configs
from dra_kit.admission.server import read_review
from dra_kit.kubernetes.values.json import loads
from tests.unit.admission.pizzeria import API_VERSION, KINDS, carrying, config, driver, parameters, review

BAD = config(parameters(toppings=["mushroom"]))
GOOD = config(parameters(toppings=["olives"], extra_cheese=True))
PATHS = {
    "ResourceClaim": "spec.devices.config",
    "ResourceClaimTemplate": "spec.spec.devices.config",
    "DeviceClass": "spec.config",
}


def found(obj: dict[str, Any]) -> list[str]:
    return [str(problem) for problem in review_configs(obj, driver).problems]


def told(obj: dict[str, Any], old: dict[str, Any] | None = None, operation: str = "CREATE") -> str:
    refusal = rejection(obj, old, operation, driver)
    assert refusal is not None
    return refusal.text


def test_the_message_names_object_field_value_and_remedy() -> None:
    assert told(carrying("ResourceClaim", BAD)) == (
        "ResourceClaim default/lunch: spec.devices.config[0].opaque.parameters.toppings[0]: "
        '"mushroom" is not supported; did you mean "mushrooms"? use one of "basil", "mushrooms", "olives"'
    )


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_checked_at_its_config_fields(kind: str) -> None:
    assert found(carrying(kind, GOOD, BAD))[0].startswith(f"{PATHS[kind]}[1].opaque.parameters.toppings[0]: ")


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_each_version_is_checked(version: str) -> None:
    assert len(found(carrying("ResourceClaim", BAD, version=version))) == 1


def test_all_problems_of_all_configs_are_collected() -> None:
    obj = carrying("ResourceClaim", config(parameters(toppings=["ham"], cheese=True)), BAD)
    assert [text.split(": ")[0].removeprefix("spec.devices.config") for text in found(obj)] == [
        "[0].opaque.parameters.toppings[0]",
        "[0].opaque.parameters.cheese",
        "[1].opaque.parameters.toppings[0]",
    ]


def test_valid_config_is_accepted() -> None:
    assert rejection(carrying("ResourceClaim", GOOD), None, "CREATE", driver) is None


def test_config_of_other_drivers_is_ignored() -> None:
    assert found(carrying("ResourceClaim", config({"anything": "goes"}, driver="dra.gpu"))) == []


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        pytest.param({"apiVersion": API_VERSION}, '.kind: is missing; use "PizzaConfig"', id="no kind"),
        pytest.param("pizza", ': must be an object, not "pizza"', id="not an object"),
        pytest.param(
            parameters(Extra_Cheese=True),
            '.Extra_Cheese: unknown field; did you mean "extra_cheese"?',
            id="a key in the wrong case",
        ),
        pytest.param(parameters(temperature=501), ".temperature: no oven is that hot", id="text of a validator"),
    ],
)
def test_invalid_parameters_are_rejected_at_their_path(given: object, problem: str) -> None:
    assert found(carrying("ResourceClaim", config(given))) == [f"spec.devices.config[0].opaque.parameters{problem}"]


def test_duplicate_keys_are_refused() -> None:
    text = json.dumps(carrying("ResourceClaim", config(parameters(extra_cheese=True))))
    doubled = loads(text.replace('"extra_cheese": true', '"extra_cheese": true, "extra_cheese": false'))
    assert found(doubled) == [
        "spec.devices.config[0].opaque.parameters.extra_cheese: occurs twice in the same object; remove one"
    ]


def test_a_crashing_validator_rejects_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    texts = found(carrying("ResourceClaim", config(parameters(temperature=0))))
    assert len(texts) == 1
    assert "ZeroDivisionError: a broken validator" in texts[0]
    assert "config model failed" in caplog.text


def test_a_class_is_named_without_a_namespace() -> None:
    assert told(carrying("DeviceClass", BAD)).startswith("DeviceClass lunch: spec.config")


def test_an_object_with_generate_name_is_named_by_its_prefix() -> None:
    obj = carrying("ResourceClaim", BAD)
    obj["metadata"] = {"namespace": "default", "generateName": "lunch-"}
    assert told(obj).startswith("ResourceClaim default/lunch-*: ")


def test_a_long_name_is_truncated() -> None:
    obj = carrying("ResourceClaim", config(parameters(wine=1)))
    obj["metadata"]["name"] = "x" * 1_000_000
    text = told(obj)
    assert "wine: unknown field" in text
    assert len(text) < 1000


def test_updates_of_claims_are_accepted_because_their_spec_is_immutable() -> None:
    obj = carrying("ResourceClaim", BAD)
    assert rejection(obj, obj, "UPDATE", driver) is None


@pytest.mark.parametrize("kind", ["ResourceClaimTemplate", "DeviceClass"])
def test_updates_that_add_invalid_config_are_rejected(kind: str) -> None:
    assert rejection(carrying(kind, BAD), carrying(kind, GOOD), "UPDATE", driver)


@pytest.mark.parametrize("kind", ["ResourceClaimTemplate", "DeviceClass"])
def test_updates_of_other_fields_are_accepted_despite_stored_invalid_config(kind: str) -> None:
    obj = carrying(kind, BAD)
    assert rejection({**obj, "metadata": {**obj["metadata"], "finalizers": []}}, obj, "UPDATE", driver) is None


def test_only_problems_added_by_an_update_are_reported() -> None:
    worse = carrying("DeviceClass", BAD, config(parameters(wine=1)))
    text = told(worse, carrying("DeviceClass", BAD), "UPDATE")
    assert text == "DeviceClass lunch: spec.config[1].opaque.parameters.wine: unknown field"


def test_the_first_problems_are_reported_and_the_others_counted() -> None:
    many = config(parameters(toppings=["ham"] * 2000))
    text = told(carrying("ResourceClaim", BAD, many, GOOD, BAD))
    assert text.count("is not supported") == 20
    assert text.endswith("; … and 1981 more and 2 more configs not looked at")
    assert len(text) < 20_000


@pytest.mark.parametrize("number", [19, 20, 21, 40])
def test_each_problem_is_reported_or_counted(number: int) -> None:
    found = review_configs(carrying("ResourceClaim", *[BAD] * number), driver)
    assert len(found.problems) + found.omitted + found.unseen == number
    assert len(found.problems) == min(number, 20)


def test_an_update_that_adds_unlisted_problems_is_rejected() -> None:
    stored = carrying("DeviceClass", config(parameters(toppings=["ham"] * 100)))
    worse = carrying("DeviceClass", config(parameters(toppings=["ham"] * 100, wine=1)))
    assert rejection(worse, stored, "UPDATE", driver)
    assert rejection(stored, stored, "UPDATE", driver) is None


@pytest.mark.parametrize(
    ("stored", "new"),
    [('"drops": 1', '"drops": true'), ('"drops": 2', '"drops": 1, "drops": 2'), ('"drops": 1', '"drops": 1.0')],
)
def test_a_config_is_unchanged_only_if_its_json_is_equal(stored: str, new: str) -> None:
    def of(text: str) -> dict[str, Any]:
        oils = loads(f'{{"oils": {{"olive": {{"kind": "x", {text}}}}}}}')
        return carrying("DeviceClass", config({**parameters(), **oils}))

    assert rejection(of(stored), None, "CREATE", driver) is None
    assert rejection(of(new), of(stored), "UPDATE", driver)


def test_a_config_nested_too_deeply_is_rejected_even_if_unchanged() -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    obj = carrying("DeviceClass", config({**parameters(), "oils": deep}))
    assert "more than 100 levels" in told(obj)
    assert rejection(carrying("DeviceClass", BAD, obj["spec"]["config"][0]), obj, "UPDATE", driver)


@pytest.mark.parametrize(
    ("kind", "operation"), [("ResourceClaim", "CONNECT"), ("ResourceClaim", ""), ("Pod", "CREATE")]
)
def test_a_review_of_an_unknown_kind_or_operation_is_an_error(kind: str, operation: str) -> None:
    with pytest.raises(ValueError, match="is not checked here"):
        rejection({**carrying("ResourceClaim", BAD), "kind": kind}, None, operation, driver)


def test_the_log_contains_fields_without_user_values() -> None:
    secret = "sesame-1"
    obj = carrying(
        "ResourceClaim",
        config(parameters(toppings=[secret], temperature=secret)),
        config(parameters(**{secret: 1})),
        config(parameters(oils={"olive": {"kind": "x", f"{secret} {secret}": 1}})),
        config(parameters(oils={secret: {"kind": 1}, "sesame": 1})),
        config({"apiVersion": secret, "kind": secret}),
    )
    found = rejection(obj, None, "CREATE", driver)
    assert found is not None
    assert secret in found.text
    assert found.fields == (
        "spec.devices.config[0].opaque.parameters.toppings[0]",
        "spec.devices.config[0].opaque.parameters.temperature",
        "spec.devices.config[1].opaque.parameters",
        "spec.devices.config[2].opaque.parameters.oils",
        "spec.devices.config[3].opaque.parameters.oils",
        "spec.devices.config[4].opaque.parameters.apiVersion",
        "spec.devices.config[4].opaque.parameters.kind",
    )


def test_a_crashing_validator_is_logged_without_its_message(caplog: pytest.LogCaptureFixture) -> None:
    assert "a broken validator" in told(carrying("ResourceClaim", config(parameters(temperature=0))))
    [record] = caplog.records
    assert (record.message, vars(record)["raised"]) == ("config model failed", "ZeroDivisionError")
    assert "pizzeria.py:" in vars(record)["at"]
    assert "a broken" not in caplog.text


@pytest.mark.parametrize(
    ("value", "path", "text"),
    [
        ("9" * 5000, "temperature", "is too large for a number of 64 bits"),
        ("1e400", "temperature", "is too large for a number of 64 bits"),
        ("9223372036854775808", "temperature", "must be an integer of 64 bits"),
        (r'{"olive": {"kind": "a\u0000b"}}', "oils.olive.kind", "has a NUL character"),
        ('{"%s": {"kind": "x"}}' % ("9" * 5000), 'oils["9999', "key has more than 4000 digits"),
        ("[" * 200 + "]" * 200, "toppings[0][0]", "is nested in more than 100 levels"),
    ],
)
def test_values_that_no_driver_can_decode_are_rejected_with_their_path(value: str, path: str, text: str) -> None:
    field = re.split(r"[.\[]", path)[0]
    body = json.dumps(review(carrying("ResourceClaim", config(parameters(**{field: "HERE"})))))
    request = read_review(body.replace('"HERE"', value).encode())["request"]
    found = told(request["object"])
    assert found.startswith(f"ResourceClaim default/lunch: spec.devices.config[0].opaque.parameters.{path}")
    assert f": {text}" in found


def test_deletions_are_accepted() -> None:
    assert rejection(carrying("DeviceClass", BAD), None, "DELETE", driver) is None


@pytest.mark.parametrize(
    "spec",
    [
        None,
        "spec",
        {},
        {"devices": None},
        {"devices": {"config": None}},
        {"devices": {"config": {"0": BAD}}},
        {"devices": {"config": [None, "config", {}, {"opaque": None}, {"opaque": []}]}},
    ],
)
def test_malformed_config_entries_are_left_to_the_api_server(spec: object) -> None:
    assert found({"kind": "ResourceClaim", "metadata": {"name": "lunch"}, "spec": spec}) == []


KEYS = st.sampled_from(
    ["apiVersion", "kind", "toppings", "extra_cheese", "oils", "temperature", "drops", "cheese", "Toppings"]
)
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**30), 10**30),
        st.floats(allow_nan=False, allow_infinity=False),
        st.sampled_from(["olives", "mushroom", API_VERSION, "PizzaConfig", "1"]),
        st.text(max_size=5),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)
BODIES = st.dictionaries(KEYS, VALUES, max_size=6).map(lambda fields: parameters() | fields)


@given(st.sampled_from(list(KINDS)), st.lists(st.one_of(VALUES, BODIES), min_size=1, max_size=3))
def test_each_reported_path_names_a_value_or_a_missing_key(kind: str, bodies: list[Any]) -> None:
    obj = carrying(kind, *(config(body) for body in bodies))
    for problem in review_configs(obj, driver).problems:
        assert "\n" not in str(problem)
        place: Any = obj
        *above, last = re.findall(r"[^.\[\]]+", problem.path)
        for step in above:
            place = place[int(step)] if isinstance(place, list) else place[step]
        assert int(last) < len(place) if isinstance(place, list) else isinstance(place, dict)


@given(st.lists(BODIES, max_size=3))
def test_the_webhook_accepts_exactly_what_the_node_decodes(bodies: list[Any]) -> None:
    decodable = True
    for body in bodies:
        try:
            driver.configs.decode(body)
        except (ValueError, ZeroDivisionError):
            decodable = False
    obj = carrying("ResourceClaim", *(config(body) for body in bodies))
    assert (rejection(obj, None, "CREATE", driver) is None) is decodable
