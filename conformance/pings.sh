#!/bin/sh
# Pairs of rping at the same time, in two rounds: each server has to hear that its client has ended, though others
# end beside both, and whatever is lost.
#   pings.sh serve ADDRESS COUNT    the servers
#   pings.sh ask ADDRESS COUNT      the clients
for first in 7201 7301; do
    case $1 in
    serve) side=-s ;;
    # One of the servers is known to listen; the others may need a moment.
    ask) side=-c && sleep 1 ;;
    esac
    for port in $(seq $first $((first + $3 - 1))); do
        rping $side -a "$2" -C 3 -p "$port" &
    done
    wait
done
echo "all $3 have ended twice"
