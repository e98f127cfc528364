"""Runs one story against a cluster: in a namespace of its own, and so that nothing is left of it."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dra_kit.errors import Conflict, Forbidden, KubeError, NotFound, Unavailable
from dra_kit.kube.resources import NAMESPACES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_kit.sandbox.facts import ClaimFacts, Cluster, Facts, PodFacts, gather
from dra_kit.sandbox.manifests import Manifest
from dra_kit.sandbox.story import Step, Story
from dra_kit.sandbox.verdict import Mismatch, compare, references

POLL_SECONDS = 0.3


class StoryObserver(Protocol):
    """Told what happens, while it happens."""

    async def begun(self, story: Story, namespace: str) -> None:
        """The namespace exists, nothing else yet."""
        ...

    async def done(self, step: Step, facts: Facts) -> None:
        """A step was carried out and everything it expects is true."""
        ...

    async def cleaned(self, leftovers: Sequence[str]) -> None:
        """Everything was deleted; this is what remained all the same."""
        ...


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a story failed: where, what was not as expected, and what the cluster says of the objects."""

    where: str
    mismatches: tuple[Mismatch, ...]
    messages: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.where}:", *(f"  {mismatch}" for mismatch in self.mismatches)]
        if self.messages:
            lines += ["  events and conditions:", *(f"    {message}" for message in self.messages)]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class StoryResult:
    """How a story went.

    Attributes:
        story: its name.
        namespace: it ran in.
        seconds: it took, with the clean-up.
        pods: what was seen of each pod last.
        failures: none when all of it was true.
    """

    story: str
    namespace: str
    seconds: float
    pods: Mapping[str, PodFacts] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()

    @property
    def passed(self) -> bool:
        """Everything the story expects was true, and nothing was left over."""
        return not self.failures

    def report(self) -> str:
        """What a person reads: one line when it passed, else expected and got of each failure, with the events."""
        head = f"story {self.story} {'passed' if self.passed else 'FAILED'} in {self.seconds:.1f} s"
        return "\n".join([head, *(str(failure) for failure in self.failures)])


async def run_story(
    story: Story, cluster: Cluster, *, observer: StoryObserver | None = None, timeout: float = 180
) -> StoryResult:
    """Run a story. Whatever happens, also a cancellation, everything it made is deleted before this returns.

    Args:
        story: to run.
        cluster: to run it in; the driver and its DeviceClasses are there already.
        observer: is told what happens.
        timeout: seconds for each step, and for each part of the clean-up.
    """
    return await _Run(story, cluster, observer, timeout).run()


def namespace_for(story: str) -> str:
    """A new namespace's name, a DNS label that tells the story: ``story-<name>-<six random digits>``."""
    readable = re.sub(r"[^a-z0-9]+", "-", story.lower()).strip("-")
    return f"story-{readable[:48]}-{secrets.token_hex(3)}"


class _Refused(Exception):
    """The API server did not take what a story wants to do."""

    def __init__(self, mismatch: Mismatch) -> None:
        super().__init__(str(mismatch))
        self.mismatch = mismatch


class _Run:
    def __init__(self, story: Story, cluster: Cluster, observer: StoryObserver | None, timeout: float) -> None:
        self.story = story
        self.cluster = cluster
        self.client = cluster.client
        self.observer = observer
        self.timeout = timeout
        self.namespace = namespace_for(story.name)
        self.created: list[Manifest] = []
        self.former_files: dict[str, str] = {}
        self.pods: dict[str, PodFacts] = {}
        self.failures: list[Failure] = []

    async def run(self) -> StoryResult:
        begin = time.monotonic()
        before = await self._slices(), set(await self.cluster.node_state())
        try:
            await self._create_namespace()
            if self.observer:
                await self.observer.begun(self.story, self.namespace)
            for number, step in enumerate(self.story.steps, start=1):
                if not await self._step(f"step {number} of {len(self.story.steps)}", step):
                    break
        finally:
            leftovers = await self._clean_up(*before)
        if leftovers:
            subject = "what the story leaves behind"
            self.failures.append(
                Failure("clean-up", (Mismatch(subject, "nothing", "\n              ".join(leftovers)),))
            )
        if self.observer:
            await self.observer.cleaned(leftovers)
        return StoryResult(
            self.story.name, self.namespace, time.monotonic() - begin, dict(self.pods), tuple(self.failures)
        )

    # --- a step

    async def _step(self, where: str, step: Step) -> bool:
        try:
            for manifest in step.manifests:
                await self._create(manifest)
            for setting, text in step.edits.items():
                former = await self.cluster.replace_file(setting, text)
                self.former_files.setdefault(setting, former)
            for reference in step.deletes:
                await self._delete(reference)
        except _Refused as refusal:
            self.failures.append(Failure(where, (refusal.mismatch,)))
            return False
        facts, mismatches = await self._become_true(step)
        self.pods.update(facts.pods)
        if mismatches:
            objects: list[tuple[str, PodFacts | ClaimFacts]] = [*facts.pods.items(), *facts.claims.items()]
            messages = tuple(f"{name}: {message}" for name, item in objects for message in item.messages)
            self.failures.append(Failure(where, mismatches, messages))
            return False
        if self.observer:
            await self.observer.done(step, facts)
        return True

    async def _become_true(self, step: Step) -> tuple[Facts, tuple[Mismatch, ...]]:
        facts = Facts()
        mismatches: tuple[Mismatch, ...] = ()
        async for _ in self._until_deadline():
            pods = references(step.expectation)
            facts = await gather(self.cluster, self.namespace, sorted(pods), step.expectation.claims)
            mismatches = compare(step.expectation, facts, self.namespace)
            if not mismatches or any(mismatch.final for mismatch in mismatches):
                break
        return facts, mismatches

    async def _create(self, manifest: Manifest) -> None:
        namespaced = manifest.resource.namespaced
        metadata = {**manifest.body["metadata"], **({"namespace": self.namespace} if namespaced else {})}
        body = {**manifest.body, "metadata": metadata}
        problem: KubeError | None = None
        # noted first: whatever interrupts the request, the object may exist then
        self.created.append(manifest)
        async for _ in self._until_deadline():
            try:
                await self.client.create(manifest.resource, body)
            except KubeError as error:
                problem = error
                # the service account of a new namespace comes a moment later than the namespace
                if not (isinstance(error, Forbidden) and "serviceaccount" in error.message):
                    break
            else:
                return
        if not isinstance(problem, Unavailable):
            self.created.remove(manifest)
        raise _Refused(Mismatch(f"{manifest} of {manifest.file}", "the API server takes it", str(problem), final=True))

    async def _delete(self, reference: str) -> None:
        manifest = next((item for item in self.created if str(item) == reference), None)
        if manifest is None:
            raise _Refused(Mismatch(reference, "a step before created it", "none did", final=True))
        if not await self._remove([manifest]):
            raise _Refused(Mismatch(reference, "is gone after it was deleted", "it is still there", final=True))

    # --- the end

    async def _clean_up(self, slices: set[str], node_state: set[str]) -> tuple[str, ...]:
        """Delete everything, pods first, and tell what remains."""
        await self._remove([item for item in self.created if item.resource is PODS])
        for setting, text in self.former_files.items():
            await self.cluster.replace_file(setting, text)
        own = {item.name for item in self.created if item.resource is RESOURCE_CLAIMS}
        # claims made from templates go by themselves once their pods are gone
        remaining = await self._settle(lambda: self._claims(own))
        await self._remove([item for item in reversed(self.created) if item.resource is not PODS])
        remaining += await self._settle(lambda: self._objects(self.created))
        remaining += await self._settle(lambda: self._claims(set()))
        try:
            await self.client.delete(NAMESPACES, self.namespace)
        except NotFound:
            pass
        remaining += await self._settle(self._namespaces)
        remaining += await self._settle(lambda: self._node_difference(node_state))
        remaining += await self._settle(lambda: self._slice_difference(slices))
        return tuple(
            text
            for text in dict.fromkeys(remaining)
            if not any(re.search(pattern, text) for pattern in self.story.leftovers)
        )

    async def _remove(self, manifests: Sequence[Manifest]) -> bool:
        """Delete objects; True when they are gone."""
        for manifest in manifests:
            try:
                await self.client.delete(manifest.resource, manifest.name, self._namespace_of(manifest))
            except (NotFound, Conflict):  # gone, or going
                pass
        return not await self._settle(lambda: self._objects(manifests))

    async def _settle(self, remaining: Callable[[], Awaitable[list[str]]]) -> list[str]:
        """Wait until nothing remains; what does in the end."""
        found: list[str] = []
        async for _ in self._until_deadline():
            found = await remaining()
            if not found:
                break
        return found

    async def _until_deadline(self) -> AsyncIterator[None]:
        end = time.monotonic() + self.timeout
        yield
        while time.monotonic() < end:
            await asyncio.sleep(POLL_SECONDS)
            yield

    # --- what there is

    async def _create_namespace(self) -> None:
        metadata = {"name": self.namespace, "labels": dict(self.story.namespace_labels)}
        await self.client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})

    def _namespace_of(self, manifest: Manifest) -> str | None:
        return self.namespace if manifest.resource.namespaced else None

    async def _objects(self, manifests: Sequence[Manifest]) -> list[str]:
        found = []
        for manifest in manifests:
            try:
                await self.client.get(manifest.resource, manifest.name, self._namespace_of(manifest))
            except NotFound:
                continue
            found.append(str(manifest))
        return found

    async def _claims(self, expected: set[str]) -> list[str]:
        claims = (await self.client.list(RESOURCE_CLAIMS, self.namespace)).items
        names = [item["metadata"]["name"] for item in claims]
        return [f"ResourceClaim/{name}" for name in names if name not in expected]

    async def _namespaces(self) -> list[str]:
        try:
            await self.client.get(NAMESPACES, self.namespace)
        except NotFound:
            return []
        return [f"Namespace/{self.namespace}"]

    async def _node_difference(self, before: set[str]) -> list[str]:
        return sorted(set(await self.cluster.node_state()) - before)

    async def _slices(self) -> set[str]:
        """Each published device with its pool, as a text; generations do not matter."""
        selector = f"spec.driver={self.cluster.driver}"
        slices = (await self.client.list(RESOURCE_SLICES, field_selector=selector)).items
        return {
            f"device {item['spec']['pool']['name']}/{device['name']} as {json.dumps(device, sort_keys=True)}"
            for item in slices
            for device in item["spec"].get("devices", [])
        }

    async def _slice_difference(self, before: set[str]) -> list[str]:
        now = await self._slices()
        return sorted([f"{text} is published" for text in now - before] + [f"{text} is gone" for text in before - now])
