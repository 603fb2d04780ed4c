#!/usr/bin/env python3
"""Goodput over bad networks: RC by perftest, and TCP by iperf3, on the same path.

    cargo build --release
    unshare -rn python3 tools/networks/measure.py [--seconds N] [--only WORD] [--program WORD]
                                                 [--congestion NAME] [--alone]

Two hosts are network namespaces, and `vernic relay` is the path between them:

    a0 ---- ra  relay  rb ---- b0

Prints a table in Markdown: Mb/s of payload for each path and program, the part of TCP's, and what
of the frames the path dropped. Of two programs at once it prints both rates, and how fair they are
(Jain's index: 1 if they are equal, 0.5 if one has everything). TCP is CUBIC; a row of its own has
BBR, which takes no loss for congestion, if the system has it. A second table has the time that a
round takes of programs that wait for each answer. Needs perftest, ibverbs-utils, rdmacm-utils,
iperf3, iproute2 and ethtool. With root in the machine's own namespace instead of `unshare -rn`,
sockets have larger buffers.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
VERNIC = os.path.join(TARGET, "release", "vernic")
PEER = "10.9.0.2"

# Name, and the words of `vernic relay`.
PATHS = [
    ("bottleneck of 100 Mb/s, 100 kB", "rate=100m queue=100k"),
    ("bottleneck of 100 Mb/s, 1 MB", "rate=100m queue=1m"),
    ("bottleneck of 100 Mb/s, 100 kB, marks from 30 kB on", "rate=100m queue=100k ecn=30k"),
    ("5 ms each way, 0.1 % loss", "delay=5ms loss=0.1%"),
    ("5 ms each way, 1 % loss", "delay=5ms loss=1%"),
    ("5 ms each way, 5 % loss", "delay=5ms loss=5%"),
    ("20 ms each way", "delay=20ms"),
    ("20 ms each way, jitter of 5 ms", "delay=20ms jitter=5ms"),
]

PERFTEST = "-F -s 65536 --report_gbits -D {seconds} -p {port}"
WRITE = "ib_write_bw " + PERFTEST
# TCP with the congestion control that is compared with, and with another.
CUBIC = "iperf3 -C cubic"
BBR = "iperf3 -C bbr"
# Lines of two programs run at once.
PROGRAMS = [
    ("TCP", [CUBIC]),
    ("TCP, BBR", [BBR]),
    ("WRITE", [WRITE]),
    ("WRITE, 16 queue pairs", ["ib_write_bw -q 16 " + PERFTEST]),
    ("SEND", ["ib_send_bw " + PERFTEST]),
    ("READ", ["ib_read_bw " + PERFTEST]),
]
SHARED = [
    ("TCP beside TCP", [CUBIC, CUBIC]),
    ("WRITE beside WRITE", [WRITE, WRITE]),
    ("WRITE beside TCP", [WRITE, CUBIC]),
]
# Programs that wait for each answer: server, client, and what to look for in what the client says.
# Without that the whole run counts, for each of 50 rounds.
PINGS = [
    ("ibv_rc_pingpong -c", "-g 1 -n 100", "-g 1 -n 100 {peer}", r"([\d.]+) usec/iter"),
    ("rping", "-s -C 50 -a {peer}", "-c -C 50 -a {peer}", None),
    ("rstream", "-b {peer} -S 65536 -C 100", "-s {peer} -S 65536 -C 100", r"([\d.]+)$"),
]


class Host:
    """A network namespace, held by a process that sleeps."""

    def __init__(self):
        self.holder = subprocess.Popen(["unshare", "-n", "sleep", "3600"])

    def wait(self):
        own = os.stat("/proc/self/ns/net").st_ino
        while os.stat(f"/proc/{self.holder.pid}/ns/net").st_ino == own:
            time.sleep(0.01)

    def words(self, line):
        return ["nsenter", "-t", str(self.holder.pid), "-n"] + line.split()

    def run(self, line, **options):
        return subprocess.run(self.words(line), check=True, **options)

    def start(self, line, env):
        return subprocess.Popen(
            self.words(line), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )


def ended(process, patience):
    """What a process printed, which is ended if it does not end by itself."""
    try:
        return process.communicate(timeout=patience)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0]


def lay_cables(a, b):
    for host, relay, name, ip in ((a, "ra", "a0", "10.9.0.1"), (b, "rb", "b0", PEER)):
        host.wait()
        run = lambda line: subprocess.run(line.split(), check=True, stdout=subprocess.DEVNULL)
        run(f"ip link add {relay} type veth peer name {name}")
        run(f"ip link set {name} netns {host.holder.pid}")
        # The relay must see packets as they are on a wire.
        offloads = "tx off tso off gso off gro off"
        run(f"ethtool -K {relay} {offloads}")
        run(f"ip link set {relay} up")
        host.run(f"ip addr add {ip}/24 dev {name}")
        host.run(f"ethtool -K {name} {offloads}", stdout=subprocess.DEVNULL)
        host.run(f"ip link set {name} up")
        host.run("ip link set lo up")


class Tcp:
    """TCP by iperf3."""

    def __init__(self, a, b, seconds, line, port):
        self.server = b.start(f"iperf3 -s -1 -p {port}", os.environ)
        time.sleep(0.5)
        line = f"{line} -c {PEER} -p {port} -t {seconds} -f m"
        self.client = a.start(line, os.environ)
        self.patience = seconds + 20

    def rate(self):
        said = ended(self.client, self.patience)
        ended(self.server, 5)
        found = re.search(r"([\d.]+) Mbits/sec\s+receiver", said)
        return float(found[1]) if found else None


class Rc:
    """RC by a program of perftest."""

    def __init__(self, a, b, seconds, line, congestion, port):
        env = dict(os.environ, VERNIC_CONGESTION=congestion)
        line = f"{VERNIC} run -- " + line.format(seconds=seconds, port=port)
        self.server = b.start(line, env)
        time.sleep(0.7)
        self.client = a.start(f"{line} {PEER}", env)
        self.patience = seconds + 40

    def rate(self):
        said = ended(self.client, self.patience)
        ended(self.server, 5)
        found = re.search(r"^\s*65536\s+\d+\s+[\d.]+\s+([\d.]+)", said, re.M)
        if not found:
            print(said, file=sys.stderr)
        return float(found[1]) * 1000 if found else None


def ping(a, b, arguments, ping):
    """Milliseconds that a round takes of a program that waits for each answer."""
    program, server, client, pattern = ping
    env = dict(os.environ, VERNIC_CONGESTION=arguments.congestion)
    line = f"{VERNIC} run -- {program} "
    listening = b.start(line + server.format(peer=PEER), env)
    time.sleep(1)
    begun = time.monotonic()
    said = ended(a.start(line + client.format(peer=PEER), env), 60)
    took = time.monotonic() - begun
    ended(listening, 5)
    if pattern is None:
        return took * 1000 / 50
    found = re.search(pattern, said.rstrip())
    return float(found[1]) / 1000 if found else None


def rates(a, b, arguments, lines):
    """The rates of programs that run at once."""
    running = []
    for number, line in enumerate(lines):
        port = 18600 + number
        if line in (CUBIC, BBR):
            running.append(Tcp(a, b, arguments.seconds, line, port))
        else:
            running.append(Rc(a, b, arguments.seconds, line, arguments.congestion, port))
    return [program.rate() for program in running]


def compared(found, baseline):
    """A rate as a part of TCP's, or how fair two rates are."""
    if None in found:
        return "?"
    if len(found) == 1:
        return f"{found[0] / baseline:.2f}" if baseline else "?"
    jain = sum(found) ** 2 / (len(found) * sum(rate * rate for rate in found))
    return f"Jain {jain:.3f}"


def frames(report):
    """Frames that came in the direction of the data, and that the full queue or loss took."""
    line = next((line for line in report.splitlines() if line.startswith("ra to rb")), "")
    number = lambda pattern: int((re.search(pattern, line) or [0, "0"])[1])
    return number(r"(\d+) frames came"), number(r"(\d+) left")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=6)
    parser.add_argument("--only", default="", help="paths whose names contain this")
    parser.add_argument("--program", default="", help="programs whose names contain this")
    parser.add_argument("--congestion", default="aimd", help="the setting of this name")
    parser.add_argument("--alone", action="store_true", help="no two programs at once")
    arguments = parser.parse_args()
    if not os.access(VERNIC, os.X_OK):
        parser.error(f"{VERNIC} is missing: run `cargo build --release` first")
    tried = subprocess.run(
        [VERNIC, "run", "--", "true"],
        env=dict(os.environ, VERNIC_CONGESTION=arguments.congestion),
        capture_output=True,
        text=True,
    )
    if tried.returncode != 0:
        parser.error(tried.stderr.strip())
    paths = [path for path in PATHS if arguments.only in path[0]]
    if not paths:
        parser.error(f"no path has {arguments.only!r} in its name: " + "; ".join(n for n, _ in PATHS))
    a, b = Host(), Host()
    try:
        lay_cables(a, b)
        measure(a, b, arguments, paths)
    finally:
        for host in (a, b):
            host.holder.kill()


def has_bbr():
    with open("/proc/sys/net/ipv4/tcp_available_congestion_control") as available:
        return "bbr" in available.read().split()


def start_relay(words):
    relay = subprocess.Popen(
        [VERNIC, "relay", "ra", "rb"] + words.split(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    time.sleep(0.5)
    return relay


def measure(a, b, arguments, paths):
    print("| path | program | Mb/s | of TCP's | frames dropped |\n|---|---|---|---|---|", flush=True)
    rounds = []
    for name, words in paths:
        baseline = None
        has_shared = "rate=" in words and not arguments.alone
        for program, lines in PROGRAMS + (SHARED if has_shared else []):
            if arguments.program not in program or lines == [BBR] and not has_bbr():
                continue
            relay = start_relay(words)
            found = rates(a, b, arguments, lines)
            relay.send_signal(signal.SIGINT)
            came, left = frames(ended(relay, 10))
            if lines == [CUBIC]:
                baseline = found[0]
            shown = " + ".join(f"{rate:.1f}" if rate is not None else "failed" for rate in found)
            dropped = f"{100 * (came - left) / came:.2f} %" if came else "?"
            part = compared(found, baseline)
            print(f"| {name} | {program} | {shown} | {part} | {dropped} |", flush=True)
        for row in PINGS if "20 ms" in name else []:
            if arguments.program in row[0]:
                relay = start_relay(words)
                rounds.append((name, row[0], ping(a, b, arguments, row)))
                relay.send_signal(signal.SIGINT)
                ended(relay, 10)
    if rounds:
        print("\n| path | program | ms for each round |\n|---|---|---|")
    for name, program, took in rounds:
        print(f"| {name} | {program} | {'failed' if took is None else f'{took:.1f}'} |", flush=True)


main()
