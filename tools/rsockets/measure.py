#!/usr/bin/env python3
"""Programs of sockets over RDMA beside the same programs over TCP, one after the other in each round.

usage: tools/rsockets/measure.py [ROUNDS]

Prints a table of medians over the rounds, for docs/benchmark-sockets.md. Needs target/release/vernic, and the packages
rdmacm-utils, iperf3 and redis-server.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import time

VERNIC = "target/release/vernic"
RDMA = [VERNIC, "run", "--"]
PRELOADED = [VERNIC, "run", "--rsockets=only", "--"]
QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def pair(server, client, stop=False):
    """What a client prints, beside a server that is ended with it or ends by itself."""
    listening = subprocess.Popen(server, **QUIET)
    time.sleep(0.3)
    said = subprocess.run(client, capture_output=True, text=True, timeout=120, check=True).stdout
    if stop:
        listening.kill()
    listening.wait()
    return said


def rstream(way, options):
    """Microseconds for each message, one way."""
    line = (RDMA if way == "RDMA" else []) + ["rstream"]
    options = options.split() + ([] if way == "RDMA" else ["-T", "s"])
    said = pair(line + ["-b", "127.0.0.1"] + options, line + ["-s", "127.0.0.1"] + options)
    return float(said.split()[-1])


def iperf3(way):
    """GB/s."""
    line = (PRELOADED if way == "RDMA" else []) + ["iperf3"]
    said = pair(line + ["-s", "-1"], line + ["-c", "127.0.0.1", "-t", "1", "-J"])
    return json.loads(said)["end"]["sum_received"]["bits_per_second"] / 8e9


def redis(way, clients):
    """Thousand requests per second."""
    line = PRELOADED if way == "RDMA" else []
    server = "redis-server --port 7000 --save 9999 999999999 --logfile /dev/null".split()
    client = f"redis-benchmark -p 7000 -q -n 20000 -t get -c {clients}".split()
    said = pair(line + server, line + client, stop=True)
    return float(re.findall(r"([0-9.]+) requests per second", said)[-1]) / 1e3


FIGURES = [
    ("`rstream` 64 B, us one way", lambda way: rstream(way, "-S 64 -C 1 -I 3000")),
    ("`rstream -T b` 64 B, us one way", lambda way: rstream(way, "-T b -S 64 -C 1 -I 3000")),
    ("`rstream` 64 KiB, GB/s", lambda way: 65.536 / rstream(way, "-S 65536 -C 2000 -I 1")),
    ("`rstream -T b` 64 KiB, GB/s", lambda way: 65.536 / rstream(way, "-T b -S 65536 -C 2000 -I 1")),
    ("`rstream -T b` 1 MiB, GB/s", lambda way: 1048.576 / rstream(way, "-T b -S 1048576 -C 200 -I 1")),
    ("`iperf3`, GB/s", iperf3),
    ("`redis-benchmark` GET, 1 client, k/s", lambda way: redis(way, 1)),
    ("`redis-benchmark` GET, 20 clients, k/s", lambda way: redis(way, 20)),
    ("`redis-benchmark` GET, 50 clients, k/s", lambda way: redis(way, 50)),
]


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    found = {name: {"RDMA": [], "TCP": []} for name, _ in FIGURES}
    loads = []
    for _ in range(rounds):
        for name, measure in FIGURES:
            for way in ("RDMA", "TCP"):
                found[name][way].append(measure(way))
            loads.append(os.getloadavg()[0])
    print(f"{rounds} rounds, load of the machine {min(loads):.1f} to {max(loads):.1f}\n")
    print("| what | RDMA | TCP | ratio |\n|---|--:|--:|--:|")
    for name, ways in found.items():
        rdma, tcp = (statistics.median(ways[way]) for way in ("RDMA", "TCP"))
        ratio = statistics.median(r / t for r, t in zip(ways["RDMA"], ways["TCP"]))
        print(f"| {name} | {rdma:.2f} | {tcp:.2f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
