#!/bin/sh
# Installs a release of Vernic: the command, its libraries, manual pages.
#
#     curl -fsSL https://github.com/vernic/vernic/releases/latest/download/install.sh | sh
#
#     VERNIC_PREFIX   where to: /usr/local for root, else $HOME/.local
#     VERNIC_VERSION  which release, as 0.1.0; the latest without
#     VERNIC_URL      another place with the archives, as file:///srv/vernic
#
# Needs tar, gzip, sha256sum, and curl or wget.
set -eu

repository=https://github.com/vernic/vernic

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

# fetch URL FILE
fetch() {
    case $1 in
    file://*) cp "${1#file://}" "$2" ;;
    *)
        if command -v curl >/dev/null; then
            curl -fsSL --retry 3 -o "$2" "$1"
        elif command -v wget >/dev/null; then
            wget -q -O "$2" "$1"
        else
            fail "neither curl nor wget is here; install one of them"
        fi
        ;;
    esac || fail "cannot fetch $1"
}

[ "$(uname -s)" = Linux ] || fail "Vernic runs on Linux only, and this is $(uname -s)"
case $(uname -m) in
x86_64 | amd64) target=x86_64-unknown-linux-gnu ;;
aarch64 | arm64) target=aarch64-unknown-linux-gnu ;;
*) fail "there is no release for $(uname -m); build it: $repository#readme" ;;
esac
if ! getconf GNU_LIBC_VERSION >/dev/null 2>&1; then
    fail "this system has no glibc, which programs that use libibverbs.so.1 are linked to (Alpine: use a Debian image)"
fi

if [ "$(id -u)" = 0 ]; then prefix=/usr/local; else prefix=$HOME/.local; fi
prefix=${VERNIC_PREFIX:-$prefix}
if [ -n "${VERNIC_URL:-}" ]; then
    from=$VERNIC_URL
elif [ -n "${VERNIC_VERSION:-}" ]; then
    from=$repository/releases/download/v$VERNIC_VERSION
else
    from=$repository/releases/latest/download
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fetch "$from/SHA256SUMS" "$folder/SHA256SUMS"
archive=$(sed -n "s/^[0-9a-f]*  \(vernic-[^ ]*-$target\.tar\.gz\)$/\1/p" "$folder/SHA256SUMS" | tail -n 1)
[ -n "$archive" ] || fail "$from/SHA256SUMS names no archive for $target"
fetch "$from/$archive" "$folder/$archive"
(cd "$folder" && grep "  $archive\$" SHA256SUMS | sha256sum -c - >/dev/null) ||
    fail "$archive is damaged: its SHA-256 is not that of $from/SHA256SUMS"
mkdir -p "$prefix" || fail "cannot write to $prefix; set VERNIC_PREFIX"
tar -xzf "$folder/$archive" -C "$prefix" --strip-components=1 --no-same-owner ||
    fail "cannot write to $prefix; set VERNIC_PREFIX"

"$prefix/bin/vernic" --version
case :$PATH: in
*":$prefix/bin:"*) ;;
*) echo "add $prefix/bin to your PATH: export PATH=\"$prefix/bin:\$PATH\"" ;;
esac
echo "try: vernic bench --quick, or a program: vernic run -- ibv_devices"
