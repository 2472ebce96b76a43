"""`python -m loadtest.compiled`: compiles the modules of simulations. It needs mypy, setuptools and a C compiler."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from mypyc.build import mypycify
from setuptools import Distribution
from setuptools.command.build_ext import build_ext

from loadtest.compiled.finder import RECORD, VARIABLE
from loadtest.compiled.modules import ROOT, SETS, digest, source_of


def main() -> int:
    parser = argparse.ArgumentParser(prog="compile-simulator", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the extensions go; what is there is replaced")
    parser.add_argument("--quick", action="store_true", help="compile fast, for tests: the code is slower")
    parser.add_argument("--set", default="simulator", choices=SETS, help="what to compile: the simulator, or cells")
    options = parser.parse_args()
    compile_into(options.folder.absolute(), options.set, quick=options.quick)
    print(f"compiled; use it with {VARIABLE}={options.folder}")
    return 0


def compile_into(folder: Path, name: str, *, quick: bool = False) -> None:
    """Compile the modules of a set into a folder. Nothing is written beside the sources."""
    modules = SETS[name]
    work = folder / "build"
    work.mkdir(parents=True, exist_ok=True)
    (folder / RECORD).unlink(missing_ok=True)
    compiled = digest(modules)
    # mypy finds modules, and its settings, from the folder where it runs.
    os.chdir(ROOT)
    sources = [str(source_of(each).relative_to(ROOT)) for each in modules]
    flags = ["--cache-dir", str(work / "mypy")]
    # What debuggers need takes a third of the compiler's time.
    extensions = mypycify([*flags, *sources], opt_level="0" if quick else "3", debug_level="0", target_dir=str(work))
    for each in extensions:
        # Sums and products are rounded one by one, as in Python.
        each.extra_compile_args.append("-ffp-contract=off")
    command = build_ext(Distribution({"name": name, "ext_modules": extensions}))
    command.build_lib, command.build_temp = str(folder), str(work)
    command.ensure_finalized()
    command.run()
    files = {each.name: os.path.relpath(command.get_ext_fullpath(each.name), folder) for each in extensions}
    record = {"set": name, "digest": compiled, "extensions": files}
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
