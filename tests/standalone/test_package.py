"""Several bundles of one model in one: stored once, chosen by the CPU, from Python and from C."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import edgetune
from edgetune.bundle.assemble import write_bundle
from edgetune.bundle.reader import open_bundle
from edgetune.cpu import architecture
from edgetune.devices.local import local_device
from edgetune.devices.probe import Probe
from edgetune.devices.transport import Device
from edgetune.errors import BundleError, UsageError
from edgetune.sides.device_side import open_for
from edgetune.standalone.build import build_standalone
from edgetune.targets import Target
from edgetune.toolchain import _empty_object, link_shared
from tests.standalone.conftest import expected, prepared, program, run, system_compiler, target_for

OTHER = "riscv64" if architecture() != "riscv64" else "x86_64"
NEVER = {"x86_64": "fma4", "aarch64": "sve2", "arm": "hwdiv", "riscv64": "v"}


@pytest.fixture
def bundles(
    x: np.ndarray, local_target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[Path]:
    """Bundles for a plain machine, this one, one with more features than any, and another architecture."""
    features = {
        "plain": (), "here": tuple(local_target.required_features()),
        "future": (*local_target.required_features(), NEVER[architecture()]), "elsewhere": (),
    }  # fmt: skip
    paths = []
    for name, wanted in features.items():
        arch = OTHER if name == "elsewhere" else architecture()
        target = target_for(arch, local_target).model_copy(update={"name": name})
        monkeypatch.setattr(Target, "required_features", lambda _, wanted=wanted: wanted)
        made = program(arch, tmp_path)
        compiled = build_standalone(made, "hand made", target)
        path = tmp_path / f"for-{name}"
        paths.append(write_bundle(path, compiled, prepared(made, x), target, [], check=None).path)
    return paths


def merge(run_cli, bundles, out, *options):
    code, printed, err = run_cli("bundle", "merge", *map(str, bundles), "--out", str(out), "--json", *options)
    assert code == 0, err
    return json.loads(printed)


@pytest.mark.parametrize("archive", [False, True])
def test_the_best_for_this_machine_is_loaded(bundles, x, tmp_path, run_cli, archive):
    out = tmp_path / "all"
    merged = merge(run_cli, bundles, out, *(["--archive"] if archive else []))
    assert merged["targets"] == ["future", "here", "plain", "elsewhere"]
    model = edgetune.load(out)
    assert model.manifest.target.name == "here"
    np.testing.assert_array_equal(model.run({"x": x.reshape(10, 100)})["y"].reshape(-1), expected(x)["y"])
    assert edgetune.compare(out).passed
    if not archive:
        names = {path.name for path in out.iterdir()}
        assert {"future.so", "here.so", "plain.so", "elsewhere.so", "weights.bin", "edgetune.h"} <= names
        assert sum(name.endswith("weights.bin") for name in names) == 1
        assert merged["saved_bytes"] > 3 * (out / "weights.bin").stat().st_size


def test_it_falls_back_and_says_when_nothing_fits(bundles, tmp_path, run_cli):
    future, elsewhere, plain = bundles[2], bundles[3], bundles[0]
    merge(run_cli, [future, elsewhere, plain], tmp_path / "all")
    assert edgetune.load(tmp_path / "all").manifest.target.name == "plain"
    merge(run_cli, [future, elsewhere], tmp_path / "none")
    with pytest.raises(BundleError, match=rf"future: lacks .*elsewhere: for {OTHER}"):
        edgetune.load(tmp_path / "none")


def device(arch: str, features: tuple[str, ...]) -> Device:
    """A device that says what it is, and is never reached."""
    probe = Probe.model_construct(arch=arch, features=features)
    return Device("board", local_device(1).transport, shares_host=False, threads=1, prober=lambda: probe)


def test_a_device_gets_what_is_best_for_it(bundles, tmp_path, run_cli):
    out = tmp_path / "all"
    merge(run_cli, bundles, out)
    assert open_for(out, "local").manifest.target.name == "here"
    assert open_for(out, device(OTHER, ())).manifest.target.name == "elsewhere"
    every = open_bundle(bundles[2]).manifest.target.cpu_features
    assert open_for(out, device(architecture(), every)).manifest.target.name == "future"
    merge(run_cli, bundles[:3], tmp_path / "one machine")
    with pytest.raises(BundleError, match=rf"device 'board' can run .*plain: for {architecture()}"):
        open_for(tmp_path / "one machine", device(OTHER, ()))


def test_damage_is_noticed_where_it_matters(bundles, tmp_path, run_cli):
    out = tmp_path / "all"
    merge(run_cli, bundles, out)
    (out / "elsewhere.so").write_bytes(b"")
    edgetune.load(out)
    code, _, err = run_cli("bundle", "verify", str(out))
    assert (code, "elsewhere.so has 0 bytes" in err) == (1, True)
    (out / "here.so").write_bytes((out / "plain.so").read_bytes())
    with pytest.raises(BundleError, match=r"model.so (was changed|has)"):
        edgetune.load(out)
    (out / "here.json").write_text("{}")
    with pytest.raises(BundleError, match=r"here.json is missing or was changed"):
        edgetune.load(out)


def test_what_does_not_belong_together_is_refused(bundles, stand_in, tmp_path, run_cli):
    other = stand_in.write(tmp_path / "other").path
    for pair, reason in (
        ([bundles[0], other], "not of one model"),
        ([bundles[0]] * 2, "two bundles are for plain"),
    ):
        code, _, err = run_cli("bundle", "merge", *map(str, pair), "--out", str(tmp_path / "all"))
        assert code == UsageError.exit_code
        assert reason in err
    assert not (tmp_path / "all").exists()


APP = """
#include <cstdio>
#include <vector>
#include "edgetune.hpp"

int main(int, char **argv) {
  try {
    edgetune::Model model = edgetune::Model::load(argv[1]);
    edgetune::Instance instance(model, 2);
    std::vector<float> values(1000, 0.5f);
    instance.set_input(0, values);
    instance.run();
    std::printf("%s %g %d\\n", model.input(0).name, instance.output<float>(0)[8], (int)model.num_outputs());
    edgetune::Instance moved(std::move(instance));
    moved.output<int32_t>(0);
  } catch (const edgetune::Error &error) {
    std::printf("%d %s\\n", error.status, error.what());
  }
}
"""


def test_an_app_in_cpp_takes_the_best(bundles, tmp_path, run_cli):
    out = tmp_path / "all"
    merge(run_cli, bundles, out)
    (tmp_path / "app.cpp").write_text(APP)
    strict = [
        "-std=c++14",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Wno-gnu-zero-variadic-macro-arguments",
        "-Werror",
    ]
    app = tmp_path / "app"
    run([system_compiler("c++"), *strict, tmp_path / "app.cpp", f"-I{out}", "-ldl", "-o", app])
    # (0.5 + 1) + ((0.5 + 1) + 0.5): the weight at 8 is 1.
    assert run([app, out]) == "x 3.5 3\n1 y holds values of another type\n"
    assert run([app, bundles[0]]) == "x 3.5 3\n1 y holds values of another type\n"
    assert run([app, bundles[3]]) == (
        f"5 {bundles[3]}/model.so was compiled for {OTHER} machines, this is another; compile it for this machine\n"
    )
    assert run([app, bundles[2]]).startswith("5 hand made was compiled for ")
    whole = (bundles[0] / "model.so").read_bytes()
    (bundles[0] / "model.so").write_bytes(whole[:1000])
    assert run([app, bundles[0]]) == (
        f"4 {bundles[0]}/model.so was cut short, it has 1000 bytes; copy it again\n"
    )
    (bundles[0] / "model.so").unlink()
    assert "No such file or directory; check the path" in run([app, bundles[0]])
    link_shared([_empty_object(architecture())], bundles[0] / "model.so", f"{architecture()}-linux-gnu")
    assert "is no edgetune model for apps (it has no function edgetune_api_version)" in run([app, bundles[0]])
    (out / "weights.bin").write_bytes(bytes(4064))
    assert "were changed or damaged" in run([app, out])
