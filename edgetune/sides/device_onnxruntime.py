"""ONNX Runtime on a device that is another machine, in the device's own Python: what a bundle there is timed beside."""

from __future__ import annotations

import io
import json
import shlex
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import numpy as np
import onnx

from edgetune.bundle.arrays import load_npz, write_npz
from edgetune.devices.link import Stream
from edgetune.devices.transport import Device
from edgetune.errors import EdgetuneError, ModelError
from edgetune.narrow import Widened, widen
from edgetune.resources import data_path
from edgetune.sides.files import SideFiles

START_TIMEOUT_S = 120.0
OPEN_TIMEOUT_S = 600.0
RUN_TIMEOUT_S = 300.0
_SCRIPT = "onnxruntime_side.py"
_MOST_LINE_BYTES = 1 << 24


class NotThereError(EdgetuneError):
    """ONNX Runtime does not run on the device."""


@contextmanager
def onnxruntime_on(
    device: Device, files: SideFiles, inputs: Mapping[str, np.ndarray], threads: int
) -> Iterator[DeviceOnnxRuntime]:
    """Start ONNX Runtime on a device, and load a bundle's ONNX model there.

    Args:
        device: another machine. files: where the model is. inputs: by name. threads: to run on.

    Raises:
        NotThereError: the device's Python is not there, or has no ONNX Runtime.
        ModelError: ONNX Runtime does not take the model.
        DeviceError: the device cannot be reached.
        UsageError: there is no model.
    """
    spec = files.spec("onnxruntime", threads)
    if device.linker is None:
        raise NotThereError(f"device '{device.name}' runs no commands")
    with ExitStack() as stack:
        link = stack.enter_context(closing(device.linker()))
        script = (data_path("rpc") / _SCRIPT).read_text(encoding="utf-8")
        command = f"exec {shlex.quote(device.python)} -u -c {shlex.quote(script)}"
        stream = stack.enter_context(closing(link.stream(command)))
        side = DeviceOnnxRuntime(device, stream)
        side.open(_widened(spec.path), inputs, spec.output_names, threads)
        yield side


class DeviceOnnxRuntime:
    """One process of ``rpc/onnxruntime_side.py``. Not for several threads.

    Attributes:
        version: what runs. load_s: seconds to load the model there, once it has arrived.
    """

    def __init__(self, device: Device, stream: Stream) -> None:
        self._device = device
        self._stream = stream
        self._left = b""
        self._wide: Widened | None = None
        self._outputs: tuple[str, ...] = ()
        self.load_s = 0.0
        with self._alarm(START_TIMEOUT_S):
            hello = self._line()
        if "version" not in hello:
            raise NotThereError(
                f"{device.python} on device '{device.name}' has no ONNX Runtime ({hello.get('missing')}); install it "
                f"there with `{device.python} -m pip install onnxruntime`, or add the device again with --python and "
                "the path of a Python that has it"
            )
        self.version = str(hello["version"])

    def open(
        self, wide: Widened, inputs: Mapping[str, np.ndarray], outputs: Sequence[str], threads: int
    ) -> None:
        """Load the model, and run it once.

        Raises:
            EdgetuneError: ONNX Runtime does not take it, or the device did not answer.
        """
        self._wide = wide
        self._outputs = tuple(outputs)
        try:
            model = wide.model.SerializeToString()
        except Exception as error:
            raise ModelError(
                f"the model is too large to be sent to ONNX Runtime on a device: {error}"
            ) from error
        known = {value.name for value in wide.original.graph.input}
        arrays = wide.feed({name: array for name, array in inputs.items() if name in known})
        file = io.BytesIO()
        # By position: a name is free text in ONNX, and a zip file changes some.
        write_npz(file, {str(index): array for index, array in enumerate(arrays.values())})
        answer = self._ask(
            OPEN_TIMEOUT_S,
            model + file.getvalue(),
            do="open",
            model=len(model),
            inputs=len(file.getvalue()),
            input_names=list(arrays),
            output_names=wide.names(self._outputs),
            threads=threads,
            cpus=list(self._device.cpus),
        )
        self.load_s = float(answer["load_s"])

    def run(self, count: int, seconds: float = 0.0) -> list[float]:
        """Milliseconds of single runs, by the device's clock: ``count``, and more until ``seconds`` are over."""
        return list(self._ask(RUN_TIMEOUT_S + seconds, do="run", count=count, seconds=seconds)["times_ms"])

    def outputs(self) -> dict[str, np.ndarray]:
        """The outputs of one run, by name."""
        assert self._wide is not None
        size = int(self._ask(RUN_TIMEOUT_S, do="outputs")["bytes"])
        with self._alarm(RUN_TIMEOUT_S):
            arrays = load_npz(io.BytesIO(self._bytes(size)))
        return self._wide.result(self._outputs, [arrays[str(index)] for index in range(len(arrays))])

    def memory_bytes(self) -> tuple[int, int]:
        """Peak resident memory of the process, and how much of it came after its start."""
        answer = self._ask(RUN_TIMEOUT_S, do="memory")
        return int(answer["peak_bytes"]), int(answer["peak_bytes"] - answer["base_bytes"])

    def wait_quiet(self) -> None:
        """Wait until the device's CPUs are at rest, a second at most."""
        self._ask(RUN_TIMEOUT_S, do="quiet")

    def _ask(self, timeout_s: float, data: bytes = b"", **request: Any) -> dict[str, Any]:
        with self._alarm(timeout_s):
            try:
                self._stream.send(json.dumps(request).encode() + b"\n" + data)
            except (OSError, EOFError) as error:
                raise self._gone() from error
            answer = self._line()
        if "error" in answer:
            raise ModelError(f"ONNX Runtime on device '{self._device.name}': {answer['error']}")
        return dict(answer["ok"])

    def _line(self) -> dict[str, Any]:
        while b"\n" not in self._left:
            if len(self._left) > _MOST_LINE_BYTES:
                raise self._gone()
            self._left += self._piece()
        line, _, self._left = self._left.partition(b"\n")
        try:
            return dict(json.loads(line))
        except ValueError as error:
            raise EdgetuneError(
                f"{self._device.python} on device '{self._device.name}' said {line[:100]!r}: is it a Python "
                "interpreter? Add the device again with --python and the path of one."
            ) from error

    def _bytes(self, size: int) -> bytes:
        pieces = [self._left]
        got = len(self._left)
        while got < size:
            pieces.append(self._piece())
            got += len(pieces[-1])
        data = b"".join(pieces)
        self._left = data[size:]
        return data[:size]

    def _piece(self) -> bytes:
        try:
            piece = self._stream.receive(1 << 16)
        except (OSError, EOFError, ValueError) as error:
            raise self._gone() from error
        if not piece:
            raise self._gone()
        return piece

    def _gone(self) -> EdgetuneError:
        said = self._stream.complaint()
        return NotThereError(
            f"{self._device.python} on device '{self._device.name}' ended or did not answer in time"
            f"{f': {said}' if said else ''}; ONNX Runtime runs there where that is a Python with the package "
            "onnxruntime, and memory is left for it: see --python of 'edgetune devices add'"
        )

    @contextmanager
    def _alarm(self, timeout_s: float) -> Iterator[None]:
        """Close the stream, which ends every call on it, if the block takes longer."""
        timer = threading.Timer(timeout_s, self._stream.close)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _widened(path: str) -> Widened:
    """The model with inputs and outputs that NumPy knows, with all its weights inside.

    Raises:
        ModelError: it cannot be read.
    """
    try:
        return widen(onnx.load(path))
    except Exception as error:
        raise ModelError(
            f"{path} cannot be sent to ONNX Runtime on a device: {str(error) or type(error).__name__}"
        ) from error
