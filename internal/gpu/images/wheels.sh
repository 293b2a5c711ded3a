# wheels PINS NAME installs the wheels of a file of pins under .build, unless they are there, and sets
# `wheels` to their folder. Read by build.sh and machine.sh. It ends the script with status 3 if they
# cannot be installed, with 1 if what came is not what is pinned.
wheels() {
    local said
    wheels=$PWD/.build/$2-$(sha256sum "$1" | cut -c 1-16)
    [ ! -d "$wheels" ] || return 0
    mkdir -p .build
    rm -rf "$wheels.new"
    said=$(python3 -m pip --disable-pip-version-check install --quiet --retries 1 --timeout 30 --no-deps \
        --require-hashes --only-binary :all: --root-user-action=ignore --target "$wheels.new" -r "$1" 2>&1) || {
        printf '%s\n%s: what %s names cannot be installed\n' "$said" "${0##*/}" "$1" >&2
        case $said in *HASH*) exit 1 ;; esac
        exit 3
    }
    mv "$wheels.new" "$wheels"
}
