/* The passive end of a connection of iWARP, which ends without a word when its WRITE is complete and a line was read: the
 * peer has sent more than it has receives for. */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>

#include "expect.h"

enum { BYTES = 256 << 10 };

static void complete(struct ibv_cq *cq, enum ibv_wc_opcode opcode)
{
    struct ibv_wc wc;
    while (!ibv_poll_cq(cq, 1, &wc))
        ;
    EXPECT(wc.status, IBV_WC_SUCCESS);
    EXPECT(wc.opcode, opcode);
}

int main(void)
{
    static char buffer[BYTES];
    struct rdma_cm_id *listening, *id;
    struct sockaddr_in home = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    MUST(!rdma_create_id(NULL, &listening, NULL, RDMA_PS_TCP));
    MUST(!rdma_bind_addr(listening, (struct sockaddr *)&home));
    MUST(!rdma_listen(listening, 1));
    printf("%d\n", ntohs(rdma_get_src_port(listening)));
    fflush(stdout);
    MUST(!rdma_get_request(listening, &id));
    struct ibv_qp_init_attr init = {.cap = {4, 4, 1, 1, 0}, .sq_sig_all = 1, .qp_type = IBV_QPT_RC};
    MUST(!rdma_create_qp(id, NULL, &init));
    struct ibv_mr *mr = ibv_reg_mr(id->pd, buffer, BYTES, IBV_ACCESS_LOCAL_WRITE);
    MUST(mr);
    struct ibv_recv_wr receive = {0}, *bad_receive;
    MUST(!ibv_post_recv(id->qp, &receive, &bad_receive));
    MUST(!rdma_accept(id, NULL));

    /* The second message of the peer waits from now on, and what comes behind it is not read. */
    complete(id->recv_cq, IBV_WC_RECV);
    struct ibv_sge sge = {(uintptr_t)buffer, BYTES, mr->lkey};
    struct ibv_send_wr write = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
                                .wr.rdma = {0, 0x100}};
    struct ibv_send_wr *bad;
    MUST(!ibv_post_send(id->qp, &write, &bad));
    complete(id->send_cq, IBV_WC_RDMA_WRITE);
    puts("complete");
    fflush(stdout);
    getchar();
    exit(wrong);
}
