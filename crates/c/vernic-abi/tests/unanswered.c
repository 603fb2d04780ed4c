/* Queue pairs to hosts that answer for their addresses, and to one that does not: OWN ABSENT PRESENT BEYOND. */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdlib.h>

#include "expect.h"

static struct ibv_qp *in_init(struct ibv_pd *pd, struct ibv_cq *cq, enum ibv_qp_type type)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .cap = {1, 1, 1, 1, 0}, .qp_type = type};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    EXPECT(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                                        IBV_QP_ACCESS_FLAGS), 0);
    return qp;
}

static int to_rtr(struct ibv_qp *qp, int index, const char *host)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_256, .dest_qp_num = 77,
                               .max_dest_rd_atomic = 1, .ah_attr = {.is_global = 1, .port_num = 1}};
    attr.ah_attr.grh.sgid_index = index;
    attr.ah_attr.grh.hop_limit = 64;
    attr.ah_attr.grh.dgid.raw[10] = attr.ah_attr.grh.dgid.raw[11] = 0xff;
    inet_pton(AF_INET, host, attr.ah_attr.grh.dgid.raw + 12);
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (qp->qp_type == IBV_QPT_RC)
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    errno = 0;
    int said = ibv_modify_qp(qp, &attr, mask);
    EXPECT(errno, said);
    return said;
}

int main(int count, char **hosts)
{
    MUST(count == 5);
    struct ibv_device **list = ibv_get_device_list(NULL);
    MUST(list && list[0]);
    struct ibv_context *context = ibv_open_device(list[0]);
    MUST(context);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
    uint8_t own[4];
    inet_pton(AF_INET, hosts[1], own);
    union ibv_gid gid;
    int index = 0;
    while (!ibv_query_gid(context, 1, index, &gid) && memcmp(gid.raw + 12, own, 4))
        index++;
    MUST(index < 8);

    for (int type = IBV_QPT_RC; type <= IBV_QPT_UC; type++) {
        struct ibv_qp *qp = in_init(pd, cq, type);
        int said = to_rtr(qp, index, hosts[2]);
        EXPECT(said == ETIMEDOUT || said == EHOSTUNREACH, 1);
        EXPECT(qp->state, IBV_QPS_INIT);
        /* It may go elsewhere. */
        EXPECT(to_rtr(qp, index, hosts[3]), 0);
        EXPECT(qp->state, IBV_QPS_RTR);
        EXPECT(ibv_destroy_qp(qp), 0);
    }
    /* Nobody knows here whether somebody is there. */
    struct ibv_qp *far = in_init(pd, cq, IBV_QPT_RC);
    EXPECT(to_rtr(far, index, hosts[4]), 0);
    EXPECT(ibv_destroy_qp(far), 0);
    struct ibv_qp *self = in_init(pd, cq, IBV_QPT_RC);
    EXPECT(to_rtr(self, index, hosts[1]), 0);
    EXPECT(ibv_destroy_qp(self), 0);
    return wrong;
}
