"""The opaque configs of a claim as its preparer sees them: decoded once, with where each comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dra_kit.author.config.decoding import ConfigDecoder
from dra_kit.author.config.for_devices import is_for
from dra_kit.author.config.opaque import ConfigEntry, OpaqueConfig
from dra_kit.errors import InvalidConfig
from dra_kit.kubernetes.resource import v1
from dra_kit.node.claims.reader import AllocatedClaim


def decoded_configs(claim: AllocatedClaim, decoder: ConfigDecoder[Any]) -> list[tuple[ConfigEntry[Any], ...]]:
    """Return for each result of a claim the entries that apply to it, weakest first; results may share an entry.

    Raises:
        InvalidConfig: naming request, source and every field.
    """
    if not any(claim.configs):
        return [()] * len(claim.configs)
    allocation = claim.status.allocation
    assert allocation is not None  # noqa: S101 - the reader has seen to it
    index_of = {id(entry): index for index, entry in enumerate(allocation.devices.config)}
    known: dict[int, ConfigEntry[Any]] = {}
    for result, entries in zip(claim.results, claim.configs, strict=True):
        for entry in entries:
            index = index_of[id(entry)]
            if index not in known:
                known[index] = _decoded(entry, index, result.request, _named(entry, claim), decoder)
    return [tuple(known[index_of[id(entry)]] for entry in entries) for entries in claim.configs]


def for_device(
    entries: tuple[ConfigEntry[Any], ...],
    result: v1.DeviceRequestAllocationResult,
    device: v1.Device,
    kinds: Sequence[type[OpaqueConfig]],
) -> tuple[ConfigEntry[Any], ...]:
    """Return those of a result's entries whose configs are for its device, weakest first.

    Args:
        entries: that apply to the result.
        result: of the allocation.
        device: as it is published.
        kinds: of config that the driver takes.

    Raises:
        InvalidConfig: an entry names the request and is not for the device, and no stronger one is; with admin access
            it is passed over, for nothing is changed.
    """
    found: list[ConfigEntry[Any]] = []
    for entry in reversed(entries):
        if is_for(entry.config.for_devices_, device, result.driver):
            found.append(entry)
        elif entry.requests and not found and not result.admin_access:
            fitting = [kind.kind_ for kind in kinds if is_for(kind.for_devices_, device, result.driver)]
            taken = " or ".join(fitting) or "no config"
            raise InvalidConfig(f"{entry} does not fit {result.device}, which takes {taken}; correct one of the two")
    return tuple(reversed(found))


def check_replacements(entries: tuple[ConfigEntry[Any], ...]) -> None:
    """Refuse entries of the claim that may not replace what its DeviceClass has configured.

    Args:
        entries: for one device, weakest first.

    Raises:
        InvalidConfig: naming both entries, with the reason of the class's config.
    """
    by_class = {type(entry.config): entry for entry in entries if entry.source == "class"}
    for entry in entries:
        bound = by_class.get(type(entry.config))
        if entry.source == "claim" and bound is not None and (reason := bound.config.refusal_of(entry.config)):
            raise InvalidConfig(f"{entry} cannot replace {bound}: {reason}")


def _named(entry: v1.DeviceAllocationConfiguration, claim: AllocatedClaim) -> tuple[str, ...]:
    """Return the requests of an entry as its writer named them: the scheduler of 1.37 leaves out a list of all."""
    if entry.requests or entry.source != "FromClaim" or entry.opaque is None:
        return entry.requests
    wishes = (claim.raw.get("spec") or {}).get("devices") or {}
    for wish in wishes.get("config") or ():
        opaque = wish.get("opaque") or {}
        if opaque.get("driver") == entry.opaque.driver and opaque.get("parameters") == entry.opaque.parameters:
            return tuple(wish.get("requests") or ())
    return ()


def _decoded(
    entry: v1.DeviceAllocationConfiguration,
    index: int,
    request: str,
    named: tuple[str, ...],
    decoder: ConfigDecoder[Any],
) -> ConfigEntry[Any]:
    from_claim = entry.source == "FromClaim"
    try:
        config = decoder.decode(entry.opaque.parameters if entry.opaque is not None else None)
    except InvalidConfig as error:
        source = "the claim" if from_claim else "its DeviceClass"
        raise InvalidConfig(
            f"request {request!r}: config of {source}: {error}; correct it and create the claim again",
            problems=error.problems,
            omitted=error.omitted,
        ) from error
    return ConfigEntry(config, "claim" if from_claim else "class", index, named)
