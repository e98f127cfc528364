"""Every error dra-kit raises, as one tree.

::

    DraKitError                     has a stable ``code``; docs/reference/troubleshooting.md has a heading for each
    ├── ConfigurationError          the author or the deployer must change something; the CLI prints it and exits 2
    │   ├── InvalidDevice           a device, pool or inventory breaks a rule of the API   (also a ValueError)
    │   ├── TargetError             the TARGET of a command cannot be loaded
    │   └── SandboxError            the sandbox's cluster, or the driver in it, does not come up or is not there
    ├── PrepareError                reaches the kubelet as the claim's ``error`` and the user as an Event
    │   ├── TransientError          trying again may help: the kubelet calls again anyway
    │   │   └── NotYet              an effect is still coming up: asked again soon, nothing is reverted
    │   └── PermanentError          trying again will not help until somebody changes something
    │       ├── InvalidConfig       opaque parameters do not fit the config model    (also a ValueError)
    │       └── InvalidPrepared     what prepare returns breaks a rule               (also a ValueError)
    ├── KubeError                   the API server refused or could not be reached
    │   ├── Unavailable, Forbidden, NotFound, Conflict, Gone, Invalid
    ├── KubeletError                the kubelet's own words: it refuses a registration or a driver's answer
    ├── StoreError                  the node's durable state cannot be read or written
    ├── UnresolvableDevices         no CDI spec defines what a container asks for; a runtime does not start it
    ├── AllocationError             an allocation attempt ends with an error, as it would in kube-scheduler
    ├── CelCompileError             a CEL expression that Kubernetes would not accept    (also a ValueError)
    ├── CelRuntimeError             a CEL expression that fails for one device
    ├── Unsupported                 Kubernetes can do it and dra-kit cannot; never a wrong answer instead
    └── InternalError               a bug in dra-kit

An error names the object, the cause and the remedy in one line. ``code`` never changes its meaning between
releases, so that users can search for it and log lines can be counted by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class DraKitError(Exception):
    """Base of every error that dra-kit raises on purpose.

    Args:
        message: one line: the object, what is wrong with it, and what to do.
        code: a more precise code than that of the class.
        public: the same for the users of a claim, who may see only their own namespace: without other tenants' claims
            and configs, and without paths of the host. By default the message.

    Attributes:
        public: what Events and the kubelet's answer have; the log and ``dra-kit status`` have the message.
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
    """The driver's author or whoever deploys it must change something; no traceback is shown, exit code 2.

    Args:
        message: one line: the object, what is wrong with it, and what to do unless ``remedy`` is given.
        remedy: what to do, for those who show it in a place of its own; the text of the error has both.

    Attributes:
        problem: the message as it was given, without the remedy.
    """

    default_code = "configuration"

    def __init__(self, message: str, *, remedy: str = "", code: str | None = None) -> None:
        super().__init__(f"{message}; {remedy}" if remedy else message, code=code)
        self.problem = message
        self.remedy = remedy


class InvalidDevice(ConfigurationError, ValueError):
    """A device, pool or inventory breaks a rule of the resource.k8s.io API; raised where the author wrote it."""

    default_code = "invalid-device"


class TargetError(ConfigurationError):
    """The TARGET of a command does not import or is no driver.

    Args:
        message: one line: the TARGET, the cause and the remedy.
        cause: the same without the TARGET, for those who run only one; empty for the message.
    """

    default_code = "invalid-target"

    def __init__(self, message: str, *, cause: str = "", code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.cause: str = cause or message


class PrepareError(DraKitError):
    """A claim cannot be prepared or released; the text reaches the kubelet and an Event. Raised by authors too.

    An author's text reaches the claim's users unchanged. Where it names what they may not see, such as paths of the
    host, give them another one by ``public``.
    """

    default_code = "prepare-failed"
    permanent: ClassVar[bool] = False


class TransientError(PrepareError):
    """Trying again may help; the kubelet calls again by itself."""

    default_code = "prepare-transient"


class NotYet(TransientError):
    """Raised by ``Effect.apply``: what it makes is still coming up.

    It is asked again within the call's deadline. Then the claim gets this error and nothing is reverted, so that the
    kubelet's next call finds it further on.
    """

    default_code = "not-yet"


class PermanentError(PrepareError):
    """Trying again will not help until the claim, its config or the driver changes."""

    default_code = "prepare-permanent"
    permanent = True


class InvalidConfig(PermanentError, ValueError):
    """Opaque parameters of a claim or class do not fit the driver's config model.

    Args:
        message: all problems in one line.
        problems: (field path below ``parameters``, text) for each problem; an empty path is the whole object.
        omitted: how many problems there are beside these; only the first ones are in the message.
        places: the field path of each problem for a log, up to the first key that its writer made up. By default the
            paths of the problems.
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
    """What a preparer returns, or tells later, breaks a rule; raised where the author wrote it."""

    default_code = "invalid-prepared"


class KubeError(DraKitError):
    """The API server refused a request or could not be reached.

    Args:
        message: one line: verb, object, cause and remedy.
        status: HTTP status, 0 when there was no answer.
        reason: ``reason`` of the Kubernetes Status object, empty when there was none.
        text: of the API server; without an answer that is the message.
        about: the plural of what the answer is about (``details.kind`` of the Status object), such as ``namespaces``
            where the object's namespace does not exist; empty when there was none.
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
        code: str | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.status = status
        self.reason = reason
        self.text: str = text or message
        self.about = about


class Unavailable(KubeError):
    """No answer, or one that says to come back later (429, 5xx)."""

    default_code = "kube-unavailable"


class Forbidden(KubeError):
    """401 or 403; the message names the RBAC rule that is missing."""

    default_code = "kube-forbidden"


class NotFound(KubeError):
    """404: the object does not exist, or, for a list or a path, the API."""

    default_code = "kube-not-found"


class Conflict(KubeError):
    """409: the object exists already, or was changed in the meantime."""

    default_code = "kube-conflict"


class Gone(KubeError):
    """410: the resourceVersion or continue token is too old."""

    default_code = "kube-gone"


class Invalid(KubeError):
    """400, 413 or 422: the API server refuses the object; trying again will not help.

    Args:
        message: as for every :class:`KubeError`.
        status: HTTP status.
        reason: ``reason`` of the Kubernetes Status object.
        text: of the API server.
        causes: (field path, text) for each field the server names; the path is empty where it names none.
    """

    default_code = "kube-invalid"

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        text: str = "",
        causes: Sequence[tuple[str, str]] = (),
        code: str | None = None,
    ) -> None:
        super().__init__(message, status=status, reason=reason, text=text, code=code)
        self.causes: tuple[tuple[str, str], ...] = tuple(causes)


class KubeletError(DraKitError):
    """A kubelet refuses a plugin's registration or a driver's answer; the text is the kubelet's, word for word."""

    default_code = "kubelet"


class StoreError(DraKitError):
    """The node's durable state cannot be read or written; nothing is acknowledged until it can."""

    default_code = "store"


class UnresolvableDevices(DraKitError):
    """CDI devices of a container that no spec file defines; a container runtime does not start the container.

    Args:
        message: one line: the names, and why no spec defines them.
        names: the qualified device names.
    """

    default_code = "cdi-unresolvable"

    def __init__(self, message: str, *, names: Sequence[str] = (), code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.names: tuple[str, ...] = tuple(names)


class AllocationError(DraKitError):
    """An attempt to allocate the claims of a pod ends with an error, which is more than that they do not fit.

    kube-scheduler gives up the pod's whole attempt then and tries again later, unless ``node_only``.

    Args:
        message: one line, in kube-scheduler's words where it has any: the claim, the request, what is wrong.
        kind: what went wrong, to be compared: ``feature-disabled``, ``all-constraint``, ``all-pool-incomplete``,
            ``all-pool-invalid``, ``invalid-pools``, ``too-many-devices``, ``cel-runtime``, ``cel-compile``,
            ``derived-runtime``, ``derived-compile``, ``capacity-not-representable``, ``capacity-negative``,
            ``constraint-unknown``, ``selector-unknown``, ``mode-unknown``, ``class-not-found``,
            ``class-name-missing``, ``request-unknown``, ``node-selector-invalid``, ``node-selector-terms``,
            ``search-limit`` or ``aborted``.
        node_only: other nodes may still fit.
        claim: ``namespace/name`` of the claim; this and what follows is empty where the error is about no such thing.
        request: its name; of a subrequest, ``request/subrequest``.
        device_class: name of the DeviceClass that is asked for.
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
        code: str | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.kind = kind
        self.node_only = node_only
        self.claim = claim
        self.request = request
        self.device_class = device_class
        self.device = device


class CelCompileError(DraKitError, ValueError):
    """A CEL expression does not compile, or is too long or too costly to be admitted.

    Args:
        message: one line; begins with the place.
        line: of the expression, from 1; 0 for the whole expression.
        column: in characters, from 1; 0 for the whole expression.
        problem: the message without the place.
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
    """A CEL expression that compiles fails for one device; Kubernetes then gives up the whole allocation attempt.

    Args:
        message: one line, in Kubernetes' words where they are known.
        kind: what went wrong, to be compared: ``no-such-key``, ``no-such-overload``, ``cost``, ``index``,
            ``arithmetic``, ``conversion``, ``regex``, ``result`` or ``value``.
        key: the one that is not there, of ``no-such-key``.
    """

    default_code = "cel-runtime"

    def __init__(self, message: str, *, kind: str = "value", key: str = "", code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.kind = kind
        self.key = key


class Unsupported(DraKitError):
    """Kubernetes knows what is asked for and dra-kit does not: no verdict is given rather than a wrong one."""

    default_code = "unsupported"


class SandboxError(ConfigurationError):
    """The cluster of ``dra-kit sandbox``, or the driver in it, does not come up; or there is none to end."""

    default_code = "sandbox"


class InternalError(DraKitError):
    """A promise inside dra-kit was broken: please report it with the version and this text."""

    default_code = "internal"
