"""What ``tune`` and ``compile`` are asked for: one record, from the caller to the stages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from edgetune.errors import UsageError

if TYPE_CHECKING:
    import os

    from onnx import ModelProto

    FilePath: TypeAlias = "str | os.PathLike[str]"
    Model: TypeAlias = "FilePath | bytes | ModelProto"
    Shapes: TypeAlias = "Mapping[str, Sequence[int | str | Sequence[int]]] | None"
    Freeze: TypeAlias = "Mapping[str, Any] | None"


@dataclass(frozen=True)
class Request:
    """The arguments of :func:`edgetune.api.tune` that say what to make.

    ``compile`` leaves the last three as they are.

    Raises:
        UsageError: ``weights`` is neither of its two values, or does not go with ``standalone``.
    """

    model: Model
    shapes: Shapes = None
    freeze: Freeze = None
    target: str = "local"
    threads: int | None = None
    out: Path | None = None
    logs: str | Path | None = None
    rtol: float | None = None
    atol: float | None = None
    archive: bool = False
    lean: bool = False
    cut: Sequence[str] = ()
    save_rest: Path | None = None
    standalone: bool | None = None
    weights: str = "file"
    cluster: str | None = None
    fix_clocks: bool = False
    search_threads: bool = False

    def __post_init__(self) -> None:
        """Check what needs nothing but the request."""
        if self.weights not in ("file", "embed"):
            raise UsageError(f"weights={self.weights!r} is neither 'file' nor 'embed'; give one of the two")
        if self.weights == "embed" and self.standalone is False:
            raise UsageError(
                "only a standalone library can have its weights inside; leave out --vm, or leave the weights in their "
                "file"
            )

    def bundle_path(self, model: str, target: str) -> Path:
        """Where to write the bundle of the model and the target of these names."""
        if self.out is not None:
            return self.out
        # A graph's name may hold anything; a folder's had better not.
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", f"{model}-{target}").lstrip(".") or "model"
        return Path("edgetune-out", f"{name}.tar" if self.archive else name)
