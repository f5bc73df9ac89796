"""What is in a standalone library, as binutils see it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.standalone.conftest import run

C_LIBRARY = {
    *("calloc", "free", "posix_memalign", "memcpy", "memset", "strcmp"),
    *("open", "close", "munmap", "syscall", "getpid", "clock_gettime", "getauxval", "sched_yield"),
    *("sched_setaffinity", "pthread_create", "pthread_join", "pthread_once", "pthread_key_create"),
    *("pthread_getspecific", "pthread_setspecific"),
}
"""All that a library may want of the system, beside functions of libm."""
OF_LIBM = (
    r"(a?(sin|cos|tan)h?|exp2?|expm1|log(2|10|1p)?|pow|sqrt|erfc?|fmod|fma|fmin|fmax|ldexp"
    r"|floor|ceil|round|rint|nearbyint|trunc)f?"
)
OF_LIBGCC = r"__aeabi_\w+|__u?(div|mod)[sd]i3"
"""Division and unwinding on 32-bit ARM, in libgcc_s or bionic."""


def symbols(path: Path) -> dict[str, set[str]]:
    """The names that a library needs (U) and shows (T and the like)."""
    needs = set()
    shows = set()
    for line in run([_tool("nm"), "-D", path]).splitlines():
        kind, name = line.split()[-2:]
        (needs if kind in "Uw" else shows).add(name)
    return {"needs": needs, "shows": shows}


def needed(path: Path) -> set[str]:
    """The libraries that a library is loaded with."""
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", run([_tool("readelf"), "-dW", path])))


def _tool(name: str) -> str:
    if shutil.which(name) is None:
        pytest.skip(f"needs {name} (package binutils)")
    return name


def check_contents(path: Path, page_bytes: int = 4096) -> None:
    """The library shows its API alone, needs the C library alone, and is laid out safely."""
    found = symbols(path)
    headers = run([_tool("readelf"), "-hdlW", path])
    of_others = OF_LIBM if "ELF64" in headers else f"{OF_LIBM}|{OF_LIBGCC}"
    declared = set(re.findall(r"\b(edgetune_\w+)\(", (path.parent / "edgetune.h").read_text()))
    assert found["shows"] == declared
    assert [name for name in found["needs"] - C_LIBRARY if not re.fullmatch(of_others, name)] == []
    assert "TEXTREL" not in headers
    assert re.search(r"GNU_STACK .* RW ", headers)
    assert needed(path) <= {
        "libm.so.6",
        "libpthread.so.0",
        "libc.so.6",
        "libgcc_s.so.1",
        "libm.so",
        "libc.so",
    }
    assert "INIT_ARRAY" not in headers
    aligned = re.findall(r"LOAD .* (0x[0-9a-f]+)$", headers, re.MULTILINE)
    assert aligned
    assert all(int(value, 16) >= page_bytes for value in aligned)
