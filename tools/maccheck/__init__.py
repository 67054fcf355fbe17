"""Checks the Metal half of cpp/ on a machine without a Mac.

Every C++ file is compiled for arm64 macOS with the clang of the ziglang package, against the headers of
the macOS wheels; the objects are audited symbol by symbol and linked strictly against the real
libmlx.dylib; nanobind's ABI tag is compared with that of mlx.core for macOS. Controls that must fail
prove that each of these checks can. Nothing here runs on a Mac, so it says nothing about Metal itself.

    python -m tools.maccheck
"""
