"""What a tuning run may spend, and its settings."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Budget:
    """How much a run may spend; None is no limit.

    Attributes:
        trials: measured candidates, those reused from the logs among them; failures count too.
        time_s: seconds from the call of ``tune_tasks`` on, whatever they are spent on.
    """

    trials: int | None = None
    time_s: float | None = None


@dataclass(frozen=True)
class MeasureOptions:
    """How candidates are timed.

    Attributes:
        load_timeout_s: for loading a candidate and moving its arguments.
        run_timeout_s: for one run of a candidate; longer is a hang.
        repeat_ms: a repeat runs the kernel until this much has passed, so that the clock does not matter.
        repeats: number of repeats; the median counts.
        slow_ratio: a candidate that takes so many times as long as the best known is not timed further.
        drift_bound: relative change of the reference kernel's time across a batch above which the batch
            is measured again, once.
        cool_down_s, cool_down_part: how long a run may wait for a hot device, in all: seconds, or that part
            of its own time where that is more.
    """

    load_timeout_s: float = 60.0
    run_timeout_s: float = 10.0
    repeat_ms: float = 3.0
    repeats: int = 5
    slow_ratio: float = 1.5
    drift_bound: float = 0.2
    cool_down_s: float = 30.0
    cool_down_part: float = 0.1


@dataclass(frozen=True)
class TuningOptions:
    """Settings of a tuning run.

    Attributes:
        seed: of every random choice; None for a new one each run.
        batch: candidates of one task that are built and measured together.
        first_batch: the same for a task that has no record yet, its default schedule among them.
        patience: a task stops after so many measured candidates without an improvement of 1%.
        workers: build processes; None for as many as this process may use cores.
        build_timeout_s: for one candidate.
        reference_timeout_s: for computing what a kernel should give, once a task.
        device_timeout_s: how long to wait for a device to be up and free, and for the last one to come back.
        retry_s: pause after a device's first failure.
        preload: modules that a build process imports at its start (own tensor intrinsics, say).
        measure: how candidates are timed.
    """

    seed: int | None = None
    batch: int = 16
    first_batch: int = 8
    patience: int = 64
    workers: int | None = None
    build_timeout_s: float = 20.0
    reference_timeout_s: float = 120.0
    device_timeout_s: float = 180.0
    retry_s: float = 1.0
    preload: tuple[str, ...] = ()
    measure: MeasureOptions = field(default_factory=MeasureOptions)
