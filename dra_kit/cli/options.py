"""Options that several commands share, and the author's own settings as options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from dra_kit.author.driver import Driver
from dra_kit.errors import ConfigurationError
from dra_kit.process.target import load_driver

F = TypeVar("F", bound=Callable[..., Any])

AUTHOR_PREFIX = "DRIVER_"
"""Environment names of an author's settings: ``DRIVER_`` and the field's name in upper case."""


def path(**kwargs: Any) -> click.Path:
    """A path as pathlib's Path."""
    return click.Path(path_type=Path, **kwargs)


def common(function: F) -> F:
    """``--kubeconfig`` and the options of logging."""
    for option in (
        click.option("--log-level", default="info", show_default=True, envvar="DRA_LOG_LEVEL", show_envvar=True,
                     type=click.Choice(["debug", "info", "warning", "error"]), help="least level that is logged"),
        click.option("--log-format", default="text", show_default=True, envvar="DRA_LOG_FORMAT", show_envvar=True,
                     type=click.Choice(["text", "json"]), help="lines for people or for machines"),
        click.option("--kubeconfig", type=path(), envvar="DRA_KUBECONFIG", show_envvar=True,
                     help="default: $KUBECONFIG, in a pod its service account, else ~/.kube/config"),
    ):  # fmt: skip
        function = option(function)
    return function


class RoleCommand(click.Command):
    """A command with a TARGET whose settings become further options of the command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Load the TARGET first, so that its settings are known when the options are read."""
        target = _target(self, ctx, args)
        if target is not None:
            driver = load_driver(target)
            ctx.meta["driver"] = driver
            if driver.settings is not None:
                taken = {name for parameter in self.params for name in parameter.opts}
                self.params = [*self.params, *_settings_options(driver, driver.settings, taken)]
        return super().parse_args(ctx, args)


def _target(command: click.Command, ctx: click.Context, args: list[str]) -> str | None:
    """The TARGET among the arguments, read without knowing the author's options yet."""
    parser = click.Command.make_parser(command, ctx)
    parser.ignore_unknown_options = True
    try:
        values, rest, _ = parser.parse_args(list(args))
    except click.UsageError:
        return None  # told by the real parser
    target = values.get("target")
    del rest
    return target if isinstance(target, str) else None


def _settings_options(driver: Driver[Any, Any], model: type[BaseModel], taken: set[str]) -> list[click.Option]:
    options = []
    for name, field in model.model_fields.items():
        flag = f"--{name.replace('_', '-')}"
        if flag in taken:
            raise ConfigurationError(
                f"driver {driver.name}: setting {name} collides with {flag} of dra-kit; rename the field"
            )
        default = field.get_default(call_default_factory=False) if not field.is_required() else None
        options.append(
            click.Option(
                [f"driver_setting_{name}", flag],
                envvar=f"{AUTHOR_PREFIX}{name.upper()}",
                show_envvar=True,
                help=_help(field, default),
                expose_value=False,
                callback=_collect(name),
            )
        )
    return options


def _help(field: FieldInfo, default: object) -> str:
    text = field.description or ""
    shown = "required" if field.is_required() else f"default: {default}"
    return f"{text}  [{shown}]" if text else f"[{shown}]"


def _collect(name: str) -> Callable[[click.Context, click.Parameter, str | None], None]:
    def callback(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
        if value is not None:
            ctx.meta.setdefault("driver_settings", {})[name] = value

    return callback


def author_settings(driver: Driver[Any, Any], values: Mapping[str, str]) -> BaseModel | None:
    """The author's settings from flags and environment.

    Raises:
        ConfigurationError: naming flag, value and rule.
    """
    if driver.settings is None:
        return None
    try:
        return driver.settings.model_validate(dict(values), strict=False)
    except ValidationError as error:
        problems = "; ".join(
            f"--{str(item['loc'][0]).replace('_', '-')} ({AUTHOR_PREFIX}{str(item['loc'][0]).upper()}): {item['msg']}"
            for item in error.errors(include_url=False)
        )
        raise ConfigurationError(f"settings of driver {driver.name}: {problems}") from None
