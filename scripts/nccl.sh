#!/usr/bin/env bash
# Runs dist/nccl on a machine that has GPUs of NVIDIA and NCCL, and no Go. This script has NOT been run with two
# GPUs: no such machine was at hand. Its job of bits has run with one rank.
#
#	scripts/nccl.sh build FOLDER   here, with Go: cross-builds the tests for linux/amd64 with the tag cuda
#	scripts/nccl.sh run FOLDER     there: starts a process for each rank, which compare all operations with the bits of
#	                               one process, time AllReduce of 256 MiB, and wait for a rank that makes no call
#
# FOLDER is under .build, by default .build/nccl. RANKS is the number of ranks, by default the number of GPUs. With more
# ranks than GPUs, several share one, which NCCL allows from 2.30 on. SNUG_NCCL names the library. LIMIT (300) is the
# seconds that a step may take. If all_reduce_perf of nccl-tests is in PATH, it is timed too.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '2,/^$/s/^#[ \t]\{0,1\}//p' "$0" >&2; exit 2; }

build() {
    mkdir -p "$folder"
    CGO_ENABLED=0 GOOS=linux GOARCH=amd64 go test -c -tags cuda -trimpath -ldflags '-s -w' -o "$folder/nccl.test" ./dist/nccl
    du -sh "$folder/nccl.test"
}

# job NAME starts all ranks and fails if one does.
job() {
    local rank pid pids=() status=0
    printf '== %s, %d ranks\n' "$1" "$ranks"
    rm -f "$folder/id"
    for rank in $(seq 0 $((ranks - 1))); do
        SNUG_NCCL_JOB=$1 SNUG_NCCL_RANK=$rank SNUG_NCCL_SIZE=$ranks SNUG_NCCL_DEVICE=cuda:$((rank % gpus)) \
            SNUG_NCCL_FILE=$folder/id SNUG_NCCL_RUN="$$ $1" timeout --kill-after=10 "$limit" "$folder/nccl.test" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
    [ "$status" = 0 ] || failed=1
    printf 'status %d\n' "$status"
}

run() {
    command -v nvidia-smi >/dev/null || { echo "nccl.sh: no nvidia-smi here: this needs a machine with an NVIDIA driver" >&2; exit 1; }
    [ -x "$folder/nccl.test" ] || { echo "nccl.sh: no $folder/nccl.test here: build it first" >&2; exit 1; }
    gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)
    ranks=${RANKS:-$gpus} limit=${LIMIT:-300} failed=0
    [ "$ranks" -le "$gpus" ] || export NCCL_MULTI_RANK_GPU_ENABLE=1
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
    [ "$ranks" -ge 2 ] || echo 'nccl.sh: one rank sends nothing: RANKS=2 shares the GPU, with NCCL 2.30 or later' >&2
    job bits
    job rate
    if command -v all_reduce_perf >/dev/null; then
        all_reduce_perf -b 256M -e 256M -g "$ranks"
    else
        echo 'all_reduce_perf of nccl-tests is not in PATH: nothing to compare with'
    fi
    [ "$ranks" -lt 2 ] || job late
    exit "$failed"
}

folder=${2:-.build/nccl}
case $folder in
.build/?* | "$PWD"/.build/?*) ;;
*) echo "nccl.sh: $folder is not under .build" >&2; exit 2 ;;
esac
case ${1:-} in
build) build ;;
run) run ;;
*) usage ;;
esac
