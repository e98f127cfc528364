"""Reads the slices of a whole cluster: of a usual device, no more than its form is found out."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

from pydantic import ValidationError

from dra_kit.resource.plain_attributes import is_version
from dra_kit.resource.slices.lazy import Form, LazySlice, UsualDevices, made
from dra_kit.resource.v1 import DeviceAttribute, DeviceCapacity, ResourceSlice
from dra_kit.values.amount import INT64_MAX, INT64_MIN
from dra_kit.values.json import ObjectView

_MODEL_FIELDS: Final = {"string": "string", "int": "int_", "bool": "bool_", "version": "version"}
"""Fields of values that are no lists, in JSON and of the model."""

_FIELDS: Final = frozenset({"name", "attributes", "capacity"})
"""Of a usual device."""

_NO_ATTRIBUTE: Final = vars(DeviceAttribute())
_NOTHING: Final[dict[str, Any]] = {}


class SliceReader:
    """Reads slices as pydantic reads them, in a third of the time; one reader for many slices.

    A usual device, which has a name, plain attributes and capacities of one amount, is checked here, and becomes a
    model when it is looked at. A slice that has any other device goes to pydantic, so that what is wrong is reported
    in its words.
    """

    def __init__(self) -> None:
        self._forms: dict[Hashable, Form] = {}
        self._attributes: dict[tuple[str, Any], DeviceAttribute] = {}

    def read(self, document: ObjectView) -> LazySlice:
        """Read a slice.

        Args:
            document: JSON of resource.k8s.io/v1.

        Raises:
            pydantic.ValidationError: it does not have the shape of the API.
        """
        spec = document.get("spec") if type(document) is dict else None
        devices = spec.get("devices") if type(spec) is dict else None
        if type(spec) is dict and type(devices) is list:
            forms = []
            for device in devices:
                form = self._form(device)
                if form is None:
                    break
                forms.append(form)
            else:
                # None of them is in the way of what is wrong with the rest of the slice.
                rest = ResourceSlice.model_validate({**document, "spec": {**spec, "devices": ()}})
                return LazySlice(rest.metadata.name, rest.spec, UsualDevices(devices, tuple(forms), self._attribute))
        return LazySlice.of(ResourceSlice.model_validate(document))

    def _form(self, document: Any) -> Form | None:
        """Return the form of a usual device; None for any other."""
        if type(document) is not dict:
            return None
        name = document.get("name", "")
        attributes = document.get("attributes", _NOTHING)
        capacity = document.get("capacity", _NOTHING)
        if type(name) is not str or not name.isascii() or type(attributes) is not dict or type(capacity) is not dict:
            return None
        key: list[Hashable] = [len(document), len(attributes), *document, *attributes]
        for value in attributes.values():
            field = _plain_field(value)
            if not field:
                return None
            key.append(field)
        for amount, value in capacity.items():
            text = value.get("value") if type(value) is dict and len(value) == 1 else None
            if type(text) is not str:
                return None
            key += (amount, text)
        form = tuple(key)
        return self._forms.get(form) or self._new_form(form, document)

    def _new_form(self, key: Hashable, document: dict[str, Any]) -> Form | None:
        """Store and return a form that is new; None where names or amounts are not usual."""
        attributes, capacity = document.get("attributes", _NOTHING), document.get("capacity", _NOTHING)
        names = [*attributes, *capacity]
        if not document.keys() <= _FIELDS or not all(type(name) is str and name.isascii() for name in names):
            return None
        types = {name: next(iter(value)) for name, value in attributes.items()}
        try:
            amounts = {name: DeviceCapacity.model_validate(value) for name, value in capacity.items()}
        except ValidationError:
            return None
        form = self._forms[key] = Form(types, amounts)
        return form

    def _attribute(self, field: str, content: Any) -> DeviceAttribute:
        """Return the model of a plain attribute; equal attributes are one object."""
        known = self._attributes.get((field, content))
        if known is None:
            name = _MODEL_FIELDS[field]
            known = self._attributes[field, content] = made(DeviceAttribute, {**_NO_ATTRIBUTE, name: content}, {name})
        return known


def _plain_field(value: Any) -> str:
    """Return the field of a plain attribute, with which every expression can be evaluated; empty for any other."""
    if type(value) is not dict or len(value) != 1:
        return ""
    ((field, content),) = value.items()
    if field == "string":
        is_plain = type(content) is str and content.isascii()
    elif field == "int":
        is_plain = type(content) is int and INT64_MIN <= content <= INT64_MAX
    elif field == "version":
        is_plain = type(content) is str and is_version(content)
    else:
        is_plain = field == "bool" and type(content) is bool
    return field if is_plain else ""
