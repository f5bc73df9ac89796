"""Devices: what kernels are measured on.

======================  ==================================================================
``inventory.py``        the devices by name
``transport.py``        what a device and the way to reach it are
``link.py``             what a link to another machine is
``tracked.py``          what both ways share: a tracker here, and what registers the device with it
``local.py``            this machine, with the Python runner on loopback
``remote.py``           another machine, over a bridge here and the native runner there
``address.py``          ssh:// and adb:// addresses, and opening a link to one
``ssh.py``, ``adb.py``  the links, one a file
``registry.py``         the user's list of devices
``manage.py``           adds and removes devices; whether a target fits one
``probe.py``            what a device says of itself
``native.py``           assembles the native runner for an architecture
``deploy.py``           puts it onto a device, and takes it away again
``bridge.py``           the process that stands in for a device's runner on this machine
``server.py``           a child process that serves and ends with this one
``tracker_process.py``  the tracker as a process
``session.py``          a lease on a device, with a deadline for each operation
``replay.py``           recorded timings in place of a device
======================  ==================================================================

The runners themselves are ``rpc/runner.c`` and ``rpc/runner.py``.
"""
