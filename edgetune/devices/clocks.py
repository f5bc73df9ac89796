"""Fixes a device's clocks while it measures, and puts them back whatever happens.

Changed is the frequency governor of each CPU, to ``performance``, and only where the user has asked for it. What puts
it back is a small shell program on the device itself, the *keeper*: it writes the old values into a journal in
edgetune's folder there, changes them, and waits for its input to end. However edgetune dies, the connection and with
it that input ends, and the keeper restores. Where the keeper is killed too, its journal is applied at the next start;
after a restart of the device, which forgets such settings by itself, the journal is void.

A lock names the keeper's process, so that two runs do not take each other's settings for the original ones.

Sources: Linux ``Documentation/admin-guide/pm/cpufreq.rst``; ``proc(5)`` for a process's start time.
"""

from __future__ import annotations

import contextlib
import shlex
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from edgetune.devices.link import Link, Stream

GOVERNOR = "performance"
_TIMEOUT_S = 30.0
_COMMON = r"""
exec 2>/dev/null
trap '' HUP INT TERM PIPE
umask 077; mkdir -p "$home"
lock=$home/settings.lock journal=$home/settings.journal
boot=$(cat /proc/sys/kernel/random/boot_id)
started() { stat=$(cat "/proc/$1/stat") || return; set -- ${stat##*) }; shift 19; echo "$1"; }
put() { printf '%s\n' "$2" > "$1" || printf '%s\n' "$2" | sudo -n tee "$1" > /dev/null; }
restore() {
  left=
  while IFS='|' read -r path value; do
    case $path in boot) [ "$value" = "$boot" ] || break; continue;; esac
    put "$path" "$value"; read -r now < "$path"
    [ "$now" = "$value" ] || left="$left $path"
  done < "$journal"
  [ -n "$left" ] || rm -f "$journal"
  rm -f "$lock"
  [ -z "$left" ] && echo restored || echo "left|$left"
}
while ! ln -s "$$.$(started $$).$boot" "$lock"; do
  owner=$(readlink "$lock") || { echo "unwritable|$home"; exit; }
  pid=${owner%%.*}
  [ "${owner#*.}" = "$(started "$pid").$boot" ] && { echo "held|$pid"; exit; }
  rm -f "$lock"
done
"""
_RESTORE = r"""
[ -s "$journal" ] && restore
rm -f "$lock"
echo done
"""
_KEEP = r"""
if [ -s "$journal" ]; then restore > /dev/null; ln -s "$$.$(started $$).$boot" "$lock"; fi
echo "boot|$boot" > "$journal.new"
for file in "$root"/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor; do
  read -r old < "$file" || continue
  read -r available < "${file%governor}available_governors"
  case " $available " in *" $governor "*) ;; *) continue;; esac
  echo "present|$file|$old"
  [ "$old" = "$governor" ] || echo "$file|$old" >> "$journal.new"
done
mv "$journal.new" "$journal"
while IFS='|' read -r path value; do
  [ "$path" = boot ] && continue
  put "$path" "$governor"; read -r now < "$path"
  echo "changed|$path|$now"
done < "$journal"
echo ready
while read -r word; do [ "$word" = end ] && break; done
restore
"""


@dataclass(frozen=True)
class Change:
    """One setting: the kernel's file, what it was, and what it is now."""

    path: str
    before: str
    after: str


class FixedClocks:
    """A context in which a device's CPUs run with the ``performance`` governor.

    Args:
        link: to the device; owned, and closed at the end.
        root: what stands before the paths of the kernel's files.

    Attributes:
        changes: what was tried. notes: what did not work, for the user.
    """

    def __init__(self, link: Link, root: str = "") -> None:
        self._link = link
        self._root = root
        self._stream: Stream | None = None
        self.changes: tuple[Change, ...] = ()
        self.notes: tuple[str, ...] = ()

    @property
    def fixed(self) -> bool:
        """Whether every CPU runs with the governor."""
        return bool(self.changes) and all(change.after == GOVERNOR for change in self.changes)

    def __enter__(self) -> Self:
        """Change the settings, as far as the user of the device may.

        Raises:
            DeviceError: the connection broke.
        """
        self._stream = self._link.stream(_script(self._link, self._root, _KEEP))
        before: dict[str, str] = {}
        after: dict[str, str] = {}
        for line in self._lines():
            word, _, rest = line.partition("|")
            path, _, value = rest.partition("|")
            if word == "present":
                before[path] = value
            elif word == "changed":
                after[path] = value
            elif word in ("held", "unwritable"):
                self.notes += (_refusal(self._link.address, word, rest),)
                return self
            elif word == "ready":
                break
        self.changes = tuple(Change(path, old, after.get(path, old)) for path, old in before.items())
        if not self.fixed:
            self.notes += (self._why_not(),)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Put the settings back, and wait until they are."""
        if self._stream is not None:
            with contextlib.suppress(OSError, EOFError):
                self._stream.send(b"end\n")
                for line in self._lines():
                    if line.startswith("left|"):
                        self.notes += (
                            f"{self._link.address} keeps changed settings: {line[5:].strip()}; set them there yourself",
                        )
            self._stream.close()
        self._link.close()

    def _lines(self) -> list[str]:
        """What the keeper says until it is ready, or has ended."""
        assert self._stream is not None
        alarm = threading.Timer(_TIMEOUT_S, self._stream.close)
        alarm.daemon = True
        alarm.start()
        text = b""
        try:
            while not text.endswith((b"ready\n", b"restored\n")):
                piece = self._stream.receive(4096)
                if not piece:
                    break
                text += piece
        except (OSError, EOFError, ValueError):
            pass
        finally:
            alarm.cancel()
        return text.decode("utf-8", "replace").splitlines()

    def _why_not(self) -> str:
        where = self._link.address
        if not self.changes:
            return f"the clocks of {where} were not fixed: its kernel offers no governor '{GOVERNOR}'"
        return (
            f"the clocks of {where} were not fixed: its user may not write {self.changes[0].path}; log in as root, or "
            "let the user run tee with `sudo -n`"
        )


@dataclass(frozen=True)
class Clocks:
    """Whether clocks are fixed, and what the user should know of it (complete only after the context's end)."""

    keeper: FixedClocks | None = None

    @property
    def fixed(self) -> bool:
        """Whether every CPU runs with the governor."""
        return self.keeper is not None and self.keeper.fixed

    @property
    def notes(self) -> tuple[str, ...]:
        """What did not work."""
        return () if self.keeper is None else self.keeper.notes


@contextlib.contextmanager
def controlled_clocks(linker: Callable[[], Link] | None, fix: bool, root: str = "") -> Iterator[Clocks]:
    """Put back what a killed run has left, then fix a device's clocks where ``fix`` asks for it.

    Args:
        linker: opens a connection to the device; None for one that has no clocks.
        fix: whether the user wants it. root: what stands before the paths of the kernel's files.

    Raises:
        DeviceError: the connection broke.
    """
    if linker is None:
        yield Clocks()
        return
    with contextlib.closing(linker()) as link:
        restore_leftovers(link)
    if not fix:
        yield Clocks()
        return
    with FixedClocks(linker(), root) as keeper:
        yield Clocks(keeper)


def restore_leftovers(link: Link) -> None:
    """Put settings back that a killed run has left behind; does nothing where there are none.

    Raises:
        DeviceError: the connection broke.
    """
    if link.run(f"test -s {link.home}/settings.journal").code == 0:
        link.run(_script(link, "", _RESTORE), _TIMEOUT_S)


def _script(link: Link, root: str, body: str) -> str:
    return f"home={link.home} root={shlex.quote(root)} governor={GOVERNOR}\n{_COMMON}{body}"


def _refusal(address: str, word: str, rest: str) -> str:
    if word == "held":
        return f"the clocks of {address} were not changed: another run of edgetune there, process {rest}, keeps them"
    return f"the clocks of {address} were not changed: its folder {rest} cannot be written"
