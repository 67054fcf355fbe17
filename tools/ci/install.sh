#!/usr/bin/env bash
# Build the extension in isolation and install the package with its tests.
# Not in .ci/run: there the README's own first command installs.
set -euo pipefail
python -m pip install -e '.[test]'
