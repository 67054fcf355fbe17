"""``python -m mlx_tensorops demo``: real matrices through every engine that is legal here, against float64.

The weights are those of the published language identifier ``langid`` where that package is installed (7,480 byte
n-gram features x 97 languages); the left operand is then the feature counts of a few sentences, and each row also tells
how many of them the engine's product assigns to the language they are in. Otherwise both operands are random.
"""

from __future__ import annotations

import importlib.util
import json
import os
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Callable

from . import config, formats, reference
from .errors import TensorOpsError

SENTENCES = (
    ("en", "The kernel multiplies two matrices and keeps the sum in single precision."),
    ("fr", "Le noyau multiplie deux matrices et garde la somme en simple précision."),
    ("de", "Der Kern multipliziert zwei Matrizen und behält die Summe in einfacher Genauigkeit."),
    ("es", "El núcleo multiplica dos matrices y guarda la suma con precisión simple."),
    ("it", "Il nucleo moltiplica due matrici e conserva la somma in precisione singola."),
    ("pt", "O núcleo multiplica duas matrizes e guarda a soma, que não perde precisão."),
    ("ru", "Ядро перемножает две матрицы и хранит сумму с одинарной точностью."),
    ("nl", "De kern vermenigvuldigt twee matrices en bewaart de som in enkele precisie."),
    ("fi", "Ydin kertoo kaksi matriisia ja säilyttää summan yksinkertaisella tarkkuudella."),
    ("sv", "Kärnan multiplicerar två matriser och behåller summan med enkel precision."),
    ("pl", "Jądro mnoży dwie macierze i zachowuje sumę z pojedynczą precyzją."),
    ("el", "Ο πυρήνας πολλαπλασιάζει δύο πίνακες και κρατά το άθροισμα."),
    ("tr", "Çekirdek iki matrisi çarpar ve toplamı tek duyarlıkla saklar."),
    ("zh", "核心将两个矩阵相乘，并以单精度保留总和。"),
    ("ja", "カーネルは二つの行列を掛けて、合計を保持します。"),
    ("ko", "커널은 두 행렬을 곱하고 합계를 유지합니다."),
)
ROUNDS, ARM_SECONDS = 5, 0.5  # an arm that has taken so long rests


@dataclass(frozen=True)
class Row:
    """One engine on one problem."""

    problem: str
    dtype: str
    engine: str
    error: float
    bound: float
    inside: bool
    seconds: float
    ratio: float
    matmul2d: int
    shader: str
    languages: str


@dataclass(frozen=True)
class Problem:
    """An operation of ours beside MLX's own on the same arrays.

    Attributes:
        name, dtype: as the table shows them.
        op: public operation; ``theirs`` is MLX's of the same name and signature.
        arrays, options: its arguments.
        want, bound: the result in float64, and what each element may differ by.
        named: product -> how many sentences it assigns to their language, or "".
    """

    name: str
    dtype: str
    op: str
    arrays: tuple
    options: dict
    want: Any
    bound: Any
    named: Callable[[Any], str] = lambda product: ""

    def ours(self, engine: str):
        """The call on one engine."""
        from . import registry

        return registry.load(registry.public_names()[self.op])(*self.arrays, **self.options, engine=engine)

    def theirs(self):
        """MLX's call."""
        import mlx.core as mx

        return getattr(mx, self.op)(*self.arrays, **self.options)


def run() -> list[Row]:
    """All rows. Errors are relative Frobenius norms against the float64 product of the same stored operands."""
    return [row for problem in _problems() for row in _rows(problem)]


def _problems():
    import mlx.core as mx
    import numpy as np

    rng = np.random.default_rng(0)
    if importlib.util.find_spec("langid"):
        from langid.langid import LanguageIdentifier, model

        identifier = LanguageIdentifier.from_modelstring(model, norm_probs=False)
        counts = np.stack([identifier.instance2fv(s) for _, s in SENTENCES]).astype(np.float32)
        name, left, right = "langid", counts, identifier.nb_ptc.astype(np.float32)
        named = lambda product: _named(np, identifier, product)  # noqa: E731
    else:
        named = lambda product: ""  # noqa: E731
        name, left, right = "random", rng.normal(size=(16, 7480)).astype(np.float32), rng.normal(size=(7480, 97)).astype(np.float32)
    for dtype in ("float32", "float16", "bfloat16"):
        yield _dense(name, dtype, left, right, named)
    yield _dense("square", "float16", *(rng.normal(size=(256, 256)).astype(np.float32) for _ in range(2)))
    for mode, dtype in (("nvfp4", "bfloat16"), ("affine", "float16")):
        yield _quantised(f"{name} {mode}", mode, dtype, left, right, named)
    yield _experts(rng)


def _dense(name: str, dtype: str, left, right, named=lambda product: "") -> Problem:
    import mlx.core as mx

    a, b = (mx.array(x).astype(getattr(mx, dtype)) for x in (left, right))
    name = f"{name} {a.shape[0]}x{a.shape[1]}x{b.shape[1]}"
    return Problem(name, dtype, "matmul", (a, b), {}, reference.gemm(a, b), reference.gemm_bound(a, b, dtype), named)


def _quantised(name: str, mode: str, dtype: str, left, right, named) -> Problem:
    """The same product with the weights packed; K is filled up with zeros to whole groups."""
    import mlx.core as mx
    import numpy as np

    fill = -len(right) % 64
    x = mx.array(np.pad(left, ((0, 0), (0, fill)))).astype(getattr(mx, dtype))
    packed = mx.quantize(mx.array(np.pad(right, ((0, fill), (0, 0))).T).astype(x.dtype), mode=mode)
    fmt, biases = formats.find("demo", mode, None, None), packed[2] if len(packed) > 2 else None
    oracle = (x, packed[0], packed[1], biases, fmt)
    bound = reference.qgemm_bound(*oracle, dtype, staged=dtype)
    return Problem(name, dtype, "quantized_matmul", (x, *packed), {"mode": mode}, reference.qgemm(*oracle), bound, named)


def _experts(rng) -> Problem:
    """Rows of several experts: each of 24 tokens meets 2 of 6, unsorted."""
    import mlx.core as mx
    import numpy as np

    x = mx.array(rng.normal(size=(24, 1, 1, 128)).astype(np.float32)).astype(mx.bfloat16)
    w, scales = mx.quantize(mx.array(rng.normal(size=(6, 96, 128)).astype(np.float32)), mode="nvfp4")
    ids, fmt = rng.integers(0, 6, size=(24, 2)), formats.by_name("nvfp4")
    rows = reference.to_float64(x)[:, :, 0]  # [24, 1, K]: a token against its experts' weights
    want, bound = np.zeros((24, 2, 1, 96)), np.zeros((24, 2, 1, 96))
    for token, chosen in enumerate(ids):
        for place, expert in enumerate(chosen):
            oracle = (rows[token], np.array(w[int(expert)]), np.array(scales[int(expert)]), None, fmt)
            want[token, place], bound[token, place] = reference.qgemm(*oracle), reference.qgemm_bound(*oracle, "bfloat16")
    return Problem("experts 24x2 of 6", "bfloat16", "gather_qmm", (x, w, scales), {"rhs_indices": mx.array(ids.astype(np.int32)), "mode": "nvfp4"}, want, bound)


def _named(np, identifier, product) -> str:
    """How many sentences the product gives to their own language, as "15/16"."""
    best = np.argmax(product + identifier.nb_pc, axis=1)
    right = sum(identifier.nb_classes[i] == language for i, (language, _) in zip(best, SENTENCES))
    return f"{right}/{len(SENTENCES)}"


def _rows(problem: Problem) -> list[Row]:
    import mlx.core as mx
    import numpy as np

    from . import explanation, tracing

    mx.eval(*problem.arrays)
    theirs = f"mx.{problem.op}"
    arms = {theirs: (nullcontext, problem.theirs)}
    for engine in ("mlx", "cpu", "mpp", "simdgroup"):
        context = _context(engine)
        try:
            with context():
                explanation.explain(problem.op, *problem.arrays, **problem.options, engine=engine)
        except TensorOpsError:
            continue
        arms[engine] = (context, lambda engine=engine: problem.ours(engine))
    results, counts, times = {}, {}, {name: [] for name in arms}
    for name, (context, call) in arms.items():  # values first; this also compiles
        with context(), tracing.trace() as trace:
            results[name] = call()
            mx.eval(results[name])
        counts[name] = trace.total("matmul2d")
    for _ in range(ROUNDS):
        for name, (context, call) in arms.items():
            if sum(times[name]) > ARM_SECONDS:
                continue
            with context():
                start = time.perf_counter()
                mx.eval(call())
                times[name].append(time.perf_counter() - start)
    rows, want, bound = [], problem.want, problem.bound
    for name, (context, _) in arms.items():
        difference = np.abs(reference.to_float64(results[name]) - want)
        with context():
            shader = _emit(explanation, problem, name) if name in ("mpp", "simdgroup") else ""
        rows.append(Row(
            problem.name, problem.dtype, name, reference.frobenius(difference) / reference.frobenius(want),
            reference.frobenius(bound) / reference.frobenius(want), bool(np.all(difference <= bound)), min(times[name]),
            min(times[theirs]) / min(times[name]), counts[name], shader, problem.named(reference.to_float64(results[name]))))
    return rows


def _context(engine: str):
    """Where an engine can run on this machine: Metal kernels in the emulator, unless there is Metal."""
    import mlx.core as mx

    if engine in ("mpp", "simdgroup") and not mx.metal.is_available() and importlib.util.find_spec("numpy"):
        from . import hostmetal

        return hostmetal.active
    return nullcontext


def _emit(explanation, problem: Problem, engine: str) -> str:
    folder = Path(config.get("MLX_TENSOROPS_DUMP") or os.path.join(config.cache_home(), "shaders"))
    folder.mkdir(parents=True, exist_ok=True)
    call = dict(problem.options, engine=engine)
    path = folder / (explanation.explain(problem.op, *problem.arrays, **call).variant + ".metal")
    explanation.dump_source(problem.op, *problem.arrays, **call, path=path)
    return str(path)


def main(as_json: bool = False) -> int:
    """Print the table, or JSON; the exit status is 1 when a result of an engine of ours is outside its bound."""
    rows = run()
    if as_json:
        print(json.dumps({"rows": [asdict(r) for r in rows]}, indent=1))
    else:
        print(table(rows))
    return int(any(not r.inside for r in rows if r.engine != "mlx" and not r.engine.startswith("mx.")))


def table(rows: list[Row]) -> str:
    """The rows as text."""
    head = f"{'problem':<22} {'dtype':<9} {'engine':<22} {'error':>9} {'bound':>9}    {'ms':>9} {'x mx':>7} {'matmul2d':>8}  languages"
    lines = [head, "-" * len(head)]
    emulated = False
    for r in rows:
        mark = "" if r.engine not in ("mpp", "simdgroup") or not _is_emulated() else " (emulated)"
        emulated |= bool(mark)
        verdict = "ok" if r.inside else "--"
        lines.append(f"{r.problem:<22} {r.dtype:<9} {(r.engine + mark):<22} {r.error:9.2e} {r.bound:9.2e} {verdict} {r.seconds * 1e3:9.3f} {r.ratio:7.2f} {r.matmul2d or '':>8}  {r.languages}".rstrip())
    lines.append("error, bound: relative Frobenius norm against float64; ok: every element inside its own bound.")
    lines.append("x mx: time of MLX's own operation over this time, best of up to 5, interleaved. MLX states no bound: it sums quantised products in half.")
    if emulated:
        lines.append("emulated: the Metal shader, executed by hostmetal on this CPU. Its time says nothing about a GPU.")
    lines += sorted({f"shader: {r.shader}" for r in rows if r.shader})
    return "\n".join(lines)


def _is_emulated() -> bool:
    import mlx.core as mx

    return not mx.metal.is_available()
