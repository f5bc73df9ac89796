"""Fixes a device's clocks while it measures, and puts them back whatever happens.

Changed is the frequency governor of each CPU, to ``performance``, and only where the user has asked for it. What puts
it back is a small shell program on the device itself, the *keeper*: it writes the old values into a journal in
edgetune's folder there, changes them, and waits for its input to end. However edgetune dies, the connection and with
it that input ends, and the keeper restores. Where the keeper is killed too, its journal is applied at the next start;
after a restart of the device, which forgets such settings by itself, the journal is void.

A lock names the keeper's process, so that two runs do not take each other's settings for the original ones. It names
the run, too: a keeper of the same run whose connection was cut, and does not know it yet, is replaced.

A device that was restarted has forgotten the settings: :meth:`FixedClocks.renew` asks the keeper whether it is still
there, and starts another one where it is not.

Sources: Linux ``Documentation/admin-guide/pm/cpufreq.rst``; ``proc(5)`` for a process's start time.
"""

from __future__ import annotations

import contextlib
import secrets
import shlex
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from edgetune.devices.link import Link, Stream

GOVERNOR = "performance"
_TIMEOUT_S = 30.0
_ANSWER_S = 5.0
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
while ! ln -s "$$.$(started $$).$boot.$run" "$lock"; do
  owner=$(readlink "$lock") || { echo "unwritable|$home"; exit; }
  pid=${owner%%.*} of=${owner##*.} rest=${owner#*.}
  if [ "${rest%.*}" = "$(started "$pid").$boot" ]; then
    [ "$of" = "$run" ] || { echo "held|$pid"; exit; }
    kill -9 "$pid"
  fi
  rm -f "$lock"
done
"""
_RESTORE = r"""
[ -s "$journal" ] && restore
rm -f "$lock"
echo done
"""
_KEEP = r"""
if [ -s "$journal" ]; then restore > /dev/null; ln -s "$$.$(started $$).$boot.$run" "$lock"; fi
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
while read -r word; do [ "$word" = end ] && break; echo here; done
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

    Threads: :meth:`renew` may be called by any; after the context's end it does nothing.

    Args:
        linker: opens a connection to the device.
        root: what stands before the paths of the kernel's files.

    Attributes:
        changes: what was tried. notes: what the user should know.
    """

    def __init__(self, linker: Callable[[], Link], root: str = "") -> None:
        self._linker = linker
        self._root = root
        self._run = secrets.token_hex(8)
        self._link: Link | None = None
        self._stream: Stream | None = None
        self._lock = threading.Lock()
        self._ended = False
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
        self._start()
        return self

    def renew(self) -> None:
        """Fix the clocks again if the device was restarted, or the connection to its keeper is gone.

        Raises:
            DeviceError: the device cannot be reached.
        """
        with self._lock:
            if self._ended or not self.fixed or self._answers():
                return
            self._close()
            self._start()
            if self.fixed and self._link is not None:
                self.notes += (f"the clocks of {self._link.address} were fixed again after it had been lost",)

    def _answers(self) -> bool:
        """Whether the keeper is there."""
        if self._stream is None:
            return False
        try:
            self._stream.send(b"still\n")
        except (OSError, EOFError, ValueError):
            return False
        return "here" in self._lines(_ANSWER_S)

    def _start(self) -> None:
        self._link = link = self._linker()
        self._stream = link.stream(_script(link, self._root, _KEEP, self._run))
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
                self.notes += (_refusal(link.address, word, rest),)
                self.changes = ()
                return
            elif word == "ready":
                break
        self.changes = tuple(Change(path, old, after.get(path, old)) for path, old in before.items())
        if not self.fixed:
            self.notes += (self._why_not(link.address),)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Put the settings back, and wait until they are."""
        with self._lock:
            self._ended = True
            if self._stream is not None and self._link is not None:
                with contextlib.suppress(OSError, EOFError):
                    self._stream.send(b"end\n")
                    for line in self._lines():
                        if line.startswith("left|"):
                            self.notes += (
                                f"{self._link.address} keeps changed settings: {line[5:].strip()}; set them there "
                                "yourself",
                            )
            self._close()

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        if self._link is not None:
            self._link.close()
        self._stream = self._link = None

    def _lines(self, timeout_s: float = _TIMEOUT_S) -> list[str]:
        """What the keeper says until it is ready, is there, or has ended."""
        assert self._stream is not None
        alarm = threading.Timer(timeout_s, self._stream.close)
        alarm.daemon = True
        alarm.start()
        text = b""
        try:
            while not text.endswith((b"ready\n", b"here\n", b"restored\n")):
                piece = self._stream.receive(4096)
                if not piece:
                    break
                text += piece
        except (OSError, EOFError, ValueError):
            pass
        finally:
            alarm.cancel()
        return text.decode("utf-8", "replace").splitlines()

    def _why_not(self, where: str) -> str:
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

    def renew(self) -> None:
        """Fix them again if the device was restarted; see :meth:`FixedClocks.renew`."""
        if self.keeper is not None:
            self.keeper.renew()


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
    with FixedClocks(linker, root) as keeper:
        yield Clocks(keeper)


def restore_leftovers(link: Link) -> None:
    """Put settings back that a killed run has left behind; does nothing where there are none.

    Raises:
        DeviceError: the connection broke.
    """
    if link.run(f"test -s {link.home}/settings.journal").code == 0:
        link.run(_script(link, "", _RESTORE, "none"), _TIMEOUT_S)


def _script(link: Link, root: str, body: str, run: str) -> str:
    return f"home={link.home} root={shlex.quote(root)} governor={GOVERNOR} run={run}\n{_COMMON}{body}"


def _refusal(address: str, word: str, rest: str) -> str:
    if word == "held":
        return f"the clocks of {address} were not changed: another run of edgetune there, process {rest}, keeps them"
    return f"the clocks of {address} were not changed: its folder {rest} cannot be written"
