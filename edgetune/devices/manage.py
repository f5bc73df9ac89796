"""Adds devices to the user's list, and removes them with all that was put onto them."""

from __future__ import annotations

import re
import shlex
from contextlib import closing

from edgetune.cpu import missing_features
from edgetune.cuda import runs_cubins
from edgetune.devices.address import Address, Ask
from edgetune.devices.clocks import restore_leftovers
from edgetune.devices.deploy import clean, deploy
from edgetune.devices.inventory import LOCAL
from edgetune.devices.link import Link
from edgetune.devices.probe import Probe, probe
from edgetune.devices.registry import NAME_PATTERN, Entry, find, forget, load_registry, store
from edgetune.devices.remote import connect
from edgetune.devices.transport import PYTHON
from edgetune.errors import DeviceError, UsageError
from edgetune.targets import Target
from edgetune.targets.remote import remote_target

_PYTHON_TIMEOUT_S = 120.0


def add_device(
    name: str,
    address: Address,
    ask: Ask | None = None,
    host_key: str | None = None,
    python: str | None = None,
) -> Probe:
    """Connect to a device, put the runner onto it, and add it to the list.

    Args:
        name: what to call it.
        address: how to reach it.
        ask: how to ask for a password; None where nobody can be asked.
        host_key: fingerprint (``SHA256:...``) that the user has compared; an unknown host key that has it is
            added to the known ones.
        python: a Python there that has ONNX Runtime; by default ``python3``, which need not have it.

    Raises:
        UsageError: the name cannot be one, or is taken.
        DeviceError: the device cannot be reached or used; nothing was added.
    """
    if name == LOCAL or not re.match(NAME_PATTERN, name):
        raise UsageError(
            f"a device cannot be called {name!r}; take letters, digits and . _ + -, but not 'local', which is this "
            "machine"
        )
    if name in load_registry().devices:
        raise UsageError(
            f"there is a device '{name}' already; remove it with `edgetune devices remove {name}`"
        )
    with closing(_trusting(address, ask, host_key)) as link:
        found = probe(link)
        if python is not None:
            _check_python(link, python)
        deploy(link, found)
    store(
        name,
        Entry(address=address, description=found.summary(), arch=found.arch, python=python or PYTHON),
    )
    return found


def remove_device(name: str, ask: Ask | None = None, offline: bool = False) -> None:
    """Remove edgetune's files from a device, and the device from the list.

    Args:
        name: of the device.
        ask: how to ask for a password.
        offline: leave the device itself alone; for one that is gone.

    Raises:
        DeviceError: there is no such device, or it cannot be reached: it stays in the list.
    """
    entry = find(name)
    if not offline:
        try:
            link = connect(entry.address, ask)
        except DeviceError as error:
            raise DeviceError(
                f"{error} To forget the device as it is: `edgetune devices remove {name} --offline`."
            ) from error
        with closing(link):
            restore_leftovers(link)
            clean(link)
    forget(name)


def device_target(name: str, found: Probe, threads: int | None = None) -> Target:
    """Return the target of a device's CPU. Imports TVM.

    Raises:
        TargetError: its architecture is none that edgetune knows.
    """
    return remote_target(name, found.facts(), threads)


def check_target(target: Target, name: str, found: Probe) -> None:
    """Check that a device can run a target's code, before an illegal instruction does.

    Raises:
        DeviceError: another architecture, features or a GPU that it lacks, or more threads than it has CPUs.
    """
    if target.arch != found.arch:
        raise DeviceError(
            f"Target {target.name} is for {target.arch}, device '{name}' is {found.arch}. Leave --target away to "
            "tune for the device as it is."
        )
    missing = missing_features(target.required_features(), found.features, found.arch)
    if missing:
        raise DeviceError(
            f"Target {target.name} ({target.mcpu}) uses CPU features that device '{name}' lacks: "
            f"{', '.join(missing)}. Leave --target away to tune for the device as it is, or take these features "
            "away in the target's mattr."
        )
    if target.gpu is not None and not runs_cubins(target.gpu.arch, found.gpu_arch):
        raise DeviceError(
            f"Target {target.name} is for a GPU of {target.gpu.arch}, device '{name}' has "
            f"{found.gpu_arch or 'no NVIDIA GPU'}. Name a target for that, or leave --target away to tune for its CPU."
        )
    if target.threads > len(found.cpus):
        raise DeviceError(
            f"Target {target.name} runs on {target.threads} threads, device '{name}' has {len(found.cpus)} CPUs for "
            f"them. Give --threads {found.cores}."
        )


def _check_python(link: Link, python: str) -> None:
    done = link.run(f"{shlex.quote(python)} -c 'import onnxruntime'", timeout_s=_PYTHON_TIMEOUT_S)
    if done.code != 0:
        raise DeviceError(
            f"{python} on {link.address} does not import onnxruntime: {done.complaint}. Install it there with "
            f"`{python} -m pip install onnxruntime`, or name another Python, by its whole path."
        )


def _trusting(address: Address, ask: Ask | None, host_key: str | None) -> Link:
    """Connect; add the host key to the known ones first where it is the one that the user has compared."""
    if host_key is None:
        return connect(address, ask)
    if address.scheme != "ssh":
        raise UsageError("--host-key is for ssh:// devices; leave it away")
    from edgetune.devices.ssh import UnknownHostKeyError, accept_key

    try:
        return connect(address, ask)
    except UnknownHostKeyError as error:
        if error.key.fingerprint != host_key:
            raise DeviceError(
                f"The host key of {address} is {error.key.fingerprint}, not {host_key}. Somebody may listen in "
                "between; nothing was sent. Compare it again on the device itself."
            ) from error
        accept_key(error, address.known_hosts)
    return connect(address, ask)
