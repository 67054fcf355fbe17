"""``python -m mlx_tensorops demo | doctor | explain | manifest | hostmetal``."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from contextlib import nullcontext

from .errors import DTypeError, ShapeError, TensorOpsError, fail

LARGEST = 2**31 - 1


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["hostmetal"]:  # has its own options
        from .hostmetal import cli

        return cli.main(argv[1:])
    options = _parser().parse_args(argv)
    try:
        return options.run(options)
    except BrokenPipeError:  # whoever read has read enough; the interpreter must not write the rest when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (TensorOpsError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m mlx_tensorops", description="Matrix kernels that MLX lacks.")
    commands = parser.add_subparsers(required=True, metavar="command")

    demo = commands.add_parser("demo", help="multiply real matrices with every engine that is legal here")
    demo.add_argument("--json", action="store_true", help="print {'rows': [...]} instead of the table")
    demo.set_defaults(run=_demo)

    doctor = commands.add_parser("doctor", help="report what is installed, what is on, what is off and why")
    doctor.set_defaults(run=_doctor)

    explain = commands.add_parser("explain", help="which engine would answer a call, and why not the others")
    explain.add_argument("op", help="public operation, e.g. matmul")
    explain.add_argument("arrays", nargs="+", help="operands as SHAPE:DTYPE, e.g. 64x2048:float16 2048x768:float16")
    explain.add_argument("--engine", help="default: auto")
    explain.add_argument("--precision", help="default: exact")
    explain.add_argument("--device", help="read the plan of another machine, e.g. m5")
    explain.add_argument("--source", action="store_true", help="print the Metal source instead")
    explain.set_defaults(run=_explain)

    manifest = commands.add_parser("manifest", help="print the record of every kernel variant as JSON")
    manifest.set_defaults(run=_manifest)

    commands.add_parser("hostmetal", help="run or check a Metal file on this CPU (see: hostmetal --help)")
    return parser


def _demo(options) -> int:
    from . import demo

    return demo.main(options.json)


def _doctor(options) -> int:
    from .diagnosis import doctor

    print(doctor())
    return 0


def _explain(options) -> int:
    from . import device
    from .explanation import dump_source, explain

    arrays = [_array(text) for text in options.arrays]
    words = {name: value for name in ("engine", "precision") if (value := getattr(options, name)) is not None}  # not every operation has both
    with device.force(options.device) if options.device else nullcontext():
        show = dump_source if options.source else explain
        try:
            print(show(options.op, *arrays, **words))
        except TypeError as wrong:  # too few operands, or an option that the operation lacks
            fail("explain", str(wrong), cls=DTypeError)
    return 0


def _array(text: str):
    import mlx.core as mx

    shape, _, dtype = text.partition(":")
    kind = getattr(mx, dtype or "float32", None)
    if not isinstance(kind, mx.Dtype) or not re.fullmatch(r"[0-9]+(x[0-9]+)*", shape):
        fail("explain", f"operand {text!r} is not SHAPE:DTYPE", nearest="64x2048:float16")
    if any(len(part) > 10 or int(part) > LARGEST for part in shape.split("x")):
        fail("explain", f"operand {text!r} has an axis longer than MLX's arrays can have", nearest=LARGEST, cls=ShapeError)
    return mx.zeros([int(part) for part in shape.split("x")], kind)  # lazy: nothing is allocated


def _manifest(options) -> int:
    from .manifests import manifest

    print(json.dumps(manifest(), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
