"""Gives every dimension of every input a number.

Before: ``input [batch, sequence]``, ``state [2, batch, 128]``. After, with
``{"input": (1, 576)}``: ``input [1, 576]``, ``state [2, 1, 128]``, since a symbol means the same
size wherever it stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral

from onnx import ModelProto

from edgetune.errors import ModelError, UsageError
from edgetune.model import graphs, interface
from edgetune.model.interface import Dim, Value
from edgetune.model.passes.freeze_inputs import require_input
from edgetune.model.pipeline import PassResult, unchanged


def bind_shapes(model: ModelProto, shapes: Mapping[str, Sequence[int]]) -> PassResult:
    """Write ``shapes``, and the sizes of symbols that follow from them, into the inputs.

    Raises:
        UsageError: no such input, a wrong number of dimensions, a size that contradicts the file
            or another input.
        ModelError: some dimension is still open; the message shows the options to give.
    """
    declared = interface.inputs(model)
    bound = bound_inputs(declared, shapes)
    if still_open := [value for value in bound if not value.fixed]:
        raise ModelError(open_dims_message(bound, still_open))
    if bound == declared:
        return unchanged(model)
    model = graphs.copy(model)
    dims = {value.name: value.dims for value in bound}
    for value in model.graph.input:
        if value.name in dims:
            interface.set_dims(value, dims[value.name])
    return PassResult(model, True)


def bound_inputs(declared: Sequence[Value], shapes: Mapping[str, Sequence[int]]) -> tuple[Value, ...]:
    """``declared`` with ``shapes`` filled in; what they leave open stays open.

    Raises:
        UsageError: as for :func:`bind_shapes`.
    """
    by_name = {value.name: value for value in declared}
    symbols: dict[str, tuple[int, str]] = {}
    for name, shape in shapes.items():
        _match(require_input(name, by_name, "--shape"), tuple(shape), symbols)

    def fill(value: Value) -> Value:
        if value.name in shapes:
            return Value(value.name, value.dtype, tuple(int(size) for size in shapes[value.name]))
        if value.dims is None:
            return value
        return Value(value.name, value.dtype, tuple(_resolve(dim, symbols) for dim in value.dims))

    return tuple(fill(value) for value in declared)


def _resolve(dim: Dim, symbols: Mapping[str, tuple[int, str]]) -> Dim:
    return symbols[dim][0] if isinstance(dim, str) and dim in symbols else dim


def _match(value: Value, shape: tuple[int, ...], symbols: dict[str, tuple[int, str]]) -> None:
    """Hold ``shape`` against the declared dimensions and note what it says about symbols."""
    text = "x".join(map(str, shape))
    own = value.dims if value.dims is not None and len(value.dims) == len(shape) else (None,) * len(shape)
    # No elements at all is what a file may mean; where it leaves the size open, zero is a slip.
    if not all(_is_size(size) or (size == 0 and dim == 0) for size, dim in zip(shape, own, strict=True)):
        raise UsageError(
            f"the shape of input {value.name!r} must be whole numbers of at least 1, not {shape!r}"
        )
    if value.dims is None:
        return
    if len(shape) != len(value.dims):
        raise UsageError(
            f"--shape {value.name}:{text} has {len(shape)} dimensions, but the model declares "
            f"{len(value.dims)}: {value.shape_text()}"
        )
    for size, dim in zip(shape, value.dims, strict=True):
        if isinstance(dim, int) and dim != size:
            raise UsageError(
                f"--shape {value.name}:{text} contradicts the model, where this input is "
                f"{value.shape_text()}: dimensions with a number are fixed; export the model again "
                "with an open dimension to change them"
            )
        if isinstance(dim, str):
            known, where = symbols.setdefault(dim, (size, value.name))
            if known != size:
                raise UsageError(
                    f"--shape {value.name}:{text} makes {dim!r} {size}, but input {where!r} makes it "
                    f"{known}: a symbol has one size; give both the same"
                )


def _is_size(size: object) -> bool:
    """Users of the Python API may give anything."""
    return type(size) is not bool and isinstance(size, Integral) and int(size) >= 1


def open_dims_message(declared: Sequence[Value], still_open: Sequence[Value]) -> str:
    """What is open, and the options that would fix it, with sizes to be replaced by the user's."""
    width = max(len(value.name) for value in declared)
    lines = [
        f"  {value.name:<{width}}  {value.dtype} {value.shape_text()}{'' if value.fixed else '  <- open'}"
        for value in declared
    ]
    options = " ".join(f"--shape {name}:{'x'.join(map(str, shape))}" for name, shape in examples(still_open))
    settings = [v.name for v in declared if v.dims == () and not v.dtype.startswith(("float", "bfloat"))]
    hint = (
        f"\nIf {' and '.join(settings)} is a setting and no data, fix it too: "
        f"{' '.join(f'--freeze {name}=VALUE' for name in settings)}"
        if settings
        else ""
    )
    return (
        f"{len(still_open)} of the model's {len(declared)} inputs "
        f"{'has' if len(still_open) == 1 else 'have'} open dimensions, which must be fixed:\n"
        + "\n".join(lines)
        + f"\nGive their shapes with the sizes you will run, for example: {options}{hint}"
    )


def examples(values: Sequence[Value]) -> list[tuple[str, tuple[int, ...]]]:
    """Plausible shapes for ``values``, the same size for the same symbol; only a starting point."""
    sizes: dict[str, int] = {}
    shapes = []
    for value in values:
        dims = value.dims if value.dims is not None else (None,) * 4
        shape = []
        for axis, dim in enumerate(dims):
            size = dim if isinstance(dim, int) else _guess(dim, axis, dims)
            shape.append(sizes.setdefault(dim, size) if isinstance(dim, str) else size)
        shapes.append((value.name, tuple(shape)))
    return shapes


def _guess(dim: Dim, axis: int, dims: Sequence[Dim]) -> int:
    batch_behind = isinstance(dims[0], int) and axis == 1 and len(dims) == 3  # state [layers, batch, size]
    if axis == 0 or batch_behind or (isinstance(dim, str) and "batch" in dim.lower()):
        return 1
    channels_first = len(dims) == 4 and axis == 1 and not isinstance(dims[3], int)
    if channels_first:
        return 3
    return 224 if len(dims) == 4 else 128
