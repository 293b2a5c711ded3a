#!/usr/bin/env bash
# Trains a network whose weights, gradients and optimizer state take 4 times a hard
# limit of memory: with pages on disk to the end, and in memory until the system stops it.
# The limit is prlimit's on what a process maps to write, of which Go's runtime takes 45 MB
# without touching them. With -cgroup it is that of a memory cgroup, which kills (as root,
# where cgroups can be made).
set -euo pipefail
cd "$(dirname "$0")/.."

export GOMAXPROCS=2 # each thread has scratch of its own

fail() { printf 'hard-limit: %s\n' "$*" >&2; exit 1; }

work=$(mktemp -d)
group=
trap 'if [ -n "$group" ]; then rmdir "$group"; fi; rm -rf "$work"' EXIT
go build -o "$work/offload" ./examples/offload

width=1664 # of 24 matrices: 66 M weights, 12 bytes each
limit=190000000
if [ "${1:-}" = -cgroup ]; then
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
        group=/sys/fs/cgroup/snug-hard-limit file=memory.max
    else
        group=/sys/fs/cgroup/memory/snug-hard-limit file=memory.limit_in_bytes
    fi
    limit=115000000
    mkdir "$group"
    echo "$limit" >"$group/$file"
fi
state=$((24 * width * width * 12))
[ $((4 * limit)) -le "$state" ] || fail "a limit of $limit is more than a quarter of $state"

# limited runs the program under the limit.
limited() {
    if [ -n "$group" ]; then
        sh -c 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"' limited "$group" "$work/offload" "$@"
    else
        prlimit --data="$limit" "$work/offload" "$@"
    fi
}

printf '%d bytes of weights, gradients and state under a limit of %d\n' "$state" "$limit"
limited -width "$width" -steps 3 -memory 24MiB -only paged | tee "$work/paged"
if limited -width "$width" -steps 3 -only memory >"$work/memory" 2>&1; then
    fail 'the run in memory kept the limit'
fi
printf 'in memory: %s\n' "$(grep -m 1 -a 'out of memory\|allocate memory' "$work/memory" || echo killed)"
"$work/offload" -width "$width" -steps 3 -only memory | tee "$work/free"
[ "$(tail -n 1 "$work/paged")" = "$(tail -n 1 "$work/free")" ] || fail 'the weights differ from those of a run without a limit'
