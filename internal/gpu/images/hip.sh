#!/usr/bin/env bash
# Compiles every module of kernels for AMD's cards, <package>/kernels/<package>.cu, into
# an image beside it that goes into programs built with the tag hip: a code object for each of the
# architectures of amd.go. Writes the images, <package>_hip.image, their .sum files and
# RESOURCES-AMD.md. With -check it compares with what is there instead, with -only ARCH beside it the
# code for one architecture alone: all sources are compared by their hashes. What was
# compiled before comes from the user's cache, in snug-images. Needs clang and lld 19
# (Debian: clang-19, lld-19) and xz, no header or library of ROCm; CLANG names another clang.
# Exit status 3 says that clang is of another release than the one whose code is in the images.
set -euo pipefail
cd "$(dirname "$0")/../../.."

CLANG=${CLANG:-clang-19}
command -v "$CLANG" >/dev/null || { echo "hip.sh: no $CLANG here; install it (apt-get install clang-19 lld-19)" >&2; exit 1; }
CGO_ENABLED=0 go build -tags cuda -o .build/images ./internal/gpu/images/build
.build/images -clang "$CLANG" "$@"
