"""Reads an ONNX model from a path, bytes or a ``ModelProto``; whatever is wrong is one ModelError."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError, EncodeError, Message
from onnx import AttributeProto, ModelProto, TensorProto

from edgetune.errors import ModelError, first_line
from edgetune.model import graphs
from edgetune.model.limits import refuse_runaway_functions

LIMIT_BYTES = 2**31 - 1
"""Protobuf's own limit: no larger ONNX model can be held in one message."""

_OTHER_FORMATS = {
    b"version https://git-lfs": "a Git LFS pointer, not the model; run 'git lfs pull' where it came from",
    b"PK\x03\x04": "a zip archive (PyTorch saves so); export the model to ONNX first",
    b"\x80\x02": "a Python pickle (PyTorch saves so); export the model to ONNX first",
    b"\x89HDF": "an HDF5 file (Keras saves so); convert the model to ONNX first",
    b"ORTM": "in ONNX Runtime's own format; give the .onnx file it was made from",
}


@dataclass(frozen=True)
class SourceModel:
    """A model as it was given.

    Attributes:
        proto: the model, with the data of external files inside.
        name: file stem, or the graph's name.
        sha256: of the file's bytes, followed by those of its external data files in the order of
            their names; of the deterministic serialisation for a ``ModelProto``.
    """

    proto: ModelProto
    name: str
    sha256: str


def load_model(model: str | os.PathLike[str] | bytes | ModelProto) -> SourceModel:
    """Read ``model`` and make sure that it is a whole ONNX model.

    A ``ModelProto`` is copied, so that later changes to it do not matter.

    Raises:
        ModelError: no such file, a directory, empty, not ONNX, truncated, over 2 GB, or with
            external data that is missing.
    """
    if isinstance(model, ModelProto):
        proto = graphs.copy(model)
        _require_graph(proto, "the model")
        _refuse_external(proto, "the model")
        try:
            data = proto.SerializeToString(deterministic=True)
        except (EncodeError, ValueError) as error:
            raise ModelError(_too_large("the model")) from error
        return SourceModel(proto, proto.graph.name or "model", hashlib.sha256(data).hexdigest())
    if isinstance(model, bytes | bytearray | memoryview):
        data = bytes(model)
        proto = _parse(data, "the model's bytes")
        _refuse_external(proto, "the model's bytes")
        return SourceModel(proto, proto.graph.name or "model", hashlib.sha256(data).hexdigest())
    return _load_file(Path(model))


def _load_file(path: Path) -> SourceModel:
    data = _read(path)
    proto = _parse(data, str(path))
    digest = hashlib.sha256(data)
    del data
    files = _external_files(proto, path)
    for file in files:
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    if files:
        try:
            onnx.load_external_data_for_model(proto, str(path.parent))
        except (OSError, ValueError, onnx.checker.ValidationError) as error:
            raise ModelError(
                f"the external data of {path} cannot be read: {first_line(error)}; "
                "copy the model again, with the files it was saved with"
            ) from error
    return SourceModel(proto, path.stem, digest.hexdigest())


def _read(path: Path) -> bytes:
    try:
        if path.is_dir():
            inside = sorted(path.glob("*.onnx"))
            hint = f", for example {inside[0]}" if inside else ""
            raise ModelError(f"{path} is a directory; give the .onnx file{hint}")
        if path.stat().st_size > LIMIT_BYTES:
            raise ModelError(_too_large(str(path)))
        with path.open("rb") as stream:
            data = stream.read(LIMIT_BYTES + 1)  # a pipe and a device tell no size beforehand
        if len(data) > LIMIT_BYTES:
            raise ModelError(_too_large(str(path)))
        return data
    except FileNotFoundError as error:
        raise ModelError(f"{path} does not exist; check the path of the ONNX file") from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}; check its permissions") from error


def _too_large(what: str) -> str:
    return (
        f"{what} is over 2 GB, the limit of an ONNX model in memory; "
        "use a smaller variant (float16 or quantised weights), or split the model"
    )


def _parse(data: bytes, what: str) -> ModelProto:
    if not data:
        raise ModelError(f"{what} is empty; copy or export the model again")
    for magic, meaning in _OTHER_FORMATS.items():
        if data.startswith(magic):
            raise ModelError(f"{what} is not an ONNX model but {meaning}")
    if data[4:8] == b"TFL3":
        raise ModelError(f"{what} is a TensorFlow Lite model; convert it to ONNX first")
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise ModelError(
            f"{what} is not an ONNX model, or it is truncated or damaged; copy or export it again"
        ) from error
    _require_graph(proto, what)
    return proto


def _require_graph(proto: ModelProto, what: str) -> None:
    """Refuse what parses by chance or lacks its end: a model has a version, operators and outputs."""
    missing = [
        label
        for label, present in (
            ("IR version", proto.ir_version > 0),
            ("graph", proto.HasField("graph")),
            ("outputs", bool(proto.graph.output)),
            ("operator set", bool(proto.opset_import) or 0 < proto.ir_version < 3),
        )
        if not present
    ]
    if missing:
        raise ModelError(
            f"{what} is not a whole ONNX model: it has no {', no '.join(missing)}; copy or export it again"
        )
    _refuse_damaged_texts(proto, what)
    _refuse_unknown_types(proto, what)
    _refuse_left_out(proto, what)
    refuse_runaway_functions(proto, what)


def _refuse_damaged_texts(proto: ModelProto, what: str) -> None:
    """Refuse names that are no text: protobuf hands those of a damaged file on as bytes, or fails at them later."""
    try:
        damaged = not all(isinstance(text, str) for text in _texts(proto))
    except UnicodeDecodeError:
        damaged = True
    if damaged:
        raise ModelError(f"{what} is damaged: a name in it is no text; copy or export it again")
    for value in (*proto.graph.input, *proto.graph.output):
        if "\0" in value.name:  # where text ends, in a library's C API
            raise ModelError(
                f"{what} has a NUL in the name {value.name!r}; rename it, or export the model again"
            )


def _refuse_unknown_types(proto: ModelProto, what: str) -> None:
    """Refuse element types that the installed onnx does not know: no later step can handle them."""
    used = {int(tensor.data_type) for tensor in _tensors(proto)}
    for graph in graphs.walk_graphs(proto.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            used.add(int(value.type.tensor_type.elem_type))
    if unknown := sorted(used - set(TensorProto.DataType.values())):
        raise ModelError(
            f"{what} has tensors of type number {unknown[0]}, which onnx {onnx.__version__} does not know: it is "
            "damaged, or needs a newer onnx package"
        )


def _refuse_left_out(proto: ModelProto, what: str) -> None:
    """Refuse nodes that leave out what is not optional: ONNX Runtime dies of some (inputs of Max, outputs of Split)."""
    for part in (proto, *proto.functions):
        opset = graphs.opset(part)
        for node in graphs.walk_nodes(part.graph if isinstance(part, ModelProto) else part):
            if node.domain not in graphs.DEFAULT_DOMAINS or not ("" in node.input or "" in node.output):
                continue
            try:
                schema = onnx.defs.get_schema(node.op_type, opset)
            except onnx.defs.SchemaError:
                continue
            left_out = [f"input {index}" for index in _left_out(node.input, schema.inputs)]
            left_out += [f"output {index}" for index in _left_out(node.output, schema.outputs)]
            if left_out:
                raise ModelError(
                    f"{what} is no valid ONNX: the {node.op_type} node {node.name!r} leaves out its {left_out[0]}, "
                    "which is not optional; export the model again"
                )


def _left_out(names: Sequence[str], formal: Sequence[onnx.defs.OpSchema.FormalParameter]) -> list[int]:
    """Indices of what is left out and not optional. The last of ``formal`` may stand for any number of names."""
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    kinds = [formal[min(index, len(formal) - 1)].option if formal else None for index in range(len(names))]
    return [index for index, name in enumerate(names) if not name and kinds[index] != optional]


def _texts(message: Message) -> Iterator[str | bytes]:
    """Every string field of a message and of those in it."""
    for field, value in message.ListFields():
        many = [value] if isinstance(value, str | bytes | Message) else value
        if field.type == field.TYPE_STRING:
            yield from many
        elif field.type == field.TYPE_MESSAGE:
            for child in many:
                yield from _texts(child)


def _tensors(proto: ModelProto) -> Iterator[TensorProto]:
    for graph in graphs.walk_graphs(proto.graph):
        yield from graph.initializer
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == AttributeProto.TENSOR:
                    yield attribute.t
                yield from attribute.tensors


def _external_names(proto: ModelProto) -> list[str]:
    """Locations of external data, each once, sorted."""
    found = set()
    for tensor in _tensors(proto):
        if tensor.data_location == TensorProto.EXTERNAL:
            found.add(next((entry.value for entry in tensor.external_data if entry.key == "location"), ""))
    return sorted(found)


def _refuse_external(proto: ModelProto, what: str) -> None:
    if external := _external_names(proto):
        raise ModelError(
            f"{what} keeps weights in another file ({external[0]}), which cannot be found from here; "
            "give the path of the .onnx file instead"
        )


def _external_files(proto: ModelProto, path: Path) -> list[Path]:
    """The external data files of the model at ``path``; they are there, inside its folder, small enough."""
    files = []
    folder = path.parent.resolve()
    for location in _external_names(proto):
        try:
            file = (folder / location).resolve()
            there = file.is_file()
        except (OSError, ValueError) as error:
            raise ModelError(
                f"{path} refers to external data in {location[:80]!r}, which cannot be the name of a file; "
                "save the model again with its data beside it"
            ) from error
        if not location or not file.is_relative_to(folder):
            linked = bool(location) and (folder / location).is_symlink()  # as Hugging Face's cache has it
            raise ModelError(
                f"{path} refers to external data outside of its folder ({location!r}"
                f"{', a symbolic link' if linked else ''}), which is refused; "
                + (
                    "copy the folder with 'cp -rL', which follows links"
                    if linked
                    else "save the model again with its data beside it"
                )
            )
        if not there:
            raise ModelError(
                f"{path} keeps weights in {location}, and there is no such file in {path.parent}; "
                "copy it there, under this name"
            )
        files.append(file)
    if sum(file.stat().st_size for file in files) > LIMIT_BYTES:
        raise ModelError(_too_large(f"{path}, with its external data,"))
    return files
