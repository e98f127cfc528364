"""The operations of a test on a cluster: apply, wait, inspect, kill, restart."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

from msgspec.structs import replace

from dra_kit.author.driver import Driver
from dra_kit.client.resources import PODS, RESOURCE_CLAIMS
from dra_kit.errors import ConfigurationError, NotFound
from dra_kit.sandbox.cluster import Sandbox
from dra_kit.sandbox.stories.facts import Cluster, DriverControl, PodFacts, PublishedDevice
from dra_kit.sandbox.stories.manifests import Manifest, load_manifests, parse_manifests
from dra_kit.sandbox.stories.namespace import CreatedObject, StoryNamespace
from dra_kit.testing.background import Background
from dra_kit.text import did_you_mean, escape_unprintable

T = TypeVar("T")
Phase = Literal["Pending", "Running", "Succeeded", "Failed"]
_ENDED = {"Succeeded", "Failed"}
_LAID_OUT = "\n\t"
__tracebackhide__ = True  # pytest shows the test's own line instead


class Harness:
    """A cluster with the driver, and the namespace of one test; relative paths of manifests start in ``directory``."""

    def __init__(self, cluster: Cluster, background: Background, stage: StoryNamespace, directory: Path) -> None:
        self.cluster = cluster
        self._background = background
        self._stage = stage
        self._directory = directory

    @property
    def namespace(self) -> str:
        """Name of the test's namespace."""
        return self._stage.namespace

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig of the cluster, for kubectl and other programs.

        Raises:
            ConfigurationError: this is a real cluster whose credentials are not in one file.
        """
        return self.cluster.kubeconfig

    def apply(self, *manifests: str | Path | Mapping[str, Any]) -> None:
        """Create the objects of manifests, in their order, or update those that exist, as ``kubectl apply`` does.

        A field that is in the manifest applied before, but no longer in this one, is removed. An object that the test
        did not create gets its former content when the test ends. An object is created in the test's namespace, or in
        that of ``metadata.namespace``, which must exist: apply its Namespace first.

        Args:
            *manifests: paths of YAML files, YAML texts (which have several lines), or objects.

        Raises:
            KubeError: the API server rejects an object; ``Invalid`` if it, or the driver's webhook, found it invalid.
            ConfigurationError: a manifest cannot be read.
        """
        for given in manifests:
            try:
                parsed = self._manifests(given)
            except ConfigurationError as error:
                raise error.with_traceback(None) from None
            for manifest in parsed:
                self._background.call(self._stage.create_or_update(manifest))

    def delete(self, reference: str) -> None:
        """Delete an object that the test created, such as ``Pod/guest``, and wait until it is gone.

        An object whose manifest names a namespace is ``<kind>/<namespace>/<name>``.

        Raises:
            AssertionError: the test did not create the object, or it is not gone in time.
        """
        if not self._background.call(self._stage.delete(self._created(reference))):
            raise AssertionError(f"{reference} was deleted but still exists")

    def wait(
        self, pod: str, *, phase: Phase | None = None, message: str = "", timeout: float | None = None
    ) -> PodFacts:
        """Wait for a pod, and return the state of the pod and its containers.

        Args:
            pod: the name of the pod, or ``<namespace>/<name>``.
            phase: wait for this phase; without a phase and a message, wait until the pod runs or has ended.
            message: wait until one of the pod's events or conditions contains this text.
            timeout: seconds to wait; the default is the timeout of the test bed.

        Raises:
            AssertionError: the pod did not reach the state. The message has the pod's events and conditions and, for a
                pod without a node, what ``dra-kit explain`` says of its devices. It is raised without waiting if the
                pod does not exist, or if the driver has rejected its claim with a permanent error since the test's
                last change.
        """
        return named(self._background.call(self._wait(pod, phase, message, timeout)), pod)

    def claim(self, name: str) -> dict[str, Any]:
        """Return a ResourceClaim from the API, by its name or ``<namespace>/<name>``.

        Raises:
            NotFound: it does not exist.
        """
        return self.get(f"{RESOURCE_CLAIMS.kind}/{name}", api_version=RESOURCE_CLAIMS.api_version)

    def get(self, reference: str, *, api_version: str = "") -> dict[str, Any]:
        """Return any object from the API, such as ``dra.get("ConfigMap/menu")`` or ``dra.get("Node/node-1")``.

        Args:
            reference: ``<kind>/<name>``, in the test's namespace if it is namespaced; or ``<kind>/<namespace>/<name>``.
            api_version: as in a manifest; only needed if several groups have the kind.

        Raises:
            NotFound: it does not exist.
            ConfigurationError: the API server has no such kind.
        """
        return self._background.call(self._stage.get(reference, api_version))

    def list(
        self, kind: str, *, api_version: str = "", namespace: str | None = None, label_selector: str = ""
    ) -> Sequence[dict[str, Any]]:
        """Return all objects of a kind, such as ``dra.list("Pod")`` or ``dra.list("ResourceSlice")``.

        Args:
            kind: as in a manifest.
            api_version: as for :meth:`get`.
            namespace: by default the test's; an empty text means all namespaces.
            label_selector: such as ``app=oven``.

        Raises:
            ConfigurationError: the API server has no such kind.
        """
        listed = self._stage.list_objects(kind, api_version, namespace=namespace, label_selector=label_selector)
        return self._background.call(listed)

    def patch(
        self, reference: str, patch: Mapping[str, Any], *, api_version: str = "", subresource: str = ""
    ) -> dict[str, Any]:
        """Change fields of any object by a JSON merge patch, as another client would; return it as stored.

        ``dra.patch("Node/node-1", {"metadata": {"labels": {"zone": "a"}}})`` sets a label, and a value of None removes
        it. An object that the test did not create gets its former content when the test ends, except its status.

        Args:
            reference: as for :meth:`get`.
            patch: the fields to change.
            api_version: as for :meth:`get`.
            subresource: such as ``status``.

        Raises:
            KubeError: the API server rejects it; ``NotFound`` if the object does not exist.
            ConfigurationError: the API server has no such kind.
        """
        return self._background.call(self._stage.patch(reference, patch, api_version, subresource=subresource))

    def devices(self) -> Mapping[str, PublishedDevice]:
        """Return the published devices by ``<name>``, or by ``<pool>/<name>`` if there are several pools.

        If devices of several drivers would have the same name, it is ``<driver>/<pool>/<name>``.
        """
        found = self._background.call(self._stage.devices())
        return NamedItems(f"{' and '.join(self.cluster.drivers)} publishes no device", found)

    def wait_for(self, check: Callable[[], T], *, timeout: float | None = None) -> T:
        """Wait until ``check`` returns a true value, and return the value.

        ``dra.wait_for(lambda: "pizza-9" in dra.devices())`` waits for slices,
        ``dra.wait_for(lambda: dra.claim("lunch")["status"]["devices"][0]["conditions"])`` for conditions.

        Args:
            check: called repeatedly; an AssertionError, a LookupError or a ``NotFound`` is the same as a false value.
            timeout: seconds to wait; the default is the timeout of the test bed.

        Raises:
            AssertionError: the timeout has expired; the message has the last result.
        """
        last = "nothing"
        for _ in self._background.iterate(self._stage.until_deadline(timeout)):
            try:
                value = check()
            except (AssertionError, LookupError, NotFound) as error:
                last = f"{type(error).__name__}: {error}"
            else:
                if value:
                    return value
                last = repr(value)
        raise AssertionError(f"the check did not become true in time; its last result was {escape_unprintable(last)}")

    def wait_gone(self, reference: str, *, timeout: float | None = None) -> None:
        """Wait until an object that the test created is gone; any client may delete it, for example by an eviction.

        Args:
            reference: the object, such as ``Pod/guest``.
            timeout: seconds to wait; the default is the timeout of the test bed.

        Raises:
            AssertionError: the test did not create the object, or it is not deleted in time.
        """
        manifest = self._created(reference)
        for _ in self._background.iterate(self._stage.until_deadline(timeout)):
            if self._background.call(self._stage.is_gone(manifest)):
                return
        raise AssertionError(f"{reference} still exists")

    def restart(self, *, driver: str = "") -> None:
        """Restart the driver on every node as an update of its DaemonSet does; pods continue to run.

        The driver loses everything in memory. The method returns once the driver is registered again and has published
        its devices.

        Args:
            driver: the name of the driver; required if several run.

        Raises:
            ConfigurationError: this is a real cluster.
            SandboxError: the driver does not come up again.
        """
        self._do(driver, lambda control: control.restart())

    def kill(self, *, after: str = "", restart: bool = True, driver: str = "") -> None:
        """Kill the driver on every node with ``kill -9``: now, or after its next step of a kind.

        The test must be marked with ``@pytest.mark.dra_process``: only a process can be killed. The driver is started
        again, as the kubelet restarts a container; only its stored state is left. Without ``after``, the method
        returns when the driver is up again.

        Args:
            after: the name of a step of the node role, such as ``EFFECT_APPLIED``; docs/reference/story-driver.md lists
                them. The driver is killed the next time it reaches the step; with ``EFFECT_APPLIED:2``, the second
                time. The test fails if the driver never reaches it.
            restart: start the driver again; otherwise :meth:`start` or the end of the test starts it.
            driver: the name of the driver; required if several run.

        Raises:
            ConfigurationError: the driver does not run as a process, the step does not exist, or this is a real
                cluster.
            SandboxError: the driver does not come up again.
        """
        if after:
            if not restart:
                raise ConfigurationError(
                    "kill(after=…, restart=False): a driver that is killed after a step is always started again; "
                    "omit restart"
                )
            self._do(driver, lambda control: control.kill_after(after))
            return
        self._do(driver, lambda control: control.kill())
        if restart:
            self.start(driver=driver)

    def start(self, *, driver: str = "") -> None:
        """Start a killed driver, and wait until it is up; calls that failed in the meantime are retried.

        Args:
            driver: the name of the driver; required if several run.

        Raises:
            SandboxError: the driver does not come up.
        """
        self._do(driver, lambda control: control.start())

    def upgrade(self, target: str | Driver[Any, Any], *, driver: str = "") -> None:
        """Replace the driver with another release until the test ends, by a rolling update; pods continue to run.

        The new release starts next to the old one, which is then stopped; controller and webhook follow. If the new
        release does not come up, the old one continues to run.

        Args:
            target: a TARGET below the project's folder, such as ``./tests/next.py``; or a driver that never ran, which
                is not possible in a test marked with ``dra_process``. ``.`` is the running driver again: a module that
                is imported already is imported again only in a separate process.
            driver: the name of the driver to replace; required if several run.

        Raises:
            ConfigurationError: the release has another name, its settings do not fit, it cannot be copied, or this is
                a real cluster.
            SandboxError: the new release does not come up.
        """
        self._do(driver, lambda control: control.upgrade(target))

    def rollback(self, *, driver: str = "") -> None:
        """Undo the last :meth:`upgrade` with a rolling update.

        Args:
            driver: the name of the driver; required if several run.

        Raises:
            ConfigurationError: the driver was not upgraded.
            SandboxError: the previous release does not come up.
        """
        self._do(driver, lambda control: control.rollback())

    def reboot(self, *, lost: Sequence[str] = (), driver: str = "") -> None:
        """Reboot every node: containers, programs and drivers stop, CDI files are deleted, the boot id changes.

        Pods with a restart policy are started again, and their claims are prepared; other pods fail. In a test marked
        with ``dra_process``, the driver is killed, as by a power cut; otherwise it shuts down in order.

        Args:
            lost: settings of the driver that name directories whose files do not survive a reboot (simulated hardware).
            driver: the driver that has these settings; required if several run.

        Raises:
            ConfigurationError: a setting does not exist, or this is a real cluster.
            SandboxError: the driver does not come up again.
        """
        driver = driver or ("" if lost else self.cluster.drivers[0])  # all are rebooted
        self._do(driver, lambda control: control.reboot(lost))

    def _do(self, driver: str, what: Callable[[DriverControl], Coroutine[Any, Any, None]]) -> None:
        with self._background.entered(self._stage.driver(driver)) as control:
            self._background.call(what(control))

    def replace_file(self, setting: str, text: str, *, driver: str = "") -> None:
        """Replace the file that a setting of the driver names, until the test ends.

        The method returns once the driver publishes different devices, or after three seconds.

        Args:
            setting: the name of the setting. It must be in ``dra_editable``, so that the driver uses a copy of the
                file.
            text: the new content.
            driver: the driver that has the setting; required if several run.

        Raises:
            ConfigurationError: the setting does not exist, it does not name a file, or the file is the project's own.
        """
        self._background.call(self._stage.replace_file(setting, text, driver))

    def unhealthy(self, device: str, reason: str, message: str = "", *, driver: str = "") -> None:
        """Make a device unhealthy, whatever its health source reports, until :meth:`healthy` or the end of the test.

        Args:
            device: the name of the device, or ``<pool>/<name>``.
            reason: a key of the policy of the driver's health source.
            message: the message for users.
            driver: the driver of the device; required if several run.

        Raises:
            ConfigurationError: the driver has no health source, or no such device or reason; or this is a real cluster.
        """
        self._background.call(self._stage.inject_health(device, reason, message, driver))

    def healthy(self, device: str, reason: str, *, driver: str = "") -> None:
        """Undo :meth:`unhealthy`, with the same arguments: the health source determines the device's health again."""
        self._background.call(self._stage.inject_health(device, reason, None, driver))

    def _manifests(self, given: str | Path | Mapping[str, Any]) -> tuple[Manifest, ...]:
        if isinstance(given, Mapping):
            return parse_manifests([given], "the object given")
        if isinstance(given, str) and "\n" in given:
            return parse_manifests(given, "the text given")
        return load_manifests(self._directory / given)

    def _created(self, reference: str) -> CreatedObject:
        manifest = self._stage.find(reference)
        if manifest is None:
            raise AssertionError(f"{reference} was not applied; {self._applied()}")
        return manifest

    def _applied(self) -> str:
        return f"the test applied {', '.join(map(str, self._stage.created)) or 'nothing'}"

    async def _wait(self, name: str, phase: Phase | None, message: str, timeout: float | None) -> PodFacts:
        pod: PodFacts | None = None
        async for _ in self._stage.until_deadline(timeout):
            pod = (await self._stage.facts([name], [])).pods.get(name)
            if pod is None:
                break
            if _is_as_expected(pod, phase, message):
                return pod
            if pod.phase in _ENDED and phase not in {None, pod.phase}:
                break
            if pod.refusal and not message:  # the expected message may still follow
                break
        expected = " with ".join(filter(None, [phase or ("" if message else "Running"), message and repr(message)]))
        if pod is None:
            raise AssertionError(f"pod {name} does not exist; expected {expected}; {self._applied()}")
        texts = [*_texts_of(pod), *await self._causes(name)]
        shown = "".join(f"\n  {escape_unprintable(text, keep=_LAID_OUT)}" for text in texts)
        raise AssertionError(f"pod {name} is {pod.phase}; expected {expected}{shown}")

    async def _causes(self, name: str) -> Sequence[str]:
        """Return why a pod has no node, for each device; nothing on a real cluster, which may not allow all reads."""
        namespace, _, plain = name.rpartition("/")
        pod = await self.cluster.client.get(PODS, plain, namespace or self.namespace)
        if pod["spec"].get("nodeName") or not isinstance(self.cluster, Sandbox):
            return ()
        return list(map(str, (await self.cluster.causes([pod])).get(pod["metadata"]["uid"], ())))


def _is_as_expected(pod: PodFacts, phase: Phase | None, message: str) -> bool:
    if message and not any(message in text for text in pod.messages):
        return False
    if phase is not None:
        return pod.phase == phase
    return bool(message) or pod.phase in {"Running", *_ENDED}


def _texts_of(pod: PodFacts) -> Iterator[str]:
    if pod.refusal:
        yield f"the driver rejects it permanently: {pod.refusal}"
    yield from pod.messages
    for name, container in pod.containers.items():
        if container.exit_code is not None:
            yield f"container {name} exited with {container.exit_code}: {container.output.strip()[-500:]}"


class NamedItems(dict[str, T]):
    """A dict whose KeyError lists the existing names, after a text such as "pod guest has no container"."""

    def __init__(self, what: str, items: Mapping[str, T]) -> None:
        super().__init__(items)
        self._what = what

    def __missing__(self, name: str) -> NoReturn:
        # a variable that every container in a cluster has is not what the author looks for
        names = ", ".join(sorted(name for name in self if not name.startswith("KUBERNETES_"))) or "none"
        raise KeyError(f"{self._what} {name}{did_you_mean(name, self) or ';'} existing: {names}")


def _named(what: str, items: Mapping[str, T] | None) -> NamedItems[T] | None:
    return None if items is None else NamedItems(what, items)


def named(pod: PodFacts, name: str) -> PodFacts:
    """Return a pod whose containers and their variables, device files and mounts are :class:`NamedItems`."""
    containers = {
        key: replace(
            item,
            environment=NamedItems(f"container {key} has no variable", item.environment),
            device_nodes=_named(f"container {key} has no device file", item.device_nodes),
            mounts=_named(f"container {key} has no mount", item.mounts),
        )
        for key, item in pod.containers.items()
    }
    return replace(pod, containers=NamedItems(f"pod {name} has no started container", containers))
