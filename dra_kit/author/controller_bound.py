"""``ControllerBound``: what an author's code in the controller has of it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Generic

from dra_kit.author.context import Context
from dra_kit.author.node_bound import NotBound
from dra_kit.author.type_parameters import AuthorSettingsT


class ControllerBound(Generic[AuthorSettingsT]):
    """Set by the framework before ``startup`` is called.

    Attributes:
        context: what the framework tells, with the author's settings. A controller is on no node: ``context.node`` and
            ``context.state_dir`` are not there, and nothing is prepared.

    Raises:
        ConfigurationError: it is read before it is there.
    """

    context: Context[AuthorSettingsT]

    if not TYPE_CHECKING:  # type checkers are to know the attribute above, and no other

        def __getattr__(self, name: str) -> Any:
            title = type(self).__name__
            if name == "context":
                raise NotBound(
                    f"{title}.context is not there yet: the framework sets it before startup; read it there or later"
                )
            raise AttributeError(f"{title!r} object has no attribute {name!r}")

    def startup(self, context: Context[Any]) -> Awaitable[None] | None:
        """Start, once, when the controller starts and before anything else of this. May be ``def`` or ``async def``."""
        del context
        return None
