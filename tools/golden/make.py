#!/usr/bin/env python3
"""Makes crates/core/vernic-wire/tests/data/golden.txt: RoCEv2 frames built by scapy, with their field values,
and RoCEv1 frames behind them.

    apt-get install python3-scapy      (or: pip install scapy)
    python3 tools/golden/make.py > crates/core/vernic-wire/tests/data/golden.txt

The file is committed, so that tests need neither Python nor scapy; the output is the same on every run.

What comes from scapy: opcode numbers and names, BTH, AETH, CNP padding, IP, UDP, every checksum and length, and
the ICRC over IPv4. Scapy has no other extension header and no ICRC over IPv6: these are written here with scapy's
field types and zlib, from the same sources but without a look at the Rust code.

One line per frame: scapy's name of the opcode, then name=value of every field, payload, pad bytes and frame in hex.
"""
import random
import sys
import zlib

import scapy
from scapy.contrib import roce
from scapy.contrib.roce import AETH, BTH, CNPPadding
from scapy.fields import IntField, LongField, XBitField, XByteField, XIntField, XLongField
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw


class RDETH(Packet):
    fields_desc = [XByteField("rdeth_reserved", 0), XBitField("ee_context", 0, 24)]


class DETH(Packet):
    fields_desc = [XIntField("qkey", 0), XByteField("deth_reserved", 0), XBitField("src_qpn", 0, 24)]


class RETH(Packet):
    fields_desc = [XLongField("addr", 0), XIntField("rkey", 0), IntField("length", 0)]


class AtomicETH(Packet):
    fields_desc = [XLongField("atomic_addr", 0), XIntField("atomic_rkey", 0), LongField("swap_or_add", 0),
                   LongField("compare", 0)]


class AtomicAckETH(Packet):
    fields_desc = [LongField("original_data", 0)]


class ImmDt(Packet):
    fields_desc = [XIntField("imm", 0)]


def extensions(name):
    """Extension headers of an opcode, by the words in scapy's name for it."""
    service, op = name.split("_", 1)
    response = "RESPONSE" in op or "ACKNOWLEDGE" in op
    if service == "RD":
        yield RDETH
    if service == "UD" or (service == "RD" and not response):
        yield DETH
    if op == "RDMA_READ_REQUEST" or op.startswith(("RDMA_WRITE_FIRST", "RDMA_WRITE_ONLY")):
        yield RETH
    if op in ("COMPARE_SWAP", "FETCH_ADD"):
        yield AtomicETH
    if "ACKNOWLEDGE" in op or (response and "MIDDLE" not in op):
        yield AETH
    if op == "ATOMIC_ACKNOWLEDGE":
        yield AtomicAckETH
    if "WITH_IMMEDIATE" in op:
        yield ImmDt


def has_payload(name):
    return not any(word in name for word in ("REQUEST", "ACKNOWLEDGE", "COMPARE_SWAP", "FETCH_ADD", "CNP"))


def filled(layer, rng, values):
    """A header with random fields; `values` takes what they are."""
    header = layer()
    for field in layer.fields_desc:
        value = rng.getrandbits(int(field.sz * 8))
        setattr(header, field.name, value)
        values[field.name] = value
    return header


def icrc_over_ipv6(frame):
    """ICRC of a frame that was built with 4 zero bytes in its place."""
    ip = bytearray(bytes(frame[IPv6]))
    ip[0] |= 0x0F  # traffic class, flow label
    ip[1] = ip[2] = ip[3] = ip[7] = 0xFF  # and hop limit
    ip[46] = ip[47] = 0xFF  # UDP checksum
    ip[52] = 0xFF  # FECN, BECN, reserved
    return zlib.crc32(b"\xff" * 8 + bytes(ip[:-4])).to_bytes(4, "little")


def icrc_over_grh(frame):
    """ICRC of a RoCEv1 frame that was built with 4 zero bytes in its place."""
    grh = bytearray(bytes(frame[IPv6]))
    grh[0] |= 0x0F  # traffic class, flow label
    grh[1] = grh[2] = grh[3] = grh[7] = 0xFF  # and hop limit
    grh[44] = 0xFF  # FECN, BECN, reserved
    return zlib.crc32(b"\xff" * 8 + bytes(grh[:-4])).to_bytes(4, "little")


def frame_of(opcode, name, rng, ipv6, plain, v1=False):
    v = {"opcode": opcode}
    body_len = 0 if plain or not has_payload(name) else rng.randrange(1, 70)
    v["pad"] = -body_len % 4
    for flag in ("solicited", "migreq", "fecn", "becn", "ack_req"):
        v[flag] = rng.getrandbits(1)
    for field, bits in (("pkey", 16), ("reserved6", 6), ("dest_qpn", 24), ("reserved7", 7), ("psn", 24)):
        v[field] = rng.getrandbits(bits)
    bth = BTH(opcode=opcode, solicited=v["solicited"], migreq=v["migreq"], padcount=v["pad"], version=0,
              pkey=v["pkey"], fecn=v["fecn"], becn=v["becn"], resv6=v["reserved6"], dqpn=v["dest_qpn"],
              ackreq=v["ack_req"], resv7=v["reserved7"], psn=v["psn"])
    packet = bth
    if name == "CNP":
        packet = packet / CNPPadding()
        payload = bytes(16)
    else:
        for layer in extensions(name):
            packet = packet / filled(layer, rng, v)
        payload = rng.randbytes(body_len)
        if payload:
            packet = packet / Raw(payload + bytes(v["pad"]))
    if v1:
        v["tos"], v["ttl"], v["flow_label"] = rng.getrandbits(8), rng.getrandbits(8), rng.getrandbits(20)
        v["src"], v["dst"] = "::ffff:10.0.0.%d" % rng.randrange(1, 255), "fe80::%x" % rng.getrandbits(16)
        bth.icrc = 0
        # The GRH has the form of an IPv6 header.
        grh = IPv6(src=v["src"], dst=v["dst"], tc=v["tos"], fl=v["flow_label"], hlim=v["ttl"], nh=0x1B)
        whole = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02", type=0x8915) / grh / packet
        data = bytes(whole)[:-4] + icrc_over_grh(whole)
        return line("ROCEV1:" + name, v, payload, data)
    v["sport"], v["tos"], v["ttl"] = rng.randrange(0xC000, 0x10000), rng.getrandbits(8), rng.getrandbits(8)
    udp = UDP(sport=v["sport"], dport=4791, chksum=0)
    if ipv6:
        v["src"], v["dst"], v["flow_label"] = "2001:db8::%x" % rng.getrandbits(16), "fe80::1", rng.getrandbits(20)
        bth.icrc = 0
        ip = IPv6(src=v["src"], dst=v["dst"], tc=v["tos"], fl=v["flow_label"], hlim=v["ttl"])
    else:
        v["src"], v["dst"], v["ident"] = "10.99.0.%d" % rng.randrange(1, 255), "192.168.7.9", rng.getrandbits(16)
        ip = IP(src=v["src"], dst=v["dst"], tos=v["tos"], ttl=v["ttl"], id=v["ident"], flags="DF")
    whole = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / ip / udp / packet
    data = bytes(whole)
    if ipv6:
        data = data[:-4] + icrc_over_ipv6(whole)
    return line(name, v, payload, data)


def line(name, v, payload, data):
    fields = " ".join("%s=%s" % (k, x if isinstance(x, str) else hex(x)) for k, x in v.items())
    return "%s %s payload=%s frame=%s" % (name, fields, payload.hex(), data.hex())


def main():
    print("# RoCEv2 frames by scapy %s; made by tools/golden/make.py, not to be edited." % scapy.VERSION)
    rng = random.Random(4791)
    for opcode, name in sorted(roce._bth_opcodes.items()):
        print(frame_of(opcode, name, rng, ipv6=False, plain=True))
        print(frame_of(opcode, name, rng, ipv6=False, plain=False))
        print(frame_of(opcode, name, rng, ipv6=True, plain=False))
    for opcode, name in sorted(roce._bth_opcodes.items()):
        print(frame_of(opcode, name, rng, ipv6=False, plain=False, v1=True))


if __name__ == "__main__":
    sys.exit(main())
