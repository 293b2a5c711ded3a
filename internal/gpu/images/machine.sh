#!/usr/bin/env bash
# Disassembles the machine code of the images that are committed and fails where it is not what the
# sources promise: package machine says what that is. Installs the disassembler of disassembler.txt under
# .build first, with pip; needs Python 3 and Linux on amd64, no GPU and no C compiler.
# Exit status 3 says that the disassembler cannot be installed.
set -euo pipefail
cd "$(dirname "$0")/../../.."

. internal/gpu/images/wheels.sh
wheels internal/gpu/images/disassembler.txt nvdisasm
disassembler=$wheels/nvidia/cu13/bin/nvdisasm
go run ./internal/gpu/images/machine/check -nvdisasm "$disassembler"
SNUG_NVDISASM=$(realpath "$disassembler") go test -count=1 -tags cuda -run '^TestHopperMemory$' ./attention
