"""Usable cores and caches, from file trees as kernels lay them out and from real limits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgetune import machine


def _proc(root: Path, cgroup: str, mountinfo: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    (root / "proc/self/mountinfo").write_text(mountinfo)
    return root / "proc"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_v2_smallest_limit_on_the_way_up_holds(tmp_path):
    mount = tmp_path / "cg"
    proc = _proc(tmp_path, "0::/a/b\n", f"30 23 0:26 / {mount} rw - cgroup2 cgroup2 rw,nsdelegate\n")
    _write(mount / "a/cpu.max", "150000 100000")
    _write(mount / "a/b/cpu.max", "max 100000")
    assert machine.cpu_quota(proc) == 1.5
    _write(mount / "a/b/cpu.max", "50000 100000")
    assert machine.cpu_quota(proc) == 0.5


def test_v2_in_a_container_the_mount_point_is_the_group(tmp_path):
    mount = tmp_path / "cg"
    proc = _proc(tmp_path, "0::/../../x\n", f"30 23 0:26 / {mount} rw - cgroup2 cgroup2 rw\n")
    _write(mount / "cpu.max", "400000 100000")
    assert machine.cpu_quota(proc) == 4


def test_v1_controllers_share_a_mount(tmp_path):
    mount = tmp_path / "cg"
    proc = _proc(
        tmp_path,
        "4:cpu,cpuacct:/docker/1f\n3:cpuset:/docker/1f\n",
        f"36 25 0:32 /docker/1f {mount} ro - cgroup cgroup rw,cpu,cpuacct\n",
    )
    _write(mount / "cpu.cfs_quota_us", "250000")
    _write(mount / "cpu.cfs_period_us", "100000")
    assert machine.cpu_quota(proc) == 2.5


def test_v1_without_limit(tmp_path):
    mount = tmp_path / "cg"
    proc = _proc(tmp_path, "4:cpu:/\n", f"36 25 0:32 / {mount} rw - cgroup cgroup rw,cpu\n")
    _write(mount / "cpu.cfs_quota_us", "-1")
    _write(mount / "cpu.cfs_period_us", "100000")
    assert machine.cpu_quota(proc) is None


def test_no_cgroups_is_no_limit(tmp_path):
    assert machine.cpu_quota(tmp_path) is None


def test_mount_points_with_spaces(tmp_path):
    mount = tmp_path / "c g"
    escaped = str(mount).replace(" ", "\\040")
    proc = _proc(tmp_path, "0::/\n", f"30 23 0:26 / {escaped} rw - cgroup2 cgroup2 rw\n")
    _write(mount / "cpu.max", "200000 100000")
    assert machine.cpu_quota(proc) == 2


def _usable_cores(before: str = "") -> int:
    code = f"import os; {before}; from edgetune.machine import usable_cores; print(usable_cores())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_affinity_holds():
    one = min(os.sched_getaffinity(0))
    assert _usable_cores(f"os.sched_setaffinity(0, {{{one}}})") == 1


def test_a_real_cgroup_quota_holds():
    folder = Path("/sys/fs/cgroup/cpu")
    v1 = (folder / "cpu.cfs_quota_us").exists()
    group = (folder if v1 else Path("/sys/fs/cgroup")) / f"edgetune-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"may not make a cgroup: {error}")
    try:
        limit = group / ("cpu.cfs_quota_us" if v1 else "cpu.max")
        try:
            limit.write_text("100000" if v1 else "100000 100000")
        except OSError as error:
            pytest.skip(f"no CPU controller for this cgroup: {error}")
        join = f"open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))"
        assert _usable_cores(join) == 1
    finally:
        group.rmdir()


def test_hyper_threads_of_one_core_count_once(tmp_path):
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        _write(tmp_path / f"cpu{cpu}/topology/thread_siblings_list", siblings)
    assert machine._physical_cores(frozenset({0, 1, 2, 3}), tmp_path) == 2
    assert machine._physical_cores(frozenset({0, 2}), tmp_path) == 1
    assert machine._physical_cores(frozenset({0, 1}), tmp_path) == 2


def test_unknown_topology_counts_every_cpu(tmp_path):
    assert machine._physical_cores(frozenset({0, 1, 2}), tmp_path) == 3


def test_caches_as_sysfs_tells_them(tmp_path):
    levels = [
        ("1", "Data", "48K"),
        ("1", "Instruction", "32K"),
        ("2", "Unified", "1024K"),
        ("3", "Unified", "32M"),
    ]
    for index, (level, kind, size) in enumerate(levels):
        for name, text in (("level", level), ("type", kind), ("size", size)):
            _write(tmp_path / f"cpu5/cache/index{index}/{name}", text)
    assert machine.caches(5, tmp_path) == machine.Caches(48 << 10, 1 << 20, 32 << 20)


def test_silent_kernel_has_no_caches(tmp_path):
    assert machine.caches(0, tmp_path) == machine.Caches()
