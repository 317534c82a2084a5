#!/usr/bin/env bash
# Brings Debian's HAProxy into target/haproxy, without installing it, and prints the path of a
# command that runs it. Fails where there is no apt.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$PWD/target/haproxy
if [ ! -x "$folder/run" ]; then
    mkdir -p "$folder/packages"
    cd "$folder/packages"
    # What it links to, as far as the machine lacks it.
    for package in haproxy liblua5.3-0 libopentracing-c-wrapper0 libopentracing1 libpcre2-8-0 \
        libssl3 libsystemd0 libcrypt1; do
        if ! dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null |
            grep -qx installed; then
            apt-get download "$package" >&2
        fi
    done
    for package in *.deb; do
        dpkg -x "$package" "$folder/tree"
    done
    libraries=$folder/tree/usr/lib/$(uname -m)-linux-gnu:$folder/tree/lib/$(uname -m)-linux-gnu
    printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' \
        "$libraries" "$folder/tree/usr/sbin/haproxy" >"$folder/run"
    chmod +x "$folder/run"
    "$folder/run" -v >&2
fi
echo "$folder/run"
