"""The author's own kopf handlers: the module that has them, and the registry that they are in."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Self, cast

from dra_kit.errors import ConfigurationError

if TYPE_CHECKING:
    import kopf


class HandlerModule:
    """One for all copies of a driver: a module is imported once in a process.

    Args:
        driver: its name.
        module: dotted name of the module; None where there is none, but handlers may be registered all the same.

    Raises:
        ConfigurationError: ``module`` is no name of a module.
    """

    def __init__(self, driver: str, module: str | None) -> None:
        if module is not None and not (
            isinstance(module, str) and all(part.isidentifier() for part in module.split("."))
        ):
            raise ConfigurationError(
                f"driver {driver}: handlers {module!r} is no name of a module; write it as in an import, such as "
                "'pizza_driver.handlers': only the controller imports it"
            )
        self.module = module
        self._registry: kopf.OperatorRegistry | None = None

    def __deepcopy__(self, _: object) -> Self:
        return self

    @property
    def used(self) -> bool:
        """Whether there may be handlers."""
        return self.module is not None or self._registry is not None

    @property
    def registry(self) -> kopf.OperatorRegistry:
        """Made when it is first asked for: kopf takes memory that no node needs."""
        if self._registry is None:
            # in a layer above: kopf is imported there, without the Kubernetes clients that it would load
            found = importlib.import_module("dra_kit.kube.operator.operator").kopf
            self._registry = cast("kopf.OperatorRegistry", found.OperatorRegistry())
        return self._registry
