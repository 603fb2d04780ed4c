/* A queue pair whose peer does not exist: its SEND completes with IBV_WC_RETRY_EXC_ERR. */
#include "queue_pair.h"

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
    struct ibv_context *context = open_lo();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
    struct ibv_qp *qp = make_qp(pd, cq, 0);
    must(qp != NULL, "queue pair");
    struct ibv_ah_attr path = {.is_global = 1, .port_num = 1};
    path.grh.sgid_index = find_gid(context, &path.grh.dgid);
    bring_up(qp, &path);
    struct ibv_send_wr send = {
        .wr_id = 77, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
    errno = ibv_post_send(qp, &send, &bad);
    must(!errno, "send");
    struct ibv_wc wc;
    int count;
    while (!(count = ibv_poll_cq(cq, 1, &wc)))
        ;
    must(count == 1 && wc.wr_id == 77, "poll");
    must(wc.status == IBV_WC_RETRY_EXC_ERR, ibv_wc_status_str(wc.status));
    must(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) &&
             !ibv_close_device(context),
         "end");
    return 0;
}
