#!/usr/bin/python3
"""The book, docs/howto-python.md: one RDMA WRITE by pyverbs, both ends in one process.

    vernic run -- /usr/bin/python3 write.py [GID-INDEX]
"""

import sys

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR


def path(context, gid_index):
    """The way to this device's own address."""
    gid = context.query_gid(port_num=1, index=gid_index)
    route = GlobalRoute(dgid=gid, sgid_index=gid_index, hop_limit=64)
    return AHAttr(port_num=1, is_global=1, gr=route)


def attributes(peer, way):
    """What Init, RTR and RTS need."""
    attr = QPAttr(port_num=1)
    attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
    attr.dest_qp_num = peer.qp_num
    attr.path_mtu = e.IBV_MTU_1024
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
    attr.min_rnr_timer = 12  # 0.64 ms; 0 would be 655 ms
    attr.timeout, attr.retry_cnt, attr.rnr_retry = 14, 7, 7
    attr.ah_attr = way
    return attr


def main():
    gid_index = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    context = Context(name=get_device_list()[0].name.decode())
    pd, cq = PD(context), CQ(context, 16)
    source = MR(pd, 4096, 0)
    target = MR(pd, 4096, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)

    cap = QPCap(max_send_wr=4, max_recv_wr=4)
    init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap)
    initiator, responder = QP(pd, init), QP(pd, init)
    way = path(context, gid_index)
    responder.to_rts(attributes(initiator, way))
    initiator.to_rts(attributes(responder, way))

    source.write("hello, RDMA", 11)
    request = SendWR(
        wr_id=1,
        num_sge=1,
        sg=[SGE(source.buf, 11, source.lkey)],
        opcode=e.IBV_WR_RDMA_WRITE,
        send_flags=e.IBV_SEND_SIGNALED,
    )
    request.set_wr_rdma(target.rkey, target.buf + 100)
    initiator.post_send(request)

    count, done = 0, []
    while count == 0:
        count, done = cq.poll()
    status = "success" if done[0].status == e.IBV_WC_SUCCESS else f"status {done[0].status}"
    print(f"work request {done[0].wr_id}: {status}")
    print(f"the target has {target.read(11, 100).decode()!r}")


if __name__ == "__main__":
    main()
