"""Options that several commands share, and commands that load a TARGET."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click
from click.shell_completion import CompletionItem

from dra_kit.author.target import load_driver
from dra_kit.cli.app import flags_of
from dra_kit.errors import ConfigurationError, SandboxError, TargetError
from dra_kit.kubernetes.release import SUPPORTED, KubernetesVersion
from dra_kit.text import escape_unprintable, escape_unprintable_json

if TYPE_CHECKING:
    from dra_kit.author.driver import Driver
    from dra_kit.client.credentials import Credentials
    from dra_kit.sandbox.run.detached import DetachedSandbox


class TargetCommand(click.Command):
    """A command with a TARGET, whose settings become options of the command.

    Loading a TARGET runs its code, so this happens only if the arguments name it.
    """

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Return ``--help``, which also shows the settings of a TARGET."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.help = "show this message; with a TARGET, load it and also show its settings"
        return option

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Load the TARGET first, so that its settings are known when the options are read."""
        own = super().get_params(ctx)
        driver = None if ctx.resilient_parsing else self.load(own, args)
        if driver is not None:
            from dra_kit.cli.driver_settings import settings_options

            ctx.meta["driver"] = driver
            ctx.meta["driver_options"] = settings_options(driver, own)
        return super().parse_args(ctx, args)

    def load(self, own: Sequence[click.Parameter], args: Sequence[str]) -> Driver[Any, Any] | None:
        """Return the driver of the TARGET in the arguments; None without a TARGET."""
        target = target_of(own, args)
        return None if target is None else load_named_driver(target, own, args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the command's own options, and those of the loaded driver."""
        return [*super().get_params(ctx), *ctx.meta.get("driver_options", [])]


def is_help(args: Sequence[str]) -> bool:
    """Return whether the arguments request help."""
    words = args[: args.index("--")] if "--" in args else args
    return not {"-h", "--help"}.isdisjoint(words)


def target_of(params: Sequence[click.Parameter], args: Sequence[str]) -> str | None:
    """Return the first of :func:`targets_of`; None if there is none."""
    return next(iter(targets_of(params, args)), None)


def targets_of(params: Sequence[click.Parameter], args: Sequence[str]) -> list[str]:
    """Return the TARGETs among the arguments, read before the options of the author's settings are known.

    An argument after an unknown option may be the option's value. Without other arguments the first of them is the
    TARGET, except in a request for help, which must not load what may be a value.
    """
    plain, after_unknown = _arguments(params, args)
    return plain or ([] if is_help(args) else list(after_unknown)[:1])


def _arguments(params: Sequence[click.Parameter], args: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the plain arguments, and those after an unknown option, each with its option."""
    options = (param for param in params if isinstance(param, click.Option))
    takes_value = {flag: not option.is_flag for option in options for flag in flags_of(option)}
    plain: list[str] = []
    after_unknown: dict[str, str] = {}
    words = iter(args)
    unknown = ""
    for word in words:
        flag, equals, _ = word.partition("=")
        if word == "--":
            plain.extend(words)
        elif not word.startswith("-"):
            if unknown:
                after_unknown.setdefault(word, unknown)
            else:
                plain.append(word)
            unknown = ""
        elif flag not in takes_value:
            unknown = "" if equals else word
        elif takes_value[flag] and not equals:
            next(words, None)
    return plain, after_unknown


def load_named_driver(target: str, params: Sequence[click.Parameter], args: Sequence[str]) -> Driver[Any, Any]:
    """Return the driver of one of :func:`targets_of`.

    Raises:
        TargetError: it cannot be loaded.
        click.UsageError: the same, for the word after an unknown option, which is probably the option's value.
    """
    try:
        return load_driver(target)
    except TargetError:
        plain, after_unknown = _arguments(params, args)
        if plain or target not in after_unknown:
            raise
        option = after_unknown[target]
        raise click.UsageError(
            f"Missing argument 'TARGET': {target} is not a driver, but probably the value of {option}. A "
            f"driver's options are known with its TARGET only: write TARGET {option} {target}."
        ) from None


OptionDecorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Adds options to the function of a command."""
LOG_LEVELS: Final = ("debug", "info", "warning", "error")


def path(**kwargs: Any) -> click.Path:
    """Return a click type whose values are ``pathlib.Path``."""
    return click.Path(path_type=Path, **kwargs)


class ContainerRuntimes(click.Choice[str]):
    """What runs containers: ``process`` or ``podman``; an error about ``docker`` says why it is not one of them."""

    def __init__(self) -> None:
        super().__init__(["process", "podman"])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name."""
        if value == "docker":
            self.fail(
                "docker cannot be used: its daemon starts containers outside of the simulated nodes, whose directories "
                "and network they need. Use podman, which runs the same images without a daemon, or process, which "
                "needs no images.",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


class NewFile(click.Path):
    """A file to write, in an existing directory."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, if a file can be written there."""
        if value == "-":
            self.fail("- is not standard output here; name a file.", param, ctx)
        file: Path = super().convert(value, param, ctx)  # type: ignore[assignment]  # because of path_type
        if not file.parent.is_dir():
            self.fail(f"directory {file.parent} does not exist; create it, or use another path.", param, ctx)
        if file.is_symlink() or (file.exists() and not file.is_file()):
            self.fail(f"{file} is not a regular file; use a regular file or a new path.", param, ctx)
        if not os.access(file.parent, os.W_OK):  # it is written under another name, then renamed
            self.fail(f"{file.parent} is not writable; use another path.", param, ctx)
        return file


class Seconds(click.ParamType[float]):
    """A time in seconds, written as ``12.5``, ``12.5s`` or ``1h2m3s``, with or without a leading plus sign."""

    name = "seconds"
    _TIME: Final = re.compile(r"\+?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})s?)?")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds."""
        found = self._TIME.fullmatch(str(value))
        if found is None or not any(found.groups()):
            self.fail(f"{value!r} is not a time; write it like +12.5s, 90, 10m or 1h30m.", param, ctx)
        hours, minutes, seconds = (float(part or 0) for part in found.groups())
        return 3600 * hours + 60 * minutes + seconds


class Bytes(click.ParamType[int]):
    """A size in bytes, written as ``100MiB``, ``2GiB`` or ``500000``."""

    name = "size"
    _SIZE: Final = re.compile(r"(\d{1,15})(KiB|MiB|GiB)?")
    _UNITS: Final[Mapping[str | None, int]] = {None: 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

    def __init__(self, least: int) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes."""
        if isinstance(value, int):
            return value
        found = self._SIZE.fullmatch(str(value))
        if found is None:
            self.fail(f"{value!r} is not a size; write it like 100MiB or 2GiB.", param, ctx)
        size = int(found[1]) * self._UNITS[found[2]]
        if size < self._least:
            self.fail(f"{value} is too small; use at least {self._least >> 20}MiB.", param, ctx)
        return size


class InvalidRelease(click.ClickException):
    """A value of ``--kubernetes`` is wrong; unlike a driver that is, no change of a file corrects it."""

    exit_code = 2


class Releases(click.ParamType[tuple[KubernetesVersion, ...]]):
    """Supported releases of Kubernetes, oldest first: ``1.36``, or ``1.34..1.36`` where several are useful."""

    name = "release"

    def __init__(self, *, several: bool = False) -> None:
        self._several = several

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[KubernetesVersion, ...]:
        """Return the versions.

        Raises:
            InvalidRelease: the text does not name supported releases.
        """
        del param, ctx
        if isinstance(value, tuple):
            return value
        try:
            return KubernetesVersion.span(value) if self._several else (KubernetesVersion.supported(value),)
        except ValueError as error:
            raise InvalidRelease(f"--kubernetes: {error}") from None

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete a release, or the end of a range."""
        del ctx, param
        begin, dots, end = incomplete.rpartition("..") if self._several else ("", "", incomplete)
        return [CompletionItem(f"{begin}{dots}{each}") for each in SUPPORTED if str(each).startswith(end)]


def complete_target(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a TARGET to a file or folder."""
    del ctx, param
    return [CompletionItem(incomplete, type="file")]


def variable_option(*flags: str, envvar: str, **kwargs: Any) -> OptionDecorator:
    """Add an option that a variable sets as well; the help shows the variable, and the default unless it is empty."""
    show_default = bool(kwargs.get("default"))
    return click.option(*flags, envvar=envvar, show_envvar=True, show_default=show_default, **kwargs)


def option_group(*options: OptionDecorator) -> OptionDecorator:
    """Add several options; the help lists them in this order."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _kubeconfig_option(text: str) -> OptionDecorator:
    return variable_option("--kubeconfig", type=path(), envvar="DRA_KUBECONFIG", help=text)


def kubelet_dir_option(text: str = "root directory of the kubelet") -> OptionDecorator:
    """Add ``--kubelet-dir``."""
    return variable_option(
        "--kubelet-dir", default="/var/lib/kubelet", type=path(), envvar="DRA_KUBELET_DIR", help=text
    )


def cdi_dir_option(text: str) -> OptionDecorator:
    """Add ``--cdi-dir`` for one directory."""
    return variable_option("--cdi-dir", default="/var/run/cdi", type=path(), envvar="DRA_CDI_DIR", help=text)


context_option: OptionDecorator = click.option(
    "--context", help="context of the kubeconfig  [default: its current one]"
)
pod_kubeconfig_option: OptionDecorator = _kubeconfig_option(
    "default: $KUBECONFIG, in a pod its service account, else ~/.kube/config"
)
cluster_options: OptionDecorator = option_group(
    _kubeconfig_option("default: $KUBECONFIG, else ~/.kube/config"), context_option
)
"""``--kubeconfig`` and ``--context``."""
source_options: OptionDecorator = option_group(
    cluster_options, click.option("-n", "--namespace", help="default: that of the context")
)
"""``--kubeconfig``, ``--context`` and ``--namespace``."""


def kubernetes_option(text: str) -> OptionDecorator:
    """Add ``--kubernetes`` for one release; its value is None if it is not given."""
    return click.option(
        "--kubernetes",
        type=Releases(),
        metavar="RELEASE",
        callback=lambda _, __, value: value[0] if value else None,
        help=text,
    )


output_option: OptionDecorator = click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True
)
discovery_timeout_option: OptionDecorator = click.option(
    "--timeout",
    default=10.0,
    show_default=True,
    type=click.FloatRange(min=0.1),
    help="seconds the driver may take to find its devices",
)
expected_driver: OptionDecorator = variable_option(
    "--driver",
    "expected",
    envvar="DRA_DRIVER",
    help="required name of TARGET's driver; rights and directories depend on it  [default: any]",
)
"""The name that the driver of TARGET must have."""
role_options: OptionDecorator = option_group(
    pod_kubeconfig_option,
    variable_option(
        "--probe-address",
        default="",
        envvar="DRA_PROBE_ADDRESS",
        help="address that serves /healthz and /readyz, for example :8081  [default: none]",
    ),
    variable_option(
        "--log-format",
        default="text",
        envvar="DRA_LOG_FORMAT",
        type=click.Choice(["text", "json"]),
        help="format of the log",
    ),
    variable_option(
        "--log-level",
        default="info",
        envvar="DRA_LOG_LEVEL",
        type=click.Choice(LOG_LEVELS),
        help="minimum level that is logged",
    ),
)
"""``--kubeconfig``, ``--probe-address`` and the options of logging."""


def check_name(driver: Driver[Any, Any], expected: str | None) -> None:
    """Check that the driver has the name for which its account and its directories were created."""
    if expected is not None and driver.name != expected:
        raise ConfigurationError(
            f"TARGET is driver {driver.name}, but --driver (DRA_DRIVER; driverName in the chart's values) is "
            f"{expected}; set driverName to {driver.name}, or correct TARGET"
        )


def print_json(document: Mapping[str, Any]) -> None:
    """Print a JSON document, whose texts may come from other programs."""
    click.echo(escape_unprintable_json(json.dumps(document, indent=2, ensure_ascii=False)))


def print_remaining(effects: Sequence[str]) -> None:
    """Print the changes of hardware that a sandbox could not undo before it stopped."""
    if effects:
        click.echo("these changes of hardware remain; undo them manually:", err=True)
        for text in effects:
            click.echo(escape_unprintable(f"  {text}"), err=True)


@contextlib.contextmanager
def silenced_log() -> Iterator[None]:
    """Hide dra-kit's log while a driver finds its devices: the command itself reports the failure."""
    log = logging.getLogger("dra_kit")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


async def credentials_of(kubeconfig: Path | None, context: str | None) -> Credentials:
    """Return the credentials for ``--kubeconfig`` and ``--context``.

    Raises:
        ConfigurationError: no usable credentials were found; the message names running sandboxes.
    """
    from dra_kit.client.credentials import load_credentials  # slow to import

    try:
        return await load_credentials(kubeconfig, context)
    except ConfigurationError as error:
        if kubeconfig is not None:
            raise
        ways = [*_sandboxes(), "to read saved objects, use dra-kit explain --from PATH"]
        raise ConfigurationError("; ".join((str(error), *ways))) from None


def _sandboxes() -> list[str]:
    """Return hints at the sandboxes in the background, or at how to start one."""
    from dra_kit.sandbox.run.detached import running_in_background  # the whole sandbox, which no role needs

    found: list[DetachedSandbox] = []
    with contextlib.suppress(OSError, SandboxError):  # the directory of their records may be inaccessible
        found = running_in_background()
    named = [f"to use the sandbox of {one.title}, add --kubeconfig {one.kubeconfig}" for one in found]
    return named or ["to start a sandbox, run dra-kit sandbox TARGET --detach and pass its kubeconfig"]
