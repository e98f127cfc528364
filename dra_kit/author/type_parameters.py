"""Type parameters that several of the author's classes have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import TypeVar

if TYPE_CHECKING:
    from pydantic import BaseModel

SettingsT = TypeVar("SettingsT", bound="BaseModel | None", default=None)
"""The author's settings model, of ``Driver(settings=…)``; None for a driver without."""

AuthorSettingsT = TypeVar("AuthorSettingsT", bound="BaseModel | None", default=Any)
"""The same where a class says nothing of its driver's settings."""

HardwareT = TypeVar("HardwareT", default=Any)
"""The author's handle to the hardware, what ``Driver(hardware=…)`` returns."""
