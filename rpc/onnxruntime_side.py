"""Runs an ONNX model with the ONNX Runtime of a device's own Python, for ``edgetune benchmark --device``.

One file without any import from edgetune, for Python 3.8 or later: it is given to the device's interpreter as
``python -c``, and the model and its inputs arrive on standard input. Nothing is stored on the device.

First it prints one line, ``{"version": ...}``, or ``{"missing": ...}`` where ONNX Runtime cannot be imported. Then it
answers requests, one line of JSON each, by their ``do``:

* ``open``     ``threads``, ``cpus``, ``model`` and ``inputs`` (bytes that follow the line: an ONNX file, and an
  ``.npz``), ``input_names`` and ``output_names``   -> ``load_s``
* ``run``      ``count``, ``seconds``   -> ``times_ms`` of single runs: at least ``count``, and more for ``seconds``
* ``outputs``  -> ``bytes``, and so many bytes after the line: an ``.npz`` of one run's outputs
* ``memory``   -> ``peak_bytes`` so far, ``base_bytes`` at the start
* ``quiet``    returns when the machine's CPUs are at rest, at the latest after a second

An answer is ``{"ok": {...}}`` or ``{"error": ...}``. The end of standard input ends the process.

Inputs and outputs lie in ONNX Runtime's own arrays before a run, as a bundle's do on a device: copying them is not
timed.
"""

from __future__ import annotations

import io
import json
import os
import resource
import sys
import time
from typing import Any, Callable, Dict, Tuple  # noqa: UP035  # Python 3.8

QUIET_WINDOW_S = 0.1
QUIET_LIMIT_S = 1.0
QUIET_PART = 0.2
PIECE_BYTES = 1 << 20

Request = Dict[str, Any]  # noqa: UP006  # Python 3.8
Answer = Tuple[Request, bytes]  # noqa: UP006
"""The fields, and the bytes after them."""


class Side:
    """A loaded model, and what can be asked of it."""

    def __init__(self, base_bytes: int) -> None:
        self._base_bytes = base_bytes

    def open(self, request: Request, read: Callable[[int], bytes]) -> Answer:
        """Load the model, and run it once; ``read`` gives the bytes after the request."""
        import numpy
        import onnxruntime

        # Not in this process's memory: its peak is to be ONNX Runtime's own.
        file = os.memfd_create("model")
        left = request["model"]
        with open(file, "wb", closefd=False) as model:
            while left:
                left -= model.write(read(min(left, PIECE_BYTES)))
        arrays = numpy.load(io.BytesIO(read(request["inputs"])), allow_pickle=False)
        if request["cpus"]:
            # Before the thread pool is made: its threads inherit it.
            os.sched_setaffinity(0, request["cpus"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = request["threads"]
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        start = time.perf_counter()
        self._session = onnxruntime.InferenceSession(
            f"/proc/self/fd/{file}", options, providers=["CPUExecutionProvider"]
        )
        load_s = time.perf_counter() - start
        os.close(file)
        names = request["input_names"]
        self._bind({name: arrays[str(index)] for index, name in enumerate(names)}, request["output_names"])
        return {"load_s": load_s}, b""

    def _bind(self, inputs: dict[str, Any], outputs: list[str]) -> None:
        import onnxruntime

        self._binding = self._session.io_binding()
        # Held: the binding refers to them.
        self._values = []
        wanted = {value.name for value in self._session.get_inputs()}
        for name, array in inputs.items():
            if name in wanted:
                value = onnxruntime.OrtValue.ortvalue_from_numpy(array)
                self._values.append(value)
                self._binding.bind_ortvalue_input(name, value)
        for name in outputs:
            self._binding.bind_output(name)
        self._session.run_with_iobinding(self._binding)
        # From now on it writes where the first run has: the shapes are known.
        for index, value in enumerate(self._binding.get_outputs()):
            self._values.append(value)
            self._binding.bind_ortvalue_output(outputs[index], value)

    def run(self, request: Request, _: Callable[[int], bytes]) -> Answer:
        """Time single runs."""
        run, binding, clock = self._session.run_with_iobinding, self._binding, time.perf_counter_ns
        times: list[int] = []
        end = clock() + int(request["seconds"] * 1e9)
        while len(times) < request["count"] or clock() < end:
            start = clock()
            run(binding)
            times.append(clock() - start)
        return {"times_ms": [time_ns / 1e6 for time_ns in times]}, b""

    def outputs(self, _: Request, __: Callable[[int], bytes]) -> Answer:
        """The outputs of one run, by position."""
        import numpy

        self._session.run_with_iobinding(self._binding)
        values = self._binding.get_outputs()
        file = io.BytesIO()
        numpy.savez(file, **{str(index): value.numpy() for index, value in enumerate(values)})
        return {"bytes": len(file.getvalue())}, file.getvalue()

    def memory(self, _: Request, __: Callable[[int], bytes]) -> Answer:
        """This process's."""
        return {"peak_bytes": peak_memory_bytes(), "base_bytes": self._base_bytes}, b""

    def quiet(self, _: Request, __: Callable[[int], bytes]) -> Answer:
        """Wait: thread pools spin for a while after a run, and the other side must not be timed beside that."""
        end = time.monotonic() + QUIET_LIMIT_S
        now = busy_s()
        while time.monotonic() < end:
            before = now
            time.sleep(QUIET_WINDOW_S)
            now = busy_s()
            if now - before < QUIET_PART * QUIET_WINDOW_S:
                break
        return {}, b""


def busy_s() -> float:
    """Seconds that all CPUs together have worked since the start of the machine."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq = map(int, file.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def peak_memory_bytes() -> int:
    """The largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Say what there is, and answer until the input ends."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # What libraries print goes to standard error.
    os.dup2(2, 1)

    def tell(fields: Request, data: bytes = b"") -> None:
        answers.write(json.dumps(fields).encode() + b"\n" + data)
        answers.flush()

    try:
        import numpy  # noqa: F401

        base_bytes = peak_memory_bytes()
        import onnxruntime
    except Exception as error:
        tell({"missing": f"{type(error).__name__}: {error}"})
        return
    tell({"version": f"ONNX Runtime {onnxruntime.__version__}"})
    side = Side(base_bytes)
    for line in iter(requests.readline, b""):
        request = json.loads(line)
        try:
            fields, data = getattr(side, request["do"])(request, requests.read)
        except Exception as error:
            tell({"error": (str(error).strip().splitlines() or [type(error).__name__])[0]})
        else:
            tell({"ok": fields}, data)


if __name__ == "__main__":
    main()
