"""Damages bundles in every way it can think of: each must be refused in one sentence, or run as if undamaged.

    python benchmarks/fuzz_bundles.py BUNDLE --count 5000 [--seed 0] [--small]

``--small`` loads them with the package edgetune-runtime in place of edgetune. Merged bundles are damaged too.
``BUNDLE`` is a directory or a ``.tar``; damaged copies of it are loaded in child processes. A crash, an exception
that is not a BundleError, a message of several lines and a wrong output all count as failures: exit code 1.
Damages: a byte changed, bytes cut off or added anywhere, a file emptied, missing, replaced by another or a
directory, and fields of the manifest changed with its digest made to fit.
"""

from __future__ import annotations

import argparse
import atexit
import collections
import hashlib
import json
import multiprocessing
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 250
_VALUES: tuple[Any, ...] = (
    None,
    -1,
    0,
    1,
    2**63,
    1e300,
    "",
    "x",
    [],
    {},
    True,
    "../x",
    "vm",
    "standalone",
    [[]],
)


def damage(path: Path, rng: random.Random) -> str:
    """Damage the bundle at ``path`` and say how."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    file = rng.choice(files)
    data = file.read_bytes()
    kind = rng.choice(
        ("byte", "byte", "cut", "add", "empty", "missing", "swap", "directory", "field", "field")
    )
    at = rng.randrange(len(data) + 1) if rng.random() < 0.5 else rng.randrange(min(len(data), 1024) + 1)
    if kind == "field" and path.is_dir():
        return change_field(path / "manifest.json", rng)
    if kind == "byte" and data:
        at = min(at, len(data) - 1)
        file.write_bytes(data[:at] + bytes([data[at] ^ rng.randrange(1, 256)]) + data[at + 1 :])
    elif kind == "add":
        file.write_bytes(data[:at] + rng.randbytes(rng.randrange(1, 64)) + data[at:])
    elif kind == "empty":
        file.write_bytes(b"")
    elif kind == "missing" and path.is_dir():
        file.unlink()
    elif kind == "swap" and path.is_dir():
        shutil.copyfile(rng.choice(files), path / "copy")
        (path / "copy").replace(file)
    elif kind == "directory" and path.is_dir():
        file.unlink()
        file.mkdir()
    else:
        file.write_bytes(data[:at])
    return f"{kind} at {at} of {file.name}"


def change_field(path: Path, rng: random.Random) -> str:
    """Change one value in the manifest, and its digest with it; the hash of a merged bundle's other manifests too."""
    from edgetune.bundle.manifest import with_digest

    content = json.loads(path.read_text())
    content.pop("digest")
    if content["schema_version"] == 3 and rng.random() < 0.7:
        return change_variant(path, content, rng)
    changed = change_value(content, rng)
    path.write_bytes(with_digest(content))
    return f"field {changed}"


def change_variant(path: Path, package: dict[str, Any], rng: random.Random) -> str:
    """Change a value in the manifest of a variant, and all that guards it."""
    from edgetune.bundle.manifest import with_digest

    name = rng.choice(package["variants"])["manifest"]
    content = json.loads((path.parent / name).read_text())
    content.pop("digest")
    changed = change_value(content, rng)
    data = with_digest(content)
    (path.parent / name).write_bytes(data)
    package["files"][name] |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    path.write_bytes(with_digest(package))
    return f"field {changed} of {name}"


def change_value(content: dict[str, Any], rng: random.Random) -> str:
    """Change or remove one value somewhere in the content, and say which."""
    place: Any = content
    names = []
    while True:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        key = rng.choice(list(keys))
        names.append(str(key))
        if not isinstance(place[key], dict | list) or not place[key] or rng.random() < 0.15:
            break
        place = place[key]
    # What nobody checks and nobody uses may change; what is used must be noticed.
    if rng.random() < 0.2 and isinstance(place, dict):
        del place[key]
    else:
        place[key] = rng.choice(_VALUES)
    return ".".join(names)


@dataclass(frozen=True)
class Loader:
    """What loads bundles: the function, and what it and the model's ``run`` may raise."""

    load: Callable[[Path], Any]
    refusals: tuple[type[Exception], ...]


def loader(small: bool) -> Loader:
    """The package edgetune-runtime, made of its sources, or edgetune itself."""
    if not small:
        import edgetune

        return Loader(edgetune.load, (edgetune.BundleError, edgetune.UsageError))
    root = Path(__file__).resolve().parent.parent
    folder = Path(tempfile.mkdtemp(prefix="edgetune-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    package = shutil.copytree(root / "runtime/edgetune_runtime", folder / "edgetune_runtime")
    for source in ("standalone/capi.py", "cpu.py"):
        shutil.copy(root / "edgetune" / source, package)
    sys.path.insert(0, str(folder))
    import edgetune_runtime

    return Loader(edgetune_runtime.load, (edgetune_runtime.BundleError, ValueError))


def attempt(bundle: Path, by: Loader, inputs: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> str:
    """Load and run a damaged bundle: ``refused``, ``ran``, or what is wrong."""
    try:
        model = by.load(bundle)
    except by.refusals[0] as error:
        return "refused" if "\n" not in str(error) else f"several lines: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    try:
        outputs = model.run(inputs)
    except by.refusals:
        return "refused"
    except Exception as error:
        return f"running: {type(error).__name__}: {error}"
    same = all(np.array_equal(outputs.get(name), value, equal_nan=True) for name, value in expected.items())
    return "ran" if same else "wrong outputs"


def batch(
    bundle: Path, seed: int, numbers: range, small: bool, tell: Callable[[tuple[int, str, str]], None]
) -> None:
    """Damage and try, in a child process; every attempt is announced before it is made."""
    from edgetune.bundle.inputs import choose_inputs
    from edgetune.bundle.reader import open_bundle

    by = loader(small)
    inputs = choose_inputs(open_bundle(bundle), None)
    expected = by.load(bundle).run(inputs)
    with tempfile.TemporaryDirectory(prefix="edgetune-fuzz-") as folder:
        for number in numbers:
            copy = Path(folder, f"{number}{bundle.suffix}")
            (shutil.copytree if bundle.is_dir() else shutil.copyfile)(bundle, copy)
            what = damage(copy, random.Random(f"{seed}:{number}"))
            tell((number, what, "crashed"))
            tell((number, what, attempt(copy, by, inputs, expected)))
            shutil.rmtree(copy) if copy.is_dir() else copy.unlink()


def fuzz(
    bundle: Path, count: int, seed: int = 0, small: bool = False
) -> tuple[collections.Counter[str], list[str]]:
    """How many were refused and ran, and what went wrong."""
    context = multiprocessing.get_context("spawn")
    found: dict[int, tuple[str, str]] = {}
    next_number = 0
    while next_number < count:
        receiver, sender = context.Pipe(duplex=False)
        numbers = range(next_number, min(count, next_number + BATCH))
        child = context.Process(target=batch, args=(bundle, seed, numbers, small, sender.send))
        child.start()
        sender.close()
        try:
            while True:
                number, what, outcome = receiver.recv()
                found[number] = what, outcome
        except EOFError:
            child.join()
        # After a crash, go on behind it.
        next_number = max(found, default=next_number) + 1
    counts = collections.Counter(outcome for _, outcome in found.values())
    wrong = [
        f"{n}: {what}: {got}" for n, (what, got) in sorted(found.items()) if got not in ("refused", "ran")
    ]
    return counts, wrong


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="load with the package edgetune-runtime")
    options = parser.parse_args()
    counts, wrong = fuzz(options.bundle.resolve(), options.count, options.seed, options.small)
    print("\n".join(wrong[:50]))
    print(f"refused {counts['refused']}, ran as before {counts['ran']}, failures {len(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
