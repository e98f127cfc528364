"""Every error dra-kit raises, as one tree.

::

    DraKitError                     has a stable ``code``; docs/reference/troubleshooting.md has a heading for each
    ├── ConfigurationError          the author or the deployer must change something; the CLI prints it and exits 2
    │   ├── InvalidDevice           a device, pool or inventory breaks a rule of the API   (also a ValueError)
    │   ├── TargetError             the TARGET of a command cannot be loaded
    │   └── SandboxError            the sandbox's cluster or its driver does not start or does not exist
    ├── PrepareError                reaches the kubelet as the claim's ``error`` and the user as an Event
    │   ├── TransientError          a retry may help: the kubelet retries anyway
    │   │   ├── NotYet              an effect is not ready yet: retried soon, nothing is reverted
    │   │   └── HardwareGone        the hardware of an effect does not exist any more: nothing is left to revert
    │   └── PermanentError          a retry does not help until something changes
    │       ├── InvalidConfig       opaque parameters do not fit the config model    (also a ValueError)
    │       └── InvalidPrepared     what prepare returns breaks a rule               (also a ValueError)
    ├── KubeError                   the API server rejects a request or is unreachable
    │   ├── Unavailable, Forbidden, NotFound, Conflict, Gone, Invalid
    ├── KubeletError                the kubelet rejects a registration or a driver's answer
    ├── StoreError                  the node's durable state cannot be read or written
    ├── UnresolvableDevices         no CDI spec defines a device of a container; the runtime does not start it
    ├── AllocationError             an allocation attempt fails with an error, as in kube-scheduler
    ├── CelCompileError             a CEL expression that Kubernetes rejects              (also a ValueError)
    ├── CelRuntimeError             a CEL expression fails for a device
    ├── Unsupported                 Kubernetes can do it and dra-kit cannot; never a wrong answer instead
    └── InternalError               a bug in dra-kit

An error names the object, the cause and the remedy in one line. The meaning of ``code`` never changes between
releases, so that users can search for it and count log lines by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class DraKitError(Exception):
    """Base of every error that dra-kit raises on purpose.

    Args:
        message: one line: the object, what is wrong with it, and what to do.
        code: a more precise code than that of the class.
        public: the message for the users of a claim, who may see only their own namespace: without other tenants'
            claims and configs, and without paths of the host. By default ``message``.

    Attributes:
        public: shown in Events and the kubelet's answer; the log and ``dra-kit status`` show ``message``.
    """

    default_code: ClassVar[str] = "error"

    def __init__(self, message: str, *, code: str | None = None, public: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code: str = code or self.default_code
        self.public: str = public or message

    def __str__(self) -> str:
        return self.message


class ConfigurationError(DraKitError):
    """The driver's author or the person who deploys it must change something; no traceback, exit code 2.

    Args:
        message: one line: the object, what is wrong with it, and what to do unless ``remedy`` is given.
        remedy: what to do, for output that shows it separately; the text of the error contains both.

    Attributes:
        problem: ``message`` without the remedy.
    """

    default_code = "configuration"

    def __init__(self, message: str, *, remedy: str = "", code: str | None = None) -> None:
        super().__init__(f"{message}; {remedy}" if remedy else message, code=code)
        self.problem = message
        self.remedy = remedy


class InvalidDevice(ConfigurationError, ValueError):
    """A device, pool or inventory violates a rule of the resource.k8s.io API; raised in the author's code."""

    default_code = "invalid-device"


class TargetError(ConfigurationError):
    """The TARGET of a command cannot be imported or is not a driver.

    Args:
        message: one line: the TARGET, the cause and the remedy.
        cause: the message without the TARGET, for commands that have only one; by default ``message``.
    """

    default_code = "invalid-target"

    def __init__(self, message: str, *, cause: str = "", code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.cause: str = cause or message


class PrepareError(DraKitError):
    """A claim cannot be prepared or released; the kubelet and an Event get the text. Authors can raise it.

    An author's text reaches the claim's users unchanged. If it contains information that they may not see, such as
    paths of the host, set ``public`` to a text without it.
    """

    default_code = "prepare-failed"
    permanent: ClassVar[bool] = False


class TransientError(PrepareError):
    """A retry may help; the kubelet retries on its own."""

    default_code = "prepare-transient"


class NotYet(TransientError):
    """Raised by ``Effect.apply`` while its result is not ready yet.

    It is retried until the call's deadline. After that, the claim fails with this error and nothing is reverted, so
    that the kubelet's next call can continue.
    """

    default_code = "not-yet"


class HardwareGone(TransientError):
    """Raised by an effect whose hardware does not exist any more, such as a card that was unplugged.

    From ``apply``, the claim fails with this error. From ``revert``, nothing is left to undo: the effect is forgotten.
    A ``FileNotFoundError``, or an ``OSError`` with ``ENODEV`` or ``ENXIO``, means the same if the inventory lacks the
    device or the folder of the device is missing.
    """

    default_code = "hardware-gone"


class PermanentError(PrepareError):
    """A retry does not help until the claim, its config or the driver changes."""

    default_code = "prepare-permanent"
    permanent = True


class InvalidConfig(PermanentError, ValueError):
    """Opaque parameters of a claim or class do not fit the driver's config model.

    Args:
        message: all problems in one line.
        problems: (field path below ``parameters``, text) for each problem; an empty path is the whole object.
        omitted: the number of further problems; only the first ones are in the message.
        places: the field path of each problem for a log, up to the first user-defined key. By default the paths of the
            problems.
    """

    default_code = "invalid-config"

    def __init__(
        self,
        message: str,
        *,
        problems: Sequence[tuple[str, str]] = (),
        omitted: int = 0,
        places: Sequence[str] | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.problems: tuple[tuple[str, str], ...] = tuple(problems)
        self.omitted = omitted
        self.places: tuple[str, ...] = tuple(path for path, _ in problems) if places is None else tuple(places)


class InvalidPrepared(PermanentError, ValueError):
    """A value that a preparer returns or reports later violates a rule; raised in the author's code."""

    default_code = "invalid-prepared"


class KubeError(DraKitError):
    """The API server rejected a request or was unreachable.

    Args:
        message: one line: verb, object, cause and remedy.
        status: HTTP status; 0 without an answer.
        reason: ``reason`` of the Kubernetes Status object; empty without one.
        text: message of the API server; by default ``message``.
        about: ``details.kind`` of the Status object, such as ``namespaces`` if the object's namespace does not exist;
            empty without one.
        causes: (field path, text) for each cause; the path is empty if the server names none.
    """

    default_code = "kube"

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        text: str = "",
        about: str = "",
        causes: Sequence[tuple[str, str]] = (),
        code: str | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.status = status
        self.reason = reason
        self.text: str = text or message
        self.about = about
        self.causes: tuple[tuple[str, str], ...] = tuple(causes)


class Unavailable(KubeError):
    """No answer, or an answer after which a retry may help (429, 5xx but 501)."""

    default_code = "kube-unavailable"


class Forbidden(KubeError):
    """401 or 403; the message names the missing RBAC rule."""

    default_code = "kube-forbidden"


class NotFound(KubeError):
    """404: the object does not exist, or for a list or a path the API does not exist."""

    default_code = "kube-not-found"


class Conflict(KubeError):
    """409: the object already exists or was changed meanwhile."""

    default_code = "kube-conflict"


class Gone(KubeError):
    """410: the resourceVersion or continue token is too old."""

    default_code = "kube-gone"


class Invalid(KubeError):
    """400, 413 or 422: the API server rejects the object; a retry does not help."""

    default_code = "kube-invalid"


class KubeletError(DraKitError):
    """A kubelet rejects a plugin's registration or a driver's answer; the text is the kubelet's message."""

    default_code = "kubelet"


class StoreError(DraKitError):
    """The node's durable state cannot be read or written; until then, no call succeeds."""

    default_code = "store"


class UnresolvableDevices(DraKitError):
    """No spec file defines some CDI devices of a container; a container runtime does not start it.

    Args:
        message: one line: the names, and why no spec defines them.
        names: the qualified device names.
    """

    default_code = "cdi-unresolvable"

    def __init__(self, message: str, *, names: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.names: tuple[str, ...] = tuple(names)


class AllocationError(DraKitError):
    """An attempt to allocate the claims of a pod fails with an error; claims that do not fit are not an error.

    kube-scheduler then aborts the whole attempt for the pod and retries later, unless ``node_only``.

    Args:
        message: one line, kube-scheduler's message if there is one: the claim, the request, the problem.
        kind: kind of the problem: ``feature-disabled``, ``all-constraint``, ``all-pool-incomplete``,
            ``all-pool-invalid``, ``invalid-pools``, ``too-many-devices``, ``cel-runtime``, ``cel-compile``,
            ``derived-runtime``, ``derived-compile``, ``capacity-not-representable``, ``capacity-negative``,
            ``capacity-named-twice``, ``attribute-value-unsupported``,
            ``constraint-unknown``, ``selector-unknown``, ``mode-unknown``, ``class-not-found``,
            ``class-name-missing``, ``request-unknown``, ``node-selector-invalid``, ``node-selector-terms``,
            ``search-limit``, ``scheduler-stops`` or ``aborted``.
        node_only: other nodes may still fit.
        claim: ``namespace/name`` of the claim; this and the following are empty if they do not apply.
        request: its name; ``request/subrequest`` for a subrequest.
        device_class: name of the requested DeviceClass.
        device: ``driver/pool/device``.
    """

    default_code = "allocation"

    def __init__(
        self,
        message: str,
        *,
        kind: str,
        node_only: bool = False,
        claim: str = "",
        request: str = "",
        device_class: str = "",
        device: str = "",
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.node_only = node_only
        self.claim = claim
        self.request = request
        self.device_class = device_class
        self.device = device


class CelCompileError(DraKitError, ValueError):
    """A CEL expression does not compile, or is too long or too expensive for the API server.

    Args:
        message: one line that starts with the position.
        line: line in the expression, from 1; 0 for the whole expression.
        column: column in characters, from 1; 0 for the whole expression.
        problem: the message without the position.
    """

    default_code = "cel-compile"

    def __init__(
        self, message: str, *, line: int = 0, column: int = 0, problem: str = "", code: str | None = None
    ) -> None:
        super().__init__(message, code=code)
        self.problem: str = problem or message
        self.line = line
        self.column = column


class CelRuntimeError(DraKitError):
    """A valid CEL expression fails for a device; Kubernetes then aborts the whole allocation attempt.

    Args:
        message: one line, Kubernetes' message if it is known.
        kind: kind of the problem: ``no-such-key``, ``no-such-overload``, ``cost``, ``index``,
            ``arithmetic``, ``conversion``, ``regex``, ``result`` or ``value``.
        key: the missing key of ``no-such-key``.
    """

    default_code = "cel-runtime"

    def __init__(self, message: str, *, kind: str = "value", key: str = "", code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.kind = kind
        self.key = key


class Unsupported(DraKitError):
    """Kubernetes supports this and dra-kit does not: it gives no verdict instead of a wrong one."""

    default_code = "unsupported"


class SandboxError(ConfigurationError):
    """The cluster of ``dra-kit sandbox`` or its driver does not start, or no sandbox exists to stop."""

    default_code = "sandbox"


class InternalError(DraKitError):
    """A bug in dra-kit: please report it with the version and this text."""

    default_code = "internal"
