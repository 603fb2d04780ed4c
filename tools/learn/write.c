/* The book, docs/learn-next.md: one RDMA WRITE in C, both ends in one process.
 *
 *   gcc write.c -libverbs -o write
 *   vernic run -- ./write [GID-INDEX]
 *
 * On a host with an RDMA card ./write alone runs on that card; `ibv_devinfo -v` lists its GIDs. */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail_if(int failed, const char *what)
{
    if (failed) {
        perror(what);
        exit(1);
    }
}

static struct ibv_qp *make_qp(struct ibv_pd *pd, struct ibv_cq *cq)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    fail_if(!qp, "ibv_create_qp");
    return qp;
}

/* Reset, Init, RTR, RTS. What is not named is zero: the first PSN of both ends, the P_Key index. */
static void connect_qp(struct ibv_qp *qp, uint32_t peer, union ibv_gid gid, int gid_index)
{
    struct ibv_qp_attr init = {
        .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    fail_if(ibv_modify_qp(qp, &init,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
            "to Init");
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12, /* 0.64 ms; 0 would be 655 ms */
        .ah_attr = {.is_global = 1,
                    .port_num = 1,
                    .grh = {.dgid = gid, .sgid_index = gid_index, .hop_limit = 64}}};
    fail_if(ibv_modify_qp(qp, &rtr,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                              IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
            "to RTR");
    struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS,
                              .timeout = 14, /* 67 ms */
                              .retry_cnt = 7,
                              .rnr_retry = 7,
                              .max_rd_atomic = 1};
    fail_if(ibv_modify_qp(qp, &rts,
                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                              IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
            "to RTS");
}

int main(int argc, char **argv)
{
    int gid_index = argc > 1 ? atoi(argv[1]) : 0;
    struct ibv_device **list = ibv_get_device_list(NULL);
    if (!list || !list[0]) {
        fprintf(stderr, "there is no RDMA device\n");
        return 1;
    }
    struct ibv_context *context = ibv_open_device(list[0]);
    fail_if(!context, "ibv_open_device");
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    fail_if(!pd || !cq, "ibv_alloc_pd, ibv_create_cq");

    static char source[4096] = "hello, RDMA", target[4096];
    struct ibv_mr *from = ibv_reg_mr(pd, source, sizeof source, 0);
    struct ibv_mr *to =
        ibv_reg_mr(pd, target, sizeof target, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    fail_if(!from || !to, "ibv_reg_mr");

    union ibv_gid gid;
    fail_if(ibv_query_gid(context, 1, gid_index, &gid), "ibv_query_gid");
    struct ibv_qp *initiator = make_qp(pd, cq), *responder = make_qp(pd, cq);
    connect_qp(responder, initiator->qp_num, gid, gid_index);
    connect_qp(initiator, responder->qp_num, gid, gid_index);

    struct ibv_sge bytes = {.addr = (uintptr_t)source, .length = 11, .lkey = from->lkey};
    struct ibv_send_wr request = {.wr_id = 1,
                                  .sg_list = &bytes,
                                  .num_sge = 1,
                                  .opcode = IBV_WR_RDMA_WRITE,
                                  .send_flags = IBV_SEND_SIGNALED,
                                  .wr.rdma = {.remote_addr = (uintptr_t)target + 100,
                                              .rkey = to->rkey}};
    struct ibv_send_wr *refused;
    fail_if(ibv_post_send(initiator, &request, &refused), "ibv_post_send");

    struct ibv_wc done;
    int count;
    while ((count = ibv_poll_cq(cq, 1, &done)) == 0)
        ;
    fail_if(count < 0, "ibv_poll_cq");
    printf("work request %d: %s\n", (int)done.wr_id, ibv_wc_status_str(done.status));
    printf("the target has \"%s\"\n", target + 100);

    ibv_destroy_qp(initiator);
    ibv_destroy_qp(responder);
    ibv_dereg_mr(from);
    ibv_dereg_mr(to);
    ibv_destroy_cq(cq);
    ibv_dealloc_pd(pd);
    ibv_close_device(context);
    ibv_free_device_list(list);
    return done.status != IBV_WC_SUCCESS;
}
