"""The settings of the driver. Each field is an option of ``dra-kit node``, such as ``--menu``."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field


class KitchenSettings(BaseModel):
    """The menu and the oven of a kitchen."""

    menu: Path = Field(
        default=Path(__file__).resolve().parents[2] / "menu.yaml",
        description="the menu file; a change adds or removes devices",
    )
    hardware_dir: Path = Field(
        default=Path("/var/lib/pizza-kitchen"),
        description="directory that simulates the hardware; it contains the oven",
    )
