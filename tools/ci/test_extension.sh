#!/usr/bin/env bash
# The tests of the compiled extension alone: no emulator, no kernel.
# Not in .ci/run: its whole suite includes them.
set -euo pipefail
python -m pytest tests/native
