"""Tests every hop to a device and back, and says what is wrong and how to mend it.

Importing this module imports no TVM; running it does.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from edgetune.errors import DeviceError, EdgetuneError

if TYPE_CHECKING:
    from edgetune.devices.address import Address
    from edgetune.devices.probe import Probe
    from edgetune.targets import Target

_TIMEOUT_S = 60.0
_ECHO_BYTES = 1 << 20


@dataclass(frozen=True)
class Check:
    """One hop.

    Attributes:
        name: what was tested. passed: whether it works. seconds: how long it took.
        detail: what was found, or what is wrong and what to do.
    """

    name: str
    passed: bool
    seconds: float
    detail: str

    def to_json(self) -> dict[str, object]:
        """The check as in the JSON of ``devices doctor``."""
        return asdict(self)


def examine(name: str) -> Iterator[Check]:
    """Test one hop after the other; ends with the first that fails.

    Args:
        name: of a device, ``local`` too.
    """
    diagnosis = _Diagnosis(name)
    with diagnosis.stack:
        for title, test in diagnosis.tests():
            started = time.monotonic()
            try:
                detail = test()
            except EdgetuneError as error:
                yield Check(title, False, time.monotonic() - started, str(error))
                return
            yield Check(title, True, time.monotonic() - started, detail)


class _Diagnosis:
    """The tests of one device; each leaves what the next one needs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stack = ExitStack()
        self.address: Address | None = None
        self.probe: Probe | None = None
        self.target: Target | None = None

    def tests(self) -> list[tuple[str, Callable[[], str]]]:
        remote = [
            ("name", self.find_name),
            ("route", self.reach),
            ("login and shell", self.ask_what_it_is),
        ]
        return [
            *(remote if self.name != "local" else []),
            ("target", self.find_target),
            ("runner, tracker, bridge", self.bring_up),
            ("lease", self.take_lease),
            ("data both ways", self.echo),
            ("a kernel, timed", self.run_kernel),
        ]

    def find_name(self) -> str:
        from edgetune.devices.registry import find

        self.address = find(self.name).address
        return str(self.address)

    def reach(self) -> str:
        assert self.address is not None
        if self.address.scheme != "ssh" or self.address.jump:
            return "not tested: it is not reached directly"
        host, port = self.address.host, self.address.port or 22
        try:
            with socket.create_connection((host, port), timeout=10) as connection:
                return f"{connection.getpeername()[0]} port {port} answers"
        except OSError as error:
            from edgetune.devices.ssh import has_own_route

            if has_own_route(host):
                return "not tested: ~/.ssh/config says how to reach it"
            raise DeviceError(
                f"{host} port {port} does not answer: {error}. Is the device on, on this network, and its SSH server "
                "running? Try `ping` and `ssh -v`."
            ) from error

    def ask_what_it_is(self) -> str:
        from edgetune.devices.inventory import open_device

        self.probe = open_device(self.name, threads=1).probe()
        return "; ".join([self.probe.summary(), *self.probe.notes])

    def find_target(self) -> str:
        from edgetune.versions import check_pins

        check_pins()
        if self.probe is None:
            from edgetune.targets import detect_local

            self.target = detect_local()
        else:
            from edgetune.devices.manage import check_target, device_target

            self.target = device_target(self.name, self.probe)
            check_target(self.target, self.name, self.probe)
        return f"{self.target.mcpu}, {self.target.threads} threads, vectors of {self.target.vector_bits} bits"

    def bring_up(self) -> str:
        from edgetune.devices.inventory import open_device

        assert self.target is not None
        self.device = open_device(self.name, self.target.threads)
        self.stack.enter_context(self.device.up())
        return f"tracker at {self.device.transport.endpoint(_TIMEOUT_S)}"

    def take_lease(self) -> str:
        from edgetune.devices.session import lease

        self.session = self.stack.enter_context(lease(self.device, _TIMEOUT_S))
        with self.session.deadline(_TIMEOUT_S, "asking for its threads"):
            return f"{int(self.session.function('runtime.NumThreads')())} threads"

    def echo(self) -> str:
        import numpy as np
        import tvm

        from edgetune.devices.session import SessionError

        values = np.random.default_rng(0).integers(0, 256, _ECHO_BYTES, np.uint8)
        try:
            started = time.monotonic()
            with self.session.deadline(_TIMEOUT_S, "sending a megabyte and fetching it again"):
                there = tvm.runtime.tensor(values, device=self.session.tvm_device("cpu"))
                back = there.numpy()
            seconds = time.monotonic() - started
        except SessionError as error:
            raise DeviceError(f"Data does not get through: {error}. Is the network stable?") from error
        if not np.array_equal(values, back):
            raise DeviceError("Data comes back changed. Check the device's memory.")
        self.session.close()
        return f"{2 * _ECHO_BYTES / seconds / 1e6:.1f} MB/s"

    def run_kernel(self) -> str:
        from edgetune.tuning.measure import DeviceMeasurer
        from edgetune.tuning.options import MeasureOptions
        from edgetune.tuning.reference_kernel import SIZE, build_reference_kernel

        assert self.target is not None
        measurer = DeviceMeasurer(
            self.device,
            "llvm",
            self.target.threads,
            build_reference_kernel(self.target),
            MeasureOptions(),
            _TIMEOUT_S,
        )
        try:
            seconds = measurer.time_reference_kernel()
        finally:
            measurer.close()
        return f"{seconds * 1e6:.0f} us, {2 * SIZE**3 / seconds / 1e9:.1f} GFLOP/s"
