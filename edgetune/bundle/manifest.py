"""What ``manifest.json`` of a bundle says.

The manifest is written and read through these models only. ``digest`` is the SHA-256 of the rest
of the manifest in canonical JSON, so that damage to the manifest itself is noticed too.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal, TypeVar

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from edgetune.dtypes import EXTENDED, numpy_dtype
from edgetune.errors import BundleError, UnsupportedModelError
from edgetune.records import TensorSpec
from edgetune.sizes import Dimension, Sizes

FORMAT: Final = "edgetune-bundle"
SCHEMA_VERSION = 2
"""Version 1, which knows neither ``programs`` nor ``engine``, is written where it will do; 3 is several bundles."""
NEWEST_SCHEMA_VERSION = 3
MANIFEST = "manifest.json"
LIBRARY = "model.so"
WEIGHTS = "weights.bin"
MODEL = "model.onnx"
REFERENCE = "reference.npz"

AnyManifest = TypeVar("AnyManifest", bound=BaseModel)

ALIGNMENT_BYTES = 64
"""Kernels load tensors with aligned vector instructions of up to 512 bits."""

DTYPES = frozenset(
    [
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
        *EXTENDED,
    ]
)


class Part(BaseModel):
    """A part of the manifest: frozen; fields that it does not know are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=True)


class Tensor(Part):
    """Name, NumPy dtype and static shape of an input or output."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @field_validator("dtype")
    @classmethod
    def _known_dtype(cls, value: str) -> str:
        if value not in DTYPES:
            raise ValueError(f"dtype {value!r} is not one of {', '.join(sorted(DTYPES))}")
        return value

    @field_validator("shape")
    @classmethod
    def _no_negative(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if any(dim < 0 for dim in value):
            raise ValueError(f"shape {value} has a negative dimension")
        return value

    @property
    def size_bytes(self) -> int:
        """Size of the tensor's values."""
        return numpy_dtype(self.dtype).itemsize * math.prod(self.shape)

    def spec(self) -> TensorSpec:
        """The same as the record that the stages exchange."""
        return TensorSpec(self.name, self.dtype, self.shape)

    @classmethod
    def of(cls, spec: TensorSpec) -> Tensor:
        """From the record that the stages exchange.

        Raises:
            UnsupportedModelError: it is no type of numbers (strings).
        """
        if spec.dtype not in DTYPES:
            raise UnsupportedModelError(
                f"{spec.name!r} has dtype {spec.dtype}, which a bundle cannot take or give; "
                "cut this part off the model and run it beside the bundle"
            )
        return cls(name=spec.name, dtype=spec.dtype, shape=tuple(spec.shape))


class Weight(Tensor):
    """One weight: where in ``weights.bin`` it starts, in bytes."""

    name: str = ""
    offset: int = Field(ge=0, multiple_of=ALIGNMENT_BYTES)


class FileEntry(Part):
    """Size and SHA-256 of a file. Optional files may be deleted from a bundle that ships."""

    size: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    optional: bool = False


class ModelEntry(Part):
    """The model that was compiled; ``sha256`` is that of the original file."""

    name: str
    sha256: str
    params: int = 0
    flops: int = 0


class TargetEntry(Part):
    """The machine the library was compiled for.

    ``cpu_features`` are those the library may use, in LLVM's names; ``description`` is the target
    in full, as its TOML has it, for the reader's interest.
    """

    name: str
    kind: str
    mtriple: str
    mcpu: str
    mattr: tuple[str, ...] = ()
    cpu_features: tuple[str, ...] = ()
    threads: int = Field(ge=1)
    fingerprint: str
    description: dict[str, Any] = {}


class KernelEntry(Part):
    """One kernel: its function in the library, where its schedule came from, what it costs.

    ``calls`` an inference makes; ``flops`` of one call; ``best_us`` as measured while tuning.
    """

    name: str
    workload: str
    kind: str
    source: str
    calls: int = 1
    flops: float = 0.0
    best_us: float | None = None
    symbols: tuple[str, ...] = ()


class OutputCheck(Part):
    """The verification of one output, see :class:`edgetune.records.OutputDifference`."""

    name: str
    passed: bool
    max_abs_error: float
    max_rel_error: float
    rtol: float
    atol: float
    sizes: str = ""


class DimensionEntry(Part):
    """A dimension that varies: its sizes, whether those in between are padded, and ``(tensor, axis)`` pairs."""

    name: str
    sizes: tuple[PositiveInt, ...] = Field(min_length=1)
    padded: bool = False
    inputs: tuple[tuple[str, NonNegativeInt], ...] = Field(min_length=1)
    outputs: tuple[tuple[str, NonNegativeInt], ...] = ()

    def dimension(self) -> Dimension:
        """The same as what the stages exchange."""
        return Dimension(self.name, Sizes(self.sizes, self.padded), self.inputs, self.outputs)

    @classmethod
    def of(cls, dimension: Dimension) -> DimensionEntry:
        """From what the stages exchange."""
        sizes = dimension.sizes
        return cls(
            name=dimension.name,
            sizes=sizes.exact,
            padded=sizes.padded,
            inputs=dimension.inputs,
            outputs=dimension.outputs,
        )


class ProgramEntry(Part):
    """The code for one combination of sizes: a function of the library and positions in ``weights``."""

    function: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    weights: tuple[NonNegativeInt, ...] = ()


class Verification(Part):
    """The comparison that the bundle passed before it was written, and its tolerances."""

    passed: bool
    reference: str
    outputs: tuple[OutputCheck, ...]


class Manifest(Part):
    """All of ``manifest.json``.

    ``engine`` says what runs the library: TVM's virtual machine, or nothing but the library itself.
    ``verification`` is None for a library that could not run where it was built (another machine's,
    and no device at hand). ``frozen`` holds the inputs of the original model that were fixed to a
    value: its dtype, shape and values. ``records_sha256`` is the digest of the (workload, trace)
    pairs of all kernels that were built from records.

    Where sizes vary, ``inputs``, ``outputs`` and ``model.flops`` are those of the largest ones,
    ``dimensions`` says which do, and ``programs`` has a function for each combination, the largest first.
    """

    format: Literal["edgetune-bundle"] = "edgetune-bundle"
    schema_version: int = 1
    engine: Literal["vm", "standalone"] = "vm"
    model: ModelEntry
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    target: TargetEntry
    threads: int = Field(ge=1)
    versions: dict[str, str]
    verification: Verification | None
    records_sha256: str
    kernels: tuple[KernelEntry, ...] = ()
    weights: tuple[Weight, ...] = ()
    dimensions: tuple[DimensionEntry, ...] = ()
    programs: tuple[ProgramEntry, ...] = ()
    frozen: dict[str, dict[str, Any]] = {}
    files: dict[str, FileEntry]

    @field_validator("files")
    @classmethod
    def _plain_names(cls, value: dict[str, FileEntry]) -> dict[str, FileEntry]:
        for name in value:
            if not name or name in (".", "..", MANIFEST) or set(name) & set("/\\\0"):
                raise ValueError(f"{name!r} is not the name of a file in a bundle")
        return value

    @model_validator(mode="after")
    def _complete(self) -> Manifest:
        for name in (LIBRARY, WEIGHTS):
            if name not in self.files:
                raise ValueError(f"no file {name}")
        end = self.files[WEIGHTS].size
        if any(weight.offset + weight.size_bytes > end for weight in self.weights):
            raise ValueError(f"a weight lies beyond the end of {WEIGHTS}")
        if any(index >= len(self.weights) for program in self.programs for index in program.weights):
            raise ValueError("a program takes a weight that is not there")
        ranks = {tensor.name: len(tensor.shape) for tensor in self.inputs}
        places = [place for entry in self.dimensions for place in entry.inputs]
        if any(axis >= ranks.get(name, 0) for name, axis in places):
            raise ValueError("a dimension stands in an input that has no such axis")
        return self

    def all_programs(self) -> tuple[ProgramEntry, ...]:
        """The functions of the library, for a model of fixed shape ``main`` alone."""
        if self.programs:
            return self.programs
        weights = tuple(range(len(self.weights)))
        return (ProgramEntry(function="main", inputs=self.inputs, outputs=self.outputs, weights=weights),)

    def input_specs(self) -> tuple[TensorSpec, ...]:
        """The inputs, with the sizes that vary."""
        varying: dict[str, list[tuple[int, Sizes]]] = {}
        for entry in self.dimensions:
            for name, axis in entry.inputs:
                varying.setdefault(name, []).append((axis, entry.dimension().sizes))
        return tuple(replace(t.spec(), varying=tuple(varying.get(t.name, ()))) for t in self.inputs)

    def output_specs(self) -> tuple[TensorSpec, ...]:
        """The outputs, with the sizes that vary."""
        padded = {
            place: entry.dimension().sizes
            for entry in self.dimensions
            if entry.padded
            for place in entry.outputs
        }
        specs = []
        for index, tensor in enumerate(self.outputs):
            varying = []
            for axis, at_each in enumerate(
                zip(*(p.outputs[index].shape for p in self.programs), strict=False)
            ):
                sizes = padded.get((tensor.name, axis), Sizes(tuple(sorted(set(at_each)))))
                if len(sizes.exact) > 1:
                    varying.append((axis, sizes))
            specs.append(replace(tensor.spec(), varying=tuple(varying)))
        return tuple(specs)

    def frozen_inputs(self) -> dict[str, np.ndarray]:
        """The fixed inputs of the original model, as arrays."""
        return {
            name: np.array(value["values"], numpy_dtype(value["dtype"])).reshape(value["shape"])
            for name, value in self.frozen.items()
        }

    def to_json(self) -> bytes:
        """The bytes of ``manifest.json``; the same manifest always gives the same bytes."""
        content = self.model_dump(mode="json", exclude=None if self.programs else _ONLY_WHERE_SIZES_VARY)
        return with_digest(content)


_ONLY_WHERE_SIZES_VARY: Final[Any] = {
    "dimensions": True,
    "programs": True,
    "verification": {"outputs": {"__all__": {"sizes"}}},
}
"""Left out of the manifest of a model of fixed shape: it is that of version 1 to the byte."""


def parse_manifest(data: bytes, where: str) -> Manifest:
    """The manifest in ``data``; ``where`` names the bundle in messages.

    Raises:
        BundleError: it is no manifest, is damaged, or was written by a newer edgetune.
    """
    return parse_as(Manifest, data, where)


def parse_as(kind: type[AnyManifest], data: bytes, where: str) -> AnyManifest:
    """The manifest of a bundle, or of several in one; errors are those of :func:`parse_manifest`."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{where}: {MANIFEST} is damaged ({error}); build the bundle again") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise BundleError(
            f"{where}: {MANIFEST} does not describe an edgetune bundle; give a path that "
            "'edgetune tune' or 'edgetune compile' has written"
        )
    version = content.get("schema_version")
    if not isinstance(version, int) or version > NEWEST_SCHEMA_VERSION:
        raise BundleError(
            f"{where}: the bundle has schema version {version}, this edgetune reads up to "
            f"{NEWEST_SCHEMA_VERSION}; upgrade edgetune, or build the bundle again with this one"
        )
    digest = content.pop("digest", None)
    if digest != _digest(content):
        raise BundleError(
            f"{where}: {MANIFEST} was changed after the bundle was written; build or copy the bundle again"
        )
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "manifest"
        raise BundleError(
            f"{where}: {MANIFEST} is not valid ({place}: {first['msg']}); build the bundle again"
        ) from error


def with_digest(content: Mapping[str, Any]) -> bytes:
    """The bytes of a manifest with these fields and their digest."""
    text = json.dumps({**content, "digest": _digest(content)}, indent=1, sort_keys=True, allow_nan=False)
    return (text + "\n").encode()


def _digest(content: Mapping[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
