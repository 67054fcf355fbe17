"""ctypes mirror of runtime/hm_abi.h."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_uint32, c_uint64, c_void_p

VERSION = 1
MAX_BUFFERS = 31

LAYOUTS = {"nax": 0, "strict": 1, "permuted": 2, "padded": 3}

CHECKED = 1 << 0
ISOLATED = 1 << 1
TRUNCATE_F32 = 1 << 2
FLUSH_HALF = 1 << 3
MULTIPLY_ACCUMULATES = 1 << 4


class Buffer(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("bytes", c_uint64), ("offset", c_uint64), ("index", c_uint32), ("writable", c_uint32)]


class Options(ctypes.Structure):
    _fields_ = [
        ("abi_version", c_uint32),
        ("flags", c_uint32),
        ("layout", c_uint32),
        ("threadgroup_limit", c_uint32),
        ("layout_seed", c_uint64),
        ("order_seed", c_uint64),
        ("timeout_ms", c_uint32),
        ("max_findings", c_uint32),
    ]


class Launch(ctypes.Structure):
    _fields_ = [
        ("entry", c_void_p),
        ("kernel", c_char_p),
        ("buffers", POINTER(Buffer)),
        ("buffer_count", c_uint32),
        ("grid", c_uint32 * 3),
        ("group", c_uint32 * 3),
        ("threads", c_uint32 * 3),
        ("max_threads", c_uint32),
        ("threadgroup_args", c_uint32 * MAX_BUFFERS),
    ]


SCALAR_COUNTERS = (
    "matmul2d", "macs", "mma8x8", "barriers", "simdgroup_barriers", "simd_ops", "threadgroups", "threadgroup_bytes",
    "threadgroup_load", "threadgroup_store", "thread_load", "thread_store",
)  # fmt: skip
BUFFER_COUNTERS = ("device_load", "device_store", "opaque_load")


class Counters(ctypes.Structure):
    _fields_ = [(name, c_uint64) for name in SCALAR_COUNTERS] + [(name, c_uint64 * MAX_BUFFERS) for name in BUFFER_COUNTERS]


class Result(ctypes.Structure):
    _fields_ = [
        ("counters", Counters),
        ("findings", c_uint32),
        ("truncated", c_uint32),
        ("text_capacity", c_uint64),
        ("text_bytes", c_uint64),
        ("text", c_void_p),
    ]
