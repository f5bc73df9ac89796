"""A whole ARM machine without one: an arm64 Debian root whose programs qemu runs, with its own SSH server.

What it needs of this machine, Debian's packages ``debootstrap`` and ``qemu-user-static``, the right to chroot and
to mount, is checked by :func:`missing`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import platformdirs

_BINFMT = Path("/proc/sys/fs/binfmt_misc")
_SETTING = Path("/usr/lib/binfmt.d/qemu-aarch64.conf")
_PACKAGES = ("debootstrap", "dpkg-deb", "chroot", "mount")


class UnavailableError(Exception):
    """This machine does not let an emulated one be made: a container without mounts, a network without packages."""


def missing() -> str:
    """What this machine lacks to emulate another one; empty if nothing."""
    if os.getuid() != 0:
        return "only root may chroot and mount"
    absent = [program for program in _PACKAGES if not shutil.which(program)]
    if absent or not _SETTING.exists():
        return f"not installed: {', '.join(absent) or 'qemu-user-static'}"
    return ""


def arm64_root() -> Path:
    """The root file system, built when first asked for: 40 s, most of it download.

    Raises:
        UnavailableError: it cannot be built here.
    """
    _register_qemu()
    cache = Path(platformdirs.user_cache_dir("edgetune", appauthor=False)) / "test-roots"
    root = cache / "arm64-bookworm"
    if root.is_dir():
        return root
    cache.mkdir(parents=True, exist_ok=True)
    new = cache / f".new-{os.getpid()}"
    try:
        # The second stage would configure each package under emulation, for minutes; nothing here needs it.
        command = [
            "debootstrap",
            "--foreign",
            "--arch=arm64",
            "--variant=minbase",
            "--include=openssh-server",
        ]
        _run([*command, "bookworm", str(new)])
        for package in sorted((new / "var/cache/apt/archives").glob("*.deb")):
            _run(["dpkg-deb", "-x", str(package), str(new)])
            package.unlink()
        _write(
            new / "etc/passwd",
            "root:x:0:0:root:/root:/bin/sh\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n",
        )
        _write(new / "etc/group", "root:x:0:\nnogroup:x:65534:\n")
        try:
            new.rename(root)
        except OSError:
            if not root.is_dir():  # else another process was quicker
                raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return root


class Mounted:
    """The root with its ``/proc`` and ``/dev`` mounted."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __enter__(self) -> Path:
        _run(["mount", "-t", "proc", "proc", str(self.root / "proc")])
        for name in ("null", "urandom", "random", "zero", "tty"):
            device = self.root / "dev" / name
            if not device.exists():
                minor = {"null": 3, "zero": 5, "random": 8, "urandom": 9}.get(name)
                numbers = os.makedev(1, minor) if minor is not None else os.makedev(5, 0)
                os.mknod(device, 0o666 | 0o020000, numbers)
                device.chmod(0o666)
        return self.root

    def __exit__(self, *_: object) -> None:
        _run(["umount", "--lazy", str(self.root / "proc")])


def _register_qemu() -> None:
    """Have the kernel start arm64 programs with qemu, as the package's own service would."""
    if not (_BINFMT / "register").exists():
        _run(["mount", "-t", "binfmt_misc", "binfmt_misc", str(_BINFMT)])
    if not (_BINFMT / "qemu-aarch64").exists():
        try:
            (_BINFMT / "register").write_text(_SETTING.read_text().strip())
        except OSError as error:
            if (_BINFMT / "qemu-aarch64").exists():  # another process was quicker
                return
            raise UnavailableError(f"qemu cannot be registered: {error}") from error


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise UnavailableError(f"{' '.join(command)}: {(done.stderr or done.stdout)[-1000:]}")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
