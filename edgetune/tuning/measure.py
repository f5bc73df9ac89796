"""Measures artifacts on a device: right values first, then time, no longer than needed.

For one candidate: upload and load; one run on random data, whose results are compared with the
unscheduled kernel's; a few short repeats that tell a clearly slow candidate from a good one; and for a
good one enough repeats for a median worth comparing. A good candidate takes tens of milliseconds.

Only functions that every TVM RPC server has are used, so the device's runner need not be Python.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from edgetune.devices.conditions import Conditions
from edgetune.devices.session import (
    Session,
    SessionError,
    SessionLostError,
    SessionTimeoutError,
    lease,
)
from edgetune.errors import DeviceError
from edgetune.records import Artifact, Failure, FailureKind, Stage, Timing
from edgetune.tuning.arguments import Prepared, disagreement, poison, random_arguments
from edgetune.tuning.build import ENTRY
from edgetune.tuning.options import MeasureOptions
from edgetune.tuning.outcome import BatchConditions
from edgetune.tuning.steadiness import Steadiness

if TYPE_CHECKING:
    from edgetune.devices.transport import Device

_FIRST_RUN_RATIO = 4.0
"""A first run, cold and timed from here, is only taken as slow beyond so many times the best."""
_TRANSFER_S = 0.02
"""What the first run's time may hold of the connection's latency."""
_CLOSE_CALL = 1.05
"""Candidates this near to the best, or better, are timed twice as long: the best is chosen by it."""
_CLOCK_TRIES = 3
"""So often timings are taken again where the device's clock was set meanwhile."""
_BIG_THREAD_MODE = 1
"""``ThreadGroup::kBig`` of TVM's ``runtime.config_threadpool``."""


class DeviceLostError(DeviceError):
    """The device was lost while a candidate ran: by chance, or because of the candidate."""


class Measurer(Protocol):
    """Measures artifacts of one task at a time. Threads: the caller's one only.

    Raises:
        DeviceError: (from ``measure`` and ``time_reference_kernel``) the device failed, not the candidate. The next
            call tries to reach it again.
    """

    def prepare(self, prepared: Prepared) -> None:
        """Make a task's arguments ready for the artifacts that follow."""
        ...

    def measure(self, artifact: Artifact, best_s: float | None) -> Timing | Failure:
        """Time an artifact; ``best_s`` is the best median known for its task."""
        ...

    def settle(self) -> float:
        """Return the same as :meth:`time_reference_kernel`, before a batch; may wait for a hot device to cool down."""
        ...

    def time_reference_kernel(self) -> float:
        """Return the seconds that a fixed kernel takes now: how fast the device is at the moment."""
        ...

    def conditions(self) -> BatchConditions:
        """Return how the device was while the last batch was measured, drift and re-measuring apart."""
        ...

    def close(self) -> None:
        """Give the device back."""
        ...


class DeviceMeasurer:
    """Measures over RPC on a leased device; leases it anew when a candidate took the session along.

    Args:
        device: must be up (``device.up()``).
        kind: ``llvm`` or ``cuda``: where the kernels run.
        threads: how many threads kernels must run on.
        reference_library: the fixed kernel of :mod:`edgetune.tuning.reference_kernel`, built for the target.
        options: how to time.
        lease_timeout_s: how long to wait for the device.

    Raises:
        DeviceLostError: (from ``measure``) the device was lost while the candidate ran.
        DeviceError: (from ``measure`` and ``time_reference_kernel``) the device cannot be reached or used, or has
            no room.
    """

    def __init__(
        self,
        device: Device,
        kind: str,
        threads: int,
        reference_library: bytes,
        options: MeasureOptions,
        lease_timeout_s: float,
    ) -> None:
        self._device = device
        self._kind = "cuda" if kind == "cuda" else "cpu"
        self._threads = threads
        self._reference_library = reference_library
        self._options = options
        self._lease_timeout_s = lease_timeout_s
        self._session: Session | None = None
        self._prepared: Prepared | None = None
        self._arguments: list[Any] = []
        self._poisons: dict[int, Any] = {}
        self._reference_kernel: Any = None
        self._loaded = 0
        self._last_reference_s = 0.0
        self._sensors = Conditions(device.linker, device.cpus)
        self._steadiness = Steadiness(self._sensors.read, options)

    def prepare(self, prepared: Prepared) -> None:
        """Keep a task's arguments; they go to the device with its first artifact."""
        if self._prepared is not prepared:
            self._prepared = prepared
            self._arguments = []
            self._poisons = {}

    def measure(self, artifact: Artifact, best_s: float | None) -> Timing | Failure:
        """Time an artifact, or say how it failed."""
        timed_out = False
        while True:
            session = self._ready()
            stage = Stage.LOAD
            try:
                with session.deadline(self._options.load_timeout_s, "loading the candidate"):
                    module = self._load(session, self._new_name(), artifact.library)
                    run = module[ENTRY]
                stage = Stage.RUN
                return self._timed(session, module, run, best_s)
            except SessionTimeoutError as error:
                if self._drop():
                    raise self._lost(error) from error
                if timed_out:
                    return Failure(stage, FailureKind.TIMEOUT, str(error))
                # Once more: a device that stood still for a while looks like a candidate that hangs, and
                # what is recorded as hanging is never tried again.
                timed_out = True
            except SessionLostError as error:
                if self._drop():
                    raise self._lost(error) from error
                return Failure(stage, FailureKind.CRASH, str(error))
            except SessionError as error:
                return Failure(stage, FailureKind.ERROR, str(error))
            except DeviceError:
                # No room for the candidate, say: what the session has stored there goes with it.
                self._forget()
                raise

    def settle(self) -> float:
        """Return the fixed kernel's median seconds, as soon as heat does not slow it down, or waiting is over."""
        return self._steadiness.settle(self._run_reference_kernel)

    def time_reference_kernel(self) -> float:
        """Return the fixed kernel's median seconds."""
        self._last_reference_s = self._steadiness.time_reference_kernel(self._run_reference_kernel)
        return self._last_reference_s

    def conditions(self) -> BatchConditions:
        """Return what the sensors told before and after the last batch."""
        before, after = self._steadiness.states()
        slow = self._steadiness.is_slow(self._last_reference_s)
        return BatchConditions(before, after, slow=slow, cooled_s=self._steadiness.cooled_s)

    def _run_reference_kernel(self) -> float:
        session = self._ready()
        try:
            with session.deadline(self._options.run_timeout_s, "running the reference kernel"):
                return float(self._reference_kernel())
        except SessionError as error:
            if self._drop():
                raise self._lost(error) from error
            raise DeviceError(
                f"Device '{self._device.name}' does not run the reference kernel: {error}. "
                "Check that the target fits the device, and that its runner runs."
            ) from error

    def close(self) -> None:
        """Give the device back."""
        self._forget()
        self._sensors.close()

    def _new_name(self) -> str:
        # Each library has its own: writing over one that is still mapped changes or crashes that one.
        self._loaded += 1
        return f"candidate{self._loaded}.so"

    def _load(self, session: Session, name: str, library: bytes) -> Any:
        session.upload(name, library)
        module = session.load(name)
        session.remove(name)
        return module

    def _lost(self, error: SessionError) -> DeviceLostError:
        return DeviceLostError(
            f"Device '{self._device.name}' was lost: {error}. See `edgetune devices doctor {self._device.name}`."
        )

    def _timed(self, session: Session, module: Any, run: Any, best_s: float | None) -> Timing | Failure:
        options = self._options
        with session.deadline(options.run_timeout_s, "one run"):
            for index, poisoned in self._poisons.items():
                poisoned.copyto(self._arguments[index])
            started = time.perf_counter()
            run(*self._arguments)
            self._arguments[0].device.sync()
            first_s = time.perf_counter() - started
        with session.deadline(options.load_timeout_s, "fetching the results"):
            if wrong := self._wrong():
                return Failure(Stage.CHECK, FailureKind.WRONG_RESULT, wrong)
        if best_s is not None and first_s > _FIRST_RUN_RATIO * best_s + _TRANSFER_S:
            return Timing((first_s,), slow=True)
        limit_s = options.run_timeout_s + 20 * first_s
        with session.deadline(limit_s, "timing"):
            times = self._repeat(module, number=1, repeats=2 if first_s > 0.1 else 3, min_ms=1)
            typical = sorted(times)[len(times) // 2]
            if best_s is not None and typical > options.slow_ratio * best_s:
                return Timing(times, slow=True)
            if sum(times) > options.repeats * options.repeat_ms / 1e3:
                # So few runs already took longer than all repeats together are meant to.
                return Timing(times)
            number = max(1, round(options.repeat_ms / 1e3 / typical))
            times = self._repeat(module, number, options.repeats)
            if best_s is None or sorted(times)[len(times) // 2] < _CLOSE_CALL * best_s:
                times += self._repeat(module, number, options.repeats)
        return Timing(times)

    def _repeat(self, module: Any, number: int, repeats: int, min_ms: int = 0) -> tuple[float, ...]:
        device = self._arguments[0].device
        evaluator = module.time_evaluator(ENTRY, device, number=number, repeat=repeats, min_repeat_ms=min_ms)
        for _ in range(_CLOCK_TRIES):
            started = time.perf_counter()
            times = [float(t) for t in evaluator(*self._arguments).results]
            # TVM times by the device's wall clock, which may be set meanwhile: what took less than nothing there,
            # or clearly longer than it took here, did not take that.
            if min(times) >= 0 and sum(times) * number <= 1.1 * (time.perf_counter() - started):
                # The clock of some devices is coarse; a time of zero would be better than everything.
                return tuple(max(t, 1e-9) for t in times)
        raise DeviceError(
            f"The clock of device '{self._device.name}' jumps: no time can be measured with it. Look at what sets it "
            "(`timedatectl` on most devices)."
        )

    def _wrong(self) -> str | None:
        assert self._prepared is not None
        for index, expected in self._prepared.expected.items():
            if wrong := disagreement(expected, self._arguments[index].numpy()):
                return wrong
        return None

    def _ready(self) -> Session:
        """Return a session that has the arguments of the current task."""
        try:
            session = self._session or self._open()
            if self._prepared is not None and not self._arguments:
                self._send_arguments(session, self._prepared)
            return session
        except DeviceError:
            # What died here is started again, for the next time.
            self._drop()
            raise

    def _send_arguments(self, session: Session, prepared: Prepared) -> None:
        import tvm

        device = session.tvm_device(self._kind)
        try:
            with session.deadline(self._options.load_timeout_s, "moving the arguments"):
                values = random_arguments(prepared.specs, prepared.task.workload)
                self._arguments = [tvm.runtime.tensor(value, device=device) for value in values]
                self._poisons = {
                    index: tvm.runtime.tensor(poison(prepared.specs[index]), device=device)
                    for index in prepared.expected
                }
        except SessionError as error:
            size = sum(spec.nbytes for spec in prepared.specs) / 1e6
            raise DeviceError(
                f"Device '{self._device.name}' does not take the arguments of task {prepared.task.name} "
                f"({size:.0f} MB): {error}. Has it enough memory?"
            ) from error

    def _open(self) -> Session:
        session = lease(self._device, self._lease_timeout_s)
        try:
            if self._device.prepared is not None:
                self._device.prepared()
            with session.deadline(self._options.load_timeout_s, "preparing the device"):
                self._set_threads(session)
                self._reference_kernel = self._load_reference_kernel(session)
        except DeviceError:
            session.close()
            raise
        except SessionError as error:
            session.close()
            raise DeviceError(
                f"Device '{self._device.name}' cannot be prepared: {error}. Does the target fit the device, "
                "and is the runner's TVM the same version as this one?"
            ) from error
        self._session = session
        return session

    def _set_threads(self, session: Session) -> None:
        count = session.function("runtime.NumThreads")
        if int(count()) != self._threads:
            session.function("runtime.config_threadpool")(_BIG_THREAD_MODE, self._threads)
        actual = int(count())
        if actual != self._threads:
            raise DeviceError(
                f"Device '{self._device.name}' runs kernels on {actual} threads, the target says "
                f"{self._threads}. Start its runner with --threads {self._threads}, or give --threads here."
            )

    def _load_reference_kernel(self, session: Session) -> Any:
        import tvm

        from edgetune.tuning import reference_kernel

        session.upload("reference_kernel.so", self._reference_library)
        module = session.load("reference_kernel.so")
        device = session.tvm_device(self._kind)
        tensors = [tvm.runtime.tensor(value, device=device) for value in reference_kernel.arguments()]
        evaluator = module.time_evaluator(
            ENTRY, device, number=1, repeat=reference_kernel.REPEATS, min_repeat_ms=reference_kernel.REPEAT_MS
        )
        return lambda: evaluator(*tensors).median

    def _drop(self) -> bool:
        """Forget a broken session; say whether the device's own processes had died and were revived."""
        self._forget()
        return self._device.transport.revive()

    def _forget(self) -> None:
        if self._session is not None:
            self._session.abandon()
        self._session = None
        self._arguments = []
        self._poisons = {}
        self._reference_kernel = None
