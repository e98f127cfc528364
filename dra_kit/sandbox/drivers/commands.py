"""Commands that start drivers as programs, with placeholders.

They are values of ``--plugin``, ``--controller`` and ``--webhook`` of the sandbox, and of ``--command`` of conformance.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from dra_kit.errors import ConfigurationError
from dra_kit.text import did_you_mean

CommandKind: TypeAlias = Literal["plugin", "controller", "webhook", "command"]
_NODE: Final = {
    "node": "name of the node",
    "kubelet": "root directory of the node's kubelet, /var/lib/kubelet on a machine",
    "plugins": "directory for the plugin's own socket and state, in {kubelet}",
    "registry": "directory in which the kubelet looks for registration sockets, in {kubelet}",
    "cdi": "directory for CDI files, /var/run/cdi on a machine",
    "kubeconfig": "path of the kubeconfig",
}
PLACEHOLDERS: Final[Mapping[CommandKind, Mapping[str, str]]] = {
    "plugin": {
        **_NODE,
        "nri": "socket of the container runtime for NRI plugins",
        "sysfs": "directory that stands for /sys on the node",
        "port": "a free TCP port, another one for each process",
    },
    "command": {**_NODE, "pod_uid": "UID of the driver's pod, another one for each process"},
    "controller": {
        "kubeconfig": "path of the kubeconfig",
        "port": "a free TCP port, another one for each process",
    },
    "webhook": {
        "port": "the TCP port to listen on",
        "cert": "path of the certificate, in PEM",
        "key": "path of the certificate's private key, in PEM",
        "ca": "path of the certificate authority that the API server trusts, in PEM",
        "kubeconfig": "path of the kubeconfig",
    },
}
"""What each placeholder of a command stands for."""
_BRACE: Final = re.compile(r"\{\{|\{([^{}]*)\}|\{")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_SERVICE: Final = re.compile(r"((?:[a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[a-z]([-a-z0-9]*[a-z0-9])?)=(.*)", re.DOTALL)


class DriverCommand(Struct, frozen=True, kw_only=True):
    """A program that is a driver, or a part of one.

    Attributes:
        kind: a plugin runs on each node, a controller and a webhook once; a command is a driver that is judged.
        text: the command as the user wrote it.
        words: program and arguments, with placeholders.
        program: path of the program.
        directory: working directory.
        name: distinguishes it from other commands.
        service: of a webhook: ``NAME`` or ``NAMESPACE/NAME`` of the Service that it stands for; empty for all.
        variables: of its environment, which may have placeholders.
    """

    kind: CommandKind
    text: str
    words: tuple[str, ...]
    program: str
    directory: Path
    name: str
    service: str = ""
    variables: Mapping[str, str] = {}

    @property
    def title(self) -> str:
        """The command for messages."""
        return f"--{self.kind} {self.name}"

    @property
    def placeholders(self) -> frozenset[str]:
        """The names of the placeholders in its arguments and variables."""
        texts = (*self.words, *self.variables.values())
        return frozenset(found[1] for text in texts for found in _BRACE.finditer(text) if found[1] is not None)

    def arguments(self, values: Mapping[str, str]) -> list[str]:
        """Return program and arguments, with the values of placeholders."""
        return [self.program, *(_replaced(word, values) for word in self.words[1:])]

    def environment(self, values: Mapping[str, str]) -> dict[str, str]:
        """Return its variables, with the values of placeholders."""
        return {name: _replaced(text, values) for name, text in self.variables.items()}

    def serves(self, namespace: str, service: str) -> bool:
        """Return whether calls of webhooks behind a Service go to this one."""
        return self.kind == "webhook" and self.service in {"", service, f"{namespace}/{service}"}


def parse_commands(
    kind: CommandKind, texts: Iterable[str], *, directory: Path, environment: Mapping[str, str] = os.environ
) -> list[DriverCommand]:
    """Return the commands of one option; a text is split as a shell does, but no shell runs it.

    ``NAME=VALUE`` before the program is a variable of its environment.

    Args:
        kind: the option.
        texts: the values of the option.
        directory: the working directory of the commands; relative paths of programs are from there.
        environment: its ``PATH`` is searched for programs.

    Raises:
        ConfigurationError: a command is invalid, its program is missing, or a placeholder is unknown.
    """
    found = [_parse(kind, text, directory, environment) for text in texts]
    if kind == "webhook" and len(found) > 1 and (vague := [item for item in found if not item.service]):
        raise ConfigurationError(
            f"--webhook '{vague[0].text}' does not name its Service, and there are {len(found)} webhooks; use "
            "--webhook 'SERVICE=CMD' for each"
        )
    return found


def with_distinct_names(commands: Sequence[DriverCommand]) -> list[DriverCommand]:
    """Return the commands; those that have the name of one before get a number."""
    found: dict[str, DriverCommand] = {}
    for command in commands:
        names = chain([command.name], (f"{command.name}-{number}" for number in count(2)))
        name = next(name for name in names if name not in found)
        found[name] = replace(command, name=name)
    return list(found.values())


def _replaced(text: str, values: Mapping[str, str]) -> str:
    return _BRACE.sub(lambda found: "{" if found[1] is None else values[found[1]], text)


def _parse(kind: CommandKind, text: str, directory: Path, environment: Mapping[str, str]) -> DriverCommand:
    service, command = "", text
    if kind == "webhook" and (named := _SERVICE.fullmatch(text)):
        service, command = named[1], named[4]
    title = f"--{kind} '{text}'"
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigurationError(f"{title} is invalid: {str(error).lower()}; quote arguments as in a shell") from None
    variables: dict[str, str] = {}
    while words and (assigned := _ASSIGNMENT.fullmatch(words[0])):
        variables[assigned[1]] = assigned[2]
        del words[0]
    if not words:
        raise ConfigurationError(f"{title} names no program; use --{kind} 'PROGRAM ARGUMENTS'")
    _check_placeholders(kind, title, [*words, *variables.values()])
    parsed = DriverCommand(
        kind=kind,
        text=text,
        words=tuple(words),
        program=_program(title, words[0], directory, environment),
        directory=directory,
        name=Path(words[0]).name,
        service=service,
        variables=variables,
    )
    if kind == "webhook" and "port" not in parsed.placeholders:
        raise ConfigurationError(
            f"{title} lacks {{port}}, so that the API server cannot call it; use for example --port {{port}} "
            "--tls-cert-file {cert} --tls-private-key-file {key}"
        )
    return parsed


def _check_placeholders(kind: CommandKind, title: str, words: Sequence[str]) -> None:
    known = PLACEHOLDERS[kind]
    for place, word in enumerate(words):
        for found in _BRACE.finditer(word):
            name = found[1]
            if found[0] == "{{" or (name in known and place > 0):
                continue
            if name is None:
                raise ConfigurationError(f"{title} has a single {{ in {word}; write {{{{ for a brace")
            if name in known:
                raise ConfigurationError(f"{title} has placeholder {{{name}}} in the program; use its path")
            raise ConfigurationError(
                f"{title} has the unknown placeholder {{{name}}}{did_you_mean(name, known) or ';'} placeholders: "
                f"{', '.join(f'{{{one}}}' for one in known)}; write {{{{ for a brace"
            )


def _program(title: str, name: str, directory: Path, environment: Mapping[str, str]) -> str:
    """Return the path of a program.

    Raises:
        ConfigurationError: it does not exist or is not executable.
    """
    if "/" not in name:
        if found := shutil.which(name, path=environment.get("PATH", os.defpath)):
            return str(directory / found)
        here = f"write ./{name} for the one in the working directory"
        remedy = here if (directory / name).is_file() else "build or install it, or use its path"
        raise ConfigurationError(f"{title}: program {name} is not in the PATH; {remedy}")
    path = directory / name
    if not path.exists():
        raise ConfigurationError(f"{title}: program {path} does not exist; build it, or correct the path")
    if not path.is_file() or not os.access(path, os.X_OK):
        raise ConfigurationError(f"{title}: {path} is not an executable file; use chmod +x, or correct the path")
    return str(path)
