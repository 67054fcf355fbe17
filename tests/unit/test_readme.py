"""The README's Python examples run as they stand, one after the other, and give right values."""

import re
from pathlib import Path

import numpy as np

from mlx_tensorops import formats, reference

README = Path(__file__).parents[2] / "README.md"


def test_the_examples_run_and_are_right():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    assert len(blocks) == 3
    names: dict = {}
    exec("\n".join(blocks), names)  # what a reader would paste
    a, b, c, d = (names[name] for name in "abcd")
    assert np.all(np.abs(reference.to_float64(c) - reference.gemm(a, b)) <= reference.gemm_bound(a, b, "float16"))
    assert np.all(np.abs(reference.to_float64(d) - reference.gemm(a[:64], b[:, :128])) <= reference.gemm_bound(a[:64], b[:, :128], "float16"))
    assert names["trace"].total("matmul2d") == 2048
    h, z, ids, down = names["h"], names["z"], np.array(names["ids"]), names["layer"][2]
    nvfp4 = formats.by_name("nvfp4")
    for token, place in ((0, 0), (17, 3), (63, 1)):
        expert = int(ids[token, place])
        oracle = (h[token, place], down[0][expert], down[1][expert], None, nvfp4)
        error = np.abs(reference.to_float64(z[token, place]) - reference.qgemm(*oracle))
        assert np.all(error <= reference.qgemm_bound(*oracle, "bfloat16"))
