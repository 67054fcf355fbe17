"""The cache of compiled kernels beside hung, killed and racing processes, on damaged files, full disks and odd folders."""

import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from mlx_tensorops import config, hostmetal
from mlx_tensorops.errors import TensorOpsError
from mlx_tensorops.hostmetal import cache, precompiled, toolchain

PLAIN = "kernel void f(device int* x) {{ x[0] = {}; }}"
_HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(300)
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A cache of its own, which gets plain text for entries: no compiler is needed."""
    monkeypatch.setenv("MLX_TENSOROPS_CACHE", str(tmp_path))
    return tmp_path / "hostmetal"


def entry(name, text="content"):
    return cache.obtain(name, lambda work, target: target.write_text(text))


def text_of(path):
    return path.read_text()[: -cache._SEAL_BYTES]


@pytest.fixture
def holder(home):
    """A process that holds the lock of an entry and is stopped."""
    home.mkdir(parents=True)
    lock = home / f".lock-{cache.key_of('entry')[:2]}"
    child = subprocess.Popen([sys.executable, "-c", _HOLDER, str(lock)], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "held\n"
    child.send_signal(signal.SIGSTOP)
    yield lock
    child.kill()
    child.wait(30)
    child.stdout.close()


def test_a_stopped_holder_of_the_lock_is_not_waited_for(holder, monkeypatch):
    monkeypatch.setattr(cache, "LOCK_WAIT", 0.3)
    begin = time.monotonic()
    assert text_of(entry("entry")) == "content"
    assert 0.3 <= time.monotonic() - begin < 10
    monkeypatch.setattr(cache, "LOCK_WAIT", 300.0)  # the stuck lock is out of the way of whoever comes next
    os.unlink(cache.place("entry"))
    begin = time.monotonic()
    assert text_of(entry("entry")) == "content" and time.monotonic() - begin < 10


def test_a_kernel_is_right_though_every_lock_is_held(monkeypatch):
    """What is built beside a holder is the same kernel."""
    monkeypatch.setattr(cache, "_locked", lambda file: False)
    monkeypatch.setattr(cache, "LOCK_WAIT", 0.05)
    kernel = hostmetal.compile(PLAIN.format(os.getpid() * 1000 + 1))
    assert kernel.dispatch(grid=1, threadgroup=1, buffers=[np.zeros(2, np.int32)]).outputs[0].tolist() == [os.getpid() * 1000 + 1, 0]


def test_a_lock_is_free_again_though_a_forked_process_has_it_open(home, monkeypatch):
    monkeypatch.setattr(cache, "LOCK_WAIT", 30.0)
    children = []

    def make(work, target):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        children.append(child)
        target.write_text("first")

    try:
        path = cache.obtain("entry", make)
        path.unlink()
        begin = time.monotonic()
        assert text_of(entry("entry", "second")) == "second" and time.monotonic() - begin < 10
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_a_file_system_without_locks_is_no_obstacle(home, monkeypatch):
    def flock(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(cache.fcntl, "flock", flock)
    assert text_of(entry("entry")) == "content"


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[: len(b) // 2], lambda b: bytes(len(b)), lambda b: b + b"more", lambda b: b"X" + b[1:]],
                         ids=["empty", "short", "zeros", "long", "flipped"])
def test_a_damaged_entry_is_made_again(home, damage):
    path = entry("entry", "content of a file")
    path.write_bytes(damage(path.read_bytes()))
    assert not cache.present(path)
    assert text_of(entry("entry", "content of a file")) == "content of a file"


def test_a_damaged_folder_is_made_again(home):
    def make(work, target):
        (target / "deep").mkdir(parents=True)
        (target / "deep" / "a.h").write_text("int a;")

    path = cache.obtain("headers-x", make)
    (path / "deep" / "a.h").write_text("int")
    assert text_of(cache.obtain("headers-x", make) / "deep" / "a.h") == "int a;"
    assert sorted(p.name for p in home.iterdir() if not p.name.startswith(".lock-")) == ["headers-x"]


def test_damaged_compiled_files_are_built_again(tmp_path, monkeypatch):
    """A library cut short kills the process that loads it, so others try. Each pair: what was built before, and one kernel more."""
    source = f"#include <metal_stdlib>\nusing namespace metal;\n{PLAIN.format(7)}"
    code = "import sys, numpy as np\nfrom mlx_tensorops import hostmetal\nfor s in sys.argv[1:]:\n print(hostmetal.compile(s).dispatch(grid=1, threadgroup=1, buffers=[np.zeros(1, np.int32)]).outputs[0][0])"
    monkeypatch.setenv("MLX_TENSOROPS_CACHE", str(tmp_path))

    def run(*numbers):
        done = subprocess.run([sys.executable, "-c", code, *(source.replace("7", str(n)) for n in numbers)], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, (done.returncode, done.stderr)
        assert done.stdout.split() == [str(n) for n in numbers]

    run(7)
    for more, pattern in enumerate(("k-*.so", "libhm-*.so", "metal-*.h", "metal-*.pch"), 8):
        damaged = list((tmp_path / "hostmetal").glob(pattern))
        assert damaged, pattern
        for path in damaged:
            content = path.read_bytes()
            path.write_bytes(content[: len(content) // 2])
        run(7, more)


def test_a_header_that_could_not_be_precompiled_once_is_tried_by_the_next_process(monkeypatch, home):
    """A full disk is no property of the compiler."""
    tools = toolchain.find()
    flags = list(toolchain.kernel_flags(checked=False, sdk="26.4", dialect="4.0"))
    refusal = subprocess.CompletedProcess([], 1, "", "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr(toolchain, "run", lambda command: refusal)
        assert precompiled.apply("#include <metal_stdlib>", flags) == flags
        assert not list(home.glob("*.pch")) and tools is toolchain.find()
        patch.setattr(toolchain, "run", lambda command: pytest.fail("this process knows"))
        assert precompiled.apply("#include <metal_stdlib>", flags) == flags
    monkeypatch.setattr(precompiled, "_refused", set())
    assert "-include-pch" in precompiled.apply("#include <metal_stdlib>", flags)


@pytest.mark.parametrize("call", ["write_text", "replace", "mkdtemp"])
def test_a_full_disk_is_told(home, monkeypatch, call):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    owner = {"write_text": Path, "replace": cache.os, "mkdtemp": cache.tempfile}[call]
    with monkeypatch.context() as patch:
        patch.setattr(owner, call, full)
        with pytest.raises(hostmetal.ToolchainError, match=r"cannot be kept in .*No space left on device\.\n  instead: set MLX_TENSOROPS_CACHE"):
            entry("entry")
    assert [p.name for p in home.iterdir() if not p.name.startswith(".lock-")] == []
    assert text_of(entry("entry")) == "content"


@pytest.mark.parametrize("status, said, told", [
    (1, "error: unable to open output file 'kernel.o': 'No space left on device'", "the compiler cannot write below {}: No space left on device.\n  instead: set MLX_TENSOROPS_CACHE"),
    (-6, "LLVM ERROR: IO failure on output stream: File too large", "the compiler cannot write below {}: File too large.\n"),
    (-7, "", "the compiler was stopped by signal 7.\n  instead: see whether memory or the room in {} ran out"),
])
def test_a_disk_that_fills_under_the_compiler_is_not_the_kernels_fault(home, monkeypatch, status, said, told):
    script = f"import os, sys; sys.stderr.write({said!r}); sys.stderr.flush(); {status} < 0 and os.kill(os.getpid(), {-status}); sys.exit({status})"
    with pytest.raises(hostmetal.ToolchainError, match=re.escape(told.format(home.parent))):
        toolchain.run([sys.executable, "-c", script])


@pytest.mark.parametrize("where", ["/proc/nope", "/dev/null", "/dev/null/below"])
def test_a_folder_that_is_none_is_told(monkeypatch, where):
    monkeypatch.setenv("MLX_TENSOROPS_CACHE", where)
    with pytest.raises(hostmetal.ToolchainError, match="cannot be kept in .*\n  instead: set MLX_TENSOROPS_CACHE"):
        hostmetal.compile(PLAIN.format(1))


def test_what_is_cached_needs_no_folder_that_can_be_written(home, monkeypatch):
    path = entry("entry")
    monkeypatch.setattr(cache.os, "access", lambda *a: False)
    assert entry("entry") == path
    with pytest.raises(hostmetal.ToolchainError, match="cannot be kept"):
        entry("another")


def test_a_relative_cache_stays_where_it_was_seen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLX_TENSOROPS_CACHE", "here")
    path = entry("entry")
    assert path == tmp_path / "here" / "hostmetal" / "entry"
    monkeypatch.setenv("MLX_TENSOROPS_CACHE", "~/there")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config.cache_home() == str(tmp_path / "there")


def test_no_home_is_told(monkeypatch):
    for name in ("MLX_TENSOROPS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user that the machine does not know
    with pytest.raises(TensorOpsError, match="no home folder.\n  instead: set MLX_TENSOROPS_CACHE"):
        config.cache_home()


def test_what_killed_builders_left_is_removed(home):
    old, new = home / ".work-old", home / ".work-new"
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / "kernel.cl").write_text("x")
    os.utime(old, (1, 1))
    entry("entry")
    assert not old.exists() and new.exists()


def test_an_interrupted_build_leaves_nothing_and_frees_the_lock(home):
    def make(work, target):
        target.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.obtain("entry", make)
    assert [p.name for p in home.iterdir() if not p.name.startswith(".lock-")] == []
    assert text_of(entry("entry", "whole")) == "whole"


def test_threads_that_race_for_one_entry_make_it_once(home):
    made, got = [], []

    def make(work, target):
        made.append(1)
        time.sleep(0.1)
        target.write_text("content")

    threads = [threading.Thread(target=lambda: got.append(text_of(cache.obtain("entry", make)))) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert got == ["content"] * 8 and made == [1]


def test_compilers_that_do_not_start_or_are_killed(monkeypatch):
    with pytest.raises(hostmetal.ToolchainError, match="the compiler does not start: .*\n  instead: pip install"):
        toolchain.run(["/nonexistent/clang"])
    with pytest.raises(hostmetal.ToolchainError, match="stopped by signal 9"):
        toolchain.run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    with pytest.raises(hostmetal.ToolchainError, match="did not end within 0 s"):
        toolchain.run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.2)


def test_a_log_that_cannot_be_written_is_told(monkeypatch):
    monkeypatch.setenv("MLX_TENSOROPS_BUILD_LOG", "/nonexistent/log")
    with pytest.raises(hostmetal.ToolchainError, match=re.escape("MLX_TENSOROPS_BUILD_LOG=/nonexistent/log cannot be written")):
        toolchain.log_build("family", "key")


def test_a_library_that_cannot_be_loaded_is_told(home):
    path = entry("k-no-library.so")
    with pytest.raises(hostmetal.ToolchainError, match="cannot be loaded: .*\n  instead: set MLX_TENSOROPS_CACHE"):
        cache.load(path)


def test_one_runtime_though_the_cache_moves(tmp_path, monkeypatch):
    """Kernels call the runtime that was loaded first: a dispatch of a second one found a crash that was none."""
    source = "kernel void f(device int* x, uint at [[thread_position_in_grid]]) { threadgroup int s[4]; s[at] = x[at]; threadgroup_barrier(mem_flags::mem_threadgroup); x[at] = s[3 - at]; }"
    kernel = f"#include <metal_stdlib>\nusing namespace metal;\n{source}"
    first = hostmetal.compile(kernel).dispatch(grid=1, threadgroup=4, buffers=[np.arange(4, dtype=np.int32)]).outputs[0]
    monkeypatch.setenv("MLX_TENSOROPS_CACHE", str(tmp_path))
    other = hostmetal.compile(kernel.replace("3 - at", "at ^ 1")).dispatch(grid=1, threadgroup=4, buffers=[np.arange(4, dtype=np.int32)], isolate=False)
    assert first.tolist() == [3, 2, 1, 0] and other.outputs[0].tolist() == [1, 0, 3, 2]
