"""The runner: serves one RPC session at a time on a device, each in a process of its own.

Needs Python and the TVM runtime on the device, nothing of edgetune: copy this file there.

    python runner.py --tracker HOST:PORT --key KEY --threads N [--host 127.0.0.1] [--port 0]

It speaks TVM's RPC protocol (``tvm/rpc/server.py``, ``tvm/rpc/tracker.py``), and differs from TVM's
own server where tuning needs it: a kernel that crashes ends its session and nothing else; a session
whose client went away is killed even in the middle of an endless kernel; no process outlives it.

Whoever can connect can run any code here. It listens on the loopback interface unless told otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hmac
import json
import os
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time

HANDSHAKE_TIMEOUT_S = 10.0
HANGUP_GRACE_S = 0.3
"""How long a session may take to notice by itself that its client is gone."""
UNUSED_KEY_S = 8.0
"""A key that a client took from the tracker and did not use for so long is offered anew."""
PING_S = 2.0
_POLLRDHUP = getattr(select, "POLLRDHUP", 0)


class Runner:
    """Listens on one port, registers with a tracker, and serves sessions one after the other."""

    def __init__(
        self, listener: socket.socket, tracker: tuple[str, int] | None, key: str, address: str | None
    ) -> None:
        self.listener = listener
        self.port = listener.getsockname()[1]
        self.tracker_address = tracker
        self.key = key
        self.address = address
        self.match_key = key
        self.tracker: socket.socket | None = None
        # SIGCHLD wakes the poll below through this pipe, so an ended session is noticed at once.
        self.wake_read, wake_write = os.pipe()
        os.set_blocking(self.wake_read, False)
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)

    def run(self, owner_fd: int | None) -> None:
        """Serve until the process is killed or, where ``owner_fd`` is given, until that pipe closes."""
        self.owner_fd = owner_fd
        while True:
            try:
                self._register()
                connection, options = self._accept()
            except OSError as error:
                if self.tracker is None and self.tracker_address is None:
                    raise
                log(f"the tracker does not answer ({error}); trying again")
                self._forget_tracker()
                self._pause(1.0)
                continue
            with connection:
                self._serve(connection, options)

    def _register(self) -> None:
        """Offer this runner to the tracker, with a key that only the tracker's client learns."""
        if self.tracker_address is None:
            return
        from tvm.rpc import base

        if self.tracker is None:
            self.tracker = socket.create_connection(self.tracker_address, timeout=HANDSHAKE_TIMEOUT_S)
            self.tracker.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
            if struct.unpack("<i", base.recvall(self.tracker, 4))[0] != base.RPC_TRACKER_MAGIC:
                raise OSError("it is not a TVM RPC tracker")
            info = {"key": "server:" + self.key, "addr": (self.address, self.port)}
            self._ask([base.TrackerCode.UPDATE_INFO, info])
        self.match_key = f"{self.key}:{os.urandom(16).hex()}"
        self._ask([base.TrackerCode.PUT, self.key, (self.port, self.match_key), self.address])

    def _ask(self, message: list[object]) -> object:
        from tvm.rpc import base

        assert self.tracker is not None
        base.sendjson(self.tracker, message)
        return base.recvjson(self.tracker)

    def _forget_tracker(self) -> None:
        if self.tracker is not None:
            self.tracker.close()
            self.tracker = None

    def _accept(self) -> tuple[socket.socket, list[str]]:
        """Wait for a client that knows the key; keep the tracker's view of this runner true."""
        from tvm.rpc import base

        taken_since: float | None = None
        while True:
            if self.listener.fileno() in self._wait({self.listener.fileno(): select.POLLIN}, PING_S):
                connection, _ = self.listener.accept()
                options = self._greet(connection)
                if options is not None:
                    return connection, options
                connection.close()
                continue
            if self.tracker is None:
                continue
            pending = self._ask([base.TrackerCode.GET_PENDING_MATCHKEYS])
            if self.match_key in pending:  # type: ignore[operator]
                taken_since = None
            elif taken_since is None:
                taken_since = time.monotonic()
            elif time.monotonic() - taken_since > UNUSED_KEY_S:
                self._register()
                taken_since = None

    def _greet(self, connection: socket.socket) -> list[str] | None:
        """Do the handshake; None when the client has the wrong key or speaks something else."""
        from tvm.rpc import base

        connection.settimeout(HANDSHAKE_TIMEOUT_S)
        try:
            if struct.unpack("<i", base.recvall(connection, 4))[0] != base.RPC_MAGIC:
                return None
            length = struct.unpack("<i", base.recvall(connection, 4))[0]
            if not 0 < length < 4096:
                return None
            name, *options = base.recvall(connection, length).decode("utf-8").split() or [""]
            if not hmac.compare_digest(name.encode(), f"client:{self.match_key}".encode()):
                connection.sendall(struct.pack("<i", base.RPC_CODE_MISMATCH))
                return None
            if not self._prepare(connection, options):
                return None
            reply = ("server:" + self.key).encode()
            connection.sendall(struct.pack("<ii", base.RPC_CODE_SUCCESS, len(reply)) + reply)
        except (OSError, UnicodeDecodeError):
            return None
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return options

    def _prepare(self, connection: socket.socket, options: list[str]) -> bool:
        """Make ready for a session whose client has the right key; False refuses it.

        For those who serve sessions in another way.
        """
        return True

    def _serve(self, connection: socket.socket, options: list[str]) -> None:
        """Run one session in a child process, and make sure that it ends."""
        folder = tempfile.mkdtemp(prefix="edgetune-session-")
        limit_s = next((float(o[9:]) for o in options if o.startswith("-timeout=")), None)
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            _session(connection, folder, parent)
        try:
            self._watch(child, connection, limit_s)
        finally:
            _end(child)
            shutil.rmtree(folder, ignore_errors=True)

    def _watch(self, child: int, connection: socket.socket, limit_s: float | None) -> None:
        """Return when the session ended, its client hung up, or its time is over."""
        deadline = None if not limit_s else time.monotonic() + limit_s
        hung_up: float | None = None
        interest = {connection.fileno(): _POLLRDHUP | select.POLLHUP | select.POLLERR}
        while True:
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return
            now = time.monotonic()
            if deadline is not None and now > deadline:
                log("a session used up its time and was ended")
                return
            if hung_up is not None and now - hung_up > HANGUP_GRACE_S:
                return
            events = self._wait({} if hung_up is not None else interest, 0.05 if hung_up is not None else 1.0)
            if connection.fileno() in events:
                hung_up = now

    def _wait(self, interest: dict[int, int], timeout_s: float) -> dict[int, int]:
        """Poll; leave the process when the owner's pipe closes."""
        poll = select.poll()
        poll.register(self.wake_read, select.POLLIN)
        if self.owner_fd is not None:
            poll.register(self.owner_fd, select.POLLIN)
        for fd, mask in interest.items():
            poll.register(fd, mask)
        events = dict(poll.poll(timeout_s * 1000))
        if self.wake_read in events:
            with contextlib.suppress(BlockingIOError):
                os.read(self.wake_read, 4096)
        if self.owner_fd is not None and self.owner_fd in events and not os.read(self.owner_fd, 1):
            raise SystemExit(0)
        return events

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._wait({}, left)


def _session(connection: socket.socket, folder: str, parent: int) -> None:
    """Serve RPC on a connection, in a fresh child process; never returns."""
    try:
        _die_with(parent)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # crashes are expected, their core files not wanted
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.chdir(folder)
        import tvm_ffi
        from tvm.runtime import load_module

        load_gpu_runtime()

        def workpath(name: str) -> str:
            return os.path.join(folder, os.path.basename(name))

        def upload(name: str, data: bytes) -> None:
            store(workpath(name), data)

        tvm_ffi.register_global_func("tvm.rpc.server.workpath", workpath, override=True)
        tvm_ffi.register_global_func("tvm.rpc.server.upload", upload, override=True)
        tvm_ffi.register_global_func(
            "tvm.rpc.server.load_module", lambda name: load_module(workpath(name)), override=True
        )
        tvm_ffi.register_global_func("edgetune.peak_memory_bytes", peak_memory_bytes, override=True)
        tvm_ffi.get_global_func("rpc.ServerLoop")(connection.detach())
    except BaseException as error:
        log(f"a session ended: {str(error).strip().splitlines()[-1:] or type(error).__name__}")
    finally:
        os._exit(0)


def load_gpu_runtime() -> None:
    """Load TVM's driver of NVIDIA's GPUs where theirs are installed.

    In each session's own process: CUDA does not survive a fork.
    """
    import tvm

    library = os.path.join(os.path.dirname(tvm.__file__), "lib", "libtvm_runtime_cuda.so")
    # What it needs comes first, from where the toolkit puts it, unless the loader finds it by itself.
    for path in ("/usr/local/cuda/lib64/libcudart.so.13", library):
        with contextlib.suppress(OSError):  # no such file, or no libcuda or libcudart
            ctypes.CDLL(path, ctypes.RTLD_GLOBAL)


def store(path: str, data: bytes) -> None:
    """Write a file of the session, in place of TVM's function, which says nothing where the disk is full.

    Raises:
        OSError: it cannot be written; nothing of it is left. A library of which a part is missing would crash.
    """
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise OSError(f"the file cannot be stored: {error.strerror}") from error


def peak_memory_bytes() -> int:
    """Return the largest resident memory of this process so far."""
    # Linux counts in kilobytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _end(child: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)


def _die_with(parent: int) -> None:
    """Have Linux kill this process when the runner dies, however it dies."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def log(message: str) -> None:
    """Say something on stderr."""
    print(f"runner: {message}", file=sys.stderr, flush=True)


def pin(cpus: set[int]) -> None:
    """Restrict this process, and the sessions that it starts, to these CPUs; before the runtime is loaded."""
    os.sched_setaffinity(0, cpus)
    # TVM would bind its threads to the first CPUs of the machine, whatever this process is restricted to.
    os.environ["TVM_BIND_THREADS"] = "0"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    return host in ("localhost", "::1") or host.startswith("127.")


def read_key() -> str:
    """Read the key from the first line of standard input, and nothing of what comes after it."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(sys.stdin.fileno(), 1)
        if not piece:
            raise SystemExit("runner: there is no key on standard input")
        line += piece
    return line.decode().strip()


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Serve TVM RPC sessions to edgetune.")
    parser.add_argument("--tracker", metavar="HOST:PORT", help="the tracker to register with")
    parser.add_argument(
        "--key", required=True, help="what clients ask for this device by; - reads a line of input"
    )
    parser.add_argument("--threads", type=int, required=True, help="threads that kernels run on")
    parser.add_argument("--cpus", metavar="N,N...", help="CPUs that kernels run on (default: any)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: loopback only)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: any free one)")
    parser.add_argument("--address", help="address that clients reach this device by, if another one")
    parser.add_argument("--with-owner", action="store_true", help="end when standard input closes")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Start a runner; prints ``{"port": N}`` when it listens."""
    args = parse(argv)
    if not is_loopback(args.host):
        log(
            f"WARNING: listening on {args.host}. TVM RPC has no password and no encryption: "
            "everyone who can reach this port can run any program here. Prefer an SSH tunnel to 127.0.0.1."
        )
    # Both must be set before the runtime is loaded: it halves the cores by itself.
    os.environ["TVM_NUM_THREADS"] = str(args.threads)
    os.environ.setdefault("TVM_USE_RUNTIME_LIB", "1")
    if args.cpus:
        pin({int(number) for number in args.cpus.split(",")})
    tracker = None
    if args.tracker:
        host, _, port = args.tracker.rpartition(":")
        tracker = (host.strip("[]"), int(port))
    family = socket.AF_INET6 if ":" in args.host else socket.AF_INET
    with socket.create_server((args.host, args.port), family=family) as listener:
        import tvm.rpc  # noqa: F401

        name = args.key if args.key != "-" else "a key that was read"
        runner = Runner(listener, tracker, read_key() if args.key == "-" else args.key, args.address)
        print(json.dumps({"port": runner.port}), flush=True)
        log(f"serving {name!r} on {args.host}:{runner.port} with {args.threads} threads")
        with contextlib.suppress(KeyboardInterrupt):
            runner.run(sys.stdin.fileno() if args.with_owner else None)


if __name__ == "__main__":
    main()
