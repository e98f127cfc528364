"""Runs a story: applies its steps, compares, reports."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from dra_kit.client.api import server_version
from dra_kit.errors import ConfigurationError, KubeError, SandboxError
from dra_kit.sandbox.drivers.roles import SLOW_CALL_SECONDS
from dra_kit.sandbox.stories.completion import PodsOutcome
from dra_kit.sandbox.stories.facts import Cluster, PodFacts, StoryFacts
from dra_kit.sandbox.stories.manifests import Manifest
from dra_kit.sandbox.stories.model import DriverActions, EmptyMapping, Expectation, Kill, Reboot, Upgrade
from dra_kit.sandbox.stories.namespace import CreatedObject, StoryNamespace, namespace_name
from dra_kit.sandbox.stories.story import CompletionCheck, Story, StoryStep
from dra_kit.sandbox.stories.verdict import Mismatch, compare, referenced_pods

_OF_OTHERS: Final = "default"
"""The namespace of objects that name none, if the story has no namespace."""


async def run_story(
    story: Story,
    cluster: Cluster,
    *,
    observer: StoryObserver | None = None,
    timeout: float = 180,
    clean_up: float | None = None,
) -> StoryResult:
    """Run a story. Everything it created is deleted before this returns, even after an error or a cancellation.

    The exception is an interrupted story without its own namespace: its objects are deleted with the cluster.

    Args:
        story: the story to run.
        cluster: the cluster to run it in; the driver and its DeviceClasses exist already.
        observer: is notified of what happens.
        timeout: seconds for each step.
        clean_up: seconds for the cleanup; None for ``timeout``.

    Raises:
        ConfigurationError: the API server rejects an object of a story without its own namespace.
    """
    return await StoryRunner(story, cluster, observer or StoryObserver(), timeout, clean_up).run()


class StepRejected(Exception):
    """The cluster rejected an action of a story."""

    def __init__(self, subject: object, expected: str, got: str) -> None:
        self.mismatch: Mismatch = Mismatch(str(subject), expected, got, final=True)
        super().__init__(str(self.mismatch))


class StoryRunner:
    """Runs one story; see :func:`run_story`."""

    def __init__(
        self, story: Story, cluster: Cluster, observer: StoryObserver, timeout: float, clean_up: float | None
    ) -> None:
        self.story = story
        self.cluster = cluster
        self.observer = observer
        self.stage: StoryNamespace = StoryNamespace(
            cluster,
            namespace_name("story", story.name) if story.own_namespace else _OF_OTHERS,
            own=story.own_namespace,
            labels=story.namespace_labels,
            timeout=timeout,
            clean_up=clean_up,
            leftovers=story.leftovers,
            waiting=observer.waiting,
        )
        self.pods: dict[str, PodFacts] = {}
        self.failures: list[StoryFailure] = []
        self.unseen: dict[str, None] = {}

    async def run(self) -> StoryResult:
        """Apply its manifests, follow its steps, and compare."""
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
                StoryFailure("clean-up", (Mismatch(subject, "nothing", "\n              ".join(leftovers)),))
            )
        if self.stage.unreached and not self.failures:
            reached = Mismatch("the driver", f"is killed after {self.stage.unreached}", "it has not reached that step")
            self.failures.append(StoryFailure("the end", (reached,)))
        await self.observer.cleaned(leftovers)
        seconds = time.monotonic() - begin
        return StoryResult(
            self.story.name, namespace, seconds, dict(self.pods), tuple(self.failures), tuple(self.unseen)
        )

    async def _begin(self) -> StoryFailure | None:
        """Check the release and the drivers of the steps, and move those that will be killed to processes."""
        if self.story.kubernetes is not None:
            found = server_version(await self.cluster.client.get_path("/version"))
            if found != self.story.kubernetes:
                expected = f"is Kubernetes {self.story.kubernetes}"
                return StoryFailure("the beginning", (Mismatch("the cluster", expected, f"it is {found}", final=True),))
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
            return StoryFailure(where, (Mismatch("the driver", expected, str(error), final=True),))
        return None

    async def _step(self, where: str, step: StoryStep) -> bool:
        try:
            await self._act(step)
        except StepRejected as refusal:
            self.failures.append(StoryFailure(where, (refusal.mismatch,)))
            return False
        await self.observer.applied(step, self.stage.created)
        try:
            facts, failure = await self._judge(where, step)
        except ConfigurationError as error:
            self.failures.append(StoryFailure(where, (Mismatch("files", "can be looked at", str(error), final=True),)))
            return False
        if failure is not None:
            self.failures.append(failure)
            return False
        await self.observer.done(step, facts)
        return True

    async def _act(self, step: StoryStep) -> None:
        """Carry out the actions of a step, in this order."""
        await self._control(step.actions, step.driver)
        for manifest in step.manifests:
            await self._create(manifest)
        for setting, text in step.edits.items():
            await self.stage.replace_file(setting, text, step.driver)
        for device, reasons in step.health.items():
            for reason, message in reasons.items():
                await self._inject_health(device, reason, message, step.driver)
        for reference in step.deletes:
            if not await self.stage.delete(self._made(reference)):
                raise StepRejected(reference, "is gone after it was deleted", "it still exists")
        for reference in step.expectation.gone if step.expectation else ():
            self._made(reference)

    async def _judge(self, where: str, step: StoryStep) -> tuple[StoryFacts, StoryFailure | None]:
        """Wait until the expectations of a step are met, or cannot be met any more."""
        if step.expectation is None:
            failure = await self._complete(where, step.completion) if step.completion else None
            return StoryFacts(), failure
        facts, mismatches = await self._become_true(where, step.expectation, step.driver)
        self.pods.update(facts.pods)
        self.unseen |= {place: None for place, texts in facts.files.items() if texts is None}
        return facts, StoryFailure(where, mismatches, facts.report()) if mismatches else None

    async def _complete(self, where: str, completion: CompletionCheck) -> StoryFailure | None:
        async for _ in self.stage.until_deadline():
            if (await completion.look(self.stage.created)).settled:
                break
        outcome = await completion.judge(self.stage.created)
        return None if outcome.passed else StoryFailure(where, (), outcome=outcome)

    async def _become_true(
        self, where: str, expectation: Expectation, driver: str
    ) -> tuple[StoryFacts, tuple[Mismatch, ...]]:
        facts = StoryFacts()
        mismatches: tuple[Mismatch, ...] = ()
        begin, reported = time.monotonic(), False
        async for _ in self.stage.until_deadline():
            pods = referenced_pods(expectation)
            facts = await self.stage.facts(sorted(pods), expectation.claims)
            if expectation.devices:
                facts = replace(facts, devices=await self.stage.devices())
            files = {place: await self.cluster.control(driver).files(place) for place in expectation.files}
            made = [item for reference in expectation.gone if (item := self.stage.find(reference)) is not None]
            present = frozenset([str(item) for item in made if not await self.stage.is_gone(item)])
            facts = replace(facts, present=present, files=files)
            mismatches = compare(expectation, facts, self.stage.namespace)
            if not mismatches or any(mismatch.final for mismatch in mismatches):
                break
            if not reported and time.monotonic() - begin > SLOW_CALL_SECONDS:
                self.observer.unmet(where, mismatches, self.stage.timeout)
                reported = True
        return facts, mismatches

    async def _control(self, actions: DriverActions | None, name: str) -> None:
        """Carry out the actions of a step on a driver."""
        if actions is None:
            self.stage.forget_refusals()
            return
        if actions.reboot is not None:
            name = name or next(iter(self.cluster.drivers), "")  # all are rebooted
        try:
            async with self.stage.driver(name) as driver:
                match actions:
                    case DriverActions(restart=EmptyMapping()):
                        await driver.restart()
                    case DriverActions(kill=Kill(after=str(step))):
                        await driver.kill_after(step)
                    case DriverActions(kill=Kill(restart=restart)):
                        await driver.kill()
                        if restart:
                            await driver.start()
                    case DriverActions(start=EmptyMapping()):
                        await driver.start()
                    case DriverActions(upgrade=Upgrade(target=target)):
                        await driver.upgrade(target)
                    case DriverActions(rollback=EmptyMapping()):
                        await driver.rollback()
                    case DriverActions(reboot=Reboot(lost=lost)):
                        await driver.reboot(lost)
        except (ConfigurationError, SandboxError) as error:
            [what] = [name for name in DriverActions.model_fields if getattr(actions, name) is not None]
            raise StepRejected(f"{what} of the driver", "is done", str(error)) from None

    async def _create(self, manifest: Manifest) -> None:
        if not self.story.own_namespace:
            await self.stage.apply(manifest)
            return
        try:
            await self.stage.create(manifest)
        except (ConfigurationError, KubeError) as error:
            raise StepRejected(f"{manifest} of {manifest.file}", "the API server accepts it", str(error)) from None

    async def _inject_health(self, device: str, reason: str, message: str | None, driver: str) -> None:
        try:
            await self.stage.inject_health(device, reason, message, driver)
        except ConfigurationError as error:
            raise StepRejected(f"health of device {device}", f"{reason} can be reported", str(error)) from None

    def _made(self, reference: str) -> CreatedObject:
        made = self.stage.find(reference)
        if made is None:
            raise StepRejected(reference, "an earlier step created it", "no step did")
        return made


class StoryObserver:
    """Is notified of the progress of a story; the methods of this base class are no-ops."""

    async def begun(self, story: Story, namespace: str) -> None:
        """Note that the namespace exists, and nothing else yet."""

    async def applied(self, step: StoryStep, made: Sequence[CreatedObject]) -> None:
        """Note that a step was applied; the runner now waits for its expectation."""

    def unmet(self, where: str, mismatches: Sequence[Mismatch], seconds: float) -> None:
        """Note what a step still waits for after a while, once for each step; it may take so many seconds in all."""

    async def done(self, step: StoryStep, facts: StoryFacts) -> None:
        """Note that everything that a step expects is true."""

    async def ended(self, failure: StoryFailure | None) -> None:
        """Note that no step follows and all objects still exist; ``failure`` is that of the last step."""

    def waiting(self, subject: str, found: Sequence[str], seconds: float) -> None:
        """Note what the story still waits for after a while, once for each subject; it may take so many seconds."""

    async def cleaned(self, leftovers: Sequence[str]) -> None:
        """Note that everything was deleted, and what is left over."""


class StoryFailure(Struct, frozen=True):
    """Why a story failed: the step, the difference from what was expected, and what the cluster says of the objects.

    ``outcome`` is set for a step without a written expectation.
    """

    where: str
    mismatches: tuple[Mismatch, ...]
    messages: tuple[str, ...] = ()
    outcome: PodsOutcome | None = None

    @property
    def lines(self) -> list[str]:
        """The lines of the failure; the first one says where."""
        lines = [f"{self.where}:", *(f"  {mismatch}" for mismatch in self.mismatches)]
        if self.outcome:
            lines += [f"  {line}" for text in self.outcome.failures for line in text.splitlines()]
        if self.messages:
            lines += ["  events and conditions:", *(f"    {message}" for message in self.messages)]
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines)


class StoryResult(Struct, frozen=True):
    """The result of a story."""

    story: str
    namespace: str
    seconds: float
    pods: Mapping[str, PodFacts] = field(default_factory=dict)
    failures: tuple[StoryFailure, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Everything the story expects was true, and nothing was left over."""
        return not self.failures

    @property
    def lines(self) -> list[str]:
        """The lines of the report: one if the story passed, else also expected and got of each failure."""
        head = f"story {self.story} {'passed' if self.passed else 'FAILED'} in {self.seconds:.1f} s"
        if self.unseen:
            head += f"; not checked, because files of a real node cannot be read: file {', '.join(self.unseen)}"
        return [head, *(line for failure in self.failures for line in failure.lines)]

    def report(self) -> str:
        """Return the lines as one text."""
        return "\n".join(self.lines)
