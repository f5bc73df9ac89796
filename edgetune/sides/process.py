"""The parent's end of a side: starts its process, asks, and turns silence and crashes into messages."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

import edgetune
from edgetune import errors
from edgetune.bundle.arrays import read_npz
from edgetune.errors import EdgetuneError
from edgetune.sides.base import SideSpec

OPEN_TIMEOUT_S = 300.0
RUN_TIMEOUT_S = 300.0
_CLOSE_TIMEOUT_S = 5.0
_QUIET_WINDOW_S = 0.05
_QUIET_LIMIT_S = 3.0
_TAIL_BYTES = 2000


class SilentError(EdgetuneError):
    """A side did not answer in time."""


class SideProcess:
    """One side in a process of its own; use it as a context manager. Not for several threads.

    Attributes:
        version: what runs, by name and version.
        load_s: seconds it took to load the model, without starting Python and its imports.
    """

    def __init__(self, spec: SideSpec, *, timeout_s: float = OPEN_TIMEOUT_S) -> None:
        """Start the process and load the model.

        Raises:
            EdgetuneError: the side cannot load the model, crashed, or did not answer in time.
        """
        self.name = spec.name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed in close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "edgetune.sides.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=side_environment(spec.threads) | ({"TVM_BIND_THREADS": "0"} if spec.cpus else {}),
        )
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            opened = self._ask(timeout_s, do="open", **spec.to_json())
        except BaseException:
            self.close()
            raise
        self.version = str(opened["version"])
        self.load_s = float(opened["load_s"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, count: int, seconds: float = 0.0, *, timeout_s: float = RUN_TIMEOUT_S) -> list[float]:
        """Milliseconds of single runs: at least ``count`` of them, and more until ``seconds`` are over."""
        return list(self._ask(timeout_s + seconds, do="run", count=count, seconds=seconds)["times_ms"])

    def outputs(self, *, timeout_s: float = RUN_TIMEOUT_S) -> dict[str, np.ndarray]:
        """The outputs of one run, by name."""
        with tempfile.TemporaryDirectory(prefix="edgetune-") as folder:
            path = Path(folder) / "outputs.npz"
            names = self._ask(timeout_s, do="outputs", path=str(path))["names"]
            arrays = read_npz(path)
        return {name: arrays[str(index)] for index, name in enumerate(names)}

    def memory_bytes(self) -> tuple[int, int]:
        """Peak resident memory of the process so far, and how much of it came after its start."""
        answer = self._ask(RUN_TIMEOUT_S, do="memory")
        return int(answer["peak_bytes"]), int(answer["peak_bytes"] - answer["base_bytes"])

    def wait_quiet(self) -> None:
        """Wait until the process uses no CPU any more.

        Thread pools spin for a while after a run; the other side must not be timed beside that.
        After three seconds the wait ends all the same.
        """
        import psutil

        try:
            process = psutil.Process(self._process.pid)
            end = time.monotonic() + _QUIET_LIMIT_S
            used = sum(process.cpu_times()[:2])
            while time.monotonic() < end:
                time.sleep(_QUIET_WINDOW_S)
                before, used = used, sum(process.cpu_times()[:2])
                if used == before:
                    return
        except psutil.Error:
            return  # it is gone; the next request says why

    def close(self) -> None:
        """End the process: at once by closing its stdin, by force where it does not react."""
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except OSError:
                pass
        try:
            self._process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(_CLOSE_TIMEOUT_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def _ask(self, timeout_s: float, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._crashed() from error
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            self._process.kill()
            raise SilentError(
                f"{self.name} did not answer within {timeout_s:.0f} s and was stopped; is the machine "
                "overloaded or the model very large?"
            ) from None
        if not line:
            raise self._crashed()
        answer = json.loads(line)
        if "error" in answer:
            kind = getattr(errors, answer["error"]["kind"], EdgetuneError)
            raise kind(answer["error"]["message"])
        return dict(answer["ok"])

    def _crashed(self) -> EdgetuneError:
        try:
            code = self._process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        end = _signal_name(-code) if code < 0 else f"exit code {code}"
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _TAIL_BYTES))
        text = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        said = f"; its last words: {text[-1]}" if text else ""
        return EdgetuneError(
            f"the process of {self.name} died ({end}){said}. Build the bundle again; if it stays so, "
            "report the model"
        )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def side_environment(threads: int) -> dict[str, str]:
    """The parent's environment, with every thread pool set to ``threads`` and this package in reach."""
    package_root = str(Path(edgetune.__file__).parent.parent)
    path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH", "")]))
    pools = dict.fromkeys(("TVM_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    return {**os.environ, **pools, "PYTHONPATH": path}
