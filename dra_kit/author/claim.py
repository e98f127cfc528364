"""``Claim`` and ``AllocatedDevice``: the arguments of a preparer."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic

from pydantic import JsonValue
from typing_extensions import TypeVar

from dra_kit.author.config import ConfigEntry, ConfigT_co
from dra_kit.author.device import Device
from dra_kit.author.effect import Effect, EffectScope, PendingEffect, ResultT
from dra_kit.author.model import type_name
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.kubernetes.values.quantity import Quantity

AdvertisedT_co = TypeVar("AdvertisedT_co", bound=Device, default=Device, covariant=True)


class EffectRequests:
    """The effects that one prepare requests; effects requested but never awaited are reported to the author."""

    def __init__(self, scope: EffectScope) -> None:
        self._scope = scope
        self._unused: dict[int, str] = {}
        self._numbers = itertools.count()  # threads of one prepare never get the same number

    def ensure(self, effect: Effect[ResultT, Any]) -> PendingEffect[ResultT]:
        """See :meth:`AllocatedDevice.ensure`."""
        number = next(self._numbers)
        self._unused[number] = type(effect).__name__
        return PendingEffect(self._scope, effect, lambda: self._unused.update({number: ""}))

    def never_awaited(self) -> list[str]:
        """Return names of the effects whose ``ensure`` was neither awaited nor asked for its result."""
        return [name for name in self._unused.values() if name]


@dataclass(frozen=True, slots=True)
class ConsumerReference:
    """A consumer of a claim: usually a pod (``resource == "pods"``), or a PodGroup (KEP-5729)."""

    api_group: str
    resource: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(ClaimReference):
    """A ResourceClaim that is allocated to this driver on this node.

    Attributes:
        labels: of the claim object.
        annotations: of the claim object.
        reserved_for: the consumers that may use it now (``status.reservedFor``).
        pod_claim_name: the name in the pod's ``resourceClaims``, for claims made from a template.
        raw: the whole object as the API server sent it.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    reserved_for: tuple[ConsumerReference, ...] = ()
    pod_claim_name: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)
    effects: EffectRequests | None = field(default=None, repr=False, compare=False)

    def ensure(self, effect: Effect[ResultT, Any]) -> PendingEffect[ResultT]:
        """Apply an effect for the claim as a whole; see :meth:`AllocatedDevice.ensure`."""
        return _ensure(self.effects, effect)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedDevice(Generic[ConfigT_co, AdvertisedT_co]):
    """One device of a claim, with its config.

    Attributes:
        name: the device's name.
        pool: its pool.
        request: the claim's request that it satisfies, without the subrequest.
        subrequest: the alternative of a ``firstAvailable`` request, or None.
        config: the most specific config that applies, complete and never merged; ``default_config`` if there is none.
        configs: all entries that apply, weakest first, with the source of each; empty if there is none. The config of
            the last entry is ``config``.
        advertised: the device as ``discover`` last yielded it, an instance of the author's own class.
        consumed_capacity: what this claim takes of a device with ``allow_multiple_allocations``.
        share_id: distinguishes the shares of such a device.
        admin_access: the claim may inspect the device while others use it; it must not change the device.
        binding_conditions: conditions of the allocation (KEP-5007).
    """

    name: str
    pool: str
    request: str
    subrequest: str | None = None
    config: ConfigT_co
    configs: tuple[ConfigEntry[ConfigT_co], ...] = ()
    advertised: AdvertisedT_co
    consumed_capacity: Mapping[str, Quantity] = field(default_factory=dict)
    share_id: str | None = None
    admin_access: bool = False
    binding_conditions: tuple[str, ...] = ()
    effects: EffectRequests | None = field(default=None, repr=False, compare=False)

    @property
    def env_name(self) -> str:
        """The device's name in the form of an environment variable: ``pizza-0`` is ``PIZZA_0``."""
        return env_name(self.name)

    def ensure(self, effect: Effect[ResultT, Any]) -> PendingEffect[ResultT]:
        """Apply an effect for as long as the claim is prepared, and return its outcome.

        Await it in ``async def prepare``; in ``def prepare`` call ``.result()`` on it. Devices with
        ``admin_access`` get the outcome of the effect in force and change nothing.

        Raises:
            PrepareError: when it conflicts with another claim's effect, or its ``apply`` fails.
        """
        return _ensure(self.effects, effect)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """One device of a released claim, as passed to ``unprepare``.

    Attributes:
        pool: its pool.
        device: the device's name.
        share_id: distinguishes the shares of a device with ``allow_multiple_allocations``.
        request: the claim's request that it satisfied, without the subrequest.
        state: what ``prepare`` returned as ``Prepared.state``; also None if ``prepare`` failed or was killed.
    """

    pool: str
    device: str
    share_id: str | None = None
    request: str = ""
    state: JsonValue = None


def env_name(device: str) -> str:
    """Return the name of a device as an environment variable name."""
    name = re.sub(r"[^A-Z0-9]", "_", device.upper())
    return f"_{name}" if name[:1].isdigit() else name


def _ensure(effects: EffectRequests | None, effect: Effect[ResultT, Any]) -> PendingEffect[ResultT]:
    if effects is None:
        raise RuntimeError("effects can only be ensured while a claim is being prepared")
    if not isinstance(effect, Effect):
        raise ConfigurationError(f"ensure({type_name(effect)}): not an effect; give it an instance of a dra_kit.Effect")
    return effects.ensure(effect)
