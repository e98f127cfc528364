"""A container runtime that has podman run each container from its image, in the namespaces of the node.

podman makes the container: its root file system, mounts, device files and hooks, those of CDI by its own support, which
reads the node's /var/run/cdi. Variables reach it the same way, in a private file, because other users can read the
arguments of processes. Its storage is in the node's directory; an image is copied there from the storage of this user
when a container needs it first.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from msgspec.structs import replace
from typing_extensions import override

from dra_kit.errors import SandboxError
from dra_kit.files import replace_private
from dra_kit.kubelet.cdi.spec import CDIDevice, SpecEdits, build_spec
from dra_kit.sandbox.containers.node_namespace import NodeNamespace, NodePlaces
from dra_kit.sandbox.containers.process_runtime import Container, ProcessRuntime
from dra_kit.sandbox.containers.runtime import (
    ContainerConfig,
    ContainerExit,
    ImageMissing,
    VolumeMount,
    environment_of,
    utc_now,
)
from dra_kit.sandbox.containers.streams import CommandPlace, open_main

_OWN_CODES: Final = frozenset((125, 126, 127))
"""Exit codes of podman itself, which programs may have, too."""
_START_ERROR: Final = 128
_VARIABLES: Final = "sandbox.dra-kit/variables"
"""The kind of the CDI devices that give containers their variables."""
VARIABLES_FILE: Final = f"{_VARIABLES.replace('/', '-')}-"
"""With what the names of their CDI files begin."""
# podman's own are higher than what a process in a container of this machine may set, even as root
_LIMITS: Final = (("nofile", resource.RLIMIT_NOFILE, 65536), ("nproc", resource.RLIMIT_NPROC, 16384))
_SHARES_NETWORK: Final = ("--network=host", "--cgroups=disabled", "--pull=never")


def find_podman() -> str:
    """Return the path of podman.

    Raises:
        SandboxError: it is not installed.
    """
    found = shutil.which("podman")
    if found is None:
        raise SandboxError(
            "--containers podman: podman is not on the PATH; install it (apt install podman), or leave the option out "
            "to run containers as processes"
        )
    return found


class PodmanRuntime(ProcessRuntime):
    """A container runtime with images; see :class:`ProcessRuntime` for what else it does.

    A pod's containers share the network of their node. A container without a command runs that of its image.

    Args:
        podman: the path of podman.
        places: the directories of the node.
        namespace: of the node.
        options: those of :class:`ProcessRuntime`.
    """

    scheme: ClassVar[str] = "podman://"
    version: str = f"{scheme}4"
    runs_images: ClassVar[bool] = True

    def __init__(self, podman: str, places: NodePlaces, namespace: NodeNamespace, **options: Any) -> None:
        super().__init__(namespace=namespace, **options)
        self._podman_program = podman
        self._place = places.directory / "podman"
        self._in_namespace = namespace
        self._cdi = places.cdi
        self._images: dict[str, asyncio.Task[None]] = {}

    @override
    def prepare(self) -> None:
        super().prepare()
        for name in ("run", "home"):
            (self._place / name).mkdir(parents=True, exist_ok=True)
        self._file("storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{self._place}/root"\nrunroot = "{self._place}/run/root"\n'
            '[storage.options.overlay]\nignore_chown_errors = "true"\n'
        )
        limits = []
        for name, number, usual in _LIMITS:
            _, hard = resource.getrlimit(number)
            most = usual if hard == resource.RLIM_INFINITY else min(usual, hard)
            limits.append(f'"{name}={most}:{most}"')
        self._file("containers.conf").write_text(
            f'[containers]\nlog_driver = "none"\ndefault_ulimits = [{", ".join(limits)}]\n'
            '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\n'
        )

    @override
    async def exec(
        self, container_id: str, command: Sequence[str], streams: Sequence[int], *, terminal: bool = False
    ) -> asyncio.Future[int]:
        flags = ["--interactive", *(["--tty"] if terminal else [])]
        place = CommandPlace("", {**self._variables, **self._mark}, self._file("home"))
        client = self._client("exec", *flags, self._name(container_id), *command)
        return await self._commands.start(container_id, place, client, streams, terminal=terminal)

    @override
    def _settle(self, container: Container) -> None:
        self._variables_file(container.status.id).unlink(missing_ok=True)
        super()._settle(container)

    @override
    def remove(self, pod_uid: str) -> None:
        names = [self._name(status.id) for status in self.containers(pod_uid)]
        super().remove(pod_uid)
        for name in names:
            self.begin(self._try("rm", "--force", "--time=0", name))

    @override
    def _environment(self, config: ContainerConfig, directory: Path) -> dict[str, str]:
        image = config.local_image.environment if config.local_image else {}
        return {**image, **config.environment, **environment_of(config.edits)}

    @override
    def _has_process(self, config: ContainerConfig) -> bool:
        return True

    @override
    def _kill(self, identity: str) -> None:
        self.begin(self._try("kill", self._name(identity)))

    @override
    def _ended(self, identity: str, code: int) -> None:
        container = self._containers.get(identity)
        if container is not None and code in _OWN_CODES:
            self.begin(self._find_out(identity, container, code))
        else:
            super()._ended(identity, code)

    @override
    async def _start(self, identity: str, container: Container) -> None:
        config, name = container.config, self._name(identity)
        if config.local_image is None:
            await self._have(config.image)
        try:
            await self._processes.enter()  # replaces a holder of the namespaces that was killed
            options = [f"--name={name}", *self._write_variables(container), *self._options(container)]
            await self._podman("create", *options, *_command(config))
            known = json.loads(await self._podman("inspect", "--format={{json .Config.Env}}", name))
        except (PodmanError, SandboxError) as error:
            self._refuse(container, f"failed to create containerd task: podman: {error}")
            return
        image = dict(item.partition("=")[::2] for item in known)
        variables = {**image, **container.status.environment}
        container.status = replace(
            container.status, environment={**variables, "HOSTNAME": config.hostname}, edits_applied=True,
            hooks_applied=True,
        )  # fmt: skip
        streams = open_main(config, self._intake, container.log)
        container.pipe, container.input = streams.pipe, streams.input
        try:
            result = await self._processes.start(
                identity,
                self._client("start", "--attach", *(["--interactive"] if config.stdin else []), name),
                executable=self._podman_program,
                environment={**self._variables, **self._mark},
                directory=container.directory,
                streams=streams.child,
                terminal=config.terminal,
            )
        finally:
            streams.close_child()
        if result.number:
            self._refuse(container, f"failed to create containerd task: podman: {os.strerror(result.number)}")

    def _options(self, container: Container) -> list[str]:
        config, hooks = container.config, container.status.hook_edits
        return [
            *_SHARES_NETWORK,
            *([f"--hostname={config.hostname}"] if config.hostname else []),
            *([f"--workdir={config.working_directory}"] if config.working_directory else []),
            *(["--privileged"] if config.privileged else []),
            *(["--interactive"] if config.stdin else []),
            *(["--tty"] if config.terminal else []),
            *(f"--device={name}" for name in config.cdi_devices),
            *(f"--mount={_mount(mount)}" for mount in (*config.mounts, *_mounts(hooks))),
            *(f"--device={node.host_path or node.path}:{node.path}" for node in hooks.device_nodes),
        ]

    def _write_variables(self, container: Container) -> list[str]:
        """Write the variables of a container where podman finds them when it starts; return podman's options.

        Those of its devices replace them, because their options come later.

        Raises:
            PodmanError: the file cannot be written.
        """
        config, name = container.config, self._name(container.status.id)
        image = config.local_image.environment if config.local_image else {}
        hooks = environment_of(container.status.hook_edits)
        variables = {**image, **config.environment, **hooks, **self._mark}
        if not variables:  # CDI rejects a device that changes nothing
            return []
        edits = SpecEdits(env=tuple(f"{name}={value}" for name, value in variables.items()))
        spec = build_spec(_VARIABLES, (CDIDevice(name=name, container_edits=edits),))
        text = spec.model_dump_json(by_alias=True, exclude_defaults=True)
        try:
            replace_private(self._variables_file(container.status.id), text.encode())
        except OSError as error:
            raise PodmanError(f"its variables cannot be written: {error}") from None
        return [f"--device={_VARIABLES}={name}"]

    def _variables_file(self, identity: str) -> Path:
        return self._cdi / f"{VARIABLES_FILE}{self._name(identity)}.json"

    async def _have(self, image: str) -> None:
        """Have an image in the storage of the node.

        Raises:
            ImageMissing: it is not in the storage of this user.
        """
        task = self._images.get(image)
        if task is None or (task.done() and task.exception() is not None):
            task = self._images[image] = self.begin(self._copy(image))
        await asyncio.shield(task)

    async def _copy(self, image: str) -> None:
        file = self._file(f"image-{secrets.token_hex(8)}.tar")
        try:
            # --quiet: what it writes to standard output is progress
            await _run([self._podman_program, "save", "--quiet", f"--output={file}", image], dict(os.environ))
            await self._podman("load", "--quiet", f"--input={file}")
        except PodmanError as error:
            raise ImageMissing(
                f'Container image "{image}" is not present with pull policy of Never: {error}; get it with podman pull '
                f"{image}, or make it from a folder: tar -C DIR -c . | podman import - {image}"
            ) from None
        finally:
            file.unlink(missing_ok=True)

    async def _find_out(self, identity: str, container: Container, code: int) -> None:
        """Note how a container ended whose exit code may be that of podman."""
        try:
            started = await self._podman("inspect", "--format={{.State.StartedAt.IsZero}}", self._name(identity))
        except PodmanError:
            started = "true"
        if started.strip() == "true":
            message = container.log.text.strip().rpartition("\n")[2].removeprefix("Error: ")
            self._end(container, ContainerExit(_START_ERROR, "StartError", utc_now(), message=message))
        else:
            super()._ended(identity, code)

    def _file(self, name: str) -> Path:
        return self._place / name

    def _name(self, identity: str) -> str:
        return identity.removeprefix(self.scheme)

    @property
    def _global(self) -> list[str]:
        return [f"--tmpdir={self._place}/run/tmp"]

    @property
    def _variables(self) -> dict[str, str]:
        found = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self._file("home")),
            "TMPDIR": str(self._file("run")),
            "XDG_RUNTIME_DIR": str(self._file("run")),
            "CONTAINERS_CONF": str(self._file("containers.conf")),
            "CONTAINERS_STORAGE_CONF": str(self._file("storage.conf")),
        }
        if os.getuid():  # it is root in the user namespace of its node, and must not make another one
            found |= {
                "_CONTAINERS_USERNS_CONFIGURED": "done",
                "_CONTAINERS_ROOTLESS_UID": str(os.getuid()),
                "_CONTAINERS_ROOTLESS_GID": str(os.getgid()),
            }
        return found

    def _client(self, *arguments: str) -> list[str]:
        return [self._podman_program, *self._global, *arguments]

    async def _podman(self, *arguments: str) -> str:
        try:
            command = self._in_namespace.enter(self._client(*arguments))
        except SandboxError as error:
            raise PodmanError(str(error)) from None
        return await _run(command, self._variables)

    async def _try(self, *arguments: str) -> None:
        try:
            await self._podman(*arguments)
        except PodmanError:
            pass  # it is gone already


class PodmanError(Exception):
    """What podman says of a command that failed."""


async def _run(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the output of a command.

    Raises:
        PodmanError: it failed.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except (OSError, ValueError) as error:  # an argument is too long, or has a NUL byte
        raise PodmanError((isinstance(error, OSError) and error.strerror) or str(error)) from None
    output, errors = await process.communicate()
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
        raise PodmanError(lines[-1].removeprefix("Error: "))
    return output.decode(errors="replace")


def _command(config: ContainerConfig) -> list[str]:
    """Return the arguments for image and command: a pod's ``command`` replaces the image's entrypoint."""
    if config.local_image is not None:  # a folder; what is written to it is not kept
        return ["--rootfs", f"{config.local_image.directory}:O", *config.command]
    if not config.command:
        return [config.image]
    if config.arguments_only:
        return [config.image, *config.command]
    # an entrypoint without arguments, because podman would add the command of the image
    return [f"--entrypoint={json.dumps(config.command[:1])}", config.image, *config.command[1:]]


def _mount(mount: VolumeMount) -> str:
    text = f"type=bind,source={mount.source},destination={mount.path},bind-propagation="
    return f"{text}{'rshared' if mount.shared else 'rslave'}{',ro=true' if mount.read_only else ''}"


def _mounts(edits: SpecEdits) -> list[VolumeMount]:
    return [VolumeMount(item.container_path, item.host_path, "ro" in item.options) for item in edits.mounts]
