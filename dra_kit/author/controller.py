"""``TaintRuleSource``: taints on devices of this driver, wherever they are published, by the author's policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC
from typing import Self

from pydantic import model_validator

from dra_kit.author.controller_bound import ControllerBound
from dra_kit.author.devices.vocabulary import DeviceTaint
from dra_kit.author.models.model import AuthorModel, shown
from dra_kit.author.models.rules import invalid
from dra_kit.author.type_parameters import AuthorSettingsT
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.api_model import ObjectMeta
from dra_kit.kubernetes.resource.names import device_name
from dra_kit.kubernetes.resource.validation.slices import validate_taint_rule


class TaintRule(AuthorModel):
    """A taint for devices of this driver (``DeviceTaintRule``, KEP-5055); never for those of another.

    Args:
        name: a DNS label, unique in the set. The rule is the object ``<name>.<driver>`` for as long as it is in the
            set: one that changes is changed in place.
        taint: what the devices get. With ``NoExecute`` pods that use them, and do not tolerate it, are evicted.
        pool: only devices of this pool.
        device: only devices of this name.

    Raises:
        InvalidDevice: a name, key or value breaks a rule of the API.
    """

    name: str
    taint: DeviceTaint
    pool: str | None = None
    device: str | None = None

    @model_validator(mode="after")
    def _obeys_the_api(self) -> Self:
        of_spec = [
            replace(error, path=error.path.removeprefix("spec.").removeprefix("deviceSelector."))
            for error in validate_taint_rule(self.to_v1("driver"))
        ]
        errors = [*device_name(self.name, "name"), *of_spec]
        if errors:
            raise invalid(f"TaintRule {shown(self.name)}", errors)
        return self

    def to_v1(self, driver: str) -> v1.DeviceTaintRule:
        """Return the rule as it is published, without labels and owner."""
        time = self.taint.time_added
        taint = v1.DeviceTaint(
            key=self.taint.key,
            value=self.taint.value,
            effect=self.taint.effect,
            time_added=None if time is None else time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        return v1.DeviceTaintRule(
            metadata=ObjectMeta(name=f"{self.name}.{driver}"),
            spec=v1.DeviceTaintRuleSpec(
                device_selector=v1.DeviceTaintSelector(driver=driver, pool=self.pool, device=self.device), taint=taint
            ),
        )


class TaintRuleSource(ControllerBound[AuthorSettingsT], ABC):
    """Tells which devices are to be tainted; the framework makes DeviceTaintRules of it, from the active controller.

    Rules of other people and drivers are never touched. It needs Kubernetes 1.37, or 1.35 with the gate
    DRADeviceTaintRules and one of the versions v1beta2 and v1alpha3 of resource.k8s.io switched on.
    """

    @abstractmethod
    def rules(self) -> AsyncIterable[Sequence[TaintRule]] | Iterable[Sequence[TaintRule]]:
        """Yield *complete* sets of rules; write it as an ``async def`` or ``def`` generator.

        What a set does not have any more is deleted; ``yield []`` deletes all. A generator that ends has nothing more
        to say. It runs in a thread of its own, so it may block. When it raises, the error is logged, the rules stay,
        and it is started again after a while. ``context.rescan()`` starts it again from the beginning.
        """
