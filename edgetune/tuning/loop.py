"""The tuning run: spends a budget of trials on the tasks of a model.

::

    logs -> what is known            records of this target and device count, and are not measured again
         -> pipeline                 allocation, search, build (other threads and processes)
         -> fleet                    a thread for each device: measures batches between two runs of
                                     the reference kernel
         -> logs                     each trial, as soon as it is measured
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from edgetune.errors import TuningError
from edgetune.machine import usable_cores
from edgetune.records import Task
from edgetune.tuning.builder import Builder
from edgetune.tuning.fleet import FAILURES, News
from edgetune.tuning.gate import Gate
from edgetune.tuning.interrupt import Interrupt
from edgetune.tuning.measure import DeviceMeasurer
from edgetune.tuning.options import Budget, TuningOptions
from edgetune.tuning.outcome import TuningOutcome
from edgetune.tuning.reference_kernel import build_reference_kernel
from edgetune.tuning.run import ProgressCallback, Run
from edgetune.tuning.search import SearchSettings, Spaces
from edgetune.tuning.search_process import SearchProcess
from edgetune.tuning.workers import PRELOAD, ForkServer, WorkerPool

if TYPE_CHECKING:
    from edgetune.devices.transport import Device
    from edgetune.logs import TuningLogs
    from edgetune.targets import Target


def tune_tasks(
    tasks: Sequence[Task],
    target: Target,
    devices: Sequence[Device],
    logs: TuningLogs,
    *,
    spaces: Spaces,
    budget: Budget,
    options: TuningOptions | None = None,
    progress: ProgressCallback | None = None,
    news: News = lambda _: None,
) -> TuningOutcome:
    """Tune tasks for a target on devices of one kind, and record every trial.

    Ctrl-C ends the run in an orderly way (a second one at once); what was found until then is returned.
    Every trial is in the logs before the next one on its device starts: nothing else needs to survive a kill.
    When the last device is lost, the outcome says so, and holds what was found until then.

    Args:
        tasks: with distinct workloads.
        target: what to compile for.
        devices: where to measure; they are brought up here, unless the caller has done so. One that shares this
            machine's cores must be the only one.
        logs: what is known, and where new records go.
        spaces: gives the design spaces of a task; a module's function.
        budget: what may be spent. Records of this target and these devices that the logs have already count.
        options: settings.
        progress: called after each measured candidate, in the thread of its device, one call at a time; must be
            quick.
        news: told in words of devices that fail, are left out, and come back; in any thread.

    Raises:
        DeviceError: a device does not come up, or none works and nothing was known.
        TuningError: the build processes do not work.
        LogsError: the logs cannot be read or written.
    """
    options = options or TuningOptions()
    names = [device.name for device in devices]
    run = Run(tasks, target, names, logs, budget, options, progress, news=news)
    if run.has_work():
        hints = _hints(tasks, target, names, logs)
        seed = options.seed if options.seed is not None else random.randrange(1, 2**31)
        cores = usable_cores()
        with ExitStack() as stack:
            interrupt = stack.enter_context(Interrupt())
            server = stack.enter_context(ForkServer((*PRELOAD, *options.preload)))
            for device in devices:
                stack.enter_context(device.up())
            builds = stack.enter_context(WorkerPool(server, options.workers or cores))
            searching = stack.enter_context(WorkerPool(server, 1))
            reference = _reference_library(builds, target, options)
            wait_s = options.device_timeout_s / FAILURES
            measurers = {
                device.name: DeviceMeasurer(
                    device, target.kind, target.threads, reference, options.measure, wait_s
                )
                for device in devices
            }
            run.measure_all(
                SearchProcess(searching, SearchSettings(target, spaces, seed, cores), hints),
                Builder(builds, target, options.build_timeout_s, options.reference_timeout_s),
                measurers,
                Gate(any(device.shares_host for device in devices)),
                interrupt,
            )
    return run.outcome()


def _hints(
    tasks: Sequence[Task], target: Target, devices: Sequence[str], logs: TuningLogs
) -> dict[str, tuple[str, ...]]:
    """Traces worth trying first: the best ones of other devices, shipped logs and similar targets."""
    from edgetune.logs import LayeredLogs

    layered = LayeredLogs(logs)
    hints = {}
    for task in tasks:
        best = layered.best(task.workload, target)
        found = [best] if best is not None and best.device not in devices else []
        found += layered.similar(task.workload, target)
        if found:
            hints[task.workload] = tuple(dict.fromkeys(record.trace for record in found))
    return hints


def _reference_library(pool: WorkerPool, target: Target, options: TuningOptions) -> bytes:
    """Build the reference kernel: the first thing that fails where a target cannot be built for."""
    try:
        library: bytes = pool.call(build_reference_kernel, target, timeout_s=options.reference_timeout_s)
    except TuningError:
        raise
    except Exception as error:
        raise TuningError(
            f"Cannot build the reference kernel for target '{target.name}': {error}. "
            "Check the target with `edgetune targets show`."
        ) from error
    return library
