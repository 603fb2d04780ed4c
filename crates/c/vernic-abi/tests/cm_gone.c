/* Calls on ids that were destroyed, and on what never was one: refused, and nothing there is touched. */
#include "connections.h"

enum { OTHERS = 200 };

static void refuse_all(struct rdma_cm_id *id)
{
    struct sockaddr *there = address("127.0.0.1", 7);
    struct rdma_conn_param param = {0};
    struct ibv_qp_init_attr init = {.cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    struct ibv_srq_init_attr shared = {.attr = {1, 1, 0}};
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};
    struct ibv_ece ece = {0};
    struct rdma_cm_id *request = NULL;
    uint8_t tos = 1;
    int mask;
    FAILS(rdma_bind_addr(id, there), EINVAL);
    FAILS(rdma_resolve_addr(id, NULL, there, 1000), EINVAL);
    FAILS(rdma_resolve_route(id, 1000), EINVAL);
    FAILS(rdma_listen(id, 1), EINVAL);
    FAILS(rdma_connect(id, &param), EINVAL);
    FAILS(rdma_accept(id, &param), EINVAL);
    FAILS(rdma_accept(id, NULL), EINVAL);
    FAILS(rdma_reject(id, NULL, 0), EINVAL);
    FAILS(rdma_reject_ece(id, NULL, 0), EINVAL);
    FAILS(rdma_establish(id), EINVAL);
    FAILS(rdma_notify(id, IBV_EVENT_COMM_EST), EINVAL);
    FAILS(rdma_disconnect(id), EINVAL);
    FAILS(rdma_create_qp(id, NULL, &init), EINVAL);
    FAILS(rdma_create_srq(id, NULL, &shared), EINVAL);
    FAILS(rdma_init_qp_attr(id, &attr, &mask), EINVAL);
    FAILS(rdma_migrate_id(id, channel), EINVAL);
    FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1), EINVAL);
    FAILS(rdma_join_multicast(id, there, NULL), EINVAL);
    FAILS(rdma_leave_multicast(id, there), EINVAL);
    FAILS(rdma_set_local_ece(id, &ece), EINVAL);
    FAILS(rdma_get_remote_ece(id, &ece), EINVAL);
    FAILS(rdma_get_request(id, &request), EINVAL);
    EXPECT(rdma_get_src_port(id), 0);
    EXPECT(rdma_get_dst_port(id), 0);
    rdma_destroy_qp(id);
    rdma_destroy_srq(id);
    rdma_destroy_ep(id);
    FAILS(rdma_destroy_id(id), EINVAL);
}

int main(void)
{
    channel = rdma_create_event_channel();
    MUST(channel);
    struct rdma_cm_id *gone, *other;
    MUST(!rdma_create_id(channel, &gone, NULL, RDMA_PS_TCP));
    EXPECT(rdma_bind_addr(gone, address("127.0.0.1", 0)), 0);
    give_qp(gone);
    rdma_destroy_qp(gone);
    EXPECT(rdma_destroy_id(gone), 0);
    refuse_all(gone);
    /* Its address is not soon that of another. */
    for (int n = 0; n < OTHERS; n++) {
        MUST(!rdma_create_id(channel, &other, NULL, RDMA_PS_TCP));
        EXPECT(other != gone, 1);
        EXPECT(rdma_destroy_id(other), 0);
    }
    refuse_all(gone);
    /* One whose place is free again, and ones that are not ours. */
    for (int n = 0; n < 2 * OTHERS; n++) {
        MUST(!rdma_create_id(channel, &other, NULL, RDMA_PS_TCP));
        EXPECT(rdma_destroy_id(other), 0);
    }
    refuse_all(gone);
    struct rdma_cm_id own = {0};
    refuse_all(&own);
    refuse_all((struct rdma_cm_id *)8);
    rdma_destroy_event_channel(channel);
    return wrong;
}
