#!/usr/bin/env bash
# Compiles every module of CUDA kernels, <package>/kernels/<package>.cu, into an
# image beside it that goes into programs built with the tag cuda: machine code
# for the architectures of images.go, and PTX for newer ones. Writes the images,
# their .sum files and RESOURCES.md. With -check it compares with what is there
# instead. What was compiled before comes from the user's cache, in snug-images. Installs the compilers of requirements.txt under .build first, with
# pip; needs Python 3 and Linux on amd64, no GPU and no C compiler.
# Exit status 3 says that the compilers cannot be installed.
set -euo pipefail
cd "$(dirname "$0")/../../.."

pins=internal/gpu/images/requirements.txt
hash=$(sha256sum "$pins" | cut -c 1-16)
compilers=$PWD/.build/cuda-$hash
if [ ! -d "$compilers" ]; then
    mkdir -p .build
    rm -rf "$compilers.new"
    said=$(python3 -m pip --disable-pip-version-check install --quiet --retries 1 --timeout 30 --no-deps \
        --require-hashes --only-binary :all: --root-user-action=ignore --target "$compilers.new" -r "$pins" 2>&1) || {
        printf '%s\nbuild.sh: the compilers of %s cannot be installed\n' "$said" "$pins" >&2
        case $said in *HASH*) exit 1 ;; esac # what came is not what is pinned
        exit 3
    }
    mv "$compilers.new" "$compilers"
fi
CGO_ENABLED=0 go run -tags cuda ./internal/gpu/images/build -compilers "$compilers" "$@"
