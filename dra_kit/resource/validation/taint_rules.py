"""A whole DeviceTaintRule."""

from __future__ import annotations

from collections.abc import Sequence

from dra_kit.resource import v1
from dra_kit.resource.fielderror import FieldError
from dra_kit.resource.validation.fields.conditions import validate_conditions
from dra_kit.resource.validation.fields.formats import device_name, driver_name, pool_name
from dra_kit.resource.validation.fields.tolerations import validate_taint


def validate_taint_rule(rule: v1.DeviceTaintRule, old: v1.DeviceTaintRule | None = None) -> list[FieldError]:
    """Check all rules of the API server (Kubernetes 1.37) for the spec of a rule, in its paths and texts.

    Args:
        rule: the rule.
        old: what it replaces; an effect that stays may be one that this release does not know.
    """
    errors = []
    selector = rule.spec.device_selector
    if selector is not None:
        path = "spec.deviceSelector"
        errors += driver_name(selector.driver, f"{path}.driver") if selector.driver is not None else []
        errors += pool_name(selector.pool, f"{path}.pool") if selector.pool is not None else []
        errors += device_name(selector.device, f"{path}.device") if selector.device is not None else []
    taint = rule.spec.taint
    effect_stays = old is not None and taint.effect != "" and taint.effect == old.spec.taint.effect
    return errors + validate_taint(taint, "spec.taint", check_effect=not effect_stays)


def validate_taint_rule_status(conditions: Sequence[v1.Condition]) -> list[FieldError]:
    """Check ``status.conditions`` of a rule."""
    return validate_conditions(conditions, "status.conditions")
