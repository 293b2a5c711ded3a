#!/usr/bin/env bash
# Checks every .metal file without Metal, twice: with clang as metalcheck does
# (address spaces, C++14, what the language lacks), and with the host's compiler
# as the emulator compiles it; both as Metal 3.1, of macOS 14 and later, and as
# 2.4, of systems before it. Needs clang 19 (Debian: clang-19).
set -euo pipefail
cd "$(dirname "$0")/../../.."

CLANG=${CLANG:-clang-19}
command -v "$CLANG" >/dev/null || { echo "metal.sh: no $CLANG here; install it (apt-get install clang-19)" >&2; exit 1; }

shopt -s nullglob
files=(*/kernels/*.metal */*/kernels/*.metal)
go test -count=1 -tags clang ./internal/gpu/images/metalcheck
go run ./internal/gpu/images/metalcheck -clang "$CLANG" "${files[@]}"
for file in "${files[@]}"; do
    for version in 310 240; do
        "${CXX:-c++}" -std=c++17 -fsyntax-only -Wall -Wno-unknown-pragmas -Wno-attributes -DSNUG_EMU -D__METAL_VERSION__=$version \
            -I internal/emu/shim -I internal/gpu/include -x c++ "$file"
    done
done
