"""Devices: what kernels are measured on.

======================  =================================================================
``inventory.py``        the devices by name
``transport.py``        what a device and the way to reach it are
``local.py``            this machine, over a tracker and a runner on loopback
``tracker_process.py``  the tracker as a process
``session.py``          a lease on a device, with a deadline for each operation
``replay.py``           recorded timings in place of a device
======================  =================================================================

The runner itself is ``rpc/runner.py``.
"""
