"""Memory plans, checksums, and the C source of programs."""

from __future__ import annotations

import numpy as np
import pytest

from edgetune.standalone.emit import Identity, PackedWeights, emit_program, identifier
from edgetune.standalone.program import Lifetime, Program, plan_memory
from edgetune.standalone.weights import checksum, pack


def test_tensors_alive_at_once_never_overlap_in_memory() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        starts = rng.integers(0, 30, 40)
        tensors = [
            Lifetime(int(size), int(start), int(start + length))
            for start, size, length in zip(
                starts, rng.integers(0, 5000, 40), rng.integers(0, 8, 40), strict=True
            )
        ]
        offsets, size = plan_memory(tensors)
        at_once = [
            sum(-(-t.size_bytes // 64) * 64 for t in tensors if t.first <= step <= t.last)
            for step in range(40)
        ]
        assert size >= max(at_once)
        # Greedy by size comes close to what is needed in any case.
        assert size <= 1.5 * max(at_once)
        for i, one in enumerate(tensors):
            assert offsets[i] % 64 == 0
            assert offsets[i] + one.size_bytes <= size
            for j in range(i):
                other = tensors[j]
                apart = (
                    offsets[i] >= offsets[j] + other.size_bytes or offsets[j] >= offsets[i] + one.size_bytes
                )
                assert apart or not one.overlaps(other)


def test_a_chain_needs_two_tensors() -> None:
    chain = [Lifetime(1000, step, step + 1) for step in range(10)]
    assert plan_memory(chain)[1] == 2 * 1024
    assert plan_memory([]) == ((), 0)


def test_the_checksum_notices_every_change_of_a_byte() -> None:
    data, offsets = pack([np.arange(5, dtype=np.int8), np.ones((2, 3), np.float32), np.empty(0, np.int64)])
    assert offsets == (0, 64, 128)
    sums = {checksum(data), checksum(data[:-1]), checksum(data + b"\0")}
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1 << position % 8
        sums.add(checksum(bytes(changed)))
    assert len(sums) == len(data) + 3


@pytest.mark.parametrize(("name", "wanted"), [("a b-c.d", "a_b_c_d"), ("Ünet", "_net"), ("", "model")])
def test_names_of_models_become_identifiers(name: str, wanted: str) -> None:
    assert identifier(name) == wanted


def test_any_name_can_be_written_in_c(handmade: Program) -> None:
    strange = 'a"b\\c\n\x01??/é'
    source = emit_program(
        handmade, Identity(strange, "triple", (), 1), PackedWeights((0, 64), 4064, 1, False)
    )
    assert '.name = "a\\"b\\\\c\\n\\001?\\?/é"' in source
