#!/bin/sh
# Copies random bytes by rcopy to a server on this machine, and compares.
#   rcopy.sh ADDRESS
set -e
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
head -c 5000000 /dev/urandom >"$folder/from"
rcopy "$folder/from" "$1:$folder/to"
cmp "$folder/from" "$folder/to"
echo "the copy is the same"
