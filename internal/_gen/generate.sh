#!/usr/bin/env bash
# Generates all assembly: the program in each folder here writes
# kernel_amd64.s and kernel_amd64.go of the package internal/<folder>. With
# -check it compares instead, and fails when a file is not what its generator
# gives. With names of folders it does only those.
set -euo pipefail
cd "$(dirname "$0")"
out=..
if [ "${1:-}" = -check ]; then
    shift
    out=$(mktemp -d)
    trap 'rm -rf "$out"' EXIT
fi
[ $# -gt 0 ] || set -- */
for family in "$@"; do
    family=${family%/}
    mkdir -p "$out/$family"
    go run "./$family" -pkg "$family" -out "$out/$family/kernel_amd64.s" -stubs "$out/$family/kernel_amd64.go"
    if [ "$out" = .. ]; then continue; fi
    for file in kernel_amd64.s kernel_amd64.go; do
        diff -u -I '^// Code generated' "../$family/$file" "$out/$family/$file"
    done
done
