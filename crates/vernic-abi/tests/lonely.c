/* A queue pair whose peer does not exist: its SEND completes with IBV_WC_RETRY_EXC_ERR. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(int ok, const char *what)
{
    if (!ok) {
        printf("%s failed: %s\n", what, strerror(errno));
        exit(1);
    }
}

/* The row of 127.0.0.1. */
static int find_gid(struct ibv_context *context, union ibv_gid *gid)
{
    const unsigned char wanted[16] = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1};
    for (int index = 0; !ibv_query_gid(context, 1, index, gid); index++)
        if (!memcmp(gid->raw, wanted, sizeof(wanted)))
            return index;
    must(0, "GID of 127.0.0.1");
    return -1;
}

int main(void)
{
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    must(list && count > 0, "list");
    struct ibv_context *context = ibv_open_device(list[count - 1]); /* lo */
    must(context != NULL, "open");
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    must(qp != NULL, "queue pair");
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    errno = ibv_modify_qp(qp, &attr,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    must(!errno, "INIT");
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                                .path_mtu = IBV_MTU_1024,
                                .dest_qp_num = 0x3f0001,
                                .max_dest_rd_atomic = 1,
                                .ah_attr = {.is_global = 1, .port_num = 1}};
    attr.ah_attr.grh.sgid_index = find_gid(context, &attr.ah_attr.grh.dgid);
    errno = ibv_modify_qp(qp, &attr,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                              IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    must(!errno, "RTR");
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .timeout = 8, .retry_cnt = 1, .max_rd_atomic = 1};
    errno = ibv_modify_qp(qp, &attr,
                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                              IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    must(!errno, "RTS");
    struct ibv_send_wr send = {
        .wr_id = 77, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
    errno = ibv_post_send(qp, &send, &bad);
    must(!errno, "send");
    struct ibv_wc wc;
    while (!(count = ibv_poll_cq(cq, 1, &wc)))
        ;
    must(count == 1 && wc.wr_id == 77, "poll");
    must(wc.status == IBV_WC_RETRY_EXC_ERR, ibv_wc_status_str(wc.status));
    must(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) &&
             !ibv_close_device(context),
         "end");
    return 0;
}
