"""Block-quantised weight formats: one entry each, and everything that knows a format derives from its entry.

A group of ``group`` weights that follow each other along the packed axis shares one scale (and one bias):
``weight = value(code) * scale + bias``, times the tensor's global scale where there is one. Packed bytes are MLX's: codes form
one little-endian stream of bits per row, first code in the lowest bits, stored as uint32 words.
"""

from .codec import CONVENTIONS, GLOBAL_SCALE_DIVISOR, dequantise, quantise
from .entry import PACK, SCALES, Format
from .known import BUILT_IN, by_name, check_words, find, formats, register_format
from .tiers import Tier, tiers

__all__ = ["BUILT_IN", "CONVENTIONS", "GLOBAL_SCALE_DIVISOR", "PACK", "SCALES", "Format", "Tier", "by_name", "check_words", "dequantise", "find",
           "formats", "quantise", "register_format", "tiers"]
