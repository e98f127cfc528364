"""What a test does: apply manifests, wait for a pod, look at what its containers got."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from dra_kit.errors import ConfigurationError
from dra_kit.kube.resources import PODS, RESOURCE_CLAIMS
from dra_kit.sandbox.cluster import Sandbox
from dra_kit.sandbox.facts import Cluster, PodFacts
from dra_kit.sandbox.manifests import Manifest, load_manifests, parse_manifests
from dra_kit.sandbox.stage import Stage, namespace_for
from dra_kit.testing.background import Background
from dra_kit.testing.named import named
from dra_kit.values.printable import printable

Phase = Literal["Pending", "Running", "Succeeded", "Failed"]
_ENDED = {"Succeeded", "Failed"}
_LAID_OUT = "\n\t"

__tracebackhide__ = True  # pytest shows the test's own line instead


class Harness:
    """A cluster with the driver in it, and a namespace in it that belongs to one test.

    Args:
        cluster: where it is.
        background: whose event loop the cluster belongs to.
        stage: the namespace.
        directory: relative paths of manifests start here.
    """

    def __init__(self, cluster: Cluster, background: Background, stage: Stage, directory: Path) -> None:
        self.cluster = cluster
        self._background = background
        self._stage = stage
        self._directory = directory

    @property
    def namespace(self) -> str:
        """Name of the test's namespace."""
        return self._stage.namespace

    def apply(self, *manifests: str | Path | Mapping[str, Any]) -> None:
        """Make the objects of manifests, in their order.

        Args:
            *manifests: paths of YAML files, YAML texts (which have several lines), or objects.

        Raises:
            KubeError: the API server refuses an object; ``Invalid`` when it, or the driver's webhook, says that the
                object is wrong.
            ConfigurationError: a manifest cannot be read.
        """
        for given in manifests:
            try:
                parsed = self._manifests(given)
            except ConfigurationError as error:
                raise error.with_traceback(None) from None
            for manifest in parsed:
                self._background.call(self._stage.create(manifest))

    def delete(self, reference: str) -> None:
        """Delete an object that the test made, and wait until it is gone.

        Args:
            reference: such as ``Pod/guest``.

        Raises:
            AssertionError: the test made no such object, or it does not go.
        """
        manifest = self._stage.find(reference)
        if manifest is None:
            raise AssertionError(f"{reference} was not applied; {self._applied()}")
        if not self._background.call(self._stage.delete(manifest)):
            raise AssertionError(f"{reference} was deleted and is still there")

    def wait(
        self, pod: str, *, phase: Phase | None = None, message: str = "", timeout: float | None = None
    ) -> PodFacts:
        """Wait for a pod, and look at it and at its containers.

        Args:
            pod: its name.
            phase: wait for this phase; without it, and without a message, until the pod runs or has ended.
            message: wait until one of the pod's events or conditions contains this text.
            timeout: seconds that this may take; without it those of the test bed.

        Raises:
            AssertionError: it did not come to that; the text has the pod's events and conditions and, where it has no
                node, what ``dra-kit explain`` says of its devices. There is no waiting for a pod that does not exist,
                nor for one whose claim the driver has refused with a permanent error since the test's last change.
        """
        return named(self._background.call(self._wait(pod, phase, message, timeout)), pod)

    def claim(self, name: str) -> dict[str, Any]:
        """A ResourceClaim as it is in the API.

        Raises:
            NotFound: there is none.
        """
        return self._background.call(self.cluster.client.get(RESOURCE_CLAIMS, name, self.namespace))

    def replace_file(self, setting: str, text: str) -> None:
        """Replace the file that a setting of the driver names, until the test ends.

        Args:
            setting: its name, which must be in ``dra_editable``: only then the driver has a copy of the file.
            text: the new content.

        Raises:
            ConfigurationError: there is no such setting, it names no file, or the file is the project's own.
        """
        self._background.call(self._stage.replace_file(setting, text))

    def unhealthy(self, device: str, reason: str, message: str = "") -> None:
        """Make a device ill, whatever the driver's health source says, until :meth:`healthy` or the end of the test.

        Args:
            device: its name, or ``<pool>/<name>``.
            reason: a key of the policy of the driver's health source.
            message: for people.

        Raises:
            ConfigurationError: the driver has no health source, or no such device or reason; or this is a real cluster.
        """
        self._background.call(self._stage.inject_health(device, reason, message))

    def healthy(self, device: str, reason: str) -> None:
        """Take back what :meth:`unhealthy` did; the health source speaks for itself again.

        Raises:
            ConfigurationError: likewise.
        """
        self._background.call(self._stage.inject_health(device, reason, None))

    def _manifests(self, given: str | Path | Mapping[str, Any]) -> tuple[Manifest, ...]:
        if isinstance(given, Mapping):
            return parse_manifests([given], "the object given")
        if isinstance(given, str) and "\n" in given:
            return parse_manifests(given, "the text given")
        return load_manifests(self._directory / given)

    def _applied(self) -> str:
        return f"applied was {', '.join(map(str, self._stage.created)) or 'nothing'}"

    async def _wait(self, name: str, phase: Phase | None, message: str, timeout: float | None) -> PodFacts:
        pod: PodFacts | None = None
        async for _ in self._stage.until_deadline(timeout):
            pod = (await self._stage.facts([name], [])).pods.get(name)
            if pod is None:
                break
            if _as_wished(pod, phase, message):
                return pod
            if pod.phase in _ENDED and phase not in {None, pod.phase}:
                break
            if pod.refusal and not message:  # another text may still come
                break
        wish = " and ".join(filter(None, [phase or ("" if message else "Running"), message and f"told {message!r}"]))
        if pod is None:
            raise AssertionError(f"pod {name} does not exist; it should be {wish}; {self._applied()}")
        texts = [*_told(pod), *await self._causes(name)]
        told = "".join(f"\n  {printable(text, keep=_LAID_OUT)}" for text in texts)
        raise AssertionError(f"pod {name} is {pod.phase}; it should be {wish}{told}")

    async def _causes(self, name: str) -> Sequence[str]:
        """Why a pod has no node, device by device; on a real cluster that takes rights to read all of it."""
        pod = await self.cluster.client.get(PODS, name, self.namespace)
        if pod["spec"].get("nodeName") or not isinstance(self.cluster, Sandbox):
            return ()
        return (await self.cluster.causes([pod])).get(pod["metadata"]["uid"], ())


def _as_wished(pod: PodFacts, phase: Phase | None, message: str) -> bool:
    if message and not any(message in text for text in pod.messages):
        return False
    if phase is not None:
        return pod.phase == phase
    return bool(message) or pod.phase in {"Running", *_ENDED}


def _told(pod: PodFacts) -> Iterator[str]:
    if pod.refusal:
        yield f"the driver refuses it for good: {pod.refusal}"
    yield from pod.messages
    for name, container in pod.containers.items():
        if container.exit_code is not None:
            yield f"container {name} ended with {container.exit_code}: {container.output.strip()[-500:]}"


@contextmanager
def staged(
    cluster: Cluster, background: Background, test: str, *, directory: Path, timeout: float, labels: Mapping[str, str]
) -> Iterator[Harness]:
    """The harness of one test; in the end everything it made is deleted.

    Raises:
        AssertionError: something is left over although the test passed: claims, CDI files, records, effects, devices.
    """
    stage = Stage(cluster, namespace_for("test", test), labels=labels, timeout=timeout)
    background.call(stage.open())
    try:
        yield Harness(cluster, background, stage, directory)
    except BaseException:
        background.call(stage.close())
        raise
    leftovers = background.call(stage.close())
    if leftovers:
        raise AssertionError("left over after the test: " + ", ".join(leftovers))
