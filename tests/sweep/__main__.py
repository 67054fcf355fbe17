"""Run the exhaustive tests, or a slice of them.

    python -m tests.sweep                        everything, in one go
    python -m tests.sweep --slice 3/12           the 3rd of 12 slices
    python -m tests.sweep --slice-of COMMIT      a slice chosen by a commit hash, at most --minutes long

An item is a name and a function that raises when something is wrong. Families are found by discovery: every module
beside this one has ``items()``. The last line says how many items ran and failed; RECORD.md keeps that of the last full run.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import pkgutil
import sys
import time
import traceback

from . import __path__ as folder


def items(only: str | None = None):
    """(name, function) of every item, in a fixed order."""
    for info in sorted(pkgutil.iter_modules(folder), key=lambda m: m.name):
        if info.name.startswith("_") or only not in (None, info.name):
            continue
        for name, function in importlib.import_module(f"tests.sweep.{info.name}").items():
            yield f"{info.name}/{name}", function


def spread(name: str) -> int:
    """A number that depends on the item's name alone, so that slices stay the same when items are added."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--slice", metavar="I/N", help="the I-th of N slices, I from 1")
    which.add_argument("--slice-of", metavar="COMMIT", help="start at a place chosen by this text")
    parser.add_argument("--minutes", type=float, help="start no item after this long")
    parser.add_argument("--family", help="only this family")
    options = parser.parse_args()

    chosen = list(items(options.family))
    total = len(chosen)
    if options.slice:
        index, count = map(int, options.slice.split("/"))
        chosen = [item for item in chosen if spread(item[0]) % count == index - 1]
    elif options.slice_of:
        start = spread(options.slice_of)
        chosen.sort(key=lambda item: (spread(item[0]) - start) % 2**64)

    begin, failed, ran = time.monotonic(), [], 0
    for name, function in chosen:
        if options.minutes is not None and time.monotonic() - begin > options.minutes * 60:
            break
        ran += 1
        try:
            function()
        except Exception:
            failed.append(name)
            print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
    print(f"sweep: {ran - len(failed)} passed, {len(failed)} failed of {ran} run, {total} in all, {time.monotonic() - begin:.0f} s")
    print(f"{ran - len(failed)} passed, {len(failed)} failed")
    return 1 if failed or not ran else 0


if __name__ == "__main__":
    sys.exit(main())
