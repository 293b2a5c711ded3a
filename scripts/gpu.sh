#!/usr/bin/env bash
# Runs snug on a machine that has an NVIDIA driver and no Go.
#
#	scripts/gpu.sh build FOLDER   here, with Go: cross-builds for linux/amd64 with the tag cuda,
#	                              without cgo, the tests that use devices, gpt, snug and bench
#	scripts/gpu.sh run FOLDER     there, in a copy of the repository with FOLDER: runs them
#
# FOLDER is under .build, by default .build/gpu. Build also packs it into
# FOLDER.tar.xz, which is enough to take there; PACKAGES is a regular expression for the
# packages whose tests are wanted, such as './(amp|attention)'. Run writes the output and exit
# status of everything to FOLDER/log, goes on after a failure, and prints a table
# last. It fails if anything did. STEPS says what to run, of
#
#	tests       every test in a process of its own, JOBS (the cores but one) at a time; those
#	            that fail once more, alone, for some watch the memory of the device
#	attention   those of attention without the kernels that only capability 9.0 has
#	memcheck    the tests that used the device under NVIDIA's compute-sanitizer, where that is
#	racecheck   installed: accesses out of bounds, and races
#	gpt         20 steps of examples/gpt
#	bench       the benchmark, beside PyTorch where that is installed
#
# by default all. TESTS is a regular expression for lines of package and test, such as
# '^attention ', and TEST_FLAGS are flags of tests. SNUG_SLOW= shortens tests. DEVICE (cuda:0)
# is the device, LIMIT (300) the seconds that a test or gpt may take, and BENCH_LIMIT
# (3600) those of bench, which prints its rows as they come.
set -euo pipefail
cd "$(dirname "$0")/.."
export SNUG_SLOW=${SNUG_SLOW-1}

usage() { sed -n '2,/^set /s/^#[ \t]\{0,1\}//p' "$0" >&2; exit 2; }

build() {
    export CGO_ENABLED=0 GOOS=linux GOARCH=amd64
    local flags=(-tags cuda -trimpath -ldflags '-s -w')
    rm -rf "$folder"
    mkdir -p "$folder/tests"
    grep -rlE --include='*_test.go' 'kerneltest\.(Backends|Each)\(' . | xargs -n 1 dirname | sort -u | grep -xE -- "${PACKAGES:-.*}" |
        while read -r package; do
            mkdir -p "$folder/tests/$package"
            go test -c "${flags[@]}" -o "$folder/tests/$package/package.test" "$package"
        done
    go build "${flags[@]}" -o "$folder/gpt" ./examples/gpt
    go build "${flags[@]}" -o "$folder/snug" ./cmd/snug
    go build -C bench "${flags[@]}" -o "$(realpath "$folder")/bench" .
    # All programs have the same images of kernels: a window that holds several finds them.
    tar -C "$folder" --sort=name -cf - . | xz ${XZ:---lzma2=preset=3,dict=256MiB} >"$folder.tar.xz"
    du -sh "$folder" "$folder.tar.xz"
}

# one NAME PACKAGE TEST [COMMAND...] runs one test, by a command if there is one, keeps what
# it says in NAME/PACKAGE.TEST.txt of the log, and prints its status, names and seconds.
one() {
    local kind=$1 package=$2 test=$3 began=$SECONDS status=0
    shift 3
    (cd "$package" && exec timeout --kill-after=10 "$limit" "$@" "$folder/tests/$package/package.test" \
        -test.run "^$test\$" -test.timeout "${limit}s" -test.v ${TEST_FLAGS:-}) </dev/null >"$log/$kind/${package//\//-}.$test.txt" 2>&1 || status=$?
    printf '%s %s %s %s\n' "$status" "$package" "$test" $((SECONDS - began))
}

# many KIND runs the tests that standard input names, by $COMMAND if that is not empty, adds a line
# to the table, and fails if a test does, or if there is none.
many() {
    local kind=$1 began=$SECONDS ok bad
    mkdir -p "$log/$kind"
    xargs -r -P "$jobs" -L 1 bash -c 'kind=$1 package=$2 test=$3; shift 3; one "$kind" "$package" "$test" $COMMAND' one "$kind" >"$log/$kind.txt"
    ok=$(grep -c '^0 ' "$log/$kind.txt" || true) bad=$(grep -vc '^0 ' "$log/$kind.txt" || true)
    printf '%-16s %6d ok %4d failed %6d s   %s\n' "$kind" "$ok" "$bad" $((SECONDS - began)) \
        "$(grep -v '^0 ' "$log/$kind.txt" | awk '{printf "%s %s; ", $2, $3}' | cut -c 1-300)" | tee -a "$log/table.txt"
    [ "$bad" = 0 ] && [ "$ok" -gt 0 ]
}

# twice KIND is many, and runs those that fail once more, alone.
twice() {
    many "$1" || jobs=1 many "$1-again" < <(awk '$1 != 0 {print $2, $3}' "$log/$1.txt") || failed=1
}

# program KIND SECONDS COMMAND... runs a program, and adds a line to the table.
program() {
    local kind=$1 most=$2 began=$SECONDS status=0
    shift 2
    timeout --kill-after=10 "$most" "$@" </dev/null >"$log/$kind.txt" 2>&1 || status=$?
    printf '%-16s %9s %20d s   %s\n' "$kind" "$([ $status = 0 ] && echo ok || echo "status $status")" $((SECONDS - began)) \
        "$(grep -v '^[[:space:]]*$' "$log/$kind.txt" | tail -n 1 | cut -c 1-150)" | tee -a "$log/table.txt"
    [ $status = 0 ] || failed=1
}

machine() {
    date -u '+%Y-%m-%d %H:%M UTC'
    nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader
    uname -sr
}

# list_tests prints the packages and names of all tests.
list_tests() {
    local package
    (cd "$folder/tests" && find . -name package.test) | sort | while read -r package; do
        package=$(dirname "${package#./}")
        (cd "$package" && "$folder/tests/$package/package.test" -test.list '^(Test|Fuzz|Example)') | grep -E '^(Test|Fuzz|Example)' | sed "s|^|$package |"
    done
}

# used_device prints the tests whose output names the device.
used_device() {
    awk '$1 == 0 {print $2, $3}' "$log/tests.txt" | while read -r package test; do
        grep -qs "/$device" "$log/tests/${package//\//-}.$test.txt" && printf '%s %s\n' "$package" "$test"
    done || true
}

run() {
    command -v nvidia-smi >/dev/null || { echo "gpu.sh: no nvidia-smi here: this needs a machine with an NVIDIA driver" >&2; exit 1; }
    if [ ! -d "$folder" ]; then
        [ -f "$folder.tar.xz" ] || { echo "gpu.sh: no $folder and no $folder.tar.xz here" >&2; exit 1; }
        mkdir -p "$folder"
        tar -xJf "$folder.tar.xz" -C "$folder"
    fi
    folder=$(cd "$folder" && pwd)
    log=$folder/log limit=${LIMIT:-300} failed=0 device=${DEVICE:-cuda:0} jobs=${JOBS:-$(($(nproc) > 1 ? $(nproc) - 1 : 1))}
    export folder log limit COMMAND=''
    export -f one
    rm -rf "$log"
    mkdir -p "$log"
    machine | tee "$log/machine.txt"
    export SNUG_TEST_DEVICES=$device # which must be there, then
    list_tests | grep -E -- "${TESTS:-.}" >"$log/list.txt"
    local step
    for step in ${STEPS:-tests attention memcheck racecheck gpt bench}; do
        case $step in
        tests) twice tests <"$log/list.txt" ;;
        attention) SNUG_CUDA=80 twice attention-80 < <(grep '^attention ' "$log/list.txt") ;;
        memcheck | racecheck)
            if command -v compute-sanitizer >/dev/null; then
                COMMAND="compute-sanitizer --tool $step --error-exitcode 9" twice "$step" < <(used_device)
            else
                echo "compute-sanitizer is not installed: no $step" | tee -a "$log/table.txt"
            fi
            ;;
        gpt) program gpt "$limit" "$folder/gpt" -device "$device" -steps 20 -text . ;;
        bench)
            program bench "${BENCH_LIMIT:-3600}" "$folder/bench" -device "$device" -peers ${BENCH_ONLY:+-only "$BENCH_ONLY"} -o "$log/bench.svg"
            ;;
        *) echo "gpu.sh: no step $step" >&2; exit 2 ;;
        esac
    done
    printf '\n'
    cat "$log/machine.txt" "$log/table.txt"
    exit "$failed"
}

folder=${2:-.build/gpu}
case $folder in
.build/?* | "$PWD"/.build/?*) ;;
*) echo "gpu.sh: $folder is not under .build" >&2; exit 2 ;;
esac
case ${1:-} in
build) build ;;
run) run ;;
*) usage ;;
esac
