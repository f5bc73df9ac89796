"""An OpenSSH server of the tests' own on a loopback port: its host key, its user key, its known_hosts."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from edgetune.devices.address import Address, parse_address

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


class Sshd:
    """One server, of this machine's own programs or of those in ``root`` (a file system for chroot).

    Args:
        folder: for its keys and its log.
        cache: what ``XDG_CACHE_HOME`` is for those who log in.
        root: chroot there.
        forwarding: let connections through to other machines, as a jump host does.
        before: words of a command that starts the server, as ``taskset -c 0``.
        host: where it listens.
        environment: of those who log in.
    """

    def __init__(
        self,
        folder: Path,
        cache: str,
        root: Path | None = None,
        forwarding: bool = False,
        before: Sequence[str] = (),
        host: str = "127.0.0.1",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.cache = cache
        self.root = root
        self.forwarding = forwarding
        self.before = tuple(before)
        self.host = host
        self.environment = {"XDG_CACHE_HOME": cache, **(environment or {})}
        self.port = free_port()
        self.identity = make_key(folder / "user_key")
        self.host_key = make_key(folder / "host_key")
        self.known_hosts = folder / "known_hosts"
        self.trust(self.host_key)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        user = "root" if self.root else getpass.getuser()
        return f"ssh://{user}@{self.host}:{self.port}"

    @property
    def address(self) -> Address:
        """The same as the registry holds it."""
        return parse_address(self.url, None, self.identity, self.known_hosts)

    @property
    def options(self) -> list[str]:
        """What `edgetune devices add` needs to know."""
        return ["--identity", str(self.identity), "--known-hosts", str(self.known_hosts)]

    def trust(self, key: Path) -> None:
        kind, data, *_ = key.with_suffix(".pub").read_text().split()
        self.known_hosts.write_text(f"[{self.host}]:{self.port} {kind} {data}\n")

    def authorize(self, key: Path) -> None:
        """Let another user's key in too; the server has to run."""
        with open(self.folder / "authorized_keys", "a") as file:
            file.write(key.with_suffix(".pub").read_text())

    def start(self) -> None:
        inside = self.root / "etc/edgetune-test" if self.root else self.folder
        inside.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.identity.with_suffix(".pub"), inside / "authorized_keys")
        if inside != self.folder:
            shutil.copy(self.host_key, inside / "host_key")
        there = "/etc/edgetune-test" if self.root else str(inside)
        config = {
            "ListenAddress": f"{self.host}:{self.port}",
            "HostKey": f"{there}/host_key",
            "AuthorizedKeysFile": f"{there}/authorized_keys",
            "PidFile": "none",
            "StrictModes": "no",
            "PermitRootLogin": "prohibit-password",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "AllowTcpForwarding": "yes" if self.forwarding else "no",
            "SetEnv": " ".join(f"{key}={value}" for key, value in self.environment.items()),
        }
        (inside / "sshd_config").write_text("".join(f"{key} {value}\n" for key, value in config.items()))
        program = "/usr/sbin/sshd" if self.root else str(SSHD)
        command = [*self.before, program, "-D", "-e", "-f", f"{there}/sshd_config"]
        if self.root:
            command = ["chroot", str(self.root), *command]
            (self.root / "run/sshd").mkdir(parents=True, exist_ok=True)
        elif os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        with open(self.folder / "sshd.log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self._wait()

    def _wait(self) -> None:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            assert self.process is not None
            assert self.process.poll() is None, self.said()
            try:
                with socket.create_connection((self.host, self.port), timeout=5) as connection:
                    connection.settimeout(10)
                    if connection.recv(4) == b"SSH-":
                        return
            except OSError:
                time.sleep(0.05)
        raise AssertionError(f"sshd does not answer: {self.said()}")

    def said(self) -> str:
        return (self.folder / "sshd.log").read_text()[-2000:]

    def children(self) -> list[psutil.Process]:
        """Everything that runs below the server: its connections and their commands."""
        assert self.process is not None
        return psutil.Process(self.process.pid).children(recursive=True)

    def runners(self) -> list[psutil.Process]:
        """The runner's processes on the device: the one that watches, and the one that serves."""
        return [process for process in self.children() if "serve --threads" in " ".join(process.cmdline())]

    def stop(self) -> None:
        """End the server and the connections to it, as when the machine dies."""
        if self.process is None:
            return
        processes = (
            [*self.children(), psutil.Process(self.process.pid)] if self.process.poll() is None else []
        )
        for process in reversed(processes):
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        self.process.wait(10)
        self.process = None


def make_key(path: Path, passphrase: str = "") -> Path:
    if not path.exists():
        command = [
            "ssh-keygen",
            "-q",
            "-t",
            "ed25519",
            "-N",
            passphrase,
            "-C",
            "edgetune test",
            "-f",
            str(path),
        ]
        subprocess.run(command, check=True)
    return path


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
