#!/usr/bin/env bash
# Compiles every module of CUDA kernels, <package>/kernels/<package>.cu, into an
# image beside it that goes into programs built with the tag cuda: machine code
# for the architectures of images.go, and PTX for newer ones. Writes the images,
# their .sum files and RESOURCES.md. With -check it compares with what is there
# instead. What was compiled before comes from the user's cache, in snug-images.
# Installs the compilers of requirements.txt under .build first, with pip; needs Python 3, xz and Linux on amd64, no GPU and no C compiler.
# Exit status 3 says that the compilers cannot be installed.
set -euo pipefail
cd "$(dirname "$0")/../../.."

. internal/gpu/images/wheels.sh
wheels internal/gpu/images/requirements.txt cuda
CGO_ENABLED=0 go run -tags cuda ./internal/gpu/images/build -compilers "$wheels" "$@"
