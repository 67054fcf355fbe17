"""Print the n-th shell block of README.md, so that CI runs what a newcomer would copy."""

import re
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def commands() -> list[str]:
    """The shell blocks of the README, in order."""
    return [block.strip() for block in re.findall(r"```sh\n(.*?)```", README.read_text(), re.S)]


if __name__ == "__main__":
    print(commands()[int(sys.argv[1])])
