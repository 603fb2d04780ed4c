/* Path migration by the verbs of C: two queue pairs of one device load an alternate path, arm each
 * other, and one of them migrates. The alternate path has the addresses of the path and another
 * traffic class, so that a device of one port will do. */
#include "expect.h"
#include "queue_pair.h"

static struct ibv_context *context;
static struct ibv_qp *qps[2];
static struct ibv_cq *cq;

/* A message from one to the other, and both completions of it. */
static void send_from(int from)
{
    struct ibv_recv_wr recv = {.wr_id = 1}, *bad_recv;
    struct ibv_send_wr send = {.wr_id = 2, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad_send;
    must(!ibv_post_recv(qps[!from], &recv, &bad_recv), "post_recv");
    must(!ibv_post_send(qps[from], &send, &bad_send), "post_send");
    for (int done = 0; done < 2;) {
        struct ibv_wc wc;
        int got = ibv_poll_cq(cq, 1, &wc);
        must(got >= 0, "poll");
        if (got)
            EXPECT(wc.status, IBV_WC_SUCCESS);
        done += got;
    }
}

static struct ibv_qp_attr query(int n)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    must(!ibv_query_qp(qps[n], &attr, 0, &init), "query");
    return attr;
}

/* The event of a queue pair, which waits for nothing else. */
static void expect_event(int n, enum ibv_event_type type)
{
    struct ibv_async_event event;
    must(!ibv_get_async_event(context, &event), "event");
    EXPECT(event.event_type, type);
    EXPECT(event.element.qp == qps[n], 1);
    ibv_ack_async_event(&event);
}

int main(void)
{
    context = open_lo();
    struct ibv_device_attr device;
    MUST(!ibv_query_device(context, &device));
    EXPECT(!!(device.device_cap_flags & IBV_DEVICE_AUTO_PATH_MIG), 1);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 8, NULL, NULL, 0);
    MUST(pd && cq);
    struct ibv_ah_attr path = {.is_global = 1, .port_num = 1};
    MUST(!ibv_query_gid(context, 1, 0, &path.grh.dgid));
    for (int n = 0; n < 2; n++)
        MUST(qps[n] = make_qp(pd, cq, 0));
    for (int n = 0; n < 2; n++)
        bring_up_to(qps[n], &path, qps[!n]->qp_num);

    struct ibv_qp_attr attr = {.path_mig_state = IBV_MIG_REARM};
    EXPECT(ibv_modify_qp(qps[0], &attr, IBV_QP_PATH_MIG_STATE), EINVAL);
    attr.path_mig_state = 3;
    EXPECT(ibv_modify_qp(qps[0], &attr, IBV_QP_PATH_MIG_STATE), EINVAL);
    attr = (struct ibv_qp_attr){.path_mig_state = IBV_MIG_REARM,
                                .alt_ah_attr = path,
                                .alt_port_num = 1,
                                .alt_timeout = 9};
    attr.alt_ah_attr.grh.traffic_class = 0x20;
    for (int n = 0; n < 2; n++)
        EXPECT(ibv_modify_qp(qps[n], &attr, IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE), 0);
    EXPECT(query(0).path_mig_state, IBV_MIG_REARM);
    EXPECT(query(0).alt_timeout, 9);
    EXPECT(query(0).alt_port_num, 1);
    EXPECT(query(0).alt_ah_attr.grh.traffic_class, 0x20);
    send_from(0);
    for (int n = 0; n < 2; n++)
        EXPECT(query(n).path_mig_state, IBV_MIG_ARMED);
    attr.path_mig_state = IBV_MIG_MIGRATED;
    EXPECT(ibv_modify_qp(qps[0], &attr, IBV_QP_PATH_MIG_STATE), 0);
    send_from(0);
    expect_event(1, IBV_EVENT_PATH_MIG);
    for (int n = 0; n < 2; n++) {
        EXPECT(query(n).path_mig_state, IBV_MIG_MIGRATED);
        EXPECT(query(n).ah_attr.grh.traffic_class, 0x20);
        EXPECT(query(n).timeout, 9);
        EXPECT(query(n).alt_port_num, 0);
        EXPECT(ibv_destroy_qp(qps[n]), 0);
    }
    return wrong;
}
