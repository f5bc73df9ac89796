"""Tuning: candidates for the tasks of a model, measured on a device and recorded.

In the order of the flow:

========================  =================================================================
``loop.py``               ``tune_tasks``: the whole run
``run.py``                its state, and a device's turn
``fleet.py``              the devices: a thread for each, and what becomes of those that fail
``options.py``            the budget and the settings
``allocation.py``         which task gets the next trials
``search.py``             which candidates of a task to try next
``cost_model.py``         how good a candidate probably is
``mutator.py``            a mutation for MetaSchedule's search
``search_process.py``     the search in a process of its own
``pipeline.py``           the threads that search and build ahead of the measuring
``builder.py``            builds a batch in worker processes
``build.py``              one build, inside a worker
``reference.py``          what a kernel should compute, inside a worker
``reference_kernel.py``   the reference kernel that shows drift
``arguments.py``          random arguments, and when results agree
``measure.py``            values and times on the device
``gate.py``               quiet cores while a device on this machine measures
``workers.py``            processes that may crash or hang
``zygote.py``             the process that forks them
``interrupt.py``          Ctrl-C
``outcome.py``            what is reported, at the end and on the way
``replay.py``             a run on recorded timings
========================  =================================================================
"""
