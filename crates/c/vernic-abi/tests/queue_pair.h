/* What programs share that need one queue pair without a peer: a device, the queue pair, its way to RTS. */
#ifndef QUEUE_PAIR_H
#define QUEUE_PAIR_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline void must(int ok, const char *what)
{
    if (!ok) {
        printf("%s failed: %s\n", what, strerror(errno));
        exit(1);
    }
}

/* The device of lo is the last one, and the only one where there is no other. */
static inline struct ibv_context *open_lo(void)
{
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    must(list && count > 0, "list");
    struct ibv_context *context = ibv_open_device(list[count - 1]);
    must(context != NULL, "open");
    ibv_free_device_list(list);
    return context;
}

/* Of one request in each direction, with so much room for inline data. NULL if it is refused. */
static inline struct ibv_qp *make_qp(struct ibv_pd *pd, struct ibv_cq *cq, unsigned max_inline)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .cap = {1, 1, 1, 1, max_inline}, .qp_type = IBV_QPT_RC};
    return ibv_create_qp(pd, &init);
}

/* To RTS, connected to the queue pair of a number. */
static inline void bring_up_to(struct ibv_qp *qp, const struct ibv_ah_attr *path, uint32_t peer)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    errno = ibv_modify_qp(qp, &attr,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    must(!errno, "INIT");
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                                .path_mtu = IBV_MTU_1024,
                                .dest_qp_num = peer,
                                .max_dest_rd_atomic = 1,
                                .ah_attr = *path};
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
}

/* The same, connected to one that does not exist. */
static inline void bring_up(struct ibv_qp *qp, const struct ibv_ah_attr *path)
{
    bring_up_to(qp, path, 0x3f0001);
}

#endif
