"""The pinned wheels the check compiles and links against, downloaded once into the cache."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from mlx_tensorops import config

ROOT = Path(__file__).parents[2]
CACHE = Path(config.cache_home()) / "maccheck"
PLATFORM = "macosx_14_0_arm64"


class Unreachable(Exception):
    """A registry did not answer: the check could not be made."""


def pin(package: str) -> str:
    """The version that pyproject.toml builds with."""
    found = re.search(rf'"{package}==([\d.]+)', (ROOT / "pyproject.toml").read_text())
    if not found:
        raise ValueError(f"pyproject.toml pins no {package}")
    return found[1]


def mac_mlx() -> Path:
    """Folder `mlx` as the macOS wheels install it: headers, libmlx.dylib, core*.so."""
    version = pin("mlx")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    target = ["--platform", PLATFORM, "--python-version", python, "--implementation", "cp"]
    return unpacked([f"mlx=={version}", f"mlx-metal=={version}"], f"mlx-{version}-{python}", target) / "mlx"


def nanobind(version: str) -> Path:
    """Folder of a nanobind release."""
    return unpacked([f"nanobind=={version}"], f"nanobind-{version}", []) / "nanobind"


def unpacked(requirements: list[str], name: str, options: list[str]) -> Path:
    """Wheels, downloaded and unpacked side by side; the folder appears only when it is complete."""
    folder = CACHE / name
    if folder.is_dir():
        return folder
    draft = fresh(folder)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--only-binary=:all:", *options, "--dest", str(draft), *requirements]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = sorted(draft.glob("*.whl"))
    if done.returncode or len(wheels) != len(requirements):
        raise Unreachable(f"pip download {' '.join(requirements)}: {done.stderr.strip()[-800:]}")
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(draft)
        wheel.unlink()
    return publish(draft, folder)


def fresh(folder: Path) -> Path:
    """An empty folder beside `folder`, to be renamed to it by `publish`."""
    draft = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    return draft


def publish(draft: Path, folder: Path) -> Path:
    """Rename, unless another process was faster."""
    try:
        draft.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        shutil.rmtree(draft)
    return folder
