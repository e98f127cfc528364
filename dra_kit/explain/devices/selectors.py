"""What is wrong with selectors that fail, or that no device matches: the findings of dra-kit lint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from dra_kit.diagnosis.selector_mistakes.catalogue import mistakes
from dra_kit.diagnosis.selector_mistakes.device_rules import Advertised
from dra_kit.diagnosis.selector_mistakes.expression import Mistake, ask_first, begin_with_driver, blamed, compiled
from dra_kit.explain.cluster.cluster import Cluster
from dra_kit.explain.reasons import Check
from dra_kit.explain.verdicts import JudgedChoice, Request
from dra_kit.kubernetes.cel.device import Device
from dra_kit.kubernetes.cel.environment import STORED


def wrong_selectors(cluster: Cluster, requests: Sequence[Request]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what is wrong with the selectors of a claim that gets no devices, and what to write instead.

    Args:
        cluster: whose devices are asked for.
        requests: of the claim.
    """
    choices = [judged for request in requests for judged in request.choices]
    found: list[str] = []
    remedies: list[str] = []
    for judged in choices:
        reasons = [reason for verdict in judged.devices for reason in verdict.reasons]
        failed = [reason.remedy for reason in reasons if reason.check is Check.ERROR and reason.remedy]
        if failed or (judged.devices and not any(verdict.matches for verdict in judged.devices)):
            for where, text in _selectors(judged):
                for mistake in _mistakes(text, cluster.advertised):
                    found.append(f"{where}: {mistake.message}")
                    remedies += [_marked(mistake.help, where)] if mistake.help else []
            remedies += failed
    return tuple(dict.fromkeys(found)), tuple(dict.fromkeys(remedies))


def remedy(cluster: Cluster, expression: str, where: str, device: Device | None = None) -> str:
    """Return what to write instead of a selector that fails.

    Args:
        cluster: whose devices are asked for.
        expression: the selector.
        where: whose it is: ``class gpu`` or ``request gpu``.
        device: for which it fails; None if it fails for all.
    """
    help_ = next((mistake.help for mistake in _mistakes(expression, cluster.advertised) if mistake.help), "")
    if not help_ and device is not None:
        parsed = compiled(expression, STORED)
        read = blamed(parsed, device)
        if read is not None:
            help_ = (ask_first if read.domain == device.driver else begin_with_driver)(parsed, read)
    return _marked(help_, where) if help_ else f"with a selector of {where} that does not fail"


def _selectors(judged: JudgedChoice) -> Iterator[tuple[str, str]]:
    """Yield the selectors that a device must pass, each with the class or request that it belongs to."""
    if judged.choice is not None:
        yield from (
            (f"class {judged.choice.device_class.metadata.name}", text) for text in judged.choice.class_selectors
        )
        yield from ((f"request {judged.name}", text) for text in judged.choice.selectors)


@lru_cache(maxsize=64)
def _mistakes(expression: str, advertised: Advertised | None) -> tuple[Mistake, ...]:
    return tuple(mistakes(compiled(expression, STORED), advertised))


def _marked(help_: str, where: str) -> str:
    return f"{help_} ({where})"
