#!/bin/sh
# Programs of uDAPL (Debian's dapl2-utils), by its provider for rdma_cm: that moves queue pairs from one id to another.
#   dapl.sh serve OWN FOLDER PROGRAM [OPTIONS]         a server on the own address
#   dapl.sh ask OWN FOLDER SERVER PROGRAM [OPTIONS]    its client
#   dapl.sh alone OWN FOLDER PROGRAM [OPTIONS]         a program that needs no peer
set -e
role=$1
own=$2
folder=$3
shift 3
mkdir -p "$folder"
export DAT_OVERRIDE="$folder/dat-$role-$own.conf"
name=vernic
echo "$name u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"$own 0\" \"\"" >"$DAT_OVERRIDE"
if [ "$role" = ask ]; then
    server=$1
    shift
fi
program=$1
shift
case $role,$program in
serve,dapltest) exec dapltest -T S -D $name ;;
serve,dtestsrq | serve,dtestcm) exec "$program" -P $name "$@" -s ;;
serve,*) exec "$program" -P $name "$@" ;;
ask,dapltest)
    # Its first options say which test, and the last what is transferred.
    dapltest "$1" "$2" -D $name -s "$server" $(shift 2 && echo "$@")
    # The server ends in order, and so takes everything apart.
    dapltest -T Q -D $name -s "$server"
    ;;
ask,*) exec "$program" -P $name "$@" -h "$server" ;;
alone,*) exec "$program" "$1" "$2" -D $name $(shift 2 && echo "$@") ;;
esac
