"""Runs one story against a cluster: in a namespace of its own, and so that nothing is left of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from dra_kit.errors import ConfigurationError, KubeError, SandboxError
from dra_kit.sandbox.stories.expectations.verdict import Mismatch, compare, references
from dra_kit.sandbox.stories.manifests import Manifest
from dra_kit.sandbox.stories.observer import StoryObserver
from dra_kit.sandbox.stories.result import Failure, StoryResult
from dra_kit.sandbox.stories.stage import Made, Stage, namespace_for
from dra_kit.sandbox.stories.story import Step, Story

if TYPE_CHECKING:  # what a story expects and does is loaded when there is one: -f without it is a story, too
    from dra_kit.sandbox.stories.completion import Completion
    from dra_kit.sandbox.stories.expectations.facts import ClaimFacts, Cluster, Facts, PodFacts
    from dra_kit.sandbox.stories.story_model import DriverActions, Expectation

_OF_OTHERS: Final = "default"
"""The namespace of objects that name none, where a story has none of its own."""


async def run_story(
    story: Story,
    cluster: Cluster,
    *,
    observer: StoryObserver | None = None,
    timeout: float = 180,
    clean_up: float | None = None,
) -> StoryResult:
    """Run a story. Whatever happens, also a cancellation, everything it made is deleted before this returns.

    Only where it has no namespace of its own, whoever interrupts it ends the cluster with it.

    Args:
        story: to run.
        cluster: to run it in; the driver and its DeviceClasses are there already.
        observer: is notified of what happens.
        timeout: seconds for each step.
        clean_up: seconds for the clean-up; None for ``timeout``.

    Raises:
        ConfigurationError: of a story without a namespace of its own: the API server refuses one of its objects.
    """
    return await _Run(story, cluster, observer or StoryObserver(), timeout, clean_up).run()


class _Refused(Exception):
    """The cluster did not do what a story wants to have done."""

    def __init__(self, subject: object, expected: str, got: str) -> None:
        self.mismatch = Mismatch(str(subject), expected, got, final=True)
        super().__init__(str(self.mismatch))


class _Run:
    def __init__(
        self, story: Story, cluster: Cluster, observer: StoryObserver, timeout: float, clean_up: float | None
    ) -> None:
        self.story = story
        self.cluster = cluster
        self.observer = observer
        self.stage = Stage(
            cluster,
            namespace_for("story", story.name) if story.own_namespace else _OF_OTHERS,
            own=story.own_namespace,
            labels=story.namespace_labels,
            timeout=timeout,
            clean_up=clean_up,
            leftovers=story.leftovers,
            waiting=observer.waiting,
        )
        self.pods: dict[str, PodFacts] = {}
        self.failures: list[Failure] = []
        self.unseen: dict[str, None] = {}

    async def run(self) -> StoryResult:
        begin = time.monotonic()
        namespace = self.stage.namespace
        if failure := await self._begin():
            return StoryResult(self.story.name, namespace, 0.0, {}, (failure,))
        await self.stage.open()
        try:
            await self.observer.begun(self.story, namespace)
            for number, step in enumerate(self.story.steps, start=1):
                if not await self._step(f"step {number} of {len(self.story.steps)}", step):
                    break
            await self.observer.ended(self.failures[-1] if self.failures else None)
        except BaseException:
            if self.story.own_namespace:
                await self.stage.close()
            raise
        leftovers = await self.stage.close()
        if leftovers:
            subject = "what the story leaves behind"
            self.failures.append(
                Failure("clean-up", (Mismatch(subject, "nothing", "\n              ".join(leftovers)),))
            )
        if self.stage.unreached and not self.failures:
            reached = Mismatch("the driver", f"is killed after {self.stage.unreached}", "it has not come to that step")
            self.failures.append(Failure("the end", (reached,)))
        await self.observer.cleaned(leftovers)
        seconds = time.monotonic() - begin
        return StoryResult(
            self.story.name, namespace, seconds, dict(self.pods), tuple(self.failures), tuple(self.unseen)
        )

    async def _begin(self) -> Failure | None:
        """Look whether the drivers of the steps are there, and have those in processes that will be killed."""
        where, expected = "the beginning", "is there"
        try:
            for number, step in enumerate(self.story.steps, start=1):
                if step.acts or step.driver:
                    where = f"step {number} of {len(self.story.steps)}"
                    self.cluster.control(step.driver)
            where, expected = "the beginning", "can be killed"
            for name in self.cluster.drivers:
                await self.cluster.control(name).in_process(bool({name, ""} & self.story.killed))
        except (ConfigurationError, SandboxError) as error:
            return Failure(where, (Mismatch("the driver", expected, str(error), final=True),))
        return None

    async def _step(self, where: str, step: Step) -> bool:
        try:
            await self._act(step)
        except _Refused as refusal:
            self.failures.append(Failure(where, (refusal.mismatch,)))
            return False
        await self.observer.applied(step, self.stage.created)
        try:
            facts, failure = await self._judge(where, step)
        except ConfigurationError as error:
            self.failures.append(Failure(where, (Mismatch("files", "can be looked at", str(error), final=True),)))
            return False
        if failure is not None:
            self.failures.append(failure)
            return False
        await self.observer.done(step, facts)
        return True

    async def _act(self, step: Step) -> None:
        """Do what a step says, in this order."""
        await self._control(step.actions, step.driver)
        for manifest in step.manifests:
            await self._create(manifest)
        for setting, text in step.edits.items():
            await self.stage.replace_file(setting, text, step.driver)
        for device, reasons in step.health.items():
            for reason, message in reasons.items():
                await self._inject_health(device, reason, message, step.driver)
        for reference in step.deletes:
            await self._delete(reference)
        for reference in step.expectation.gone if step.expectation else ():
            self._made(reference)

    async def _judge(self, where: str, step: Step) -> tuple[Facts, Failure | None]:
        """Wait until everything that a step expects is true, or cannot become true any more."""
        if step.expectation is None:
            failure = await self._complete(where, step.completion) if step.completion else None
            from dra_kit.sandbox.stories.expectations.facts import Facts

            return Facts(), failure
        facts, mismatches = await self._become_true(step.expectation, step.driver)
        self.pods.update(facts.pods)
        self.unseen |= {place: None for place, texts in facts.files.items() if texts is None}
        objects: list[tuple[str, PodFacts | ClaimFacts]] = [*facts.pods.items(), *facts.claims.items()]
        messages = tuple(f"{name}: {message}" for name, item in objects for message in item.messages)
        return facts, Failure(where, mismatches, messages) if mismatches else None

    async def _complete(self, where: str, completion: Completion) -> Failure | None:
        async for _ in self.stage.until_deadline():
            if (await completion.look(self.stage.created)).settled:
                break
        outcome = await completion.judge(self.stage.created)
        return None if outcome.passed else Failure(where, (), outcome=outcome)

    async def _become_true(self, expectation: Expectation, driver: str) -> tuple[Facts, tuple[Mismatch, ...]]:
        from dra_kit.sandbox.stories.expectations.facts import Facts

        facts = Facts()
        mismatches: tuple[Mismatch, ...] = ()
        async for _ in self.stage.until_deadline():
            pods = references(expectation)
            facts = await self.stage.facts(sorted(pods), expectation.claims)
            if expectation.devices:
                facts = replace(facts, devices=await self.stage.devices())
            files = {place: await self.cluster.control(driver).files(place) for place in expectation.files}
            facts = replace(facts, present=await self._present(expectation.gone), files=files)
            mismatches = compare(expectation, facts, self.stage.namespace)
            if not mismatches or any(mismatch.final for mismatch in mismatches):
                break
        return facts, mismatches

    async def _present(self, references: Sequence[str]) -> frozenset[str]:
        made = [item for reference in references if (item := self.stage.find(reference)) is not None]
        return frozenset([str(item) for item in made if not await self.stage.is_gone(item)])

    async def _control(self, actions: DriverActions | None, name: str) -> None:
        """Do to a driver what a step says."""
        if actions is None:
            self.cluster.forget_refusals(self.stage.namespace)
            return
        from dra_kit.sandbox.stories.story_model import DriverActions, Kill, Nothing, Reboot, Upgrade

        if actions.reboot is not None:
            name = name or next(iter(self.cluster.drivers), "")  # all are rebooted
        try:
            async with self.stage.driver(name) as driver:
                match actions:
                    case DriverActions(restart=Nothing()):
                        await driver.restart()
                    case DriverActions(kill=Kill(after=str(step))):
                        await driver.kill_after(step)
                    case DriverActions(kill=Kill(restart=restart)):
                        await driver.kill()
                        if restart:
                            await driver.start()
                    case DriverActions(start=Nothing()):
                        await driver.start()
                    case DriverActions(upgrade=Upgrade(target=target)):
                        await driver.upgrade(target)
                    case DriverActions(rollback=Nothing()):
                        await driver.rollback()
                    case DriverActions(reboot=Reboot(lost=lost)):
                        await driver.reboot(lost)
        except (ConfigurationError, SandboxError) as error:
            [what] = [name for name in DriverActions.model_fields if getattr(actions, name) is not None]
            raise _Refused(f"{what} of the driver", "is done", str(error)) from None

    async def _create(self, manifest: Manifest) -> None:
        if not self.story.own_namespace:
            await self.stage.apply(manifest)
            return
        try:
            await self.stage.create(manifest)
        except (ConfigurationError, KubeError) as error:
            raise _Refused(f"{manifest} of {manifest.file}", "the API server takes it", str(error)) from None

    async def _inject_health(self, device: str, reason: str, message: str | None, driver: str) -> None:
        try:
            await self.stage.inject_health(device, reason, message, driver)
        except ConfigurationError as error:
            raise _Refused(f"health of device {device}", f"{reason} can be told of it", str(error)) from None

    async def _delete(self, reference: str) -> None:
        if not await self.stage.delete(self._made(reference)):
            raise _Refused(reference, "is gone after it was deleted", "it is still there")

    def _made(self, reference: str) -> Made:
        made = self.stage.find(reference)
        if made is None:
            raise _Refused(reference, "a step before created it", "none did")
        return made
