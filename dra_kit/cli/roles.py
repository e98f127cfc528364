"""Commands that run a role: node, controller, webhook, decommission."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import yaml
from pydantic import BaseModel

from dra_kit.author.driver import Driver
from dra_kit.author.settings import author_settings
from dra_kit.author.target import load_driver
from dra_kit.cli.app import value_of
from dra_kit.cli.options import TargetCommand, check_name, common, complete_target, expected_driver, path, targets_of
from dra_kit.errors import ConfigurationError, StoreError
from dra_kit.node.settings import NodeSettings
from dra_kit.process import logging as process_logging
from dra_kit.process import tracing

if TYPE_CHECKING:
    from dra_kit.admission.certificates import SelfManagedSettings


logger: logging.Logger = logging.getLogger(__name__)


@click.command(cls=TargetCommand)
@click.argument("target", shell_complete=complete_target)
@click.option(
    "--cert",
    type=path(),
    envvar="DRA_WEBHOOK_CERT",
    show_envvar=True,
    help="PEM file with the server's certificate chain; read again when it is replaced",
)
@click.option("--key", type=path(), envvar="DRA_WEBHOOK_KEY", show_envvar=True, help="PEM file with its key")
@click.option(
    "--own-certificate",
    metavar="SERVICE",
    envvar="DRA_WEBHOOK_OWN_CERTIFICATE",
    show_envvar=True,
    help="in place of --cert and --key: make a certificate for this Service of the webhook's namespace, store it in "
    "the Secret SERVICE-self-made, and renew it; `dra-kit webhook-certificate` makes the API server trust it",
)
@click.option(
    "--namespace",
    envvar="DRA_NAMESPACE",
    show_envvar=True,
    help="with --own-certificate: of this Service and its Secret  [default: that of the credentials]",
)
@click.option(
    "--host", default="", envvar="DRA_WEBHOOK_HOST", show_envvar=True, help="address to listen on  [default: all]"
)
@click.option(
    "--port",
    default=9443,
    show_default=True,
    type=click.IntRange(0, 65535),
    envvar="DRA_WEBHOOK_PORT",
    show_envvar=True,
    help="port to listen on; 0 takes a free one and logs it",
)
@click.option(
    "--print-configuration",
    is_flag=True,
    help="print the ValidatingWebhookConfiguration as YAML, and end; needs --url",
)
@click.option("--url", help="with --print-configuration: where the API server reaches the webhook, https://host:port")
@click.option(
    "--ca-bundle",
    type=path(),
    help="with --print-configuration: PEM file of the authority of the webhook's certificate",
)
@expected_driver
@common
@click.pass_context
def webhook(  # noqa: PLR0917 - click passes them by name
    ctx: click.Context,
    target: str,
    cert: Path | None,
    key: Path | None,
    own_certificate: str | None,
    namespace: str | None,
    host: str,
    port: int,
    print_configuration: bool,
    url: str | None,
    ca_bundle: Path | None,
    expected: str | None,
    kubeconfig: Path | None,
    probe_address: str,
    log_format: Any,
    log_level: str,
) -> None:
    """Run TARGET's webhook: refuse opaque configuration that the driver would refuse, when it is applied.

    TARGET is module:attr, ./file.py, a folder with a pyproject.toml, or a file of globs (.yaml).
    """
    del target
    driver: Driver[Any, Any] = ctx.meta["driver"]
    check_name(driver, expected)
    if print_configuration:
        if not url:
            raise click.UsageError("Missing option '--url': where the API server reaches the webhook.")
        click.echo(_configuration(driver.name, url, ca_bundle), nl=False)
        return
    if own_certificate and (cert or key):
        raise click.UsageError("--own-certificate does not go together with --cert and --key: it makes them.")
    if cert is None and not own_certificate:
        raise click.UsageError(
            "Missing option '--cert' (DRA_WEBHOOK_CERT): PEM file with the certificate chain; or --own-certificate."
        )
    if key is None and not own_certificate:
        raise click.UsageError("Missing option '--key' (DRA_WEBHOOK_KEY): PEM file with the certificate's key.")
    process_logging.configure(log_format, log_level.upper())
    from dra_kit.admission.agent import WebhookSettings, run_webhook

    settings = WebhookSettings(
        cert=cert,
        key=key,
        own=_own(own_certificate, namespace) if own_certificate else None,
        host=host,
        port=port,
        kubeconfig=kubeconfig,
        probe_address=probe_address,
        author=_author_settings(driver, ctx.meta.get("driver_settings", {})),
    )
    # threads review configs beside the event loop, which waits for its turn at each packet; Python's own is 5 ms
    sys.setswitchinterval(0.0005)
    ctx.exit(asyncio.run(run_webhook(driver, settings)))


def _own(service: str, namespace: str | None) -> SelfManagedSettings:
    from dra_kit.admission.certificates import SelfManagedSettings

    return SelfManagedSettings(namespace=namespace or "", service=service)


def _author_settings(driver: Driver[Any, Any], values: Mapping[str, object]) -> BaseModel | None:
    """Return the author's settings; None where they do not fit: they may name what only nodes have."""
    try:
        return author_settings(driver, values)
    except ConfigurationError as error:
        logger.warning("configs are checked without settings", extra={"error": str(error), "code": error.code})
        return None


def _configuration(driver_name: str, url: str, ca_bundle: Path | None) -> str:
    from dra_kit.admission.webhook_configuration import validating_webhook_configuration

    try:
        authority = ca_bundle.read_bytes() if ca_bundle else None
    except OSError as error:
        raise ConfigurationError(f"--ca-bundle {ca_bundle} cannot be read: {error.strerror}; correct it") from None
    configuration = validating_webhook_configuration(driver_name, url=url, ca_bundle=authority)
    # the three webhooks share parts, which YAML would write as anchors and aliases
    text: str = yaml.safe_dump(json.loads(json.dumps(configuration)), sort_keys=False)
    return text


_GLOBS: Final = "--globs"


class NodeCommand(TargetCommand):
    """Takes a file of globs in the place of a TARGET, too."""

    def load(self, own: Sequence[click.Parameter], args: Sequence[str]) -> Driver[Any, Any] | None:
        """Return the driver of TARGET, or of ``--globs``."""
        file = value_of(_GLOBS, args)
        if file is None:
            return super().load(own, args)
        from dra_kit.author.no_code.driver import load_globs

        return load_globs(Path(file))


F = TypeVar("F", bound=Callable[..., Any])


def node_options(function: F) -> F:
    """Add ``--node-name``, the directories, and how the kubelet is served."""
    for option in (
        click.option(
            "--check-device-nodes/--no-check-device-nodes",
            default=True,
            show_default=True,
            envvar="DRA_CHECK_DEVICE_NODES",
            show_envvar=True,
            help="look for the device files of a claim on this node before it is told prepared; not in a container "
            "that has not the node's /dev",
        ),
        click.option(
            "--orphan-after",
            default=600.0,
            show_default=True,
            type=click.FloatRange(min=60.0),
            envvar="DRA_ORPHAN_AFTER",
            show_envvar=True,
            help="seconds that a claim must have been gone until it is released without the kubelet",
        ),
        click.option(
            "--hang-timeout",
            default=600.0,
            show_default=True,
            type=click.FloatRange(min=60.0),
            envvar="DRA_HANG_TIMEOUT",
            show_envvar=True,
            help="seconds after which a call of the driver's code that has not returned makes /healthz fail",
        ),
        click.option(
            "--dra-versions",
            default="v1,v1beta1",
            show_default=True,
            envvar="DRA_VERSIONS",
            show_envvar=True,
            help="versions of the kubelet's DRA service to offer",
        ),
        click.option(
            "--pod-uid",
            envvar="DRA_POD_UID",
            show_envvar=True,
            help="UID of this pod, so that rolling updates overlap",
        ),
        click.option(
            "--cdi-dir",
            default="/var/run/cdi",
            show_default=True,
            type=path(),
            envvar="DRA_CDI_DIR",
            show_envvar=True,
            help="where the container runtime looks for CDI files",
        ),
        click.option(
            "--kubelet-dir",
            default="/var/lib/kubelet",
            show_default=True,
            type=path(),
            envvar="DRA_KUBELET_DIR",
            show_envvar=True,
            help="root directory of the kubelet",
        ),
        click.option("--node-name", envvar="DRA_NODE_NAME", show_envvar=True, help="name of this node's Node object"),
    ):
        function = option(function)
    return function


@click.command(cls=NodeCommand)
@click.argument("target", required=False, shell_complete=complete_target)
@click.option(
    _GLOBS,
    type=path(dir_okay=False),
    metavar="FILE",
    help="in place of a TARGET: a file of globs of device nodes, which is a driver",
)
@node_options
@click.option(
    "--state-dir",
    type=path(),
    envvar="DRA_STATE_DIR",
    show_envvar=True,
    help="durable state; default: plugins/<driver> below the kubelet's directory",
)
@click.option("--dump-state", is_flag=True, help="print records, effects, epochs and what is damaged as JSON, and end")
@expected_driver
@common
@click.pass_context
def node(
    ctx: click.Context,
    /,
    target: str | None,
    globs: Path | None,
    state_dir: Path | None,
    *,
    dump_state: bool,
    expected: str | None,
    **options: Any,
) -> None:
    """Run TARGET on this node: answer the kubelet, prepare claims, publish devices.

    TARGET is module:attr, ./file.py, a folder with a pyproject.toml, or a file of globs of device nodes (.yaml).
    """
    if target is None and globs is None:
        raise click.UsageError("Missing argument 'TARGET', or option '--globs': the driver to run.")
    if target is not None and globs is not None:
        raise click.UsageError(f"TARGET {target} and {_GLOBS} {globs} do not go together: they name two drivers.")
    driver: Driver[Any, Any] = ctx.meta["driver"]
    check_name(driver, expected)
    if dump_state:
        settings = NodeSettings(node_name="", kubelet_dir=options["kubelet_dir"], state_dir=state_dir)
        click.echo(json.dumps(_dumped(driver.name, settings), indent=2))
        return
    author = author_settings(driver, ctx.meta.get("driver_settings", {}))
    settings = node_settings(options, state_dir=state_dir, author=author)
    process_logging.configure(options["log_format"], options["log_level"].upper())
    tracing.configure(driver.name, "node")
    from dra_kit.node.agent import run_node

    ctx.exit(_run_quickly(run_node(driver, settings)))


def _dumped(driver: str, settings: NodeSettings) -> dict[str, Any]:
    """Return the state of the node; damaged health hides nothing else."""
    from dra_kit.node.health_monitor import FILE, dump_health
    from dra_kit.node.state.store import dump_state

    dumped = dump_state(settings.database(driver))
    try:
        return dumped | {"health": dump_health(settings.state(driver) / FILE)}
    except StoreError as error:
        return dumped | {"health": [], "damaged": [*dumped["damaged"], str(error)]}


def node_settings(options: Mapping[str, Any], *, state_dir: Path | None, author: Any) -> NodeSettings:
    """Return the settings by the options.

    Args:
        options: by name, those of :func:`node_options` and of :func:`dra_kit.cli.options.common`.
        state_dir: of the durable state; None for the usual one.
        author: the driver's own settings.

    Raises:
        click.UsageError: the node's name is missing.
    """
    if not options["node_name"]:
        raise click.UsageError("Missing option '--node-name' (DRA_NODE_NAME): the name of this node's Node object.")
    return NodeSettings(
        node_name=options["node_name"],
        kubeconfig=options["kubeconfig"],
        kubelet_dir=options["kubelet_dir"].absolute(),
        cdi_dir=options["cdi_dir"].absolute(),
        state_dir=state_dir.absolute() if state_dir else None,
        pod_uid=options["pod_uid"],
        probe_address=options["probe_address"],
        hang_timeout=options["hang_timeout"],
        orphan_after=options["orphan_after"],
        check_device_nodes=options["check_device_nodes"],
        dra_versions=tuple(item.strip() for item in options["dra_versions"].split(",") if item.strip()),
        author=author,
    )


@click.command(cls=TargetCommand)
@click.argument("target", shell_complete=complete_target)
@click.option(
    "--lease-namespace",
    envvar="DRA_LEASE_NAMESPACE",
    show_envvar=True,
    help="namespace of the Lease that makes one replica the active one  [default: the pod's, or the kubeconfig's]",
)
@click.option(
    "--lease-name",
    envvar="DRA_LEASE_NAME",
    show_envvar=True,
    help="its name  [default: <driver>-controller]",
)
@click.option(
    "--leader-election/--no-leader-election",
    default=True,
    show_default=True,
    envvar="DRA_LEADER_ELECTION",
    show_envvar=True,
    help="without it this process is the active one at once, and must be the only one",
)
@click.option(
    "--cluster-role",
    envvar="DRA_CLUSTER_ROLE",
    show_envvar=True,
    help="ClusterRole that owns what the controller makes in the cluster, slices of no node and taint rules, so that "
    "it goes when that is deleted  [default: it stays]",
)
@expected_driver
@common
@click.pass_context
def controller(  # noqa: PLR0917 - click passes them by name
    ctx: click.Context,
    target: str,
    lease_namespace: str | None,
    lease_name: str | None,
    leader_election: bool,
    cluster_role: str | None,
    expected: str | None,
    kubeconfig: Path | None,
    probe_address: str,
    log_format: Any,
    log_level: str,
) -> None:
    """Run TARGET's controller: Events on claims and pods, the driver's own hooks, and what it does for the cluster.

    TARGET is module:attr, ./file.py, a folder with a pyproject.toml, or a file of globs (.yaml). Several replicas may
    run: one of them, elected by a Lease, is the active one and serves the whole cluster; the others stand by.
    """
    del target
    driver: Driver[Any, Any] = ctx.meta["driver"]
    check_name(driver, expected)
    process_logging.configure(log_format, log_level.upper())
    from dra_kit.controller.agent import ControllerSettings, run_controller

    settings = ControllerSettings(
        kubeconfig=kubeconfig,
        probe_address=probe_address,
        election=leader_election,
        lease_namespace=lease_namespace,
        lease_name=lease_name,
        cluster_role=cluster_role,
        # where nothing of the author's asks for them they may name files and hardware that only nodes have
        author=author_settings(driver, ctx.meta.get("driver_settings", {})) if driver.has_controller_code else None,
    )
    ctx.exit(asyncio.run(run_controller(driver, settings)))


class DecommissionCommand(TargetCommand):
    """Its TARGET, which may be left out, comes after the directory."""

    def load(self, own: Sequence[click.Parameter], args: Sequence[str]) -> Driver[Any, Any] | None:
        """Return the driver of TARGET."""
        targets = targets_of(own, args)
        return load_driver(targets[1]) if len(targets) > 1 else None


@click.command(cls=DecommissionCommand)
@click.argument("state_dir", type=path(file_okay=False))
@click.argument("target", required=False, shell_complete=complete_target)
@click.option("--driver", "name", envvar="DRA_DRIVER", show_envvar=True, help="its name; with a TARGET, that of it")
@node_options
@click.option(
    "--abandon",
    is_flag=True,
    help="without TARGET: forget what only the driver's code could undo, and leave the hardware as it is",
)
@click.option("--stay", is_flag=True, help="go on when nothing is left, as the pod of a DaemonSet must")
@click.option(
    "--pod",
    metavar="NAMESPACE/NAME",
    help="the pod of this process: gets the condition dra-kit/Decommissioned, which is true when nothing is left; "
    "needs the right to patch pods/status",
)
@common
@click.pass_context
def decommission(
    ctx: click.Context,
    /,
    state_dir: Path,
    target: str | None,
    name: str | None,
    *,
    abandon: bool,
    stay: bool,
    pod: str | None,
    **options: Any,
) -> None:
    """Remove a driver from this node, so that no pod hangs in Terminating.

    STATE_DIR is where the driver has its durable state, plugins/<driver> in the kubelet's directory.
    With TARGET, the driver's code undoes all that is in force. Without TARGET, programs and objects in the cluster that
    the driver has made are deleted; other effects are listed, and stay unless --abandon is given.
    The exit code is 0 when nothing of the driver is left. With --stay the process runs until SIGTERM, and with --pod
    its pod says when nothing is left: `dra-kit drain --until-removed` waits for that.
    """
    driver: Driver[Any, Any] | None = ctx.meta.get("driver") if target is not None else None
    name = name or (driver.name if driver is not None else None)
    if name is None:
        raise click.UsageError("Missing option '--driver' (DRA_DRIVER): the name of the driver that has ended.")
    if abandon and driver is not None:
        raise click.UsageError("--abandon and TARGET do not go together: the driver's code undoes all that it made.")
    if driver is not None:
        check_name(driver, name)
    author = author_settings(driver, ctx.meta.get("driver_settings", {})) if driver is not None else None
    settings = node_settings(options, state_dir=state_dir, author=author)
    process_logging.configure(options["log_format"], options["log_level"].upper())
    from dra_kit.node.decommission import run_decommission
    from dra_kit.node.removal_confirmation import PodName

    where = None if pod is None else PodName.parse(pod)
    ctx.exit(_run_quickly(run_decommission(name, settings, driver, abandon=abandon, keep_running=stay, pod=where)))


def _run_quickly(main: Coroutine[Any, Any, int]) -> int:
    """Run a coroutine on uvloop, which only the node's calls need."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
