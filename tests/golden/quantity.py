"""Quantity strings: accepted or not, canonical form, integer values; comparisons, sums and differences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from pydantic import TypeAdapter, ValidationError

from dra_kit.kubernetes.release import KubernetesVersion, Release
from dra_kit.kubernetes.resource.schema.types import StrictDecoding, TypeMismatch, decode
from dra_kit.kubernetes.values.quantity import InvalidQuantity, Quantity
from tests.golden.kind import Case, Line

NAME = "quantity"

_JSON = TypeAdapter(Quantity)


def recognises(line: Line) -> bool:
    return {"in", "jsonOk"} <= line.keys() or {"a", "b", "cmp"} <= line.keys()


def replay(lines: Iterable[Line], release: Release) -> Iterator[Case]:
    for recorded in lines:
        line = {key: value for key, value in recorded.items() if key != "was"}
        if "in" in line:
            yield Case(line["id"], line, partial(_read, line["id"], line["in"], release.version))
        else:
            yield Case(line["id"], line, partial(_compute, line["id"], line["a"], line["b"], release.version))


def _read(case: str, text: str, version: KubernetesVersion) -> Line:
    observed: Line = {"id": case, "in": text, "ok": False, "jsonOk": False}
    try:
        quantity = Quantity(text, version)
    except InvalidQuantity as error:
        observed["errorKind"] = error.kind
    else:
        observed |= {
            "ok": True,
            "string": str(quantity),
            **_int64s(_JSON.validate_python(text, context=version)),
            "format": quantity.format,
            "sign": quantity.sign,
            "asInt64": quantity.as_int64 is not None,
        }
    try:
        observed |= {"json": _from_json(text, version), "jsonOk": True}
    except (TypeMismatch, ValidationError):
        pass  # jsonOk says so
    return observed


def _from_json(text: str, version: KubernetesVersion) -> str:
    """Return what is stored, and beside it what the model of the object has if that differs."""
    stored = decode(text, "Quantity", StrictDecoding(version=version))
    read = _JSON.dump_python(_JSON.validate_python(text, context=version))
    return str(stored) if read == stored else f"{stored}, in the model {read}"


def _int64s(quantity: Quantity) -> Line:
    return {"value": str(quantity.value), "milli": str(quantity.milli_value)}


def _compute(case: str, left: str, right: str, version: KubernetesVersion) -> Line:
    a, b = Quantity(left, version), Quantity(right, version)
    order = (a > b) - (a < b)
    return {"id": case, "a": left, "b": right, "cmp": order, "add": str(a + b), "sub": str(a - b)}
