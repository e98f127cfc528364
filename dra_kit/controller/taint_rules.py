"""DeviceTaintRules by the author's policy: complete sets, written by the active controller."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from msgspec import Struct

from dra_kit.author.calls import GeneratorMessages, GeneratorThread, call_threadsafe
from dra_kit.author.controller import TaintRule, TaintRuleSource
from dra_kit.author.model import short_repr
from dra_kit.client.api import GROUP, Client, discover_release
from dra_kit.client.informer import call_on_changes, retry_delay, wait_for_event
from dra_kit.client.resources import DEVICE_TAINT_RULES, Resource
from dra_kit.controller.context import ControllerContext, ControllerOwner
from dra_kit.errors import ConfigurationError, Conflict, DraKitError, Invalid, InvalidDevice, NotFound
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.api_model import OwnerReference
from dra_kit.slices.planning import is_stored_alike

logger: logging.Logger = logging.getLogger(__name__)
CHECK_EVERY: Final = 600.0
"""Seconds between two looks when nothing happens, and after a refusal that trying again does not change."""


class TaintRuleReconciler:
    """Writes the author's taint rules to the cluster; an active part of the controller."""

    name = "taint-rules"

    def __init__(
        self,
        driver: str,
        source: TaintRuleSource[Any],
        client: Client,
        context: ControllerContext,
        owner: ControllerOwner,
    ) -> None:
        self._driver = driver
        self._source = source
        self._title = f"{type(source).__name__}.rules"
        self._client = client
        self._context = context
        self._owner = owner
        self._wanted: Sequence[TaintRule] | None = None
        self._changed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._logged = ""

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready when the first set is in the cluster."""
        self._wanted, self._watching = None, None
        thread = GeneratorThread(
            self._source.rules,
            partial(self._take, asyncio.get_running_loop()),
            failed=lambda _: None,
            words=GeneratorMessages(
                title=self._title,
                failed="rules failed, the taint rules stay as they are",
                again="rules failed again",
                returns="write 'yield [...]' instead of 'return [...]'",
                empty="a set of rules; yield [] when there are none",
                code="invalid-taint-rules",
            ),
            logger=logger,
        )
        with self._context.rescanning(thread.restart):
            async with asyncio.TaskGroup() as group:
                group.create_task(thread.run())
                await self._keep(ready, group)

    def _take(self, loop: asyncio.AbstractEventLoop, yielded: object) -> None:
        """Take a set of rules, in the author's thread.

        Raises:
            InvalidDevice: the value is not a set of rules.
        """
        if not isinstance(yielded, Sequence) or isinstance(yielded, str | bytes):
            raise InvalidDevice(f"{self._title} yielded {short_repr(yielded)}; yield a list of dra_kit.TaintRule")
        names: set[str] = set()
        for rule in yielded:
            if not isinstance(rule, TaintRule):
                raise InvalidDevice(f"{self._title} yielded {short_repr(rule)}, which is not a dra_kit.TaintRule")
            if rule.name in names:
                raise InvalidDevice(f"{self._title} yielded two rules named {rule.name!r}; give each its own name")
            names.add(rule.name)
        call_threadsafe(loop, partial(self._want, tuple(yielded)))

    def _want(self, rules: Sequence[TaintRule]) -> None:
        if rules != self._wanted:
            self._wanted = rules
            self._changed.set()

    async def _keep(self, ready: asyncio.Event, group: asyncio.TaskGroup) -> None:
        attempt = 0
        delay: float | None = None
        while True:
            await wait_for_event(self._changed, delay)
            self._changed.clear()
            if self._wanted is None:
                continue
            try:
                resource = await served_taint_rules(self._client)
                if self._watching is None:
                    watch = call_on_changes(
                        self._client, resource, self._changed.set, label_selector=f"{LABEL}={self._driver}"
                    )
                    self._watching = group.create_task(watch)
                await self._reconcile(resource, self._wanted)
            except DraKitError as error:
                hopeless = isinstance(error, Invalid | ConfigurationError)
                delay = CHECK_EVERY if hopeless else max(retry_delay(attempt), 0.2)
                attempt += 1
                self._report(error, delay)
                continue
            attempt, delay, self._logged = 0, CHECK_EVERY, ""
            ready.set()

    def _report(self, error: DraKitError, delay: float) -> None:
        text = str(error)
        quiet = isinstance(error, Conflict) and error.code == Conflict.default_code
        level = logging.DEBUG if text == self._logged else logging.INFO if quiet else logging.ERROR
        self._logged = text
        logger.log(level, "failed to apply taint rules", extra={"error": text, "code": error.code, "again_in": delay})

    async def _reconcile(self, resource: Resource, wanted: Sequence[TaintRule]) -> None:
        listed = await self._client.list(resource, label_selector=f"{LABEL}={self._driver}")
        existing = [v1.DeviceTaintRule.model_validate(item) for item in listed.items]
        steps = plan_rules(self._driver, wanted, existing, await self._owner.reference())
        if not steps:
            return
        await self._execute(resource, steps)
        logger.info(
            "applied taint rules",
            extra={"creates": len(steps.creates), "updates": len(steps.updates), "deletes": len(steps.deletes)},
        )

    async def _execute(self, resource: Resource, steps: TaintRulePlan) -> None:
        for rule in steps.deletes:
            try:
                await self._client.delete(resource, rule.metadata.name, uid=rule.metadata.uid)
            except NotFound:
                pass  # gone already, as it should be
        for rule in steps.updates:
            try:
                await self._client.update(resource, _body(rule, resource))
            except NotFound as error:
                raise Conflict(f"{error}: deleted since it was listed", status=404) from error
        foreign: list[str] = []
        for rule in steps.creates:
            try:
                await self._client.create(resource, _body(rule, resource))
            except Conflict:
                foreign.append(rule.metadata.name)
        if foreign:
            raise ConfigurationError(
                f"DeviceTaintRule {', '.join(foreign)} of driver {self._driver} cannot be applied: that object has "
                f"another owner: it lacks the label {LABEL}={self._driver}; delete it, or name the rule differently",
                code="taint-rule-foreign",
            )


def _body(rule: v1.DeviceTaintRule, resource: Resource) -> dict[str, Any]:
    return {**rule.to_json(), "apiVersion": resource.api_version, "kind": resource.kind}


LABEL: Final = "dra-kit/driver"
"""Its value is the driver that owns a rule; a rule without it has another owner."""


class TaintRulePlan(Struct, frozen=True):
    """Writes to make, in this order; ``updates`` have the resource version of the stored rule."""

    deletes: tuple[v1.DeviceTaintRule, ...] = ()
    updates: tuple[v1.DeviceTaintRule, ...] = ()
    creates: tuple[v1.DeviceTaintRule, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.deletes or self.updates or self.creates)


def plan_rules(
    driver: str,
    wanted: Sequence[TaintRule],
    existing: Sequence[v1.DeviceTaintRule],
    owner: OwnerReference | None = None,
) -> TaintRulePlan:
    """Return the writes that replace the driver's ``existing`` rules by ``wanted``; rules of others are not touched."""
    ours = {rule.metadata.name: rule for rule in existing if rule.metadata.labels.get(LABEL) == driver}
    desired = {rule.metadata.name: rule for rule in (_labelled(each.to_v1(driver), driver, owner) for each in wanted)}
    stays = [rule for rule in ours.values() if rule.metadata.deletion_timestamp is None]
    updates = [
        _updated(desired[rule.metadata.name], rule)
        for rule in stays
        if rule.metadata.name in desired and not _is_current(desired[rule.metadata.name], rule)
    ]
    return TaintRulePlan(
        deletes=tuple(rule for rule in stays if rule.metadata.name not in desired),
        updates=tuple(updates),
        creates=tuple(rule for name, rule in desired.items() if name not in ours),
    )


def _labelled(rule: v1.DeviceTaintRule, driver: str, owner: OwnerReference | None) -> v1.DeviceTaintRule:
    metadata = rule.metadata.model_copy(
        update={"labels": {LABEL: driver}, "owner_references": (owner,) if owner is not None else ()}
    )
    return rule.model_copy(update={"metadata": metadata})


def _is_current(wanted: v1.DeviceTaintRule, stored: v1.DeviceTaintRule) -> bool:
    owned = all(
        any(is_stored_alike(owner, other) for other in stored.metadata.owner_references)
        for owner in wanted.metadata.owner_references
    )
    return owned and is_stored_alike(wanted.spec, stored.spec)


def _updated(wanted: v1.DeviceTaintRule, stored: v1.DeviceTaintRule) -> v1.DeviceTaintRule:
    """Return ``wanted`` over ``stored``; the API server itself begins a new time when the effect changes."""
    taint = wanted.spec.taint
    if taint.time_added is None:
        taint = taint.model_copy(update={"time_added": stored.spec.taint.time_added})
    mine = wanted.metadata.owner_references
    others = tuple(
        owner
        for owner in stored.metadata.owner_references
        if (owner.kind, owner.name) not in {(each.kind, each.name) for each in mine}
    )
    metadata = stored.metadata.model_copy(update={"owner_references": (*mine, *others)})
    return wanted.model_copy(update={"metadata": metadata, "spec": wanted.spec.model_copy(update={"taint": taint})})


async def served_taint_rules(client: Client) -> Resource:
    """Return the resource in the newest version that is served.

    Raises:
        ConfigurationError: none is (code ``taint-rules-not-served``).
        KubeError: the API server does not answer.
    """
    for resource in DEVICE_TAINT_RULES.versions:
        try:
            found = await client.get_path(f"/apis/{GROUP}/{resource.version}")
        except NotFound:
            continue
        if any(item.get("name") == resource.plural for item in found.get("resources") or ()):
            return resource
    release = await discover_release(client)
    raise ConfigurationError(
        f"taint rules are not applied: the API server (Kubernetes {release}) does not serve DeviceTaintRules; "
        "upgrade to 1.37, or switch on the gate DRADeviceTaintRules and --runtime-config=resource.k8s.io/v1beta2=true "
        "(before 1.36 v1alpha3) there, in kube-scheduler and in kube-controller-manager",
        code="taint-rules-not-served",
    )
