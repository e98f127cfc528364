"""Commands that run a role: node, controller, webhook, decommission."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import uvloop
import yaml
from pydantic import BaseModel

from dra_kit.author.driver import Driver
from dra_kit.author.settings import author_settings
from dra_kit.author.target import load_driver
from dra_kit.cli.app import value_of
from dra_kit.cli.options import (
    OptionDecorator,
    TargetCommand,
    cdi_dir_option,
    check_name,
    complete_target,
    expected_driver,
    kubelet_dir_option,
    option_group,
    path,
    role_options,
    targets_of,
    variable_option,
)
from dra_kit.errors import ConfigurationError, StoreError
from dra_kit.node.settings import NodeSettings
from dra_kit.process import logging as process_logging
from dra_kit.process import tracing

logger: logging.Logger = logging.getLogger(__name__)


@click.command(cls=TargetCommand)
@click.argument("target", shell_complete=complete_target)
@variable_option(
    "--cert",
    type=path(),
    envvar="DRA_WEBHOOK_CERT",
    help="PEM file with the server's certificate chain; reloaded when it is replaced",
)
@variable_option("--key", type=path(), envvar="DRA_WEBHOOK_KEY", help="PEM file with its key")
@variable_option(
    "--own-certificate",
    metavar="SERVICE",
    envvar="DRA_WEBHOOK_OWN_CERTIFICATE",
    help="instead of --cert and --key: create a certificate for this Service in the webhook's namespace, store it in "
    "the Secret SERVICE-self-made, and renew it; `dra-kit webhook-certificate` makes the API server trust it",
)
@variable_option(
    "--namespace",
    envvar="DRA_NAMESPACE",
    help="with --own-certificate: namespace of the Service and its Secret  [default: that of the credentials]",
)
@variable_option("--host", default="", envvar="DRA_WEBHOOK_HOST", help="address to listen on  [default: all]")
@variable_option(
    "--port",
    default=9443,
    type=click.IntRange(0, 65535),
    envvar="DRA_WEBHOOK_PORT",
    help="port to listen on; 0 uses a free port and logs it",
)
@click.option(
    "--print-configuration",
    is_flag=True,
    help="print the ValidatingWebhookConfiguration as YAML, and exit; requires --url",
)
@click.option("--url", help="with --print-configuration: URL of the webhook for the API server, https://host:port")
@click.option(
    "--ca-bundle",
    type=path(),
    help="with --print-configuration: PEM file of the authority that signed the webhook's certificate",
)
@expected_driver
@role_options
@click.pass_context
def webhook(
    ctx: click.Context,
    /,
    *,
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
    **options: Any,
) -> None:
    """Run TARGET's webhook: reject opaque configuration that the driver would reject, when it is applied.

    TARGET is module:attr, ./file.py, a folder with a pyproject.toml, or a file of globs (.yaml).
    """
    del target
    driver: Driver[Any, Any] = ctx.meta["driver"]
    check_name(driver, expected)
    if print_configuration:
        if not url:
            raise click.UsageError("Missing option '--url': the URL of the webhook for the API server.")
        click.echo(_configuration(driver.name, url, ca_bundle), nl=False)
        return
    if own_certificate and (cert or key):
        raise click.UsageError("--own-certificate cannot be combined with --cert or --key, which it replaces.")
    if cert is None and not own_certificate:
        raise click.UsageError(
            "Missing option '--cert' (DRA_WEBHOOK_CERT): PEM file with the certificate chain; or --own-certificate."
        )
    if key is None and not own_certificate:
        raise click.UsageError("Missing option '--key' (DRA_WEBHOOK_KEY): PEM file with the certificate's key.")
    process_logging.configure(options["log_format"], options["log_level"])
    from dra_kit.admission.agent import WebhookSettings, run_webhook
    from dra_kit.admission.certificates import SelfManagedSettings

    settings = WebhookSettings(
        cert=cert,
        key=key,
        own=SelfManagedSettings(namespace=namespace or "", service=own_certificate) if own_certificate else None,
        host=host,
        port=port,
        kubeconfig=options["kubeconfig"],
        probe_address=options["probe_address"],
        author=_author_settings(driver, ctx.meta.get("driver_settings", {})),
    )
    # threads that review configs delay the event loop by up to this at each packet; Python's default is 5 ms
    sys.setswitchinterval(0.0005)
    ctx.exit(asyncio.run(run_webhook(driver, settings)))


def _author_settings(driver: Driver[Any, Any], values: Mapping[str, object]) -> BaseModel | None:
    """Return the author's settings; None if they are invalid here, as they may need files that only nodes have."""
    try:
        return author_settings(driver, values)
    except ConfigurationError as error:
        logger.warning("configs are checked without settings", extra={"error": str(error), "code": error.code})
        return None


def _configuration(driver_name: str, url: str, ca_bundle: Path | None) -> str:
    from dra_kit.admission.review import validating_webhook_configuration

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
    """Accepts a file of globs instead of a TARGET."""

    def load(self, own: Sequence[click.Parameter], args: Sequence[str]) -> Driver[Any, Any] | None:
        """Return the driver of TARGET, or of ``--globs``."""
        file = value_of(_GLOBS, args)
        if file is None:
            return super().load(own, args)
        from dra_kit.author.no_code.driver import load_globs

        return load_globs(Path(file))


node_options: OptionDecorator = option_group(
    variable_option("--node-name", envvar="DRA_NODE_NAME", help="name of this node's Node object"),
    kubelet_dir_option(),
    cdi_dir_option("directory where the container runtime reads CDI files"),
    variable_option(
        "--nri-socket",
        default="/var/run/nri/nri.sock",
        type=path(),
        envvar="DRA_NRI_SOCKET",
        help="the container runtime's socket for NRI, which drivers with pod hooks use",
    ),
    variable_option(
        "--pod-uid",
        envvar="DRA_POD_UID",
        help="UID of this pod, which allows two releases to overlap in a rolling update",
    ),
    variable_option(
        "--dra-versions",
        default="v1,v1beta1",
        envvar="DRA_VERSIONS",
        help="versions of the kubelet's DRA service to offer",
    ),
    variable_option(
        "--hang-timeout",
        default=600.0,
        type=click.FloatRange(min=60.0),
        envvar="DRA_HANG_TIMEOUT",
        help="seconds after which /healthz fails if a call of the driver's code has not returned",
    ),
    variable_option(
        "--orphan-after",
        default=600.0,
        type=click.FloatRange(min=60.0),
        envvar="DRA_ORPHAN_AFTER",
        help="seconds after which a deleted claim is released without the kubelet",
    ),
    variable_option(
        "--check-device-nodes/--no-check-device-nodes",
        default=True,
        envvar="DRA_CHECK_DEVICE_NODES",
        help="check that the device files of a claim exist before reporting it as prepared; switch this off in a "
        "container without the node's /dev",
    ),
)
"""The options of the node, its directories, and the kubelet's calls."""


@click.command(cls=NodeCommand)
@click.argument("target", required=False, shell_complete=complete_target)
@click.option(
    _GLOBS,
    type=path(dir_okay=False),
    metavar="FILE",
    help="instead of a TARGET: a driver defined by a file of globs of device nodes",
)
@node_options
@variable_option(
    "--state-dir",
    type=path(),
    envvar="DRA_STATE_DIR",
    help="directory of the durable state  [default: plugins/<driver> in the kubelet's directory]",
)
@click.option("--dump-state", is_flag=True, help="print records, effects, epochs and corruption as JSON, and exit")
@expected_driver
@role_options
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
        raise click.UsageError(f"TARGET {target} cannot be combined with {_GLOBS} {globs}: each names a driver.")
    driver: Driver[Any, Any] = ctx.meta["driver"]
    check_name(driver, expected)
    if dump_state:
        settings = NodeSettings(node_name="", kubelet_dir=options["kubelet_dir"], state_dir=state_dir)
        click.echo(json.dumps(_dumped(driver.name, settings), indent=2))
        return
    author = author_settings(driver, ctx.meta.get("driver_settings", {}))
    settings = node_settings(options, state_dir=state_dir, author=author)
    process_logging.configure(options["log_format"], options["log_level"])
    tracing.configure(driver.name, "node")
    from dra_kit.node.agent import run_node

    ctx.exit(_run_quickly(run_node(driver, settings)))


def _dumped(driver: str, settings: NodeSettings) -> dict[str, Any]:
    """Return the state of the node; the rest is also shown if the health file is corrupt."""
    from dra_kit.node.health_monitor import FILE, dump_health
    from dra_kit.node.state.store import dump_state

    dumped = dump_state(settings.database(driver))
    try:
        return dumped | {"health": dump_health(settings.state(driver) / FILE)}
    except StoreError as error:
        return dumped | {"health": [], "corrupt": [*dumped["corrupt"], str(error)]}


def node_settings(options: Mapping[str, Any], *, state_dir: Path | None, author: Any) -> NodeSettings:
    """Return the settings from the values of :func:`node_options` and :func:`dra_kit.cli.options.role_options`.

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
        nri_socket=options["nri_socket"].absolute(),
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
@variable_option(
    "--lease-namespace",
    envvar="DRA_LEASE_NAMESPACE",
    help="namespace of the Lease of the leader election  [default: the pod's, or the kubeconfig's]",
)
@variable_option("--lease-name", envvar="DRA_LEASE_NAME", help="name of the Lease  [default: <driver>-controller]")
@variable_option(
    "--leader-election/--no-leader-election",
    default=True,
    envvar="DRA_LEADER_ELECTION",
    help="without leader election, only one replica may run",
)
@variable_option(
    "--cluster-role",
    envvar="DRA_CLUSTER_ROLE",
    help="ClusterRole that owns the controller's cluster-wide slices and taint rules, which are deleted with it  "
    "[default: none]",
)
@expected_driver
@role_options
@click.pass_context
def controller(
    ctx: click.Context,
    /,
    *,
    target: str,
    lease_namespace: str | None,
    lease_name: str | None,
    leader_election: bool,
    cluster_role: str | None,
    expected: str | None,
    **options: Any,
) -> None:
    """Run TARGET's controller: Events on claims and pods, the driver's own hooks, and its cluster-wide devices.

    TARGET is module:attr, ./file.py, a folder with a pyproject.toml, or a file of globs (.yaml). Several replicas may
    run: one of them, elected with a Lease, is active and serves the whole cluster; the others are on standby.
    """
    del target
    driver: Driver[Any, Any] = ctx.meta["driver"]
    check_name(driver, expected)
    process_logging.configure(options["log_format"], options["log_level"])
    from dra_kit.controller.agent import ControllerSettings, run_controller

    settings = ControllerSettings(
        kubeconfig=options["kubeconfig"],
        probe_address=options["probe_address"],
        election=leader_election,
        lease_namespace=lease_namespace,
        lease_name=lease_name,
        cluster_role=cluster_role,
        # other settings may need files and hardware that only nodes have
        author=author_settings(driver, ctx.meta.get("driver_settings", {})) if driver.has_controller_code else None,
    )
    ctx.exit(asyncio.run(run_controller(driver, settings)))


class DecommissionCommand(TargetCommand):
    """Has an optional TARGET after the directory."""

    def load(self, own: Sequence[click.Parameter], args: Sequence[str]) -> Driver[Any, Any] | None:
        """Return the driver of TARGET."""
        targets = targets_of(own, args)
        return load_driver(targets[1]) if len(targets) > 1 else None


@click.command(cls=DecommissionCommand)
@click.argument("state_dir", type=path(file_okay=False))
@click.argument("target", required=False, shell_complete=complete_target)
@variable_option("--driver", "name", envvar="DRA_DRIVER", help="name of the driver  [default: that of TARGET]")
@node_options
@click.option(
    "--abandon",
    is_flag=True,
    help="without TARGET: forget the effects that only the driver's code can undo, and leave the hardware unchanged",
)
@click.option("--stay", is_flag=True, help="keep running when nothing is left, as required in a DaemonSet")
@click.option(
    "--pod",
    metavar="NAMESPACE/NAME",
    help="pod of this process, whose condition dra-kit/Decommissioned becomes true when nothing is left; requires the "
    "right to patch pods/status",
)
@role_options
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

    STATE_DIR is the directory of the driver's durable state, plugins/<driver> in the kubelet's directory. With TARGET,
    the driver's code undoes all its effects. Without TARGET, the driver's programs and its objects in the cluster are
    deleted; other effects are listed, and remain unless --abandon is given.

    Exit code 0: nothing of the driver is left. With --stay, the process runs until SIGTERM. With --pod, a condition of
    its pod reports when nothing is left; `dra-kit drain --until-removed` waits for it.
    """
    driver: Driver[Any, Any] | None = ctx.meta.get("driver") if target is not None else None
    name = name or (driver.name if driver is not None else None)
    if name is None:
        raise click.UsageError("Missing option '--driver' (DRA_DRIVER): the name of the driver to remove.")
    if abandon and driver is not None:
        raise click.UsageError("--abandon cannot be combined with TARGET, whose code undoes all effects.")
    if driver is not None:
        check_name(driver, name)
    author = author_settings(driver, ctx.meta.get("driver_settings", {})) if driver is not None else None
    settings = node_settings(options, state_dir=state_dir, author=author)
    process_logging.configure(options["log_format"], options["log_level"])
    from dra_kit.node.decommission import run_decommission
    from dra_kit.node.removal_confirmation import PodName

    where = None if pod is None else PodName.parse(pod)
    ctx.exit(_run_quickly(run_decommission(name, settings, driver, abandon=abandon, keep_running=stay, pod=where)))


def _run_quickly(main: Coroutine[Any, Any, int]) -> int:
    """Run a coroutine on uvloop, for fast answers to the kubelet."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
