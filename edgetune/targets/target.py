"""The description of what kernels are compiled for."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from edgetune.cpu import ARCHITECTURES, architecture, checkable_features
from edgetune.errors import TargetError
from edgetune.targets import llvm

if TYPE_CHECKING:
    import tvm

_Positive = Annotated[int, Field(gt=0, lt=2**63)]
_Size = Annotated[int, Field(ge=0, lt=2**63)]
_Attribute = Annotated[str, Field(pattern=r"^[+-][A-Za-z0-9][A-Za-z0-9._-]*$")]

# How a 64-bit or hard-float calling convention is asked for where the triple leaves it open.
_ABI = {"riscv64": {"mabi": "lp64d"}, "arm": {"mfloat-abi": "hard"}}


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Gpu(_Strict):
    """A CUDA device, in the terms of the CUDA programming guide's table of compute capabilities.

    Attributes:
        arch: ``sm_`` and the compute capability.
        multiprocessors: number of SMs.
        max_threads_per_block, registers_per_block, warp_size: limits of one block.
        shared_memory_per_block_bytes: what a kernel gets without opting in to more.
        l2_bytes: second-level cache, shared by all SMs; 0 where unknown.
    """

    arch: Annotated[str, Field(pattern=r"^sm_[0-9]{2,3}[af]?$")]
    multiprocessors: _Positive
    max_threads_per_block: _Positive = 1024
    shared_memory_per_block_bytes: _Positive = 49152
    registers_per_block: _Positive = 65536
    warp_size: _Positive = 32
    l2_bytes: _Size = 0


class Toolchain(_Strict):
    """What a target needs beside edgetune's own linker.

    Attributes:
        page_size_bytes: largest memory page of the devices' kernels, for the linker; None leaves
            the architecture's default, which suits all of them.
        cuda_min, cuda_max: first and last CUDA toolkit that compile for the GPU's arch.
    """

    page_size_bytes: _Positive | None = None
    cuda_min: str | None = None
    cuda_max: str | None = None


class DeviceFacts(_Strict):
    """What a detected machine was, for people and programs that read its file; code does not depend on it.

    Attributes:
        system: name and version of its kernel. libc: its C library.
        features: of its CPU, under LLVM's names. isa_level: what they amount to, as ``x86-64-v3``.
        clusters: kinds of cores, the fastest first.
        page_bytes, memory_bytes: 0 where unknown.
        gpu: its name, and compute capability.
        governors: of the clocks, in use. temperature_sources, power_sources: sensors by name.
    """

    system: str = ""
    features: tuple[str, ...] = ()
    isa_level: str = ""
    clusters: tuple[str, ...] = ()
    page_bytes: _Size = 0
    memory_bytes: _Size = 0
    libc: str = ""
    gpu: str = ""
    governors: tuple[str, ...] = ()
    temperature_sources: tuple[str, ...] = ()
    power_sources: tuple[str, ...] = ()

    @field_validator(
        "features", "clusters", "governors", "temperature_sources", "power_sources", mode="before"
    )
    @classmethod
    def _list_as_tuple(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value


class Target(_Strict):
    """One CPU, or one CUDA device with the CPU that drives it (whose fields are then the CPU's).

    Attributes:
        name: the file's stem.
        description: one line for people.
        kind: ``llvm`` for a CPU, ``cuda`` for a GPU.
        mtriple, mcpu, mattr: as LLVM names them; ``mattr`` adds (``+dotprod``) to or takes
            (``-aes``) from what ``mcpu`` implies.
        cores: physical cores of the kind described. threads: how many kernels run on.
        vector_bits, vector_registers: width and number of the vector registers.
        l1d_bytes, l2_bytes, l3_bytes: cache that one core sees at each level; 0 is none.
        gpu: the CUDA device.
        toolchain: what building needs.
        device: the machine that it was detected on.
        notes: what to know about it. sources: the public documents the facts come from.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]
    description: str = ""
    kind: Literal["llvm", "cuda"]
    mtriple: str
    mcpu: str
    mattr: tuple[_Attribute, ...] = ()
    cores: _Positive
    threads: _Positive
    vector_bits: Annotated[int, Field(ge=32, le=2048, multiple_of=32)]
    vector_registers: Annotated[int, Field(ge=8, le=64)]
    l1d_bytes: _Positive
    l2_bytes: _Size
    l3_bytes: _Size = 0
    gpu: Gpu | None = None
    toolchain: Toolchain = Toolchain()
    device: DeviceFacts | None = None
    notes: str = ""
    sources: tuple[str, ...] = ()

    @field_validator("mattr", "sources", mode="before")
    @classmethod
    def _list_as_tuple(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("mtriple")
    @classmethod
    def _known_architecture(cls, value: str) -> str:
        if architecture(value.split("-")[0]) not in ARCHITECTURES:
            raise ValueError(f"the architecture must be one of {', '.join(ARCHITECTURES)}")
        return value

    @model_validator(mode="after")
    def _gpu_matches_kind(self) -> Target:
        if (self.kind == "cuda") != (self.gpu is not None):
            raise ValueError("a target of kind 'cuda' needs a [gpu] table, one of kind 'llvm' has none")
        return self

    @property
    def arch(self) -> str:
        """One of ``cpu.ARCHITECTURES``."""
        return architecture(self.mtriple.split("-")[0])

    @property
    def fingerprint(self) -> str:
        """16 hex digits over all that changes generated code or its speed; not names and notes."""
        relevant = self.model_dump(
            mode="json", exclude={"name", "description", "cores", "toolchain", "device", "notes", "sources"}
        )
        text = json.dumps(relevant, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def host(self) -> Target:
        """The CPU alone: this target itself unless it is a GPU."""
        return self.model_copy(update={"kind": "llvm", "gpu": None}) if self.gpu else self

    @property
    def features(self) -> frozenset[str]:
        """Every LLVM feature that code for this CPU may use. Imports TVM."""
        self.check()
        return llvm.cpu_features(self.mtriple, self.mcpu, self.mattr)

    def supports(self, feature: str) -> bool:
        """Say whether code may use an LLVM feature, such as ``dotprod`` or ``avx512vnni``. Imports TVM."""
        return feature in self.features

    def required_features(self) -> tuple[str, ...]:
        """Return the features a machine must have to run the code, sorted, for a bundle's manifest.

        Only those whose presence a Linux kernel reports; see ``cpu.missing_features``. Imports TVM.
        """
        return tuple(sorted(self.features & checkable_features(self.arch)))

    def lanes(self, dtype: str) -> int:
        """Return how many values of a dtype (``float32``, ``int8``, ``bool``) fill a vector register."""
        width = re.search(r"\d+", dtype)
        if width is None and dtype != "bool":
            raise ValueError(f"dtype {dtype!r} has no width")
        return max(1, self.vector_bits // (int(width[0]) if width else 8))

    def with_threads(self, threads: int) -> Target:
        """Return the same target with another number of threads.

        Raises:
            TargetError: ``threads`` is not positive.
        """
        if threads < 1:
            raise TargetError(f"target {self.name}: {threads} threads asked for; give 1 or more")
        return self.model_copy(update={"threads": threads})

    def check(self) -> None:
        """Check the description against LLVM: CPU, features, vector width. Imports TVM.

        Raises:
            TargetError: LLVM does not know the CPU or a feature, or they give narrower vectors.
        """
        llvm.check(self.name, self.mtriple, self.mcpu, self.mattr)
        features = llvm.cpu_features(self.mtriple, self.mcpu, self.mattr)
        widest, _ = llvm.vector_shape(self.arch, features)
        if self.vector_bits > widest:
            raise TargetError(
                f"target {self.name}: vector_bits is {self.vector_bits}, but {self.mcpu} with its mattr has "
                f"vectors of {widest} bits; lower vector_bits, or add the feature to mattr"
            )

    def _fixed_vectors(self) -> tuple[str, ...]:
        """LLVM attributes that make TVM keep vectors of fixed length on a RISC-V CPU with the V extension.

        TVM turns every vector loop there into one of unknown length, with masked accesses to memory that keep
        nothing in registers, and fails on some. The subset of V that is left has the same vectors.
        """
        if self.arch != "riscv64" or not self.supports("v"):
            return ()
        return ("-v", "+zve64d", f"+zvl{self.vector_bits}b")

    def _no_gather(self) -> tuple[str, ...]:
        """LLVM's attribute against gathered loads on an x86 CPU with AVX-512.

        LLVM 22 makes wrong code of some branches that it turns into masked gathers there: lanes that the mask leaves
        out are used. A kernel that picks parts of its input by remainders shows it (com.microsoft RotaryEmbedding).
        """
        return ("+prefer-no-gather",) if self.arch == "x86_64" and self.supports("avx512f") else ()

    def llvm_attributes(self) -> tuple[str, ...]:
        """What LLVM is told: ``mattr``, and what keeps it from wrong or slow code on such a CPU."""
        return (*self.mattr, *self._fixed_vectors(), *self._no_gather())

    def tvm(self) -> tvm.target.Target:
        """Return TVM's target, complete enough for MetaSchedule.

        Raises:
            TargetError: see :meth:`check`.
        """
        from tvm.target import Target as TvmTarget

        self.check()
        cpu: dict[str, Any] = {
            "kind": "llvm",
            "mtriple": self.mtriple,
            "mcpu": self.mcpu,
            # MetaSchedule refuses a target without it.
            "num-cores": self.threads,
            **_ABI.get(self.arch, {}),
        }
        mattr = self.llvm_attributes()
        if mattr:
            cpu["mattr"] = list(mattr)
        if self.gpu is None:
            return TvmTarget(cpu)
        # Without the limits, which TVM knows only of a GPU it can ask, MetaSchedule refuses sm_XX.
        known_l2 = {"l2_cache_size_bytes": self.gpu.l2_bytes} if self.gpu.l2_bytes else {}
        return TvmTarget(
            {
                "kind": "cuda",
                "arch": self.gpu.arch,
                "max_threads_per_block": self.gpu.max_threads_per_block,
                "max_num_threads": self.gpu.max_threads_per_block,
                "max_shared_memory_per_block": self.gpu.shared_memory_per_block_bytes,
                "registers_per_block": self.gpu.registers_per_block,
                "thread_warp_size": self.gpu.warp_size,
                "host": cpu,
                **known_l2,
            }
        )
