"""The check itself: compile, audit, link, compare tags; then the controls."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from . import fetch, symbols
from .controls import CONTROLS, Control
from .toolchain import CompileError, LinkError, Toolchain

CPP = fetch.ROOT / "cpp"


class Failed(Exception):
    """Something is wrong with what was checked; the text says what."""


def sources() -> list[Path]:
    """Every file of the extension that an arm64 Mac compiles."""
    return sorted(path for path in CPP.rglob("*.cpp") if not re.search(r"_avx\w*$", path.stem))


def run(say: Callable[[str], None] = print, files: Sequence[Path] | None = None,
        controls: Sequence[Control] = CONTROLS) -> None:
    """Check the files and every control; raises Failed at the first that is wrong."""
    toolchain = Toolchain.make()
    files = sources() if files is None else list(files)
    objects = compiled(toolchain, files)
    say(f"compiled {len(files)} files for arm64 macOS against mlx {fetch.pin('mlx')}")
    audited = audit(toolchain, objects)
    say(f"symbols from libmlx: {audited}, all exported")
    link(toolchain, objects, exports="_PyInit__ext")
    say("strict link against libmlx.dylib: complete")
    compare_tags(toolchain)
    say(f"nanobind tag: {mac_tag(toolchain)}, as in mlx.core")
    for control in controls:
        say(f"control, {control.name}: {provoke(control)}")
    say(f"missing 0 of {audited} symbols; controls failed as expected: {len(controls)}")


def compiled(toolchain: Toolchain, files: Sequence[Path]) -> list[Path]:
    try:
        return [*toolchain.compile(list(files)), toolchain.nanobind_object()]
    except CompileError as error:
        raise Failed(f"does not compile for macOS:\n{error}") from None


def audit(toolchain: Toolchain, objects: list[Path]) -> int:
    """How many symbols libmlx must provide; Failed if it lacks one. What nobody else provides is asked of it."""
    elsewhere = set().union(*toolchain.elsewhere().values())
    wanted = symbols.needed(objects) - elsewhere - {"___dso_handle"}  # the linker's own
    missing = wanted - symbols.MachO(toolchain.mlx / "lib/libmlx.dylib").exports()
    if missing:
        raise Failed(f"missing {len(missing)} of {len(wanted)} symbols: {', '.join(sorted(missing))}; "
                     "use what libmlx exports, or list a symbol of the system's libraries in stubs/")
    return len(wanted)


def link(toolchain: Toolchain, objects: list[Path], exports: str | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "_ext.so"
        try:
            toolchain.link(objects, bundle)
        except LinkError as error:
            raise Failed(f"does not link for macOS:\n{error}") from None
        if exports and exports not in symbols.MachO(bundle).exports():
            raise Failed(f"the linked bundle does not export {exports}")


def mac_tag(toolchain: Toolchain) -> str:
    return symbols.nanobind_tag(next(toolchain.mlx.glob("core.*.so")))


def compare_tags(toolchain: Toolchain) -> None:
    ours, theirs = symbols.nanobind_tag(toolchain.nanobind_object()), mac_tag(toolchain)
    if ours != theirs:
        raise Failed(f"nanobind tag {ours} is not the {theirs} of mlx.core: arrays would be refused")


def provoke(control: Control) -> str:
    """The failures that a control causes; Failed if it causes none, or others than it must."""
    failures = "\n".join(_failures(control))
    if not failures:
        raise Failed(f"control '{control.name}' did not fail: the check has become blind to it")
    for reason in control.reasons:
        if not re.search(reason, failures):
            raise Failed(f"control '{control.name}' failed, but not for its reason /{reason}/:\n{failures}")
    return "; ".join(re.search(reason, failures)[0] for reason in control.reasons)


def _failures(control: Control) -> Iterator[str]:
    toolchain = Toolchain.make(control.nanobind)
    if control.nanobind:
        stages = [lambda: compare_tags(toolchain)]
    else:
        try:
            objects = toolchain.compile([control.source])
        except CompileError as error:
            yield str(error)
            return
        stages = [lambda: audit(toolchain, objects), lambda: link(toolchain, objects)]
    for stage in stages:
        try:
            stage()
        except Failed as failure:
            yield str(failure)
