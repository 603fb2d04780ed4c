#!/bin/sh
# Both sides send a file at the same time, end their direction when it is through, and compare what came.
# nc that listens ends with the other's direction, over TCP, too: what it sends has to fit into its buffer, 16 KiB.
#   nc.sh listen ADDRESS PORT    nc.sh connect ADDRESS PORT
set -e
came=$(mktemp)
trap 'rm -f "$came"' EXIT
case $1 in
listen) nc -l -N "$2" "$3" <LICENSE-APACHE >"$came" && cmp Cargo.lock "$came" ;;
connect) nc -N "$2" "$3" <Cargo.lock >"$came" && cmp LICENSE-APACHE "$came" ;;
esac
echo "$(wc -c <"$came") bytes came as they were sent"
