"""A double of ``nvidia-cuda-mps-control``: command line, environment, files and answers are those of a real one.

They were recorded (``tests/recorded/nvidia-cuda-mps-control.json``). Daemon and client talk over sockets of the names
that the real ones have, in a protocol of their own: never mix them with real ones. Only the standard library is
imported: the driver asks often.

It also logs its commands to ``double.log`` in the folder of logs, for tests: in the foreground the real daemon writes
only to its output.

The file ``mps-fault`` in the fake node's folder makes it fail: ``silent`` opens no socket, ``ends`` ends at once,
``hangs`` accepts connections and answers none, ``ignores-limits`` ignores them.
"""

import contextlib
import fcntl
import os
import socket
import sys
import threading
import time
from pathlib import Path

_FOLDER = "GPU_DRIVER_FAKE_FOLDER"  # of nvml.fake.hardware, which would import too much
_USAGE = """usage: nvidia-cuda-mps-control [-d | -f] [-M]
  -d  start the daemon in the background
  -f  start the daemon in the foreground
  -M  let clients of several users share a server"""
PID_FILE = "nvidia-cuda-mps-control.pid"
_REMOVED = ("log", PID_FILE)
"""What ``quit`` removes; the sockets stay, and after a signal everything does."""
_CONTROL_LOG = "control.log"
_OWN_LOG = "double.log"


def main() -> int:
    """Run it with the process's arguments; the exit code."""
    pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    log = Path(os.environ.get("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps"))
    arguments = sys.argv[1:]
    multi_user = "-M" in arguments or "-multiuser-server" in arguments
    rest = [word for word in arguments if word not in {"-M", "-multiuser-server"}]
    if not rest and not multi_user:
        return _client(pipe)
    if rest not in (["-d"], ["-f"]):
        print(_USAGE, file=sys.stderr)
        return 1
    return _Daemon(pipe, log, multi_user=multi_user).run(in_background=rest == ["-d"])


def _client(pipe: Path) -> int:
    """Send each line of the input as a command, and print what the daemon answers to all of them."""
    privileged = os.getuid() == 0
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(pipe / ("control_privileged" if privileged else "control")))
        except OSError:
            print("Cannot find MPS control daemon process", file=sys.stderr)
            return 1
        connection.sendall(sys.stdin.buffer.read())
        connection.shutdown(socket.SHUT_WR)
        while answer := connection.recv(65536):
            sys.stdout.write(answer.decode())
    return 0


class _Daemon:
    def __init__(self, pipe: Path, log: Path, *, multi_user: bool) -> None:
        self._pipe = pipe
        self._folder = log
        self._control_log: Path | None = None
        self._multi_user = multi_user
        self._devices = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        self._percentage = 100.0
        self._memory: dict[str, int] = {}  # MiB
        self._server: tuple[str, int] | None = None  # whose it is, and its PID
        self._quit = threading.Event()

    def run(self, *, in_background: bool) -> int:
        """Serve until ``quit``, or until a signal ends it; returns the exit code."""
        fault = _fault()
        if fault == "ends":
            print("MPS control daemon failed to start", file=sys.stderr)
            return 1
        self._pipe.mkdir(parents=True, exist_ok=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._pipe / "control_lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                print("An instance of this daemon is already running", file=sys.stderr)
                return 1
            if in_background:
                self._control_log = self._folder / _CONTROL_LOG
                if _detach():
                    return 0  # the lock is the other process's
            return self._serve(silent=fault == "silent")

    def _serve(self, *, silent: bool) -> int:
        listening: list[socket.socket] = []
        with contextlib.suppress(FileExistsError):
            os.mkfifo(self._pipe / "log")
        self._write(f"Starting control daemon using socket {self._pipe}/control")
        if self._multi_user:
            self._write("Multi-user server enabled")
        try:
            for name in () if silent else ("control", "control_privileged"):
                listening.append(self._listen(name))
                threading.Thread(target=self._accept, args=[listening[-1]], daemon=True).start()
            (self._pipe / PID_FILE).write_text(f"{os.getpid()}\n")  # it can be asked from now on
            while not self._quit.wait(1.0):
                pass
        except OSError as error:
            print(f"Failed to open socket in {self._pipe}: {error}", file=sys.stderr)
            return 1
        for one in listening:
            one.shutdown(socket.SHUT_RDWR)  # nothing finds it any more
        self._write("Exit with status 0")
        for name in _REMOVED:
            (self._pipe / name).unlink(missing_ok=True)
        return 0

    def _listen(self, name: str) -> socket.socket:
        path = self._pipe / name
        path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(path))
        path.chmod(0o755 if name == "control_privileged" else 0o666)
        listening.listen()
        return listening

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:  # it ends
                return
            threading.Thread(target=self._talk, args=[connection], daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        self._write("Accepting connection...")
        with connection, contextlib.suppress(OSError):
            text = b""
            while more := connection.recv(65536):
                text += more
            while _fault() == "hangs":
                time.sleep(0.1)
            self._write("NEW UI")
            for line in text.decode().splitlines():
                self._write(f"Cmd:{line}")
                answer = self._answer(line.split())
                if answer:
                    self._write(answer)
                    connection.sendall(f"{answer}\n".encode())
        if b"quit" in text.split():
            self._quit.set()
        else:
            self._write("UI closed")

    def _answer(self, words: list[str]) -> str:
        match words:
            case [] | ["quit", *_]:
                return ""
            case ["start_server", "-uid", user] if user.isdigit():
                return self._start_server("all" if self._multi_user else user)
            case ["get_server_list"]:
                return "" if self._server is None else str(self._server[1])
            case ["get_default_active_thread_percentage"]:
                return str(self._percentage)
            case ["set_default_active_thread_percentage", number]:
                return self._set_percentage(number)
            case ["get_default_device_pinned_mem_limit", device]:
                return _shown(self._memory.get(device, 0))
            case ["set_default_device_pinned_mem_limit", device, limit]:
                return self._set_memory(device, limit)
        return f'Unknown command "{" ".join(words)}"'

    def _start_server(self, user: str) -> str:
        """Start the server of one user; here it is not a process, and its number is not a possible process ID."""
        if self._server is None or self._server[0] != user:
            former = int(Path("/proc/sys/kernel/pid_max").read_text()) if self._server is None else self._server[1]
            self._server = user, former + 1
        return ""

    def _set_percentage(self, text: str) -> str:
        """Whatever is not more than 0 and at most 100 is ignored, and the answer is what counts then."""
        with contextlib.suppress(ValueError):
            number = float(text)
            if 0 < number <= 100 and _fault() != "ignores-limits":
                self._percentage = number
        return str(self._percentage)

    def _set_memory(self, device: str, limit: str) -> str:
        """Set it without a word, whatever it is; a limit by UUID is one of its own."""
        is_there = int(device) < len(self._devices) if device.isdigit() else device in self._devices
        if is_there and _fault() != "ignores-limits":
            self._memory[device] = _mebibytes(limit)
        return ""

    def _write(self, text: str) -> None:
        now = time.time()
        clock = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))}.{int(now * 1000) % 1000:03}"
        line = f"[{clock} Control {os.getpid():5}] {text}"
        if self._control_log is None:
            print(line, flush=True)
        for path in filter(None, (self._folder / _OWN_LOG, self._control_log)):
            with path.open("a") as file:
                file.write(f"{line}\n")


def _mebibytes(limit: str) -> int:
    """Return the MiB of a limit: digits, and ``G`` behind them; everything else counts as ``M``."""
    digits = limit[: len(limit) - len(limit.lstrip("0123456789"))]
    return int(digits or 0) * (1024 if limit[len(digits) :].startswith("G") else 1)


def _shown(mebibytes: int) -> str:
    """Return a limit as it is shown: whole GiB, a rest dropped, from one of them on; empty for none."""
    if mebibytes >= 1024:
        return f"{mebibytes // 1024}G"
    return f"{mebibytes}M" if mebibytes else ""


def _detach() -> bool:
    """Go on in a process of its own; True in the one that was started, which ends."""
    if os.fork():
        return True
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):  # who has started it waits for the end of its output
        os.dup2(nowhere, stream)
    return False


def _fault() -> str:
    try:
        return Path(os.environ[_FOLDER], "mps-fault").read_text().strip()
    except (KeyError, OSError):
        return ""


if __name__ == "__main__":
    sys.exit(main())
