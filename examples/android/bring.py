"""Copies a bundle's library and headers to where the app's build wants them: python bring.py BUNDLE."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

MAIN = Path(__file__).resolve().parent / "app/src/main"


def bring(bundle: Path, main: Path = MAIN) -> None:
    """Copy a bundle made with ``--weights embed`` for 64-bit ARM into the app whose sources are in ``main``."""
    if (bundle / "weights.bin").stat().st_size:
        sys.exit(f"{bundle} has its weights in a file; compile the model with --weights embed")
    (main / "jniLibs/arm64-v8a").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(bundle / "model.so", main / "jniLibs/arm64-v8a/libclassifier.so")
    (main / "cpp/include").mkdir(exist_ok=True)
    for header in ("edgetune.h", "edgetune_library.h", "edgetune.hpp"):
        shutil.copyfile(bundle / header, main / "cpp/include" / header)


if __name__ == "__main__":
    bring(Path(sys.argv[1]))
