"""The address of a device: ``ssh://user@host[:port]`` or ``adb://SERIAL``, and how to connect to it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

from edgetune.devices.link import Link
from edgetune.errors import UsageError

_SCHEMES = ("ssh", "adb")
_HOST = re.compile(r"[A-Za-z0-9._:%-]+")

Ask = Callable[[str], str]
"""Asks the user for a secret with a prompt, without showing it."""


class Address(BaseModel):
    """How a device is reached. Nothing secret is in it.

    Attributes:
        scheme: ``ssh`` or ``adb``.
        host: name or IP address; of adb, the serial.
        port: of SSH; None for the one in the user's SSH configuration, else 22.
        user: of SSH; None for the one in the user's SSH configuration, else the user's own name.
        jump: machines to go through, the first one nearest to here, as ``user@host:port``.
        identity: a private key's file; by default the agent's keys and those in ``~/.ssh``.
        known_hosts: file of the known host keys; by default ``~/.ssh/known_hosts``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    scheme: Literal["ssh", "adb"]
    host: str
    port: int | None = None
    user: str | None = None
    jump: tuple[str, ...] = ()
    identity: Path | None = None
    known_hosts: Path | None = None

    def __str__(self) -> str:
        """Return the URL."""
        host = f"[{self.host}]" if self.scheme == "ssh" and ":" in self.host else self.host
        user = f"{self.user}@" if self.user else ""
        port = f":{self.port}" if self.port else ""
        return f"{self.scheme}://{user}{host}{port}"


def parse_address(
    url: str, jump: str | None = None, identity: Path | None = None, known_hosts: Path | None = None
) -> Address:
    """Read a device's URL.

    Args:
        url: ``ssh://user@host[:port]`` or ``adb://SERIAL``.
        jump: machines to go through, separated by commas, as ssh's ``-J``.
        identity, known_hosts: see :class:`Address`.

    Raises:
        UsageError: it is neither, or holds a password.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in _SCHEMES or not rest:
        raise UsageError(f"{url!r} is no device's address; write ssh://user@host[:port] or adb://SERIAL")
    if scheme == "adb":
        if jump or identity or known_hosts:
            raise UsageError("--jump, --identity and --known-hosts are for ssh:// devices; leave them away")
        return Address(scheme="adb", host=rest)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or not _HOST.fullmatch(host) or parts.path.strip("/") or parts.query or parts.fragment:
        raise UsageError(f"{url!r} is no SSH address; write ssh://user@host or ssh://user@host:port")
    if parts.password is not None:
        raise UsageError(
            "a password does not belong into a device's address: it would be stored; leave it away, "
            "you are asked for it where no key is accepted"
        )
    jumps = tuple(part.strip() for part in (jump or "").split(",") if part.strip())
    return Address(
        scheme="ssh",
        # urlsplit writes it in lower case: host names do not mind, but aliases of ~/.ssh/config do.
        host=_spelled(rest, host),
        port=port,
        user=parts.username,
        jump=jumps,
        identity=identity.expanduser().absolute() if identity else None,
        known_hosts=known_hosts.expanduser().absolute() if known_hosts else None,
    )


def _spelled(rest: str, host: str) -> str:
    found = re.search(re.escape(host), rest.rpartition("@")[2], re.IGNORECASE)
    return found[0] if found else host


class Secrets(BaseModel):
    """What the user was asked for; kept in memory alone.

    Attributes:
        password: of the device. passphrase: of the private key.
    """

    password: str | None = None
    passphrase: str | None = None


def open_link(address: Address, secrets: Secrets, ask: Ask | None = None) -> Link:
    """Connect to a device.

    Args:
        address: of the device.
        secrets: what is known; what the user is asked for is added.
        ask: how to ask; None to fail in place of asking.

    Raises:
        DeviceError: it cannot be reached, its host key is not the known one, or no key or password fits.
    """
    if address.scheme == "adb":
        from edgetune.devices.adb import AdbLink

        return AdbLink(address.host)
    from edgetune.devices.ssh import open_ssh

    return open_ssh(address, secrets, ask)
