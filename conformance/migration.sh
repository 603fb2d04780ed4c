#!/bin/sh
# QEMU's live migration over RDMA: the memory of a machine that is not running, pinned page by page or at once.
#   migration.sh serve ADDRESS FOLDER    the machine that takes over, until it is ended
#   migration.sh ask ADDRESS FOLDER on   the one that leaves; on or off: whether all memory is pinned
set -e
address=$2
folder=$3
machine="qemu-system-x86_64 -machine pc,accel=tcg -m 64 -display none -nodefaults -S"

# A command of the monitor at a socket.
tell() {
    echo "$2" | socat - "UNIX-CONNECT:$1" | tr -d '\r'
}

case $1 in
serve)
    mkdir -p "$folder"
    rm -f "$folder"/*
    # Ended with the one that leaves: what it is told last is to quit.
    exec $machine -monitor "unix:$folder/to,server,nowait" -incoming "rdma:$address:4444"
    ;;
ask)
    $machine -monitor "unix:$folder/from,server,nowait" &
    trap 'kill -9 $!' EXIT
    until test -S "$folder/from" && test -S "$folder/to"; do sleep 0.1; done
    for end in from to; do tell "$folder/$end" "migrate_set_capability rdma-pin-all $4" >/dev/null; done
    tell "$folder/from" "migrate -d rdma:$address:4444" >/dev/null
    while tell "$folder/from" "info migrate" >"$folder/said" && ! grep -q "status: \(completed\|failed\)" "$folder/said"; do
        sleep 0.1
    done
    grep "Migration status" "$folder/said"
    tell "$folder/to" "info status" | grep "VM status"
    tell "$folder/to" "quit" >/dev/null
    ;;
esac
