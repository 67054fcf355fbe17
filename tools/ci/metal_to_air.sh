#!/usr/bin/env bash
# Compile every shader that emit_shaders.py wrote to AIR with Apple's compiler.
# Not in .ci/run: xcrun and the Metal toolchain exist only on macOS.
set -euo pipefail
folder=$1

# Since Xcode 26 the Metal toolchain is a download of its own.
xcrun -sdk macosx metal --version || xcodebuild -downloadComponent MetalToolchain
xcrun -sdk macosx metal --version

languages() {  # the version a shader needs, and the next one where this toolchain has it
  echo "$1"
  if [ "$1" = 4.0 ] && echo | xcrun -sdk macosx metal -std=metal4.1 -x metal -c - -o /dev/null 2>/dev/null; then
    echo 4.1
  fi
}

failed=0
while IFS=$'\t' read -r version name; do
  for language in $(languages "$version"); do
    # Kernels with cooperative tensors were seen miscompiled for older deployment targets than 26.2.
    if [ "$version" = 4.0 ]; then target=26.2; else target=14.0; fi
    if ! xcrun -sdk macosx metal -std=metal"$language" -mmacosx-version-min="$target" -Wall -Werror \
        -c "$folder/$name" -o "$folder/${name%.metal}-$language.air"; then
      echo "FAILED: $name as Metal $language" >&2
      failed=$((failed + 1))
    fi
  done
done < "$folder/index.tsv"
echo "$(find "$folder" -name '*.air' | wc -l) AIR files, $failed failures"
test "$failed" -eq 0
