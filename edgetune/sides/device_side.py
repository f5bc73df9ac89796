"""A bundle on a device that is another machine: the same questions as to a side's process, over a leased session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from edgetune.bundle import manifest as m
from edgetune.bundle.dispatch import Dispatcher
from edgetune.bundle.package import Runner
from edgetune.bundle.reader import Bundle, open_bundle
from edgetune.cpu import architecture, missing_features
from edgetune.cuda import runs_cubins
from edgetune.devices.inventory import open_device
from edgetune.devices.native import WITHOUT_TVM
from edgetune.devices.probe import Probe
from edgetune.devices.session import Session, SessionError, lease
from edgetune.devices.transport import Device
from edgetune.dtypes import held, numpy_dtype, unheld
from edgetune.errors import BundleError, DeviceError
from edgetune.sides.device_engines import StandaloneEngine, VirtualMachineEngine
from edgetune.standalone.build import build_limits

LEASE_TIMEOUT_S = 180.0
TRANSFER_TIMEOUT_S = 600.0
RUN_TIMEOUT_S = 300.0
_MOST_RUNS = 10_000
_SURELY_FREE_BYTES = 1 << 26
"""Of the memory of a device that does not say how much it has."""
_LIMITS = "limits.so"


def is_remote(device: str | Device | None) -> bool:
    """Whether a device's name, or the device itself, is another machine than this."""
    if isinstance(device, Device):
        return not device.shares_host
    return device not in (None, "local")


def open_for(path: str | Path, device: str | Device | None, *, check_files: bool = True) -> Bundle:
    """Open a bundle for the device that it is to run on: of several in one, the best one there.

    Raises:
        BundleError: it is no bundle, is damaged, or has no code for the device.
        DeviceError: the device is unavailable.
    """
    if device is None or not is_remote(device):
        return open_bundle(path, check_files=check_files)

    def runner() -> Runner:
        opened = device if isinstance(device, Device) else open_device(device, 1)
        probe = opened.probe()
        return Runner(f"device '{opened.name}'", probe.arch, frozenset(probe.features))

    return open_bundle(path, check_files=check_files, runner=runner)


@contextmanager
def device_side(
    bundle: Bundle, inputs: Mapping[str, np.ndarray], device: str | Device, threads: int
) -> Iterator[DeviceSide]:
    """Bring a device up, lease it, and load a bundle there.

    Args:
        bundle: made for the device.
        inputs: by name, of the bundle's dtypes and shapes.
        device: its name, or the device itself where the caller has one.
        threads: threads to run on; a device that is given has its own.

    Raises:
        DeviceError: it is unavailable, or its session broke.
        BundleError: the bundle is for another kind of machine.
    """
    opened = device if isinstance(device, Device) else open_device(device, threads)
    with opened.up():
        probe = opened.probe()
        check_fits(bundle, opened.name, probe)
        with lease(opened, LEASE_TIMEOUT_S) as session:
            yield DeviceSide(bundle, inputs, session, probe)


def check_fits(bundle: Bundle, name: str, probe: Probe) -> None:
    """Check that a device can run a bundle's code.

    Raises:
        BundleError: another architecture or GPU, or missing CPU features.
    """
    target = bundle.manifest.target
    wanted = architecture(target.mtriple.split("-")[0])
    if wanted != probe.arch:
        raise BundleError(
            f"{bundle.path} was made for {target.name} ({target.kind}, {wanted}), device '{name}' is {probe.arch}; "
            f"build one for it with --device {name}"
        )
    gpu = str((target.description.get("gpu") or {}).get("arch", ""))
    if target.kind != "llvm" and not runs_cubins(gpu, probe.gpu_arch):
        raise BundleError(
            f"{bundle.path} was made for {target.name} ({target.kind}, {gpu}), device '{name}' has "
            f"{probe.gpu_arch or 'no NVIDIA GPU'}; build one for its CPU with --device {name}, or for its GPU with "
            "--target as well"
        )
    if bundle.manifest.engine != "standalone" and probe.arch in WITHOUT_TVM:
        raise BundleError(
            f"{bundle.path} needs TVM's runtime, which device '{name}' cannot have: there is none for {probe.arch}; "
            "build a standalone library, which --standalone insists on"
        )
    missing = missing_features(target.cpu_features, probe.features, probe.arch)
    if missing:
        raise BundleError(
            f"{bundle.path} was made for {target.name} ({target.mcpu}) and uses CPU features that device '{name}' "
            f"lacks: {', '.join(missing)}; build one for it with --device {name}"
        )


class DeviceSide:
    """A bundle that is loaded on a leased device. Not for several threads.

    Attributes:
        version: what runs.
        load_s: seconds to load the library there, once its file has arrived.
    """

    def __init__(
        self, bundle: Bundle, inputs: Mapping[str, np.ndarray], session: Session, probe: Probe
    ) -> None:
        self._probe = probe
        self.version = f"edgetune {bundle.manifest.versions['edgetune']}"
        self._session = session
        self._bundle = bundle
        self._dispatch = Dispatcher(bundle.manifest).choose(
            {name: array.shape for name, array in inputs.items()}
        )
        self._program = bundle.manifest.all_programs()[self._dispatch.program]
        self._base_bytes = self._peak_bytes()
        with self._guarded(TRANSFER_TIMEOUT_S, "sending the bundle"):
            session.upload(m.LIBRARY, bundle.storage.files[m.LIBRARY].read())
            engine = StandaloneEngine if bundle.manifest.engine == "standalone" else VirtualMachineEngine
            self._engine = engine(bundle, self._program, session)
            self.load_s = self._engine.load_s
            session.remove(m.LIBRARY)
            self._engine.set_inputs(self._filled(inputs))

    def run(self, count: int, seconds: float = 0.0) -> list[float]:
        """Milliseconds of single runs, on the device's own clock: ``count``, and more for ``seconds``."""
        with self._guarded(RUN_TIMEOUT_S + seconds, "running the bundle"):
            times = self._engine.timed(count)
            typical_s = sorted(times)[len(times) // 2]
            left = min(_MOST_RUNS, int((seconds - sum(times)) / max(typical_s, 1e-6)))
            if left > 0:
                times += self._engine.timed(left)
        return [time_s * 1e3 for time_s in times]

    def outputs(self) -> dict[str, np.ndarray]:
        """The outputs of one run, by name."""
        with self._guarded(RUN_TIMEOUT_S, "running the bundle"):
            arrays = zip(self._program.outputs, self._engine.outputs(), strict=True)
            return self._dispatch.crop({item.name: unheld(array, item.dtype) for item, array in arrays})

    def observe(self, runs: int) -> list[list[tuple[str, int, int]]]:
        """Of every run, and each kernel in its order: name, nanoseconds, bytes of all tensors that it touches.

        Of a program for the virtual machine, its own instructions too.

        Raises:
            DeviceError: it failed.
            ToolchainError: what times them cannot be compiled.
        """
        with self._guarded(RUN_TIMEOUT_S, "timing the kernels"):
            return self._engine.observe(runs)

    def limits(self, threads: int, sizes: Sequence[int]) -> tuple[float, list[tuple[int, float]]]:
        """The device's 10^9 float32 operations a second, and, for working sets of these bytes, 10^9 bytes a second.

        Working sets that would take more than a quarter of its memory are left out.

        Raises:
            DeviceError: it failed.
            ToolchainError: what measures them cannot be compiled.
        """
        library = build_limits(self._bundle.manifest.target.mtriple, self._probe.features)
        most = max(sizes[0], self._probe.memory_bytes // 4 or _SURELY_FREE_BYTES)
        with self._guarded(RUN_TIMEOUT_S, "measuring what it can do at best"):
            self._session.upload(_LIMITS, library)
            loaded = self._session.load(_LIMITS)
            peak = float(loaded["edgetune_peak"](threads))
            bandwidth = [
                (size, float(loaded["edgetune_bandwidth"](threads, size))) for size in sizes if size <= most
            ]
            self._session.remove(_LIMITS)
        return peak, bandwidth

    def memory_bytes(self) -> tuple[int, int]:
        """Peak resident memory of the session's process, and how much of it came after its start."""
        peak = self._peak_bytes()
        return peak, peak - self._base_bytes

    def wait_quiet(self) -> None:
        """Nothing to wait for: no other side runs beside it."""

    def _filled(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The inputs as the program takes them: padded where sizes vary."""
        arrays = []
        for item in self._program.inputs:
            array = np.zeros(item.shape, numpy_dtype(item.dtype))
            self._dispatch.fill(item.name, array, inputs[item.name])
            arrays.append(held(array))
        return arrays

    def _peak_bytes(self) -> int:
        with self._guarded(RUN_TIMEOUT_S, "asking for its memory"):
            return int(self._session.function("edgetune.peak_memory_bytes")())

    @contextmanager
    def _guarded(self, timeout_s: float, what: str) -> Iterator[None]:
        try:
            with self._session.deadline(timeout_s, what):
                yield
        except SessionError as error:
            name = self._session.device.name
            raise DeviceError(
                f"Device '{name}' failed with {self._bundle.path}: {error}. Run `edgetune devices doctor {name}`."
            ) from error
