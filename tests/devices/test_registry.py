"""The list of devices, and the addresses in it."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from edgetune.devices import registry
from edgetune.devices.address import parse_address
from edgetune.devices.inventory import open_device
from edgetune.errors import DeviceError, UsageError


def test_devices_are_stored_found_and_forgotten():
    entry = registry.Entry(
        address=parse_address("ssh://me@Board.local:2222", "hop1,you@hop2:23"), arch="aarch64"
    )
    registry.store("board", entry)
    assert registry.find("board") == entry
    assert list(registry.load_registry().devices) == ["board"]
    assert not stat.S_IMODE(registry.registry_path().stat().st_mode) & 0o077
    with pytest.raises(DeviceError, match="did you mean board"):
        open_device("bord", 2)
    registry.forget("board")
    assert registry.load_registry().devices == {}


def test_many_at_once_lose_nothing():
    def add(number):
        registry.store(f"d{number}", registry.Entry(address=parse_address(f"adb://{number}")))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(24)))
    assert len(registry.load_registry().devices) == 24


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"devices": {"a b": {}}}', '{"devices": {"a": {"address": 3}}}']
)
def test_a_damaged_list_is_one_message(text):
    registry.registry_path().parent.mkdir(parents=True)
    registry.registry_path().write_text(text)
    with pytest.raises(DeviceError, match="is damaged at"):
        registry.load_registry()


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("ssh://board", (None, "board", None)),
        ("ssh://me@10.0.0.7:2222", ("me", "10.0.0.7", 2222)),
        ("ssh://me@[fe80::1]:22", ("me", "fe80::1", 22)),
        ("ssh://Alias", (None, "Alias", None)),
    ],
)
def test_addresses(url, parts):
    address = parse_address(url)
    assert (address.user, address.host, address.port) == parts
    assert str(address) == url
    assert json.loads(address.model_dump_json())["scheme"] == "ssh"


@pytest.mark.parametrize(
    "url",
    [
        "board",
        "http://board",
        "ssh://",
        "ssh://a b",
        "ssh://me:secret@board",
        "ssh://b:99999",
        "adb://",
        "ssh://b/x",
    ],
)
def test_what_is_no_address(url):
    with pytest.raises(UsageError) as caught:
        parse_address(url)
    assert caught.value.exit_code == 2
