#!/usr/bin/env bash
# Runs snug on a machine that has an NVIDIA driver and no Go.
#
#	scripts/gpu.sh build FOLDER   here, with Go: cross-builds for linux/amd64 with the tag cuda,
#	                              without cgo, the tests that use devices, the main job and bench
#	scripts/gpu.sh run FOLDER     there, in a copy of the repository with FOLDER: runs them
#
# FOLDER is under .build, by default .build/gpu. Build also packs it into
# FOLDER.tar.gz, which is enough to take there. Run writes the output and exit
# status of everything to FOLDER/log, goes on after a failure, and prints a table
# last. It fails if anything did. DEVICE (cuda:0) is the device, LIMIT (300) the
# seconds that one step may take, and BENCH_LIMIT (3600) those of bench, which
# prints its rows as they come.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '2,/^$/s/^#[ \t]\{0,1\}//p' "$0" >&2; exit 2; }

build() {
    export CGO_ENABLED=0 GOOS=linux GOARCH=amd64
    local flags=(-tags cuda -trimpath -ldflags '-s -w')
    rm -rf "$folder"
    mkdir -p "$folder/tests"
    { grep -rl --include='*_test.go' -F 'kerneltest.Backends(' . | xargs -n 1 dirname; echo ./internal/cuda; } | sort -u |
        while read -r package; do
            mkdir -p "$folder/tests/$package"
            go test -c "${flags[@]}" -o "$folder/tests/$package/package.test" "$package"
        done
    go build "${flags[@]}" -o "$folder/gpt" ./examples/gpt
    go build "${flags[@]}" -o "$folder/bench" ./bench
    tar -czf "$folder.tar.gz" -C "$folder" .
    du -sh "$folder" "$folder.tar.gz"
}

# step <name> <folder> <command>... runs a command in a folder and keeps what it
# says in $log/<name>.txt.
step() {
    local name=$1 dir=$2 began=$SECONDS status=0
    shift 2
    printf '== %s: %s\n' "$name" "$*"
    (cd "$dir" && exec timeout --kill-after=10 "$limit" "$@") </dev/null >"$log/$name.txt" 2>&1 || status=$?
    printf '%s\n' "$status" >"$log/$name.status"
    printf '%-28s %6s %6d s   %s\n' "$name" "$([ $status = 0 ] && echo ok || echo "$status")" $((SECONDS - began)) \
        "$(grep -v '^[[:space:]]*$' "$log/$name.txt" | tail -n 1 | cut -c 1-100)" >>"$log/table.txt"
    [ $status = 0 ] || failed=1
}

machine() {
    date -u '+%Y-%m-%d %H:%M UTC'
    nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader
    uname -sr
}

run() {
    local root=$PWD file package name tool
    command -v nvidia-smi >/dev/null || { echo "gpu.sh: no nvidia-smi here: this needs a machine with an NVIDIA driver" >&2; exit 1; }
    if [ ! -d "$folder" ]; then
        [ -f "$folder.tar.gz" ] || { echo "gpu.sh: no $folder and no $folder.tar.gz here" >&2; exit 1; }
        mkdir -p "$folder"
        tar -xzf "$folder.tar.gz" -C "$folder"
    fi
    folder=$(cd "$folder" && pwd)
    log=$folder/log limit=${LIMIT:-300} failed=0
    device=${DEVICE:-cuda:0}
    rm -rf "$log"
    mkdir -p "$log"
    machine | tee "$log/machine.txt"
    export SNUG_TEST_DEVICES=$device # which must be there, then

    while read -r file; do
        package=$(dirname "${file#"$folder/tests/"}")
        name=test-$(printf '%s' "$package" | sed 's|^\.$|snug|; s|/|-|g')
        step "$name" "$root/$package" "$file" -test.timeout "${limit}s" -test.v
    done < <(find "$folder/tests" -name package.test | sort)

    if command -v compute-sanitizer >/dev/null; then
        for tool in memcheck racecheck; do
            for file in "$root"/*/kernels "$root"/*/*/kernels; do
                package=$(dirname "${file#"$root/"}")
                [ -e "$folder/tests/$package/package.test" ] || continue
                step "$tool-${package//\//-}" "$root/$package" compute-sanitizer --tool "$tool" --error-exitcode 9 \
                    "$folder/tests/$package/package.test" -test.short -test.timeout "${limit}s"
            done
        done
    else
        echo 'compute-sanitizer is not installed: no memcheck, no racecheck' | tee -a "$log/machine.txt"
    fi

    step gpt "$root" "$folder/gpt" -device "$device" -steps 20 -text "$root"
    limit=${BENCH_LIMIT:-3600}
    step bench "$root" "$folder/bench" -device "$device" -peers
    if nvidia-smi --query-gpu=compute_cap --format=csv,noheader | grep -q '^9\.0'; then # the kernels of 8.0 beside
        step test-attention-80 "$root/attention" env SNUG_CUDA=80 "$folder/tests/attention/package.test" -test.timeout "${limit}s"
        step bench-80 "$root" env SNUG_CUDA=80 "$folder/bench" -device "$device" -only '^attention'
    fi

    printf '\n'
    cat "$log/machine.txt"
    printf '\n%-28s %6s %8s   %s\n' what status time 'last line'
    cat "$log/table.txt"
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
