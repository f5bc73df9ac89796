"""Options that several commands share, and how their texts become values."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from edgetune.errors import UsageError
from edgetune.sizes import parse_sizes


def option(names: str, metavar: str, help: str, **more: Any) -> Any:
    """An option without a default, or whose default stands in its help: ``--threads -t``, ``N``, what it is."""
    return typer.Option(*names.split(), metavar=metavar, help=help, show_default=False, **more)


def argument(metavar: str, help: str) -> Any:
    """An argument that must be given."""
    return typer.Argument(metavar=metavar, help=help, show_default=False)


ModelArgument = Annotated[str, argument("MODEL", "The ONNX file.")]
BundleArgument = Annotated[Path, argument("BUNDLE", "The bundle's directory or .tar.")]
ShapeOption = Annotated[
    list[str] | None,
    option(
        "--shape",
        "NAME:DIMS",
        "Shape of an input, as x:1x3x224x224 or x:[1,3,224,224]; repeatable. A dimension that varies "
        "from call to call: a range as 1..8, or the sizes to build kernels for as 1/4/8.",
    ),
]
RunShapeOption = Annotated[
    list[str] | None,
    option(
        "--shape",
        "NAME:DIMS",
        "Shape of an input, for a bundle of several sizes; repeatable.  [default: the largest]",
    ),
]
FreezeOption = Annotated[
    list[str] | None,
    option(
        "--freeze", "NAME=VALUE", "Fixed value of an input that is really a setting, as sr=16000; repeatable."
    ),
]
CutOption = Annotated[
    list[str] | None,
    option("--cut", "TENSOR", "Stop at this tensor of the model, in place of its outputs; repeatable."),
]
SaveRestOption = Annotated[
    Path | None,
    option(
        "--save-rest",
        "FILE.onnx",
        "Write what comes after --cut as an ONNX model, to run on the bundle's outputs.",
    ),
]
TargetOption = Annotated[
    str | None,
    option(
        "--target -t",
        "TARGET",
        "'local', a name from 'edgetune targets list', or a path to a TOML file.  [default: local]",
    ),
]
DeviceOption = Annotated[str | None, option("--device -d", "NAME", "The device to use.  [default: local]")]
DevicesOption = Annotated[
    str | None,
    option(
        "--device -d",
        "NAMES",
        "The device to use, or several of one kind at once: board1,board2.  [default: local]",
    ),
]
ClusterOption = Annotated[
    str | None,
    option(
        "--cluster",
        "CPUS",
        "The device's CPUs to run on: 'fastest', 'big' (all but the slowest kind), 'little', 'all', or a list "
        "as 4-7.  [default: any]",
    ),
]
FixClocksOption = Annotated[
    bool,
    typer.Option(
        "--fix-clocks",
        help="Let the device's CPUs run with the 'performance' governor meanwhile, where its user may say so; "
        "it is put back whatever happens.",
    ),
]
LogsOption = Annotated[
    str | None,
    option(
        "--logs",
        "PATH_OR_URL",
        "The tuning logs: a SQLite file or a PostgreSQL URL.  [default: a file in the user's data directory]",
    ),
]
ThreadsOption = Annotated[
    int | None, option("--threads", "N", "Threads to compile and run for.  [default: the target's]", min=1)
]
RunThreadsOption = Annotated[
    int | None, option("--threads", "N", "Threads to run on.  [default: the bundle's]", min=1)
]
OutOption = Annotated[
    Path | None, option("--out -o", "DIR", "Where to write the bundle.  [default: edgetune-out/MODEL-TARGET]")
]
ArchiveOption = Annotated[bool, typer.Option("--archive", help="Write one .tar in place of a directory.")]
LeanOption = Annotated[
    bool,
    typer.Option(
        "--lean", help="Leave out the ONNX model and reference outputs, which only compare and benchmark use."
    ),
]
StandaloneOption = Annotated[
    bool | None,
    typer.Option(
        "--standalone/--vm",
        help="A library with a C API that needs nothing of TVM, or a program for TVM's virtual machine.  "
        "[default: a library wherever the model can be one]",
        show_default=False,
    ),
]
WeightsOption = Annotated[
    str,
    typer.Option(
        "--weights",
        metavar="file|embed",
        help="Of a standalone library: in a file beside it, or inside it.",
    ),
]
RtolOption = Annotated[
    float | None,
    option("--rtol", "X", "Allowed relative error.  [default: by dtype, 1e-3 for float32]", min=0),
]
AtolOption = Annotated[
    float | None,
    option(
        "--atol",
        "X",
        "Allowed absolute error.  [default: by dtype, 1e-4 of the largest value for float32]",
        min=0,
    ),
]
HostOption = Annotated[
    str,
    typer.Option("--host", metavar="ADDRESS", help="Address to listen on; other than loopback is unsafe."),
]
PortOption = Annotated[
    int, typer.Option("--port", min=0, max=65535, metavar="PORT", help="Port to listen on; 0: any free.")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")
]
VerboseOption = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        help="Say more; -vv adds debug logs and tracebacks.",
        show_default=False,
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Say only results and errors.")]


def parse_shapes(texts: Sequence[str] | None) -> dict[str, tuple[int | str, ...]] | None:
    """Shapes by input name, from texts such as ``x:1x3x224x224`` or ``x:[1,3,224,224]``.

    The last colon ends the name, so names may contain colons (``x:0:1x3``). A dimension that varies stays
    a text: ``1..8`` or ``1/4/8``.

    Raises:
        UsageError: a text is malformed, a dimension is not positive, or a name comes twice.
    """
    shapes: dict[str, tuple[int | str, ...]] = {}
    for text in texts or ():
        name, _, dims = text.rpartition(":")
        if not name or name in shapes:
            what = "gives no input name" if not name else f"gives the shape of {name!r} a second time"
            raise UsageError(
                f"--shape {text!r} {what}; write NAME:DIMS once for each input, as x:1x3x224x224"
            )
        shapes[name] = _dims(text, dims.strip())
    return shapes or None


def parse_fixed_shapes(texts: Sequence[str] | None) -> dict[str, tuple[int, ...]] | None:
    """Shapes by input name, for one run: every dimension a number.

    Raises:
        UsageError: as for :func:`parse_shapes`, or a dimension varies.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for name, dims in (parse_shapes(texts) or {}).items():
        shapes[name] = tuple(dim for dim in dims if isinstance(dim, int))
        if len(shapes[name]) < len(dims):
            raise UsageError(
                f"--shape {name}:{'x'.join(map(str, dims))} has several sizes, but this command runs one; "
                "give one number for each dimension"
            )
    return shapes or None


def _dims(text: str, dims: str) -> tuple[int | str, ...]:
    if dims.startswith("[") and dims.endswith("]"):
        parts = [part.strip() for part in dims[1:-1].split(",") if part.strip()]
    else:
        parts = [part.strip() for part in re.split("[x,]", dims)]
    try:
        sizes = [parse_sizes(part) for part in parts]
    except UsageError as error:
        raise UsageError(
            f"--shape {text!r}: {dims!r} is not a shape; write positive whole numbers, as 1x3x224x224 or "
            "[1,3,224,224], and for a dimension that varies a range or several sizes, as 1..8x3x224x224 or "
            "1/4/8x3x224x224"
        ) from error
    return tuple(size[0] if len(size) == 1 else part for part, size in zip(parts, sizes, strict=True))


def parse_freeze(texts: Sequence[str] | None) -> dict[str, Any] | None:
    """Fixed input values by name, from texts such as ``sr=16000`` or ``scale=[1.0,2.0]``.

    Raises:
        UsageError: a text has no ``=``, a value is no number, boolean or list, or a name comes twice.
    """
    values: dict[str, Any] = {}
    for text in texts or ():
        name, _, value = text.rpartition("=")
        if not name or name in values:
            what = "gives no input name" if not name else f"fixes {name!r} a second time"
            raise UsageError(f"--freeze {text!r} {what}; write NAME=VALUE once for each input, as sr=16000")
        try:
            values[name] = json.loads(value)
        except ValueError:
            values[name] = None
        if not isinstance(values[name], int | float | list):
            raise UsageError(
                f"--freeze {text!r}: {value!r} is not a value; write a number, true, false or a list, "
                "as sr=16000 or scale=[1.0,2.0]"
            )
    return values or None
