"""What becomes of a tuning run when its device fails in the middle: a table of faults.

    python benchmarks/faults.py                     all faults, some minutes; Linux, root (namespaces, a tmpfs)
    python benchmarks/faults.py --only disk clock   those whose names hold one of the words

Devices are OpenSSH servers of this machine's own programs on loopback, or in a network namespace: the link, the
bridge, the runner and the tuning run are the real ones. Each fault strikes while a batch is being measured. The
clock of a device is set by a preloaded library that shifts what ``clock_gettime`` says to that device's processes:
no namespace holds the wall clock, and this machine's own is not touched.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from edgetune import workflow  # noqa: E402
from edgetune.devices import native  # noqa: E402
from edgetune.devices.address import parse_address  # noqa: E402
from edgetune.devices.manage import add_device  # noqa: E402
from edgetune.logs import open_logs  # noqa: E402
from edgetune.records import Timing  # noqa: E402
from edgetune.request import Request  # noqa: E402
from edgetune.tuning.options import Budget, TuningOptions  # noqa: E402
from edgetune.watcher import Watcher  # noqa: E402
from tests.devices.sshd import Sshd  # noqa: E402

TRIALS = 48
STRIKE_AT = 11
"""In the middle of the second batch."""
OPTIONS = TuningOptions(batch=8, first_batch=8, seed=1, device_timeout_s=60.0)
DISK_MB = 48
NETWORK = ("10.213.7.1", "10.213.7.2")
CLOCK_SHIM = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec* now) {
  long failed = syscall(SYS_clock_gettime, id, now);
  if (failed == 0 && id == CLOCK_REALTIME) {
    char text[32] = {0};
    int file = open(OFFSET_FILE, O_RDONLY | O_CLOEXEC);
    if (file >= 0 && read(file, text, sizeof text - 1) > 0) now->tv_sec += atol(text);
    if (file >= 0) close(file);
  }
  return (int)failed;
}
"""


@dataclass
class World:
    """The devices of one run and the folder of everything about it."""

    folder: Path
    servers: list[Sshd] = field(default_factory=list)

    @property
    def server(self) -> Sshd:
        """The first device."""
        return self.servers[0]

    def processes(self) -> list[psutil.Process]:
        """The first device's: the server, its connections, the runner."""
        assert self.server.process is not None
        return [psutil.Process(self.server.process.pid), *self.server.children()]

    def signal(self, number: int, name: str = "") -> None:
        """Signal the first device's processes whose command holds a name."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if name in " ".join(process.cmdline()):
                    process.send_signal(number)


@dataclass(frozen=True)
class Fault:
    """A fault, what ends it and when, and what its devices need."""

    name: str
    strike: Callable[[World], None]
    mend: Callable[[World], None] | None = None
    mend_after_s: float = 0.0
    world: Callable[[Path], contextlib.AbstractContextManager[dict[str, object]]] | None = None
    devices: int = 1


class Striker(Watcher):
    """Has the fault strike, and notes when the next trial after it was measured."""

    def __init__(self, fault: Fault, world: World) -> None:
        self.fault, self.world = fault, world
        self.struck_s = self.mended_s = self.recovered_s = 0.0
        self.before = self.told = 0
        self.mending: threading.Timer | None = None

    def tuning(self, progress: object) -> None:
        """After each trial, in the thread that measures."""
        spent = self.told = progress.trials_spent  # type: ignore[attr-defined]
        if not self.struck_s and spent >= STRIKE_AT:
            self.before = spent
            self.fault.strike(self.world)
            self.struck_s = self.mended_s = time.monotonic()
            if self.fault.mend is not None:
                self.mending = threading.Timer(self.fault.mend_after_s, self._mend)
                self.mending.start()
        elif self.struck_s and not self.recovered_s and spent > self.before:
            self.recovered_s = time.monotonic()

    def note(self, text: str) -> None:
        """Show what a user would see."""
        print(f"    {text}", file=sys.stderr)

    def _mend(self) -> None:
        assert self.fault.mend is not None
        self.fault.mend(self.world)
        self.mended_s = time.monotonic()


def kill_tracker(world: World) -> None:
    """And the session: while that lasts, nobody needs the tracker."""
    for process in psutil.Process().children():
        if "tracker_process" in " ".join(process.cmdline()):
            process.kill()
    world.signal(signal.SIGKILL, "serve --threads")


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[dict[str, object]]:
    """The device's own folder is a small file system."""
    disk = folder / "cache"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(disk)], check=True)
    try:
        yield {}
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill_disk(world: World) -> None:
    """To the last byte."""
    with contextlib.suppress(OSError), open(f"{world.server.cache}/full", "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


@contextlib.contextmanager
def own_network(folder: Path) -> Iterator[dict[str, object]]:
    """The device is in a network namespace, at the other end of a pair of virtual cards."""
    name = f"edgetune-{os.getpid()}"
    here, there = f"et{os.getpid() % 100000}a", f"et{os.getpid() % 100000}b"
    inside = ["ip", "netns", "exec", name]
    commands = [
        ["ip", "netns", "add", name],
        ["ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns", name],
        ["ip", "addr", "add", f"{NETWORK[0]}/30", "dev", here],
        ["ip", "link", "set", here, "up"],
        [*inside, "ip", "addr", "add", f"{NETWORK[1]}/30", "dev", there],
        [*inside, "ip", "link", "set", there, "up"],
        [*inside, "ip", "link", "set", "lo", "up"],
    ]
    try:
        for command in commands:
            subprocess.run(command, check=True)
        yield {"before": inside, "host": NETWORK[1]}
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)


def network(state: str) -> Callable[[World], None]:
    """Cut the cable, or plug it in."""

    def change(world: World) -> None:
        there = f"et{os.getpid() % 100000}b"
        subprocess.run([*world.server.before, "ip", "link", "set", there, state], check=True)

    return change


@contextlib.contextmanager
def own_clock(folder: Path) -> Iterator[dict[str, object]]:
    """The wall clock of the device's processes is what a file says."""
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(CLOCK_SHIM)
    offset = folder / "offset"
    offset.write_text("0")
    command = [sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-O1", "-target"]
    subprocess.run(
        [
            *command,
            f"{os.uname().machine}-linux-gnu.{native.GLIBC}",
            f'-DOFFSET_FILE="{offset}"',
            "-o",
            str(library),
            str(source),
        ],
        check=True,
    )
    yield {"environment": {"LD_PRELOAD": str(library)}}


def set_clock(world: World) -> None:
    """An hour forth and back, five times a second for ten seconds: some steps fall into timings."""

    def steps() -> None:
        for number in range(50):
            # In one step: a file that is being written is empty for a moment.
            new = world.folder / "offset.new"
            new.write_text("3600" if number % 2 == 0 else "0")
            new.replace(world.folder / "offset")
            time.sleep(0.2)

    threading.Thread(target=steps, daemon=True).start()


@contextlib.contextmanager
def later_boot(folder: Path) -> Iterator[dict[str, object]]:
    """The device's monotonic clock is a month ahead (a time namespace)."""
    month_s = "2592000"
    yield {"before": ["unshare", "-T", "--fork", "--monotonic", month_s, "--boottime", month_s]}


def stop(world: World) -> None:
    """The device is gone."""
    world.server.stop()


def start(world: World) -> None:
    """It is back."""
    world.server.start()


def restart(world: World) -> None:
    """With all its connections."""
    stop(world)
    start(world)


FAULTS = (
    Fault("runner killed", lambda world: world.signal(signal.SIGKILL, "serve --threads")),
    Fault("runner stopped for good", lambda world: world.signal(signal.SIGSTOP, "serve --threads")),
    Fault("device killed, back", stop, start, 5.0),
    Fault(
        "device hung, goes on",
        lambda world: world.signal(signal.SIGSTOP),
        lambda world: world.signal(signal.SIGCONT),
        20.0,
    ),
    Fault("network cut, back", network("down"), network("up"), 30.0, own_network),
    Fault("disk full, freed", fill_disk, lambda w: Path(w.server.cache, "full").unlink(), 10.0, small_disk),
    Fault("tracker and session killed", kill_tracker),
    Fault("sshd restarted", restart),
    Fault("clock set, 50 times", set_clock, world=own_clock),
    Fault("monotonic clock ahead, sshd restarted", restart, world=later_boot),
    Fault("one of two devices gone for good", stop, devices=2),
    Fault("the only device gone for good", stop),
    Fault("disk full for good", fill_disk, world=small_disk),
)


@contextlib.contextmanager
def worlds(fault: Fault, folder: Path) -> Iterator[World]:
    """The devices of a fault, added by name, with a configuration of their own."""
    os.environ["XDG_CONFIG_HOME"] = str(folder / "config")
    world = World(folder)
    with contextlib.ExitStack() as stack:
        needs = stack.enter_context(fault.world(folder)) if fault.world else {}
        for number in range(fault.devices):
            keys = folder / f"device{number}"
            keys.mkdir()
            cache = folder / "cache" if number == 0 else keys / "cache"
            server = Sshd(keys, str(cache), **needs)  # type: ignore[arg-type]
            stack.callback(server.stop)
            server.start()
            world.servers.append(server)
            add_device(f"board{number}", parse_address(server.url, None, server.identity, server.known_hosts))
        yield world


def suffer(fault: Fault, model: bytes) -> str:
    """Run one fault and return its row."""
    with tempfile.TemporaryDirectory(prefix="edgetune-faults-") as name:
        folder = Path(name)
        with worlds(fault, folder) as world:
            striker = Striker(fault, world)
            request = Request(model, logs=folder / "logs.sqlite", out=folder / "bundle")
            devices = ",".join(f"board{number}" for number in range(fault.devices))
            result = workflow.tune(
                request, Budget(trials=TRIALS), devices, OPTIONS, striker, measure_latency=False
            )
            ended_s = time.monotonic()
            if striker.mending is not None:
                striker.mending.join()
        with open_logs(folder / "logs.sqlite") as logs:
            records = list(logs.every())
    times = [record.outcome.median_s for record in records if isinstance(record.outcome, Timing)]
    assert all(1e-8 < seconds < 1 for seconds in times), "a time cannot be true"
    recovered = f"{striker.recovered_s - striker.mended_s:.1f}" if striker.recovered_s else "-"
    verified = "no" if result.verified is None else ("yes" if result.verified.passed else "WRONG")
    if result.lost:
        recovered = f"ended after {ended_s - striker.struck_s:.0f}"
        verified += ", here"
    cells = (
        fault.name,
        f"{fault.mend_after_s:.0f}" if fault.mend else "-",
        striker.before,
        len(records) - striker.before,
        striker.told - len(records),
        sum(result.failures.values()),
        recovered,
        verified,
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def small_model() -> bytes:
    """Three convolutions."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    draw = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for number, (before, after) in enumerate([(3, 16), (16, 32), (32, 32)]):
        values = (draw.standard_normal((after, before, 3, 3)) / (3 * before**0.5)).astype(np.float32)
        weights.append(numpy_helper.from_array(values, f"w{number}"))
        nodes.append(helper.make_node("Conv", [last, f"w{number}"], [f"c{number}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{number}"], [f"r{number}"]))
        last = f"r{number}"
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, [1, 32, 32, 32])],
        weights,
    )
    model: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10
    ).SerializeToString()
    onnx.checker.check_model(onnx.load_from_string(model))
    return model


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[""], help="words in the names of the faults to run")
    only = parser.parse_args().only
    model = small_model()
    print(f"# {os.uname().machine}, {os.cpu_count()} CPUs, user {getpass.getuser()}", file=sys.stderr)
    print("| fault | ended after s | trials before | after | lost | failed | recovery s | verified |")
    print("|---|--:|--:|--:|--:|--:|--:|---|", flush=True)
    for fault in FAULTS:
        if any(word in fault.name for word in only):
            print(suffer(fault, model), flush=True)


if __name__ == "__main__":
    main()
