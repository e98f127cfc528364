"""The ValidatingWebhookConfiguration."""

from __future__ import annotations

import base64

import pytest

from dra_kit.admission.review import validating_webhook_configuration
from dra_kit.errors import ConfigurationError

URL = "https://127.0.0.1:9443"


def test_rules_contain_each_kind_with_the_operations_that_change_its_config() -> None:
    webhooks = validating_webhook_configuration("dra.pizza", url=URL)["webhooks"]
    assert {rule["resources"][0]: rule["operations"] for each in webhooks for rule in each["rules"]} == {
        "resourceclaims": ["CREATE"],
        "resourceclaimtemplates": ["CREATE", "UPDATE"],
        "deviceclasses": ["CREATE", "UPDATE"],
    }


def test_failure_policy_is_fail_with_a_short_timeout() -> None:
    for webhook in validating_webhook_configuration("dra.pizza", url=URL)["webhooks"]:
        assert (webhook["failurePolicy"], webhook["timeoutSeconds"]) == ("Fail", 5)
        assert (webhook["sideEffects"], webhook["matchPolicy"]) == ("None", "Equivalent")


def test_match_conditions_exclude_objects_without_config_of_the_driver() -> None:
    webhooks = validating_webhook_configuration("dra.pizza", url=URL)["webhooks"]
    assert [each["matchConditions"][0]["expression"] for each in webhooks] == [
        f'object.{path}.orValue([]).exists(c, c.?opaque.?driver.orValue("") == "dra.pizza")'
        for path in ("?spec.?devices.?config", "?spec.?spec.?devices.?config", "?spec.?config")
    ]


@pytest.mark.parametrize("name", ["gpu", "dra.pizza", "a.b.c.d"])
def test_webhook_names_are_qualified_for_any_driver_name(name: str) -> None:
    for webhook in validating_webhook_configuration(name, url=URL)["webhooks"]:
        assert webhook["name"].count(".") >= 2  # the API server wants three labels


def test_a_url_gets_the_path_of_the_handlers() -> None:
    configuration = validating_webhook_configuration("dra.pizza", url=f"{URL}/", ca_bundle=b"PEM")
    assert configuration["webhooks"][0]["clientConfig"] == {
        "url": f"{URL}/validate-opaque-config",
        "caBundle": base64.b64encode(b"PEM").decode(),
    }


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "127.0.0.1:1", "https://", "https://host/other", f"{URL}?a=b"])
def test_urls_that_the_api_server_rejects_are_rejected(url: str) -> None:
    with pytest.raises(ConfigurationError, match="https://host:port"):
        validating_webhook_configuration("dra.pizza", url=url)
