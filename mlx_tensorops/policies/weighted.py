"""Size classes that the tables of products with stored weights share. A class ends where the next larger block would not be half empty."""

from __future__ import annotations

from ..rules import rule

SIZES = {
    "m4": lambda f: f.M <= 4,
    "m16": lambda f: f.M <= 16,
    "m32": lambda f: f.M <= 32,
    "": lambda f: rule(1),
}
