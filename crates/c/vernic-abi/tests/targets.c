/* An XRC target that was opened twice: each of its handles is told of its events, and the second also
 * after the first is gone. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_xrcd *xrcd;
static struct ibv_srq *srq;
static struct ibv_gid_entry row;

static void must(int ok, const char *what)
{
    if (!ok) {
        printf("%s failed: %s\n", what, strerror(errno));
        exit(1);
    }
}

static void to_rtr(struct ibv_qp *qp, uint32_t peer)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .port_num = 1, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer,
        .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1,
                    .grh = {.dgid = row.gid, .sgid_index = row.gid_index}}};
    errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX |
                                         IBV_QP_ACCESS_FLAGS);
    must(!errno, "Init");
    attr.qp_state = IBV_QPS_RTR;
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (qp->qp_type == IBV_QPT_XRC_RECV)
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    errno = ibv_modify_qp(qp, &attr, mask);
    must(!errno, "RTR");
}

static void to_rts(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                         IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                         IBV_QP_MAX_QP_RD_ATOMIC);
    must(!errno, "RTS");
}

static int is_readable(void)
{
    struct pollfd fd = {.fd = context->async_fd, .events = POLLIN};
    return poll(&fd, 1, 0) == 1;
}

/* An event of this handle, acknowledged; others are not to come. */
static void told(struct ibv_qp *qp)
{
    struct ibv_async_event event;
    must(!ibv_get_async_event(context, &event), "event");
    must(event.event_type == IBV_EVENT_COMM_EST, "kind of the event");
    must(event.element.qp == qp, "handle of the event");
    ibv_ack_async_event(&event);
}

/* A first packet comes for a target in RTR: COMM_EST. */
static struct ibv_qp *greet(struct ibv_qp *target)
{
    struct ibv_qp_init_attr_ex init = {
        .send_cq = cq, .cap = {.max_send_wr = 4, .max_send_sge = 1}, .qp_type = IBV_QPT_XRC_SEND,
        .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd};
    struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
    must(qp != NULL, "initiator");
    to_rtr(target, qp->qp_num);
    to_rtr(qp, target->qp_num);
    to_rts(qp);
    struct ibv_recv_wr recv = {0}, *bad_recv;
    must(!ibv_post_srq_recv(srq, &recv, &bad_recv), "receive");
    struct ibv_send_wr send = {.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
    must(!ibv_get_srq_num(srq, &send.qp_type.xrc.remote_srqn), "number");
    must(!ibv_post_send(qp, &send, &bad), "send");
    for (int completions = 0; completions < 2;) {
        struct ibv_wc wc;
        int polled = ibv_poll_cq(cq, 1, &wc);
        must(polled >= 0 && (!polled || wc.status == IBV_WC_SUCCESS), "completion");
        completions += polled;
    }
    return qp;
}

static struct ibv_qp *open_again(struct ibv_qp *target)
{
    struct ibv_qp_open_attr open = {
        .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
        .qp_num = target->qp_num, .xrcd = xrcd, .qp_type = IBV_QPT_XRC_RECV};
    struct ibv_qp *qp = ibv_open_qp(context, &open);
    must(qp != NULL, "open_qp");
    return qp;
}

static struct ibv_qp *make_target(void)
{
    struct ibv_qp_init_attr_ex init = {
        .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd};
    struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
    must(qp != NULL, "target");
    return qp;
}

int main(void)
{
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    must(list && count > 0, "list");
    context = ibv_open_device(list[count - 1]); /* lo */
    ibv_free_device_list(list);
    must(context != NULL, "open");
    struct ibv_gid_entry rows[16];
    must(ibv_query_gid_table(context, rows, 16, 0) > 0, "GID table");
    row = rows[0];
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_xrcd_init_attr domain = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
    xrcd = ibv_open_xrcd(context, &domain);
    must(pd && cq && xrcd, "create");
    struct ibv_srq_init_attr_ex init = {
        .attr = {8, 1, 0}, .srq_type = IBV_SRQT_XRC, .pd = pd, .xrcd = xrcd, .cq = cq,
        .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
                     IBV_SRQ_INIT_ATTR_CQ};
    srq = ibv_create_srq_ex(context, &init);
    must(srq != NULL, "shared receive queue");

    /* Both are told, in the order in which they were opened, and once. */
    struct ibv_qp *first = make_target(), *second = open_again(first), *peer = greet(first);
    told(first);
    must(is_readable(), "the descriptor tells of the second");
    told(second);
    must(!is_readable(), "nothing else");
    must(!ibv_destroy_qp(first) && !ibv_destroy_qp(second) && !ibv_destroy_qp(peer), "destroy");

    /* The first is gone before anything happens. */
    first = make_target(), second = open_again(first);
    must(!ibv_destroy_qp(first), "destroy the first");
    peer = greet(second);
    told(second);
    must(!is_readable(), "nothing else");
    must(!ibv_destroy_qp(second) && !ibv_destroy_qp(peer), "destroy");

    /* The second goes while its event still waits: nobody is told of it. */
    first = make_target(), second = open_again(first);
    peer = greet(first);
    told(first);
    must(!ibv_destroy_qp(second), "destroy the second");
    int flags = fcntl(context->async_fd, F_GETFL);
    must(!fcntl(context->async_fd, F_SETFL, flags | O_NONBLOCK), "fcntl");
    struct ibv_async_event event;
    must(ibv_get_async_event(context, &event) == -1 && errno == EAGAIN, "nothing else");
    must(!ibv_destroy_qp(first) && !ibv_destroy_qp(peer), "destroy");
    must(!ibv_destroy_srq(srq) && !ibv_close_xrcd(xrcd) && !ibv_destroy_cq(cq) &&
             !ibv_dealloc_pd(pd) && !ibv_close_device(context),
         "end");
    return 0;
}
