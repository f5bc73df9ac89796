"""Kernels run where they are told to: clusters by name, and the threads' real affinity."""

from __future__ import annotations

import os

import psutil
import pytest

from edgetune.devices.address import parse_address
from edgetune.devices.clusters import choose_cpus
from edgetune.devices.local import local_device
from edgetune.devices.local_link import LocalLink
from edgetune.devices.manage import device_target
from edgetune.devices.probe import Cpu, probe
from edgetune.devices.remote import remote_device
from edgetune.devices.session import lease
from edgetune.errors import UsageError

CPUS = sorted(os.sched_getaffinity(0))


@pytest.fixture(scope="module")
def phone():
    """Three kinds of cores, numbered from the small ones on, as a Snapdragon 8 Gen 2's."""
    kinds = [("0x41:0xd46", 2_016_000)] * 3 + [("0x41:0xd4d", 2_803_200)] * 4 + [("0x41:0xd4e", 3_187_200)]
    cpus = tuple(
        Cpu(number=n, part=part, max_khz=khz, caches={1: 32 << 10, 2: 1 << (17 + (n > 2) + (n > 6))})
        for n, (part, khz) in enumerate(kinds)
    )
    update = {"arch": "aarch64", "cpus": cpus, "cores": 8, "features": ("fp-armv8", "neon"), "parts": ()}
    return probe(LocalLink()).model_copy(update=update)


@pytest.mark.parametrize(
    ("cluster", "cpus"),
    [
        ("fastest", (7,)),
        ("big", (3, 4, 5, 6, 7)),
        ("little", (0, 1, 2)),
        ("all", tuple(range(8))),
        ("0,5-6", (0, 5, 6)),
    ],
)
def test_names_and_lists(phone, cluster, cpus):
    assert choose_cpus(phone, cluster) == cpus


@pytest.mark.parametrize("cluster", ["huge", "", "4-", "7,8"])
def test_what_is_not_there_is_refused(phone, cluster):
    with pytest.raises(UsageError, match=r"no cluster|no CPU 8"):
        choose_cpus(phone, cluster)


def test_the_target_is_that_of_the_cluster(phone):
    little = device_target("phone", phone.only(choose_cpus(phone, "little")))
    assert (little.mcpu, little.threads, little.l2_bytes) == ("cortex-a510", 3, 1 << 17)
    fastest = device_target("phone", phone.only(choose_cpus(phone, "fastest")))
    assert (fastest.mcpu, fastest.threads, fastest.l2_bytes) == ("cortex-x3", 1, 1 << 19)


@pytest.mark.skipif(len(CPUS) < 2, reason="one CPU leaves no choice")
@pytest.mark.parametrize("remote", [False, True])
def test_every_thread_of_a_session_stays_on_its_cpus(remote, request):
    cpus = (CPUS[-1],)
    if remote:
        server = request.getfixturevalue("sshd")
        address = parse_address(server.url, None, server.identity, server.known_hosts)
        device = remote_device("board", address, 2, cpus=cpus)
    else:
        device = local_device(2, cpus)
    with device.up(), lease(device, 90) as session, session.deadline(30, "starting threads"):
        session.function("runtime.config_threadpool")(1, 2)
        assert int(session.function("runtime.NumThreads")()) == 2
        if remote:
            found = [p for p in server.children() if "serve --threads" in " ".join(p.cmdline())]
        else:
            runner = psutil.Process(device.transport.processes()[1])
            found = runner.children()
        threads = [thread.id for process in found for thread in process.threads()]
        assert len(threads) >= 2
        assert {frozenset(os.sched_getaffinity(thread)) for thread in threads} == {frozenset(cpus)}
