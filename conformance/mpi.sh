#!/bin/sh
# A program of MPI in three processes, which Open MPI connects by UCX or by libfabric.
#   mpi.sh ucx rc|ud    mpi.sh libfabric
set -e
folder=target/conformance/mpi
mkdir -p "$folder"
mpicc -O1 -o "$folder/program" conformance/mpi.c
# Open MPI asks twice whether root means it.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
run="mpirun -np 3 --oversubscribe --bind-to none"
case $1 in
ucx) exec $run --mca pml ucx -x "UCX_TLS=${2}_v,self" "$folder/program" ;;
libfabric) exec $run --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include "verbs;ofi_rxm" "$folder/program" ;;
esac
