#!/usr/bin/env bash
# Compiles every .cu for two of AMD's architectures, so that kernels stay in what CUDA and
# HIP share: for gfx1100, of warps of 32, to an object that is thrown away, and for gfx90a,
# of warps of 64, as far as the front end goes; with -front that is all for both. Needs
# clang 19 (Debian: clang-19), no header or library of ROCm.
set -euo pipefail
deep=1
if [ "${1:-}" = -front ]; then
    deep=
    shift
fi
root=${1:-$(cd "$(dirname "$0")/../../.." && pwd)}
cd "$root"

CLANG=${CLANG:-clang-19}
command -v "$CLANG" >/dev/null || { echo "hip.sh: no $CLANG here; install it (apt-get install clang-19)" >&2; exit 1; }

compile() {
    printf 'hip: %s for %s\n' "$1" "$2" >&2
    "$CLANG" -x hip --cuda-device-only -nogpuinc -nogpulib --offload-arch="$2" \
        -std=c++17 -O3 -ffp-contract=off -Wall -Wextra -Wno-unused-parameter -Werror \
        -I internal/gpu/include "${@:3}" "$1"
}
both() {
    if [ -n "$deep" ]; then object "$1"; else compile "$1" gfx1100 -fsyntax-only; fi
    compile "$1" gfx90a -fsyntax-only
}
object() {
    compile "$1" gfx1100 -S -o - | "$CLANG" -x assembler -target amdgcn-amd-amdhsa -mcpu=gfx1100 -c -o /dev/null -
}
export CLANG deep
export -f compile object both

shopt -s nullglob
files=(*/kernels/*.cu */*/kernels/*.cu)
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c 'set -eo pipefail; both "$1"' hip
