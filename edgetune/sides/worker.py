"""The child process of a side: one JSON request a line on stdin, one JSON answer a line on stdout.

Requests, by their ``do``:

* ``open``     the fields of a SideSpec       -> ``version``, ``load_s``
* ``run``      ``count``, ``seconds``         -> ``times_ms`` of single runs: at least ``count`` of them,
  and more until ``seconds`` have passed
* ``outputs``  ``path``                       -> writes the outputs of one run to that ``.npz``
* ``memory``                                  -> ``peak_bytes`` so far, ``base_bytes`` at the start

An answer is ``{"ok": {...}}`` or ``{"error": {"kind": ..., "message": ...}}``. The end of stdin ends the
process. Whatever libraries print to stdout goes to stderr: file descriptor 1 is moved away first.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgetune.bundle.arrays import write_npz
from edgetune.errors import EdgetuneError, UsageError
from edgetune.sides.base import Side, SideSpec, side_module


class Worker:
    """Answers requests for one side."""

    def __init__(self) -> None:
        self._side: Side | None = None
        self._base_bytes = peak_memory_bytes()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request; every exception becomes an ``error``."""
        handlers: dict[str, Callable[..., dict[str, Any]]] = {
            "open": self._open,
            "run": self._run,
            "outputs": self._outputs,
            "memory": self._memory,
        }
        arguments = dict(request)
        try:
            return {"ok": handlers[arguments.pop("do")](**arguments)}
        except EdgetuneError as error:
            return {"error": {"kind": type(error).__name__, "message": str(error)}}
        except Exception as error:
            first = (str(error).strip().splitlines() or [""])[0]
            message = f"{type(error).__name__}: {first}"
            return {"error": {"kind": "EdgetuneError", "message": message}}

    def _open(self, **fields: Any) -> dict[str, Any]:
        spec = SideSpec(**fields)
        if spec.cpus:
            # Before any thread pool is made: its threads inherit it.
            os.sched_setaffinity(0, spec.cpus)
        if spec.memory_bytes:
            # Data, not address space: of the latter, thread stacks and libraries reserve gigabytes that they never use.
            resource.setrlimit(resource.RLIMIT_DATA, (spec.memory_bytes, spec.memory_bytes))
        module = side_module(spec.name)
        if hasattr(module, "convert"):
            # Removed when the process ends: a converted model may be mapped into memory while it runs.
            self._folder = tempfile.TemporaryDirectory(prefix="edgetune-")
            spec = replace(spec, path=str(module.convert(spec, Path(self._folder.name))))
        start = time.perf_counter()
        self._side = module.open_side(spec)
        return {"version": self._side.version(), "load_s": time.perf_counter() - start}

    def _run(self, count: int, seconds: float = 0.0) -> dict[str, Any]:
        run = self._opened().run
        clock = time.perf_counter_ns
        times: list[int] = []
        end = clock() + int(seconds * 1e9)
        while len(times) < count or clock() < end:
            start = clock()
            run()
            times.append(clock() - start)
        return {"times_ms": [time_ns / 1e6 for time_ns in times]}

    def _outputs(self, path: str) -> dict[str, Any]:
        outputs = self._opened().run()
        # By position: a name is free text in ONNX, and a zip file changes some.
        arrays = {str(index): array for index, array in enumerate(outputs.values())}
        write_npz(Path(path), arrays)
        return {"names": list(outputs)}

    def _memory(self) -> dict[str, Any]:
        return {"peak_bytes": peak_memory_bytes(), "base_bytes": self._base_bytes}

    def _opened(self) -> Side:
        if self._side is None:
            raise UsageError("the side is not open: send an 'open' request first")
        return self._side


def peak_memory_bytes() -> int:
    """The largest resident memory of this process so far.

    Read from the kernel's count for this program alone: ``getrusage`` also counts what the process
    was before it started the program, a copy of its parent.
    """
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    import psutil

    return int(psutil.Process().memory_info().rss)


def main() -> None:
    """Serve requests until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        answer = worker.answer(json.loads(line))
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
