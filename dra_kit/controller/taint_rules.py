"""Keeps the driver's DeviceTaintRules as its author's source wants them, while this replica is the active one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from dra_kit.author.cluster.taint_rules import TaintRule, TaintRuleSource
from dra_kit.author.models.model import shown
from dra_kit.controller.context import ControllerContext
from dra_kit.controller.owner import Owner
from dra_kit.controller.taint_rules.planning import LABEL, RulePlan, plan_rules
from dra_kit.controller.taint_rules.served import served
from dra_kit.controller.watching import look_again_on_changes
from dra_kit.errors import ConfigurationError, Conflict, DraKitError, Invalid, InvalidDevice, NotFound
from dra_kit.kube.client import Client
from dra_kit.kube.resources import Resource
from dra_kit.kubernetes.resource import v1
from dra_kit.process.generators import GeneratorThread, Words, threadsafe
from dra_kit.publishing.pace import happens, pause

logger: logging.Logger = logging.getLogger(__name__)

CHECK_EVERY: Final = 600.0
"""Seconds between two looks when nothing happens, and after a refusal that trying again does not change."""


class TaintRules:
    """An active part of the controller.

    Args:
        driver: the driver's name.
        source: the author's.
        client: needs list, watch, create, update and delete on devicetaintrules.
        context: of the author's code.
        owner: of the rules.
    """

    name = "taint-rules"

    def __init__(
        self, driver: str, source: TaintRuleSource[Any], client: Client, context: ControllerContext, owner: Owner
    ) -> None:
        self._driver = driver
        self._source = source
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
            words=_words(f"{type(self._source).__name__}.rules"),
            logger=logger,
        )
        with self._context.rescanning(thread.restart):
            async with asyncio.TaskGroup() as group:
                group.create_task(thread.run())
                await self._keep(ready, group)

    def _take(self, loop: asyncio.AbstractEventLoop, yielded: object) -> None:
        """Take a set of rules, in the author's thread.

        Raises:
            InvalidDevice: it is no set of rules.
        """
        title = f"{type(self._source).__name__}.rules"
        if not isinstance(yielded, Sequence) or isinstance(yielded, str | bytes):
            raise InvalidDevice(f"{title} yielded {shown(yielded)}; yield a list of dra_kit.TaintRule")
        names: set[str] = set()
        for rule in yielded:
            if not isinstance(rule, TaintRule):
                raise InvalidDevice(f"{title} yielded {shown(rule)}, which is no dra_kit.TaintRule")
            if rule.name in names:
                raise InvalidDevice(f"{title} yielded two rules named {rule.name!r}; give each a name of its own")
            names.add(rule.name)
        threadsafe(loop, partial(self._want, tuple(yielded)))

    def _want(self, rules: Sequence[TaintRule]) -> None:
        if rules != self._wanted:
            self._wanted = rules
            self._changed.set()

    async def _keep(self, ready: asyncio.Event, group: asyncio.TaskGroup) -> None:
        attempt = 0
        delay: float | None = None
        while True:
            await happens(self._changed, delay)
            self._changed.clear()
            if self._wanted is None:
                continue
            try:
                resource = await served(self._client)
                if self._watching is None:
                    watch = look_again_on_changes(
                        self._client, resource, self._changed.set, label_selector=f"{LABEL}={self._driver}"
                    )
                    self._watching = group.create_task(watch)
                await self._reconcile(resource, self._wanted)
            except DraKitError as error:
                hopeless = isinstance(error, Invalid | ConfigurationError)
                delay = CHECK_EVERY if hopeless else max(pause(attempt), 0.2)
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
        logger.log(level, "taint rules not kept", extra={"error": text, "code": error.code, "again_in": delay})

    async def _reconcile(self, resource: Resource, wanted: Sequence[TaintRule]) -> None:
        listed = await self._client.list(resource, label_selector=f"{LABEL}={self._driver}")
        existing = [v1.DeviceTaintRule.model_validate(item) for item in listed.items]
        steps = plan_rules(self._driver, wanted, existing, await self._owner.reference())
        if not steps:
            return
        await self._execute(resource, steps)
        logger.info(
            "taint rules kept",
            extra={"creates": len(steps.creates), "updates": len(steps.updates), "deletes": len(steps.deletes)},
        )

    async def _execute(self, resource: Resource, steps: RulePlan) -> None:
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
                f"DeviceTaintRule {', '.join(foreign)} of driver {self._driver} is not kept: there is one of that name "
                f"without the label {LABEL}={self._driver}, which is somebody else's; delete it, or name the rule "
                "differently",
                code="taint-rule-foreign",
            )


def _body(rule: v1.DeviceTaintRule, resource: Resource) -> dict[str, Any]:
    return {**rule.to_json(), "apiVersion": resource.api_version, "kind": resource.kind}


def _words(title: str) -> Words:
    return Words(
        title=title,
        failed="rules failed, the taint rules stay as they are",
        again="rules failed again",
        returns="write 'yield [...]' instead of 'return [...]'",
        empty="a set of rules; yield [] when there are none",
        code="invalid-taint-rules",
    )
