"""Channel shuffles that need no kernel of their own."""

from __future__ import annotations

import pytest

from edgetune.graph.lower import lower
from edgetune.targets import Target
from tests.graph.support import check, model, node, weights


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize(("groups", "channels", "stride"), [(4, 24, 1), (3, 48, 2), (2, 32, 1)])
def test_between_grouped_convolutions(groups: int, channels: int, stride: int, local_target: Target) -> None:
    """Channels a group that fill no block, and that do; what stands around the depthwise convolution moves too."""
    batch, size = 2, 6
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], group=groups), node("Relu", ["c1"], ["r1"]),
        node("Reshape", ["r1", "split"], ["s1"]), node("Transpose", ["s1"], ["s2"], perm=[0, 2, 1, 3, 4]),
        node("Reshape", ["s2", "whole"], ["s3"]),
        node("Conv", ["s3", "w2", "b2"], ["c2"], group=channels, pads=[1, 1, 1, 1], strides=[stride, stride]),
        node("Mul", ["c2", "by"], ["m2"]), node("Relu", ["m2"], ["r2"]),
        node("Conv", ["r2", "w3"], ["y"], group=groups),
    ]  # fmt: skip
    per_group = channels // groups
    constants = {
        "w1": weights(channels, 2 * groups // groups, 1, 1), "b1": weights(channels),
        "split": [batch, groups, per_group, size, size], "whole": [batch, channels, size, size],
        "w2": weights(channels, 1, 3, 3), "b2": weights(channels), "by": weights(1, channels, 1, 1),
        "w3": weights(2 * channels, per_group, 1, 1),
    }  # fmt: skip
    prepared = check(model(nodes, {"x": (batch, 2 * groups, size, size)}, constants), local_target)
    names = [task.name for task in lower(prepared, local_target).tasks]
    assert not any("transpose" in name for name in names)
