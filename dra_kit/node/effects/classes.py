"""Converts between stored effects and effects that can be called: class, fields, outcome."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from dra_kit.author.effect import ChildProcess, Effect
from dra_kit.errors import ConfigurationError, DraKitError, PrepareError, TransientError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.state.records import EffectRecord
from dra_kit.text import shorten, without_paths

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
