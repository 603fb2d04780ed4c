/* An iWARP queue pair that is brought to RTS by hand, as if it were of RoCE, and posts that are refused. */
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

int main(void)
{
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    must(list && count > 0, "list");
    struct ibv_context *context = ibv_open_device(list[0]);
    must(context != NULL, "open");
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    must(qp != NULL, "queue pair");
    struct ibv_sge sges[2] = {{0, 0, 0}, {0, 0, 0}};
    struct ibv_send_wr send = {.sg_list = sges, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_send;
    for (int times = 0; times < 3; times++) {
        errno = ibv_post_send(qp, &send, &bad_send);
        must(errno == EINVAL, "a send in RESET");
    }
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    errno = ibv_modify_qp(qp, &attr,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    must(!errno, "INIT");
    /* Without a global route, which only RoCE needs. */
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                                .path_mtu = IBV_MTU_1024,
                                .dest_qp_num = 0x3f0001,
                                .max_dest_rd_atomic = 1,
                                .ah_attr = {.port_num = 1}};
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
    attr.min_rnr_timer = 12;
    errno = ibv_modify_qp(qp, &attr, IBV_QP_MIN_RNR_TIMER);
    must(!errno, "the RNR timer, which drivers of iWARP ignore");
    send.num_sge = 2;
    for (int times = 0; times < 3; times++) {
        errno = ibv_post_send(qp, &send, &bad_send);
        must(errno == EINVAL, "two entries");
    }
    struct ibv_recv_wr recv = {.num_sge = 0}, *bad_recv;
    must(!ibv_post_recv(qp, &recv, &bad_recv), "a receive");
    for (int times = 0; times < 3; times++) {
        errno = ibv_post_recv(qp, &recv, &bad_recv);
        must(errno == ENOMEM, "a receive too many");
    }
    return 0;
}
