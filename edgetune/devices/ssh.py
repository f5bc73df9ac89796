"""SSH: the connection to a device over paramiko.

Host keys are checked, always: against ``~/.ssh/known_hosts`` and the system's file. An unknown key is
refused with its fingerprint, a changed one too; accepting one is an act of its own (:func:`accept_key`).
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import socket
import time
from pathlib import Path
from typing import Any, NoReturn

import paramiko

from edgetune.devices.address import Address, Ask, Secrets
from edgetune.devices.link import Output
from edgetune.errors import DeviceError

CONNECT_TIMEOUT_S = 15.0
_DEAD_AFTER_MS = 20_000
"""Sent bytes that nobody acknowledges for so long mean that the network is cut (``TCP_USER_TIMEOUT``)."""
_KEEPALIVE_S = 10
_SYSTEM_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")
_ATTEMPTS = 3


class UnknownHostKeyError(DeviceError):
    """The device shows a host key that is not known.

    Attributes:
        name: of the host, as known_hosts files spell it. key: what it showed.
    """

    def __init__(self, message: str, name: str, key: paramiko.PKey) -> None:
        super().__init__(message)
        self.name = name
        self.key = key


def open_ssh(address: Address, secrets: Secrets, ask: Ask | None = None) -> SshLink:
    """Connect, through jump hosts where there are any; see :func:`edgetune.devices.address.open_link`."""
    config = _user_config(address.host)
    jumps = address.jump or tuple(
        part.strip() for part in config.get("proxyjump", "").split(",") if part.strip() not in ("", "none")
    )
    clients: list[paramiko.SSHClient] = []
    try:
        for hop in jumps:
            clients.append(_connect(_hop(hop, address), clients, Secrets(), ask))
        clients.append(_connect(address, clients, secrets, ask))
    except BaseException:
        for client in reversed(clients):
            client.close()
        raise
    return SshLink(str(address), clients)


def accept_key(error: UnknownHostKeyError, known_hosts: Path | None) -> Path:
    """Add a host key that the user has compared to the known ones, and return the file.

    Raises:
        DeviceError: the file cannot be written.
    """
    path = known_hosts or _user_known_hosts()
    line = f"{error.name} {error.key.get_name()} {error.key.get_base64()}\n"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8"
        ) as file:
            file.write(line)
    except OSError as problem:
        raise DeviceError(
            f"The host key cannot be added to {path}: {problem.strerror}. Make the file writable, or name "
            "another one with --known-hosts."
        ) from problem
    return path


class SshLink:
    """A connection over SSH; each command is a channel of its own."""

    home = '"${XDG_CACHE_HOME:-$HOME/.cache}/edgetune"'

    def __init__(self, address: str, clients: list[paramiko.SSHClient]) -> None:
        self.address = address
        self._clients = clients

    def run(self, command: str, timeout_s: float = 30.0) -> Output:
        """Run a command and wait for its end."""
        return self._run(command, b"", timeout_s)

    def push(self, data: bytes, path: str, timeout_s: float = 300.0) -> None:
        """Write a file with nothing but the shell: sftp is missing on some devices."""
        quoted = shlex.quote(path)
        done = self._run(f"umask 077; cat > {quoted} && chmod 700 {quoted}", data, timeout_s)
        if done.code != 0:
            raise DeviceError(
                f"{self.address} cannot store {path}: {done.complaint}. Free space there, or make the folder "
                "writable."
            )

    def stream(self, command: str) -> SshStream:
        """Start a command and return its streams."""
        return SshStream(self._channel(command, CONNECT_TIMEOUT_S))

    def alive(self) -> bool:
        """Whether the connection stands."""
        transport = self._clients[-1].get_transport()
        return transport is not None and transport.is_active()

    def close(self) -> None:
        """Close the connection and those to jump hosts."""
        for client in reversed(self._clients):
            client.close()

    def _channel(self, command: str, timeout_s: float) -> paramiko.Channel:
        transport = self._clients[-1].get_transport()
        try:
            if transport is None:
                raise EOFError
            channel = transport.open_session(timeout=timeout_s)
            channel.settimeout(timeout_s)
            # The login shell may be any; the commands are for a POSIX one.
            channel.exec_command(f"exec sh -c {shlex.quote(command)}")
        except (paramiko.SSHException, EOFError, OSError) as error:
            self._lost(error)
        return channel

    def _run(self, command: str, data: bytes, timeout_s: float) -> Output:
        deadline = time.monotonic() + timeout_s
        channel = self._channel(command, min(timeout_s, CONNECT_TIMEOUT_S))
        try:
            channel.settimeout(timeout_s)
            with contextlib.suppress(OSError):  # it may end without reading all: its code says why
                channel.sendall(data)
            channel.shutdown_write()
            stdout = _read_all(channel.recv, channel, deadline)
            stderr = _read_all(channel.recv_stderr, channel, deadline)
            code = channel.recv_exit_status()
        except TimeoutError as error:
            raise DeviceError(
                f"{self.address} did not end a command within {timeout_s:.0f} s. Is the device overloaded, or "
                "the network cut?"
            ) from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            self._lost(error)
        finally:
            channel.close()
        if code == -1 and not self.alive():
            self._lost(EOFError("the connection was closed"))
        return Output(code, stdout, stderr)

    def _lost(self, error: BaseException) -> NoReturn:
        raise DeviceError(
            f"The connection to {self.address} broke: {error or type(error).__name__}. Check the network and "
            "the device, then run the command again."
        ) from error


class SshStream:
    """A command's channel."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel
        channel.settimeout(None)

    def send(self, data: bytes) -> None:
        """Write all of ``data``."""
        self._channel.sendall(data)

    def receive(self, size: int) -> bytes:
        """Wait for output."""
        return self._channel.recv(size)

    def complaint(self) -> str:
        """The last line of standard error."""
        text = b""
        while self._channel.recv_stderr_ready():
            text += self._channel.recv_stderr(4096)
        lines = text.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""

    def close(self) -> None:
        """Close the channel: the command's input ends."""
        with contextlib.suppress(OSError, EOFError):  # the connection may be gone already
            self._channel.close()


def _read_all(read: Any, channel: paramiko.Channel, deadline: float) -> bytes:
    pieces: list[bytes] = []
    while True:
        channel.settimeout(max(0.1, deadline - time.monotonic()))
        piece = read(65536)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)


def _hop(text: str, device: Address) -> Address:
    from edgetune.devices.address import parse_address

    hop = parse_address(text if "://" in text else f"ssh://{text}")
    return hop.model_copy(update={"identity": device.identity, "known_hosts": device.known_hosts})


def _connect(
    address: Address, through: list[paramiko.SSHClient], secrets: Secrets, ask: Ask | None
) -> paramiko.SSHClient:
    """Connect to one machine, over the last of the connections that stand already."""
    config = _user_config(address.host)
    host = config.get("hostname", address.host)
    port = address.port or int(config.get("port", 22))
    user = address.user or config.get("user", getpass.getuser())
    identities = [str(address.identity)] if address.identity else config.get("identityfile", [])
    for attempt in range(_ATTEMPTS):
        client = paramiko.SSHClient()
        _load_known_hosts(client, address.known_hosts)
        client.set_missing_host_key_policy(_Refuse(str(address)))
        try:
            client.connect(
                host,
                port,
                user,
                secrets.password,
                key_filename=identities or None,
                passphrase=secrets.passphrase,
                look_for_keys=address.identity is None,
                timeout=CONNECT_TIMEOUT_S,
                banner_timeout=CONNECT_TIMEOUT_S,
                auth_timeout=2 * CONNECT_TIMEOUT_S,
                sock=_socket(through, host, port),
            )
        except Exception as error:
            client.close()
            _explain_or_ask(
                error, address, f"{user}@{host}", secrets, ask if attempt < _ATTEMPTS - 1 else None
            )
            continue
        _watch(client)
        return client
    raise AssertionError("unreachable")


def _explain_or_ask(error: Exception, address: Address, whom: str, secrets: Secrets, ask: Ask | None) -> None:
    """Ask for what is missing; raise where nothing is, or nobody can be asked.

    Raises:
        DeviceError: what is wrong, and what to do.
    """
    if isinstance(error, DeviceError):
        raise error
    if isinstance(error, paramiko.BadHostKeyException):
        raise DeviceError(
            f"The host key of {address} has CHANGED: it shows {error.key.get_name()} {error.key.fingerprint}, "
            f"known is {error.expected_key.fingerprint}. Somebody may listen in between; nothing was sent. If "
            "the device was installed anew, remove its old key with `ssh-keygen -R "
            f"{shlex.quote(_known_name(error.hostname, address.port))}` and add the device again."
        ) from error
    if isinstance(error, paramiko.PasswordRequiredException) and ask is not None:
        secrets.passphrase = ask(f"Passphrase of the private key for {whom}: ")
        return
    if isinstance(error, paramiko.AuthenticationException | paramiko.SSHException) and _is_refusal(error):
        if ask is not None:
            secrets.password = ask(f"Password of {whom}: ")
            return
        raise DeviceError(
            f"{address} accepts none of your keys for {whom}. Copy one there with `ssh-copy-id`, name one with "
            "--identity, or run the command in a terminal to be asked for the password."
        ) from error
    raise DeviceError(
        f"{address} cannot be reached: {_reason(error)}. Check that the device is on, the address and port, "
        "and that its SSH server runs."
    ) from error


def _is_refusal(error: Exception) -> bool:
    return isinstance(error, paramiko.AuthenticationException) or "authentication" in str(error).lower()


def _reason(error: Exception) -> str:
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError):
        return str(next(iter(error.errors.values())))
    return str(error) or type(error).__name__


class _Refuse(paramiko.MissingHostKeyPolicy):
    """Refuses unknown host keys and says how to accept one."""

    def __init__(self, address: str) -> None:
        self._address = address

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> NoReturn:
        """Refuse."""
        raise UnknownHostKeyError(
            f"The host key of {self._address} is not known: {key.get_name()} {key.fingerprint}. Compare it with "
            "what `ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub` says on the device itself; if it is the same, "
            f"repeat `edgetune devices add` with --host-key {key.fingerprint}.",
            hostname,
            key,
        )


def _known_name(host: str, port: int | None) -> str:
    return host if host.startswith("[") or port in (None, 22) else f"[{host}]:{port}"


def _load_known_hosts(client: paramiko.SSHClient, own: Path | None) -> None:
    for path in (own,) if own else (_user_known_hosts(), _SYSTEM_KNOWN_HOSTS):
        try:
            client.load_system_host_keys(str(path))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise DeviceError(f"The known host keys in {path} cannot be read: {error.strerror}.") from error


def _user_known_hosts() -> Path:
    return Path("~/.ssh/known_hosts").expanduser()


def _user_config(host: str) -> dict[str, Any]:
    """What ``~/.ssh/config`` says of a host."""
    path = Path("~/.ssh/config").expanduser()
    try:
        return dict(paramiko.SSHConfig.from_path(str(path)).lookup(host))
    except OSError:
        return {}
    except Exception as error:
        raise DeviceError(f"{path} cannot be understood: {error}. Correct that line.") from error


def _socket(through: list[paramiko.SSHClient], host: str, port: int) -> Any:
    """A connection over the last jump host; None to connect directly."""
    if not through:
        return None
    transport = through[-1].get_transport()
    assert transport is not None
    return transport.open_channel("direct-tcpip", (host, port), ("127.0.0.1", 0), timeout=CONNECT_TIMEOUT_S)


def _watch(client: paramiko.SSHClient) -> None:
    """Have a cut network noticed."""
    transport = client.get_transport()
    assert transport is not None
    transport.set_keepalive(_KEEPALIVE_S)
    if isinstance(transport.sock, socket.socket):
        transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError, AttributeError):  # Linux only
            transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_AFTER_MS)


def has_own_route(host: str) -> bool:
    """Whether the user's SSH configuration says how to reach a host: another name, port or a jump host."""
    return bool({"hostname", "port", "proxyjump"} & set(_explicit(host)))


def _explicit(host: str) -> dict[str, Any]:
    config = _user_config(host)
    return {key: value for key, value in config.items() if not (key == "hostname" and value == host)}
