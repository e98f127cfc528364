"""Converts between stored effects and effects that can be called: class, fields, outcome.

The framework's own effects are reverted without their class, on a node without the driver's code. Enough is stored
about a program and about an object in the cluster to terminate the one and delete the other. Any other effect can only
be reverted by its author's ``revert``.
"""

from __future__ import annotations

import logging
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any, Final, Literal, NamedTuple, NoReturn, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json
from typing_extensions import override

from dra_kit.author.cluster_object import ClusterObject, ObjectAddress
from dra_kit.author.effect import ChildProcess, Effect
from dra_kit.errors import ConfigurationError, DraKitError, PrepareError, TransientError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.state.records import EffectRecord
from dra_kit.text import shorten, without_paths

logger: logging.Logger = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")
_TITLE_BYTES: Final = 300


class StoredFields(NamedTuple):
    """The stored fields of an effect.

    Attributes:
        spec: JSON of all fields. Defaults are written out: a release with other defaults must find what was applied.
        defaults: names, as they are in ``spec``, of the fields with their default value. A release that does not know
            such a field behaves the same without it.
    """

    spec: str
    defaults: tuple[str, ...]


class EffectClasses:
    """The driver's effect classes by their stable id; no method is called that changes hardware."""

    def __init__(self, known: Mapping[str, type[Effect[Any, Any]]]) -> None:
        self._known = known

    @property
    def runs_programs(self) -> bool:
        """Whether there may be programs to start, find, or terminate."""
        return any(issubclass(effect, ChildProcess) for effect in self._known.values())

    def check(self, stored: Sequence[EffectRecord]) -> None:
        """Reject effects in force that the driver could not revert.

        Raises:
            ConfigurationError: names them.
        """
        unknown = sorted({record.effect for record in stored} - set(self._known))
        if unknown:
            raise ConfigurationError(
                f"effects {', '.join(unknown)} are in force, and this driver has no classes to revert them; "
                "add their classes to Driver(effects=[…]), or drain the node with the release that applied them",
                code="unknown-effect",
            )
        for record in stored:
            cls = self._known[record.effect]
            try:
                _read(cls, record.spec, record.defaults)
                if record.outcome is not None:
                    read_outcome(cls, record.outcome)
            except ValidationError as error:
                raise ConfigurationError(
                    f"effect {_stored_title(record)} is in force, and {cls.__name__} can no longer read it: "
                    f"{_problems(error)}; keep its fields readable, or drain the node with the release that applied it",
                    code="incompatible-effect",
                ) from error

    def stored_fields(self, effect: Effect[Any, Any]) -> StoredFields:
        """Return an effect's fields as they are stored, from which it can be created again.

        Raises:
            ConfigurationError: it is not one of the driver's, or reading the stored fields yields another effect.
        """
        cls = type(effect)
        if self._known.get(cls.effect_id) is not cls:
            raise ConfigurationError(
                f"effect {cls.__name__} is not one of the driver's; add it to Driver(effects=[{cls.__name__}])",
                code="unknown-effect",
            )
        text = ""
        try:
            text = effect.model_dump_json(by_alias=True)
            again: Effect[Any, Any] | None = _read(cls, text)
            problem = "reading it yields other values"
        except ValueError as error:  # includes pydantic's errors, on writing and on reading
            again, problem = None, _problems(error) if isinstance(error, ValidationError) else str(error)
        if again != effect:
            raise ConfigurationError(
                f"effect {cls.__name__} cannot be read from its own JSON: {problem}; its fields are stored, so use "
                "types that pydantic writes and reads alike, without computed or excluded fields",
                code="invalid-effect",
            )
        selected = from_json(effect.model_dump_json(by_alias=True, exclude_defaults=True))
        return StoredFields(text, tuple(name for name in from_json(text) if name not in selected))

    def load(self, record: EffectRecord) -> tuple[Effect[Any, Any], Any]:
        """Return an effect and its outcome, None if it has none.

        Raises:
            TransientError: another release of the driver stored it, whose process may run beside this one.
        """
        cls = self._known.get(record.effect)
        if cls is None:
            raise TransientError(
                f"effect {_stored_title(record)} was applied by another release of the driver, and this release "
                "has no class for it; run that release to revert it",
                code="unknown-effect",
            )
        try:
            effect = _read(cls, record.spec, record.defaults)
        except ValidationError as error:
            raise _incompatible(cls, record, error) from error
        return effect, outcome_of(cls, record) if record.outcome is not None else None

    def touched(self, record: EffectRecord) -> set[str]:
        """Return the keys and locks of a stored effect; for an unknown class, which is never called, only the keys."""
        try:
            effect, _ = self.load(record)
        except DraKitError:
            return set(record.keys)
        return {*record.keys, *locks_of(effect)}

    def title(self, record: EffectRecord) -> str:
        """Return the text of a stored effect for people."""
        with suppress(DraKitError):
            effect, _ = self.load(record)
            if type(effect).title is not Effect.title:
                return title_of(effect)
        return _stored_title(record)

    def conflicts(
        self,
        claim: ClaimReference,
        wanted: Effect[Any, Any],
        keys: Sequence[str],
        others: Sequence[EffectRecord],
        ensured: Collection[int],
    ) -> list[EffectRecord]:
        """Return other effects on these keys that no claim needs any more, to be reverted first.

        Raises:
            TransientError: another effect is needed; names the claims that need it.
        """
        unneeded = []
        for other in others:
            shared = sorted(set(other.keys) & set(keys))
            if not shared:
                continue
            holders = [str(item) for item in other.claims if item.uid != claim.uid]
            if other.phase == "reverting" or (not holders and other.number not in ensured):
                unneeded.append(other)
                continue
            raise self._conflict(claim, wanted, ", ".join(shared), other)
        return unneeded

    def _conflict(
        self, claim: ClaimReference, wanted: Effect[Any, Any], keys: str, other: EffectRecord
    ) -> TransientError:
        """Return the error of a conflict; its public text has no claims and configs of other namespaces."""

        def text(who: str) -> str:
            return (
                f"claim {claim} needs {title_of(wanted)}, but {who} holds {keys} with {self.title(other)}; ask for the "
                "same, or wait until that claim is released"
            )

        holders = [item for item in other.claims if item.uid != claim.uid]
        near = [str(item) for item in holders if item.namespace == claim.namespace]
        full = public = text(f"claim {', '.join(map(str, holders))}" if holders else "the same claim")
        if holders and not near:
            public = (
                f"claim {claim} needs {title_of(wanted)}, but another claim holds {keys} with other settings; wait "
                "until that claim is released, or ask the cluster's administrators, who find it in the driver's log"
            )
        elif len(near) < len(holders):
            public = text(f"claim {', '.join(near)} and others")
        return TransientError(full, code="effect-conflict", public=without_paths(public))


def find_stored(effect: Effect[Any, Any], spec: str, stored: Sequence[EffectRecord]) -> EffectRecord | None:
    """Return the stored record of an effect, written by any process and release; ``spec`` is its text here.

    Equal fields may have different texts: the order of a set differs between processes, a field that a newer release
    added is missing, and one that an older release does not know has its default.
    """
    alike = [record for record in stored if record.effect == type(effect).effect_id]
    for record in alike:
        if record.spec == spec:
            return record
    for record in alike:
        with suppress(ValidationError):  # a different effect, from a newer release
            if _read(type(effect), record.spec, record.defaults) == effect:
                return record
    return None


def outcome_of(cls: type[Effect[ResultT, Any]], record: EffectRecord) -> ResultT:
    """Return the outcome of an effect that has one.

    Raises:
        TransientError: another release of the driver stored it in a form that this one cannot read.
    """
    try:
        return read_outcome(cls, record.outcome or "")
    except ValidationError as error:
        raise _incompatible(cls, record, error) from error


def write_outcome(cls: type[Effect[ResultT, Any]], outcome: ResultT) -> str:
    """Return the JSON of what ``apply`` returned, from which it can be read again.

    Raises:
        ConfigurationError: it does not have the declared type. Its value may be secret and is not reported.
    """
    adapter = cls.outcome_adapter()
    try:
        text = adapter.dump_json(adapter.validate_python(outcome, by_alias=True, by_name=True), by_alias=True).decode()
        read_outcome(cls, text)
    except ValueError:  # includes pydantic's errors
        raise ConfigurationError(
            f"effect {cls.__name__}.apply returned a value of type {type(outcome).__name__}, which it does not "
            "declare, or which cannot be stored; return the type in dra_kit.Effect[<type>]",
            code="invalid-outcome",
        ) from None
    return text


def read_outcome(cls: type[Effect[ResultT, Any]], text: str) -> ResultT:
    """Return what was stored by :func:`write_outcome`, or by a release that wrote names instead of aliases."""
    return cls.outcome_adapter().validate_json(text, by_alias=True, by_name=True)


def keys_of(effect: Effect[Any, Any]) -> list[str]:
    """Return the keys of an effect: what it touches.

    Raises:
        ConfigurationError: there are none, or they are not names.
    """
    keys = _names(effect, "keys", effect.keys())
    if not keys:
        raise _no_names(effect, "keys", keys)
    return keys


def locks_of(effect: Effect[Any, Any]) -> list[str]:
    """Return what is locked in addition to the keys while an effect is called.

    Raises:
        ConfigurationError: those are not names.
    """
    return _names(effect, "locks", effect.locks())


def title_of(effect: Effect[Any, Any]) -> str:
    """Return the title of an effect for people, in one line; its id and fields if the author's ``title`` fails."""
    title: object = None
    with suppress(Exception):  # of the author's code; it must not prevent the report
        title = effect.title()
    text = " ".join(title.split()) if isinstance(title, str) else ""
    return shorten(text or Effect.title(effect), _TITLE_BYTES)


def public_title(effect: Effect[Any, Any]) -> str:
    """Return the title of an effect for the users of a claim that needs it: without paths of the host."""
    return without_paths(title_of(effect))


def _names(effect: Effect[Any, Any], method: str, given: Iterable[str]) -> list[str]:
    names = list(given)
    if isinstance(given, str) or not all(isinstance(name, str) and name for name in names):
        raise _no_names(effect, method, names)
    return names


def _no_names(effect: Effect[Any, Any], method: str, given: Sequence[Any]) -> ConfigurationError:
    return ConfigurationError(
        f"effect {type(effect).__name__}.{method}() returned {given!r}; return names of what it touches, for example "
        "['gpu/0']",
        code="invalid-effect-keys",
    )


def _read(cls: type[Effect[Any, Any]], spec: str, defaults: Sequence[str] = ()) -> Effect[Any, Any]:
    try:
        return cls.model_validate_json(spec, by_alias=True, by_name=True)  # earlier releases wrote names
    except ValidationError as error:
        refused = {item["loc"] for item in error.errors(include_url=False) if item["type"] == "extra_forbidden"}
        unknown = [name for name in defaults if (name,) in refused]
        if not unknown:
            raise
    fields = {name: value for name, value in from_json(spec).items() if name not in unknown}
    return cls.model_validate_json(to_json(fields), by_alias=True, by_name=True)


def _incompatible(cls: type[Effect[Any, Any]], record: EffectRecord, error: ValidationError) -> TransientError:
    return TransientError(
        f"effect {_stored_title(record)} was applied by another release of the driver, and {cls.__name__} "
        f"cannot read it: {_problems(error)}; run that release to revert it",
        code="incompatible-effect",
    )


def _problems(error: ValidationError) -> str:
    return "; ".join(
        ": ".join(filter(None, (".".join(map(str, item["loc"])), item["msg"])))
        for item in error.errors(include_url=False)
    )


def _stored_title(record: EffectRecord) -> str:
    return shorten(f"{record.effect} {record.spec}", _TITLE_BYTES)


def public_text(error: DraKitError) -> str:
    """Return the text of an error for the users of a claim; paths stay only in texts written for them."""
    return error.public if isinstance(error, PrepareError) else without_paths(error.public)


class _EndProgram(BaseModel):
    what: Literal["ChildProcess"] = "ChildProcess"
    end_within: float


class _DeleteObject(BaseModel):
    what: Literal["ClusterObject"] = "ClusterObject"
    api_version: str
    kind: str
    plural: str
    namespace: str
    name: str

    @property
    def address(self) -> ObjectAddress:
        return ObjectAddress(**self.model_dump(exclude={"what"}))


_UNDO: TypeAdapter[_EndProgram | _DeleteObject] = TypeAdapter(
    Annotated[_EndProgram | _DeleteObject, Field(discriminator="what")]
)


class _WithoutClass:
    """An effect that can only be reverted; its keys are the stored ones."""

    def keys(self) -> list[str]:
        """Return the keys that were stored."""
        touched: list[str] = self.touched  # type: ignore[attr-defined] # a field of the classes below
        return touched


class _Program(_WithoutClass, ChildProcess[None]):
    touched: list[str]

    def command(self) -> NoReturn:
        """Raise an error: the program cannot be started without its class."""
        raise TransientError(
            f"program {self.title()} cannot be started without the driver's code, only terminated",
            code="no-driver-code",
        )


class _Object(_WithoutClass, ClusterObject[None]):
    touched: list[str]
    at: ObjectAddress

    def address(self) -> ObjectAddress:
        """Return the address at which it was applied."""
        return self.at

    def body(self) -> NoReturn:
        """Raise an error: the object cannot be applied without its class."""
        raise TransientError(
            f"{self.at} cannot be applied without the driver's code, only deleted", code="no-driver-code"
        )


def stored_undo(effect: Effect[Any, Any]) -> str:
    """Return what is stored so that an effect can be reverted without its class; empty if it cannot be."""
    if isinstance(effect, ChildProcess):
        return _EndProgram(end_within=effect.end_within).model_dump_json()
    if isinstance(effect, ClusterObject):
        return _DeleteObject(**asdict(effect.address())).model_dump_json()
    return ""


def effect_without_class(record: EffectRecord) -> Effect[Any, Any] | None:
    """Return an effect that can be reverted in place of a stored one; None if only its class can revert it.

    A program's own ways to stop (``stop``) and to clean up (``clear``) are author's code, too. Without them it gets
    SIGTERM.
    """
    with suppress(ValidationError):
        undo = _UNDO.validate_json(record.undo)
        if isinstance(undo, _EndProgram):
            # the program's name in the directory of programs is derived from the effect's id
            cls: Any = types.new_class("Program", (_Program,), {"id": record.effect}, _ends_within(undo.end_within))
            program: Effect[Any, Any] = cls(touched=list(record.keys))
            return program
        return _Object(claim_uid="-", touched=list(record.keys), at=undo.address)
    return None


def _ends_within(seconds: float) -> Any:
    def fill(namespace: dict[str, Any]) -> None:
        namespace["end_within"] = seconds
        namespace["__annotations__"] = {"end_within": "ClassVar[float]"}
        namespace["__module__"] = __name__

    return fill


def stored_object(record: EffectRecord) -> ObjectAddress | None:
    """Return the object that an effect creates; None if it creates none, or if the address was not stored."""
    with suppress(ValidationError):
        undo = _UNDO.validate_json(record.undo)
        return undo.address if isinstance(undo, _DeleteObject) else None
    return None


def title_without_class(record: EffectRecord) -> str:
    """Return the text of an effect for people."""
    return str(stored_object(record) or f"{record.effect} on {', '.join(record.keys)}")


REMEDY = "run dra-kit decommission with the driver's TARGET, in the driver's image; or give it up with --abandon"


class _Abandoned(Effect[None, Any], id="dra-kit/abandoned"):
    """An effect that cannot be reverted: its changes stay, and it is forgotten."""

    what: str
    touched: list[str]

    def keys(self) -> list[str]:
        """Return the keys that were stored."""
        return self.touched

    def apply(self, previous: None) -> NoReturn:
        """Raise an error: it cannot be applied without its code."""
        del previous
        raise TransientError(f"effect {self.what} cannot be applied without the driver's code", code="no-driver-code")

    def revert(self, outcome: object) -> None:
        """Leave the hardware unchanged."""
        del outcome
        logger.warning("effect abandoned", extra={"effect": self.what, "keys": self.touched})


class EffectsWithoutCode(EffectClasses):
    """Reverts the framework's own effects; other effects are only given up, on request.

    Args:
        abandon: forget effects that only the driver's code can revert, and leave their hardware unchanged.
    """

    def __init__(self, *, abandon: bool) -> None:
        super().__init__({})
        self._abandon = abandon

    @property
    @override
    def runs_programs(self) -> bool:
        return True

    @override
    def check(self, stored: Sequence[EffectRecord]) -> None:
        """Accept everything: what cannot be reverted here is reported when its turn comes."""

    @override
    def load(self, record: EffectRecord) -> tuple[Effect[Any, Any], Any]:
        effect = effect_without_class(record)
        if effect is None and self._abandon:
            effect = _Abandoned(what=self.title(record), touched=list(record.keys))
        if effect is None:
            raise TransientError(
                f"effect {self.title(record)} can only be reverted by the driver's code; {REMEDY}",
                code="no-driver-code",
            )
        return effect, None

    @override
    def title(self, record: EffectRecord) -> str:
        return title_without_class(record)
