/* An iWARP queue pair that is brought to RTS by hand, as if it were of RoCE, and posts that are refused. */
#include "queue_pair.h"

int main(void)
{
    struct ibv_context *context = open_lo();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
    struct ibv_qp *qp = make_qp(pd, cq, 0);
    must(qp != NULL, "queue pair");
    struct ibv_sge sges[2] = {{0, 0, 0}, {0, 0, 0}};
    struct ibv_send_wr send = {.sg_list = sges, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_send;
    for (int times = 0; times < 3; times++) {
        errno = ibv_post_send(qp, &send, &bad_send);
        must(errno == EINVAL, "a send in RESET");
    }
    /* Without a global route, which only RoCE needs. */
    struct ibv_ah_attr path = {.port_num = 1};
    bring_up(qp, &path);
    struct ibv_qp_attr attr = {.min_rnr_timer = 12};
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
    struct ibv_qp *second = make_qp(pd, cq, 0);
    errno = ibv_post_send(second, &send, &bad_send);
    must(errno == EINVAL, "a send of another in RESET");
    struct ibv_qp_init_attr_ex init = {.send_cq = cq,
                                       .recv_cq = cq,
                                       .cap = {1, 1, 1, 1, 0},
                                       .qp_type = IBV_QPT_RC,
                                       .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                                       .pd = pd,
                                       .send_ops_flags = IBV_QP_EX_WITH_SEND};
    struct ibv_qp_ex *third = ibv_qp_to_qp_ex(ibv_create_qp_ex(context, &init));
    must(third != NULL, "queue pair with ibv_wr_*");
    for (int times = 0; times < 3; times++) {
        ibv_wr_start(third);
        ibv_wr_send(third);
        ibv_wr_send(third);
        errno = ibv_wr_complete(third);
        must(errno == ENOMEM, "two requests in a batch");
    }
    return 0;
}
