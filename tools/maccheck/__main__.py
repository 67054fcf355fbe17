import os
import sys

from . import check, fetch

NOT_CHECKED = 3


def main() -> int:
    try:
        check.run()
    except check.Failed as failure:
        print(f"maccheck FAILED: {failure}", file=sys.stderr)
        return 1
    except fetch.Unreachable as why:
        print(f"maccheck: NOT CHECKED, nothing is known about macOS: {why}", file=sys.stderr)
        return 1 if os.environ.get("CI") == "true" else NOT_CHECKED
    return 0


if __name__ == "__main__":
    sys.exit(main())
