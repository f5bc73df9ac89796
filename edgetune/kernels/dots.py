"""The instructions that multiply and add narrow integers: which one a target has, and how TVM is told of it.

All of them take a group of neighbouring input channels, the same for every lane, and for each lane a group of weights:
``C[i] += sum_k A[k] * W[i, k]`` in int32. All are exact: sums wrap only where int32 does. (``vpmaddubsw`` is not
among them: it saturates its sums of two products at 16 bits, so that its results depend on the weights.)
"""

# TVMScript's annotations are values.
# mypy: disable-error-code="valid-type,untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

if TYPE_CHECKING:
    from edgetune.targets import Target


@dataclass(frozen=True)
class Dot:
    """A way to multiply and add.

    Attributes:
        intrinsic: its name among TVM's tensor intrinsics; empty where LLVM selects the instruction by itself.
        group: input channels that one instruction sums up.
        activation, weight: element types that it reads; int16 holds an 8-bit value less its zero point.
        lanes: sums in one register.
    """

    intrinsic: str
    group: int
    activation: str
    weight: str
    lanes: int


# The feature that it takes, intrinsics of LLVM by lanes, group, types of activation and weight. Best first.
# Intel 64 and IA-32 Architectures Software Developer's Manual, VPDPBUSD and PMADDWD; Arm Architecture Reference
# Manual, SDOT.
_INSTRUCTIONS: dict[str, list[tuple[str, dict[int, str], int, str, str]]] = {
    "x86_64": [
        ("avx512vnni", {16: "x86.avx512.vpdpbusd.512"}, 4, "uint8", "int8"),
        ("avx512vnni", {8: "x86.avx512.vpdpbusd.256", 4: "x86.avx512.vpdpbusd.128"}, 4, "uint8", "int8"),
        ("avxvnni", {8: "x86.avx512.vpdpbusd.256", 4: "x86.avx512.vpdpbusd.128"}, 4, "uint8", "int8"),
        ("avx512bw", {16: "x86.avx512.pmaddw.d.512"}, 2, "int16", "int16"),
        ("avx2", {8: "x86.avx2.pmadd.wd"}, 2, "int16", "int16"),
        ("sse2", {4: "x86.sse2.pmadd.wd"}, 2, "int16", "int16"),
    ],
    "aarch64": [("dotprod", {4: "aarch64.neon.sdot.v4i32.v16i8"}, 4, "int8", "int8")],
}


def best_dot(target: Target, weight: np.ndarray) -> Dot:
    """The way that suits a target and reads every weight; products of single int16 where no instruction does.

    Weights are bytes less their zero point: those of uint8 are often no int8, but always fit int16.
    """
    least, most = int(weight.min(initial=0)), int(weight.max(initial=0))
    lanes = target.lanes("int32")
    for feature, names, group, activation, reads in _INSTRUCTIONS.get(target.arch, []):
        fits = np.iinfo(reads).min <= least and most <= np.iinfo(reads).max
        if lanes in names and fits and target.supports(feature):
            return Dot(
                _register(names[lanes], group, activation, reads, lanes), group, activation, reads, lanes
            )
    # LLVM vectorises these by itself.
    return Dot("", 1, "int16", "int16", lanes)


def _register_all() -> None:
    """Tell TVM of every intrinsic: recorded schedules name them, and are applied in processes that lowered nothing."""
    for rows in _INSTRUCTIONS.values():
        for _, names, group, activation, weight in rows:
            for lanes, name in names.items():
                _register(name, group, activation, weight, lanes)


def _register(llvm: str, group: int, activation: str, weight: str, lanes: int) -> str:
    name = f"edgetune.{llvm}"
    if TensorIntrin.get(name, allow_missing=True) is None:
        make = _paired if group == 2 else _summed
        TensorIntrin.register(
            name,
            _description(group, activation, weight, lanes),
            make(f"llvm.{llvm}", group, activation, weight, lanes),
        )
    return name


def _description(group: int, activation: str, weight: str, lanes: int) -> Any:
    @T.prim_func(s_tir=True)
    def description(
        A: T.Buffer((group,), activation, offset_factor=1),
        W: T.Buffer((lanes, group), weight, offset_factor=1),
        C: T.Buffer((lanes,), "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:group], W[0:lanes, 0:group])
            T.writes(C[0:lanes])
            for i in T.serial(0, lanes):
                for k in T.serial(0, group):
                    with T.sblock("update"):
                        vi, vk = T.axis.remap("SR", [i, k])
                        C[vi] = C[vi] + T.cast(A[vk], "int32") * T.cast(W[vi, vk], "int32")

    return description


def _paired(llvm: str, group: int, activation: str, weight: str, lanes: int) -> Any:
    """A product of pairs, then an addition."""
    one, all_ = f"{activation}x{group}", f"{activation}x{group * lanes}"
    weights, sums = f"{weight}x{group * lanes}", f"int32x{lanes}"

    @T.prim_func(s_tir=True)
    def implementation(
        A: T.Buffer((group,), activation, offset_factor=1),
        W: T.Buffer((lanes, group), weight, offset_factor=1),
        C: T.Buffer((lanes,), "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:group], W[0:lanes, 0:group])
            T.writes(C[0:lanes])
            C[T.ramp(T.int32(0), 1, lanes)] = C.vload([0], sums) + T.call_llvm_pure_intrin(
                T.llvm_lookup_intrinsic_id(llvm),
                T.reinterpret(
                    T.broadcast(T.reinterpret(A.vload([0], one), dtype="int32"), lanes), dtype=all_
                ),
                W.vload([0, 0], weights),
                dtype=sums,
            )

    return implementation


def _summed(llvm: str, group: int, activation: str, weight: str, lanes: int) -> Any:
    """An instruction that adds as well. LLVM's takes bytes, where TVM's own intrinsic passes words."""
    one, all_ = f"{activation}x{group}", f"{activation}x{group * lanes}"
    weights, sums = f"{weight}x{group * lanes}", f"int32x{lanes}"

    @T.prim_func(s_tir=True)
    def implementation(
        A: T.Buffer((group,), activation, offset_factor=1),
        W: T.Buffer((lanes, group), weight, offset_factor=1),
        C: T.Buffer((lanes,), "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:group], W[0:lanes, 0:group])
            T.writes(C[0:lanes])
            C[T.ramp(T.int32(0), 1, lanes)] = T.call_llvm_pure_intrin(
                T.llvm_lookup_intrinsic_id(llvm),
                C.vload([0], sums),
                T.reinterpret(
                    T.broadcast(T.reinterpret(A.vload([0], one), dtype="int32"), lanes), dtype=all_
                ),
                W.vload([0, 0], weights),
                dtype=sums,
            )

    return implementation


_register_all()
