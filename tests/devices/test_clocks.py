"""Governors are changed only inside the context, and put back whatever dies: edgetune, the keeper, or both."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgetune.devices.address import Secrets, open_link, parse_address
from edgetune.devices.clocks import FixedClocks, restore_leftovers
from edgetune.devices.local_link import LocalLink
from edgetune.errors import DeviceError
from tests.devices import trees


class Link(LocalLink):
    """This machine, with edgetune's files in a folder of the test's."""

    def __init__(self, folder) -> None:
        self.home = f'"{folder}"'


@pytest.fixture
def pi(tmp_path):
    return trees.raspberry_pi_5(tmp_path / "pi")


@pytest.fixture
def link(tmp_path):
    return Link(tmp_path / "home")


def governors(root):
    return {
        path.read_text().strip() for path in root.glob("sys/devices/system/cpu/*/cpufreq/scaling_governor")
    }


def wait_for(root, governor):
    end = time.monotonic() + 20
    while governors(root) != {governor}:
        assert time.monotonic() < end, governors(root)
        time.sleep(0.02)


def test_inside_they_are_fixed_and_afterwards_as_before(pi, link, tmp_path):
    with FixedClocks(lambda: link, str(pi)) as clocks:
        assert governors(pi) == {"performance"}
        assert clocks.fixed
        assert {(change.before, change.after) for change in clocks.changes} == {("ondemand", "performance")}
        with FixedClocks(lambda: Link(tmp_path / "home"), str(pi)) as second:
            assert not second.fixed
            assert "another run" in second.notes[0]
        assert governors(pi) == {"performance"}, "the second one has put back what the first one's is"
    assert governors(pi) == {"ondemand"}
    assert clocks.notes == ()
    assert os.listdir(tmp_path / "home") == []


def test_nothing_to_fix_is_said(tmp_path, link):
    with FixedClocks(lambda: link, str(tmp_path)) as clocks:
        assert not clocks.fixed
    assert "no governor" in clocks.notes[0]


@pytest.mark.parametrize("over_ssh", [False, True])
def test_a_killed_edgetune_leaves_nothing_changed(pi, tmp_path, over_ssh, request):
    """``kill -9``: the keeper's input ends with the connection."""
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from edgetune.devices.clocks import FixedClocks\n"
        "from edgetune.devices.local_link import LocalLink\n"
        "from edgetune.devices.address import Secrets, open_link, parse_address\n"
        "link = open_link(parse_address(sys.argv[2], None, *map(Path, sys.argv[3:])), Secrets()) if sys.argv[2:] "
        "else LocalLink()\n"
        "with FixedClocks(lambda: link, sys.argv[1]): print('fixed', flush=True); time.sleep(60)\n"
    )
    where = []
    if over_ssh:
        server = request.getfixturevalue("sshd")
        where = [server.url, str(server.identity), str(server.known_hosts)]
    command = [sys.executable, "-c", code, str(pi), *where]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "fixed\n"
        assert governors(pi) == {"performance"}
        process.send_signal(signal.SIGKILL)
    wait_for(pi, "ondemand")


def test_where_the_keeper_dies_too_the_next_start_restores(pi, link, tmp_path):
    def kill_keeper():
        keeper = int(os.readlink(tmp_path / "home/settings.lock").split(".")[0])
        os.killpg(keeper, signal.SIGKILL)

    with FixedClocks(lambda: link, str(pi)):
        kill_keeper()
    assert governors(pi) == {"performance"}
    with FixedClocks(lambda: link, str(pi)) as again:
        assert {change.before for change in again.changes} == {"ondemand"}, "not what the killed run had set"
        kill_keeper()
    assert governors(pi) == {"performance"}
    restore_leftovers(link)
    assert governors(pi) == {"ondemand"}
    assert os.listdir(tmp_path / "home") == []
    restore_leftovers(link)


def test_a_journal_from_before_a_restart_is_void(pi, link, tmp_path):
    (tmp_path / "home").mkdir()
    file = pi / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    (tmp_path / "home/settings.journal").write_text(f"boot|another\n{file}|powersave\n")
    restore_leftovers(link)
    assert governors(pi) == {"ondemand"}
    assert os.listdir(tmp_path / "home") == []


def set_governor(root, governor):
    for path in root.glob("sys/devices/system/cpu/*/cpufreq/scaling_governor"):
        path.write_text(f"{governor}\n")


def test_a_restarted_device_gets_fixed_clocks_again(pi, sshd):
    linker = functools.partial(open_link, sshd.address, Secrets())
    with FixedClocks(linker, str(pi)) as clocks:
        clocks.renew()
        assert clocks.notes == ()
        # As when the power fails: nothing there ends in order, and the kernel starts with its own settings.
        sshd.stop()
        with pytest.raises(DeviceError):
            clocks.renew()
        set_governor(pi, "ondemand")
        journal = Path(sshd.cache, "edgetune/settings.journal")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        journal.write_text(
            journal.read_text().replace(boot, "the boot before").replace("ondemand", "powersave")
        )
        sshd.start()
        clocks.renew()
        assert governors(pi) == {"performance"}
        assert "fixed again" in clocks.notes[0]
        assert clocks.fixed
    assert governors(pi) == {"ondemand"}
    clocks.renew()
    assert governors(pi) == {"ondemand"}


def test_a_keeper_that_does_not_answer_is_replaced_by_its_own_run(pi, sshd, tmp_path):
    """A connection was cut, which the device does not know yet."""
    linker = functools.partial(open_link, sshd.address, Secrets())
    with FixedClocks(linker, str(pi)) as clocks:
        before = os.readlink(f"{sshd.cache}/edgetune/settings.lock")
        os.kill(int(before.split(".")[0]), signal.SIGSTOP)
        clocks.renew()
        after = os.readlink(f"{sshd.cache}/edgetune/settings.lock")
        assert after.split(".")[0] != before.split(".")[0]
        assert after.split(".")[-1] == before.split(".")[-1]
        assert governors(pi) == {"performance"}
    assert governors(pi) == {"ondemand"}
    assert not any("settings" in name for name in os.listdir(f"{sshd.cache}/edgetune"))


def test_over_ssh(pi, sshd):
    address = parse_address(sshd.url, None, sshd.identity, sshd.known_hosts)
    with FixedClocks(lambda: open_link(address, Secrets()), str(pi)) as clocks:
        assert clocks.fixed
        assert governors(pi) == {"performance"}
    assert governors(pi) == {"ondemand"}
