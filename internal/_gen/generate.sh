#!/usr/bin/env bash
# Generates all assembly: the program in each folder here writes
# kernel_amd64.s and kernel_amd64.go of the package internal/<folder>, and the
# one in <folder>/arm64, where there is one, kernel_arm64.s and kernel_arm64.go.
# With -check it compares instead, and fails when a file is not what its
# generator gives. With names of folders it does only those.
set -euo pipefail
cd "$(dirname "$0")"
out=..
if [ "${1:-}" = -check ]; then
    shift
    out=$(mktemp -d)
    trap 'rm -rf "$out"' EXIT
fi

# generate <program> <family> <architecture>
generate() {
    local files="$out/$2/kernel_$3"
    go run "./$1" -pkg "$2" -out "$files.s" -stubs "$files.go"
    # avo gives functions for AVX2 registers that only AVX-512 has, when others are short.
    if awk '/^TEXT/ { old = /AVX2/ } old && /[^A-Z0-9][XY](1[6-9]|2[0-9]|3[01])([^0-9]|$)/ { print FILENAME ": " $0; found = 1 } END { exit !found }' "$files.s" >&2; then
        echo "$2: a function for AVX2 has too many registers" >&2
        return 1
    fi
    if [ "$out" = .. ]; then return; fi
    for file in "kernel_$3.s" "kernel_$3.go"; do
        diff -u -I '^// Code generated' "../$2/$file" "$out/$2/$file"
    done
}

[ $# -gt 0 ] || set -- $(printf '%s\n' */main.go | xargs -n 1 dirname)
for family in "$@"; do
    family=${family%/}
    mkdir -p "$out/$family"
    generate "$family" "$family" amd64
    if [ -d "$family/arm64" ]; then
        generate "$family/arm64" "$family" arm64
    fi
done
