"""What Apple's compiler rejects although the emulator's front end would take it."""

from __future__ import annotations

from .tokens import Token


def check_tokens(source: str, tokens: list[Token]) -> None:
    """Raises CompileError for constructs that no dialect has."""
