"""A slice of the names in MLX's metallib, instantiated and syntax-checked; the sweep takes all of them."""

import os

import pytest

from tools.maccheck import fetch

from . import mlx_names

SLICE = (1, 5, 6, 12, 14)  # one family of each kind


@pytest.fixture(scope="module")
def wheel():
    try:
        return fetch.mac_mlx()
    except fetch.Unreachable as error:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"mlx-metal is not reachable: {error}")


@pytest.fixture(scope="module")
def known(wheel):
    found = list(mlx_names.instantiations(mlx_names.kernel_names(wheel / "lib" / "mlx.metallib")))
    assert {number for number, _, _ in found} == set(range(len(mlx_names.FAMILIES)))
    return found


@pytest.mark.parametrize("family", SLICE, ids=lambda n: mlx_names.FAMILIES[n][1][-1])
def test_instantiates(wheel, known, family):
    instances = [instance for number, _, instance in known if number == family]
    assert mlx_names.syntax_check(wheel / "include", family, [instances[0], instances[-1]]) == ""


def test_what_is_said_not_to_compile_does_not(wheel):
    assert "incompatible operand types" in mlx_names.syntax_check(wheel / "include", 0, ["gemm<complex64_t, 32, 32, 16, 2, 2, false, false>"])


def test_an_instance_that_cannot_be_is_refused(wheel):
    assert "error" in mlx_names.syntax_check(wheel / "include", 0, ["gemm<half, 32, 32, 16, 2, 2, false>"])
