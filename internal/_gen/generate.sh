#!/usr/bin/env bash
# Generates all assembly. With -check it compares instead, and fails when a
# file is not what its generator gives.
set -euo pipefail
cd "$(dirname "$0")"
out=..
if [ "${1:-}" = -check ]; then
    out=$(mktemp -d)
    trap 'rm -rf "$out"' EXIT
fi
for family in gemm half; do
    mkdir -p "$out/$family"
    go run "./$family" -pkg "$family" -out "$out/$family/kernel_amd64.s" -stubs "$out/$family/kernel_amd64.go"
    if [ "$out" != .. ]; then
        diff -u -I '^// Code generated' "../$family/kernel_amd64.s" "$out/$family/kernel_amd64.s"
        diff -u -I '^// Code generated' "../$family/kernel_amd64.go" "$out/$family/kernel_amd64.go"
    fi
done
