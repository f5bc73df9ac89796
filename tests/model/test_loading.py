"""Whatever is wrong with a model file is one ModelError that says what to do."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from onnx.parser import parse_model

from edgetune.errors import ModelError
from edgetune.model import loading
from edgetune.model.loading import load_model

RELU = parse_model(
    '<ir_version: 8, opset_import: ["": 17]> relu (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }'
)


def with_weight(elements: int = 64) -> onnx.ModelProto:
    model = parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        scaled (float[{elements}] x) => (float[{elements}] y) {{ y = Mul(x, w) }}"""
    )
    weight = np.arange(elements, dtype=np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return model


def test_a_file_keeps_its_name_and_hash(tmp_path: Path) -> None:
    path = tmp_path / "net.v2.onnx"
    path.write_bytes(RELU.SerializeToString())
    loaded = load_model(path)
    assert loaded.name == "net.v2"
    assert loaded.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert loaded.proto == RELU


def test_bytes_and_protos_are_named_after_their_graph() -> None:
    data = RELU.SerializeToString()
    assert load_model(data).name == load_model(RELU).name == "relu"
    assert load_model(data).sha256 == hashlib.sha256(data).hexdigest()


def test_a_proto_is_copied() -> None:
    given_model = onnx.ModelProto.FromString(RELU.SerializeToString())
    loaded = load_model(given_model)
    given_model.graph.node[0].op_type = "Sigmoid"
    assert loaded.proto.graph.node[0].op_type == "Relu"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"hello, this is text", "not an ONNX model|not a whole ONNX model"),
        (b"PK\x03\x04rest", "PyTorch"),
        (b"\x89HDF\r\n", "Keras"),
        (b"\x1c\x00\x00\x00TFL3", "TensorFlow Lite"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (RELU.SerializeToString()[:-20], "truncated or damaged|not a whole"),
    ],
)
def test_what_is_no_onnx_model(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=says) as error:
        load_model(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nothing\.onnx does not exist"):
        load_model(tmp_path / "nothing.onnx")
    (tmp_path / "real.onnx").write_bytes(RELU.SerializeToString())
    with pytest.raises(ModelError, match=r"is a directory.*real\.onnx"):
        load_model(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "secret.onnx"
    path.write_bytes(RELU.SerializeToString())
    path.chmod(0)
    with pytest.raises(ModelError, match="cannot be read"):
        load_model(path)


def test_over_two_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "huge.onnx"
    with path.open("wb") as stream:
        stream.truncate(2**31)  # sparse: takes no space
    with pytest.raises(ModelError, match="over 2 GB"):
        load_model(path)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200) | st.integers(0, len(RELU.SerializeToString()) - 1))
def test_any_bytes_and_any_truncation_load_or_are_refused(data: bytes | int) -> None:
    content = RELU.SerializeToString()[:data] if isinstance(data, int) else data
    with contextlib.suppress(ModelError):
        load_model(content)


class TestExternalData:
    def save(self, folder: Path) -> Path:
        path = folder / "big.onnx"
        onnx.save(with_weight(), path, save_as_external_data=True, location="big.data", size_threshold=0)
        return path

    def test_is_read_into_the_model(self, tmp_path: Path) -> None:
        path = self.save(tmp_path)
        weight = load_model(path).proto.graph.initializer[0]
        np.testing.assert_array_equal(numpy_helper.to_array(weight), np.arange(64, dtype=np.float32))

    def test_counts_in_the_hash(self, tmp_path: Path) -> None:
        path = self.save(tmp_path)
        both = path.read_bytes() + (tmp_path / "big.data").read_bytes()
        assert load_model(path).sha256 == hashlib.sha256(both).hexdigest()

    def test_missing_file_is_named(self, tmp_path: Path) -> None:
        path = self.save(tmp_path)
        (tmp_path / "big.data").unlink()
        with pytest.raises(ModelError, match=re.escape("big.data, and there is no such file")):
            load_model(path)

    def test_truncated_file(self, tmp_path: Path) -> None:
        path = self.save(tmp_path)
        (tmp_path / "big.data").write_bytes(b"\0" * 10)
        with pytest.raises(ModelError, match="external data"):
            load_model(path)

    def test_bytes_have_no_folder_to_look_in(self, tmp_path: Path) -> None:
        data = self.save(tmp_path).read_bytes()
        with pytest.raises(ModelError, match=r"another file \(big\.data\)"):
            load_model(data)
        with pytest.raises(ModelError, match=r"another file \(big\.data\)"):
            load_model(onnx.ModelProto.FromString(data))

    def test_a_link_out_of_the_folder_is_refused_with_the_way_to_copy_it(self, tmp_path: Path) -> None:
        (tmp_path / "snapshot").mkdir()
        path = self.save(tmp_path / "snapshot")
        data = tmp_path / "snapshot" / "big.data"
        data.rename(tmp_path / "blob")
        data.symlink_to("../blob")
        with pytest.raises(ModelError, match=r"a symbolic link.*cp -rL"):
            load_model(path)

    def test_a_path_out_of_the_folder_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "inner").mkdir()
        path = self.save(tmp_path / "inner")
        (tmp_path / "inner" / "big.data").rename(tmp_path / "big.data")
        model = onnx.load(path, load_external_data=False)
        for entry in model.graph.initializer[0].external_data:
            if entry.key == "location":
                entry.value = "../big.data"
        path.write_bytes(model.SerializeToString())
        with pytest.raises(ModelError, match=r"outside of its folder.*save the model again"):
            load_model(path)

    def test_more_than_fits_into_one_message(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = self.save(tmp_path)
        monkeypatch.setattr(loading, "LIMIT_BYTES", path.stat().st_size + 10)
        with pytest.raises(ModelError, match="with its external data, is over 2 GB"):
            load_model(path)


def test_a_name_that_is_no_text() -> None:
    """Protobuf gives a damaged name as bytes; ``node`` would then be no string anywhere."""
    data = RELU.SerializeToString().replace(b"Relu", b"Rel\xfa")
    with pytest.raises(ModelError, match="damaged: a name in it is no text"):
        load_model(data)


@pytest.mark.parametrize("side", ["input", "output"])
def test_a_name_with_a_nul(side: str) -> None:
    model = onnx.ModelProto.FromString(RELU.SerializeToString())
    getattr(model.graph, side)[0].name = getattr(model.graph.node[0], side)[0] = "a\0b"
    with pytest.raises(ModelError, match=r"has a NUL in the name 'a\\x00b'"):
        load_model(model)


def test_a_type_that_nobody_knows() -> None:
    model = onnx.ModelProto.FromString(RELU.SerializeToString())
    model.graph.input[0].type.tensor_type.elem_type = 122
    with pytest.raises(ModelError, match="type number 122"):
        load_model(model)


def test_an_input_that_must_not_be_left_out() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[3] x) => (float[3] y) {{ y = {} }}'
    with pytest.raises(ModelError, match="the Max node '' leaves out its input 1"):
        load_model(parse_model(text.format('Max(x, "")')))
    load_model(parse_model(text.format('Clip(x, "", x)')))


@pytest.mark.parametrize("inside", [False, True])
def test_an_output_that_must_not_be_left_out(inside: bool) -> None:
    """ONNX Runtime writes to it all the same, and dies."""
    text = (
        '<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[4] x) => (float[2] y) { y, z = Split(x) }'
    )
    if inside:
        text = text.replace("y, z = Split(x)", "y = f.half(x)")
        text += ' <opset_import: ["": 17], domain: "f"> half (x) => (y) { y, z = Split(x) }'
    model = parse_model(text)
    load_model(model)
    (model.functions[0] if inside else model.graph).node[0].output[1] = ""
    with pytest.raises(ModelError, match="the Split node '' leaves out its output 1, which is not optional"):
        load_model(model)
