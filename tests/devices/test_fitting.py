"""Libraries that a device cannot load are refused before they are sent, each with its reason."""

from __future__ import annotations

import dataclasses

import pytest

from edgetune.devices import fitting
from edgetune.devices.fitting import check_library, check_runner_file
from edgetune.devices.local_link import LocalLink
from edgetune.devices.probe import probe
from edgetune.elf import Elf, read_elf
from edgetune.errors import DeviceError
from edgetune.toolchain import _empty_object, link_shared


@pytest.fixture(scope="module")
def found():
    pi = probe(LocalLink())
    return pi.model_copy(update={"arch": "aarch64", "page_bytes": 16384, "libc": "glibc 2.36"})


def library(tmp_path, triple, **options):
    path = tmp_path / "library.so"
    link_shared([_empty_object(triple.split("-")[0])], path, triple, **options)
    return path.read_bytes()


def test_what_fits_passes(tmp_path, found):
    check_library("m.so", library(tmp_path, "aarch64-linux-gnu"), "pi", found)
    adapter = library(tmp_path, "aarch64-linux-gnu", beside=["m.so"])
    check_library("a.so", adapter, "pi", found, beside=["m.so"])
    with pytest.raises(DeviceError, match=r"needs m\.so"):
        check_library("a.so", adapter, "pi", found)


@pytest.mark.parametrize(
    ("triple", "options", "reason"),
    [
        ("x86_64-linux-gnu", {}, r"m\.so is for x86_64, device 'pi' is aarch64"),
        ("aarch64-linux-android", {}, r"Android's C library \(it needs libm\.so\).*compile --target"),
        ("aarch64-linux-gnu", {"page_size_bytes": 4096}, r"pages of 4096.*16384.*page_size_bytes"),
    ],
)
def test_each_reason_has_its_message(tmp_path, found, triple, options, reason):
    with pytest.raises(DeviceError, match=reason):
        check_library("m.so", library(tmp_path, triple, **options), "pi", found)


def test_damage_is_noticed(tmp_path, found):
    with pytest.raises(DeviceError, match="cut short"):
        check_library("m.so", library(tmp_path, "aarch64-linux-gnu")[:200], "pi", found)


def test_a_newer_c_library_than_the_devices(found, monkeypatch):
    needs = Elf(
        "aarch64", ("libc.so.6",), "", (("libc.so.6", "GLIBC_2.38"), ("libc.so.6", "GLIBC_2.17")), 65536
    )
    monkeypatch.setattr(fitting, "read_elf", lambda data: needs)
    with pytest.raises(DeviceError, match=r"glibc 2\.38.*has 2\.36"):
        check_runner_file("runner", b"", "ssh://pi", found, own_libc=False)
    check_runner_file("runner", b"", "ssh://pi", found, own_libc=True)
    monkeypatch.setattr(fitting, "read_elf", lambda data: dataclasses.replace(needs, versions=()))
    check_runner_file("runner", b"", "ssh://pi", found, own_libc=False)


def test_the_runner_fits_this_machine():
    from edgetune.devices.native import assemble

    here = probe(LocalLink())
    folder = assemble(here.arch)
    for name, path in folder.files().items():
        assert read_elf(path.read_bytes()).arch == here.arch
        check_runner_file(name, path.read_bytes(), "this machine", here, own_libc=True)
