"""What can go wrong: errors of this package, and the findings of a dispatch."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ..errors import TensorOpsError


class ToolchainError(TensorOpsError):
    """No usable clang on this machine, or it failed where no kernel is to blame."""


def in_metal_words(text: str) -> str:
    """Clang's names of the address spaces, as Metal spells them."""
    for theirs, ours in (("__global", "device"), ("__constant", "constant"), ("__local", "threadgroup"), ("__private", "thread"), ("__generic ", "")):
        text = text.replace(theirs, ours)
    return text


class CompileError(TensorOpsError):
    """The source is not valid MSL, as far as the emulator can tell. ``diagnostics`` holds the compiler's lines."""

    def __init__(self, message: str, diagnostics: tuple[str, ...] = ()):
        super().__init__(message)
        self.diagnostics = diagnostics


@dataclass(frozen=True)
class Finding:
    """One thing that a kernel did wrong: what, where, which threads, and the rule that it broke."""

    kind: str
    kernel: str
    message: str
    rule: str
    line: int = 0
    """Line of the source, 1-based; 0 when no line is to blame."""
    file: str = ""
    related: int = 0
    """Line of the other access of a race, or of the other place where threads wait; 0 if there is none."""
    buffer: int | None = None
    variable: str | None = None
    """Name of the threadgroup variable, when it is not a buffer."""
    offset: int | None = None
    """Bytes from the start of the buffer or variable."""
    threads: tuple[int, ...] = ()
    """thread_index_in_threadgroup of those involved, the acting one first."""
    threadgroup: tuple[int, int, int] | None = None

    def __str__(self) -> str:
        where = f"{self.file or self.kernel}:{self.line}" if self.line else self.kernel
        also = f" (see line {self.related})" if self.related and self.related != self.line else ""
        return f"{where}: {self.kind}: {self.message}{also}"


def parse(text: str) -> tuple[Finding, ...]:
    """Findings from the JSON lines that the runtime writes."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            fields = json.loads(line)
            fields["threads"] = tuple(fields.get("threads", ()))
            if "threadgroup" in fields:
                fields["threadgroup"] = tuple(fields["threadgroup"])
            found.append(Finding(**fields))
    return tuple(found)


class HostMetalError(TensorOpsError):
    """A dispatch with findings."""

    def __init__(self, kernel: str, findings: tuple[Finding, ...], total: int | None = None):
        self.findings = findings
        more = (total or len(findings)) - len(findings)
        lines = [f"[hostmetal] {kernel}: {total or len(findings)} finding(s)."]
        lines += [f"  {finding}" for finding in findings]
        if more > 0:
            lines.append(f"  and {more} more")
        lines += [f"  rule: {rule}" for rule in dict.fromkeys(finding.rule for finding in findings)]
        super().__init__("\n".join(lines))
