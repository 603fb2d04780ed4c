#!/bin/sh
# iSCSI over RDMA (iSER): tgt's target, and libiscsi's initiator with tests of its own, one at a time: it uses freed memory
# after some of them, over any device. For the same reason it is let die twice per test: it takes a new connection for
# zeroed, and its thread for events is cancelled but not joined before its memory goes (libiscsi 1.19, lib/iser.c).
#   iser.sh serve ADDRESS FOLDER    serves a disk, until it is ended
#   iser.sh ask ADDRESS FOLDER      runs the tests, and looks at the disk
set -e
address=$2
folder=$3
target=iqn.2026-01.org.example:disk
initiator=iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-test
export TGT_IPC_SOCKET="$folder/control"

configure() {
    until tgtadm --lld iser --mode target --op new --tid 1 --targetname "$target"; do sleep 0.1; done
    tgtadm --lld iser --mode logicalunit --op new --tid 1 --lun 1 --backing-store "$folder/disk"
    tgtadm --lld iser --mode target --op bind --tid 1 -I ALL
    tgtadm --lld iser --mode target --op bind --tid 1 -Q "$initiator"
    touch "$folder/ready"
}

# Runs a test; once more, and once more again, if it dies of a wild pointer, and of nothing else.
try() {
    for attempt in 1 2 3; do
        status=0
        iscsi-test-cu -d -t "SCSI.$1.Simple" "iser://$address/$target/1" >"$folder/said" 2>&1 || status=$?
        [ $status = 139 ] || return $status
        echo "$1 was ended by SIGSEGV, attempt $attempt:"
        cat "$folder/said"
    done
    return $status
}

case $1 in
serve)
    mkdir -p "$folder"
    rm -f "$folder"/*
    truncate -s 16M "$folder/disk"
    configure >"$folder/configured" 2>&1 &
    # It says that it has no huge pages, where there are none, and goes on.
    exec tgtd -f --iscsi "portal=$address:3259" --iser port=3260 2>"$folder/log"
    ;;
ask)
    until test -e "$folder/ready"; do sleep 0.1; done
    for name in Write10 Read10 Verify10 WriteVerify10 WriteSame10 Write16 Read16; do
        try $name || { cat "$folder/said"; exit 1; }
        grep -q "Simple .*passed" "$folder/said" || { cat "$folder/said"; exit 1; }
        # The tests write bytes 0xa6.
        if [ $name = Write10 ]; then
            [ "$(head -c 512 "$folder/disk" | tr -d '\246' | wc -c)" = 0 ] || { echo "$name wrote nothing"; exit 1; }
        fi
        echo "$name passed"
    done
    echo "the disk was written and read"
    ;;
esac
