"""Default schedules keep their accumulators in registers, by the assembly that LLVM makes of them."""

from __future__ import annotations

import re

import pytest
import tvm

from edgetune.graph.lower import lower
from edgetune.kernels import registry
from edgetune.model.prepare import prepare
from edgetune.targets import load_target
from tests.graph.support import model, node, weights

# A store of a vector register to the stack, and a multiply-add.
X86 = (r"vmov[au]ps\s+%[yz]mm\d+, -?\d*\(%rsp", r"vfmadd")
ARM = (r"st[rp]\s+q\d+.*\[sp", r"fmla")


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize(("blocks", "size"), [(2, 28), (4, 14), (3, 20), (1, 56)])
@pytest.mark.parametrize(
    ("name", "patterns"), [("zen4", X86), ("zen2", X86), ("skylake-avx512", X86), ("raspberry-pi-5", ARM)]
)
def test_spills_are_rare(name: str, patterns: tuple[str, str], blocks: int, size: int, window: int) -> None:
    target = load_target(name).with_threads(2)
    channels = blocks * target.lanes("float32")
    pads = [window // 2] * 4
    kernel = weights(channels, 64, window, window)
    convolution = model([node("Conv", ["x", "w"], pads=pads)], {"x": (1, 64, size, size)}, {"w": kernel})
    tasks = [task for task in lower(prepare(convolution), target).tasks if task.kind == "contraction"]
    assert tasks
    default = registry.design_spaces(tasks[0], target)[0]
    text = tvm.tirx.build(default.mod, target=target.tvm()).inspect_source("asm")
    spills, products = (len(re.findall(pattern, text)) for pattern in patterns)
    assert products >= 10
    assert spills <= 1 + 0.25 * products
