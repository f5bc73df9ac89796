"""Kernels in the form that suits the target: what is computed, and the space of its schedules.

A module here is one kernel family. It holds the tensor expressions of its computation, marked with a
block annotation ``edgetune.kernel``, and ``spaces(...)``, which turns one unscheduled kernel (with
whatever was fused into it) into schedules with sampled decisions. The decisions written into the first
space are the default schedule: the first candidate of every search, and what is compiled where nothing
was measured. ``registry.design_spaces`` chooses the family of a task.
"""
