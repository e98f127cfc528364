"""``NodeBound``: what provider, preparer and health source have of the node they run on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic

from dra_kit.author.type_parameters import AuthorSettingsT, HardwareT
from dra_kit.errors import ConfigurationError

if TYPE_CHECKING:
    from dra_kit.author.context import Context


class NotBound(ConfigurationError, AttributeError):
    """What the node gives is not there; an AttributeError too, so that ``hasattr`` answers no."""


class NodeBound(Generic[HardwareT, AuthorSettingsT]):
    """Set by the framework before ``startup`` is called; one driver object serves one node.

    Attributes:
        hardware: the node's handle to the hardware, made by ``Driver(hardware=…)``.
        context: what the framework tells of the node, with the author's settings.

    Raises:
        ConfigurationError: one of them is read before it is there, or the driver has no hardware.
    """

    hardware: HardwareT
    context: Context[AuthorSettingsT]

    if not TYPE_CHECKING:  # type checkers are to know the attributes above, and no other

        def __getattr__(self, name: str) -> Any:
            title = type(self).__name__
            if name == "hardware":
                raise NotBound(
                    f"{title}.hardware is not there: write Driver(…, hardware=<its factory>); it is made before startup"
                )
            if name == "context":
                raise NotBound(
                    f"{title}.context is not there yet: the framework sets it before startup; read it there or later"
                )
            raise AttributeError(f"{title!r} object has no attribute {name!r}")
