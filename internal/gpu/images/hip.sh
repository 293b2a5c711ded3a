#!/usr/bin/env bash
# Compiles every .cu for two of AMD's architectures, warp sizes 64 and 32, so that
# kernels stay in what CUDA and HIP share. Needs clang 19 (Debian: clang-19), no
# header or library of ROCm. The objects are thrown away.
set -euo pipefail
root=${1:-$(cd "$(dirname "$0")/../../.." && pwd)}
cd "$root"

CLANG=${CLANG:-clang-19}
command -v "$CLANG" >/dev/null || { echo "hip.sh: no $CLANG here; install it (apt-get install clang-19)" >&2; exit 1; }

shopt -s nullglob
failed=0
for entry in */kernels/*.cu internal/*/kernels/*.cu; do
    for gpu in gfx90a gfx1100; do
        printf 'hip: %s for %s\n' "$entry" "$gpu"
        "$CLANG" -x hip --cuda-device-only -nogpuinc -nogpulib --offload-arch="$gpu" \
            -std=c++17 -O3 -ffp-contract=off -Wall -Wextra -Wno-unused-parameter -Werror \
            -I internal/gpu/include -S -o - "$entry" |
            "$CLANG" -x assembler -target amdgcn-amd-amdhsa -mcpu="$gpu" -c -o /dev/null - || failed=1
    done
done
exit $failed
