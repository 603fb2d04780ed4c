/* Rate limits of queue pairs: what is refused, what is told, and that no queue pair sends faster. */
#include "expect.h"
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#define LIMIT_KBPS 20000
#define DEPTH 16

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_ah_attr path = {.is_global = 1, .port_num = 1, .grh.hop_limit = 64};
static char memory[1 << 16];

struct end {
    struct ibv_qp *qp;
    struct ibv_cq *cq;
};

static int make(struct end *end, enum ibv_qp_type type)
{
    MUST(end->cq = ibv_create_cq(context, 2 * DEPTH, NULL, NULL, 0));
    struct ibv_qp_init_attr init = {.send_cq = end->cq,
                                    .recv_cq = end->cq,
                                    .cap = {DEPTH, DEPTH, 1, 1, 0},
                                    .qp_type = type};
    MUST(end->qp = ibv_create_qp(pd, &init));
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 7};
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    int last = type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    EXPECT(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | last), 0);
    return 0;
}

/* To RTS, there with a limit of kb/s if it is not 0. */
static void connect_to(struct end *end, struct end *peer, uint32_t kbps)
{
    enum ibv_qp_type type = end->qp->qp_type;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
                               .path_mtu = IBV_MTU_1024,
                               .dest_qp_num = peer->qp->qp_num,
                               .max_dest_rd_atomic = 1,
                               .ah_attr = path};
    int mask = IBV_QP_STATE;
    if (type != IBV_QPT_UD)
        mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (type == IBV_QPT_RC)
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    EXPECT(ibv_modify_qp(end->qp, &attr, mask), 0);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                .timeout = 14,
                                .retry_cnt = 7,
                                .rnr_retry = 7,
                                .max_rd_atomic = 1,
                                .rate_limit = kbps};
    mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (type == IBV_QPT_RC)
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    if (kbps != 0)
        mask |= IBV_QP_RATE_LIMIT;
    EXPECT(ibv_modify_qp(end->qp, &attr, mask), 0);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Payload that a queue pair with a limit sends in a second, always with more posted. */
static int keeps_to_it(struct end *end, struct end *peer, struct ibv_mr *mr, struct ibv_ah *ah)
{
    int is_ud = ah != NULL;
    unsigned length = is_ud ? 1024 : 8192;
    struct ibv_sge sge = {(uintptr_t)memory, length, mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = is_ud ? IBV_WR_SEND : IBV_WR_RDMA_WRITE,
                             .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad;
    if (is_ud) {
        wr.wr.ud.ah = ah;
        wr.wr.ud.remote_qpn = peer->qp->qp_num;
        wr.wr.ud.remote_qkey = 7;
    } else {
        wr.wr.rdma.remote_addr = (uintptr_t)memory + sizeof memory / 2;
        wr.wr.rdma.rkey = mr->rkey;
    }
    double start = seconds(), now;
    long sent = 0, queued = 0;
    do {
        for (; queued < DEPTH; queued++)
            EXPECT(ibv_post_send(end->qp, &wr, &bad), 0);
        struct ibv_wc wc[DEPTH];
        int found = ibv_poll_cq(end->cq, DEPTH, wc);
        for (int i = 0; i < found; i++) {
            EXPECT(wc[i].status, IBV_WC_SUCCESS);
            queued--;
            sent++;
        }
        now = seconds();
    } while (now - start < 1.0 && !wrong);
    double kbps = (double)sent * length * 8 / (now - start) / 1000;
    EXPECT(sent > 0, 1);
    EXPECT(kbps <= LIMIT_KBPS * 1.1, 1);
    if (kbps > LIMIT_KBPS * 1.1)
        printf("%.0f kb/s\n", kbps);
    return 0;
}

static long limit(struct ibv_qp *qp, uint32_t kbps, uint32_t burst, uint16_t typical, uint32_t mask)
{
    struct ibv_qp_rate_limit_attr attr = {kbps, burst, typical, mask};
    return ibv_modify_qp_rate_limit(qp, &attr);
}

static long told(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    EXPECT(ibv_query_qp(qp, &attr, IBV_QP_RATE_LIMIT, &init), 0);
    return attr.rate_limit;
}

static int refusals(void)
{
    struct end a, b;
    if (make(&a, IBV_QPT_RC) || make(&b, IBV_QPT_RC))
        return 1;
    EXPECT(limit(a.qp, LIMIT_KBPS, 0, 0, 0), EINVAL); /* in INIT */
    connect_to(&a, &b, 30000);
    EXPECT(told(a.qp), 30000);
    EXPECT(limit(a.qp, LIMIT_KBPS, 0, 0, 1), EINVAL);
    EXPECT(limit(a.qp, 0, 1, 0, 0), EINVAL);
    EXPECT(limit(a.qp, 0, 0, 1, 0), EINVAL);
    EXPECT(limit(a.qp, 400000001, 0, 0, 0), EINVAL);
    EXPECT(ibv_modify_qp_rate_limit(a.qp, NULL), EINVAL);
    EXPECT(told(a.qp), 30000);
    EXPECT(limit(a.qp, LIMIT_KBPS, 65536, 1024, 0), 0);
    EXPECT(told(a.qp), LIMIT_KBPS);
    EXPECT(limit(a.qp, 0, 0, 0, 0), 0);
    EXPECT(told(a.qp), 0);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_SQD, .rate_limit = 5, .ah_attr = path};
    EXPECT(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_RATE_LIMIT), EINVAL);
    EXPECT(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE), 0);
    attr.ah_attr.static_rate = IBV_RATE_2_5_GBPS;
    EXPECT(ibv_modify_qp(a.qp, &attr, IBV_QP_AV | IBV_QP_RATE_LIMIT), 0);
    EXPECT(told(a.qp), 5);
    struct ibv_qp_init_attr init;
    EXPECT(ibv_query_qp(a.qp, &attr, IBV_QP_AV, &init), 0);
    EXPECT(attr.ah_attr.static_rate, IBV_RATE_2_5_GBPS);
    attr.ah_attr.static_rate = 77;
    EXPECT(ibv_modify_qp(a.qp, &attr, IBV_QP_AV), EINVAL);

    struct ibv_ah_attr odd = path;
    odd.static_rate = 1;
    errno = 0;
    EXPECT(ibv_create_ah(pd, &odd) == NULL, 1);
    EXPECT(errno, EINVAL);
    ibv_destroy_qp(a.qp);
    ibv_destroy_qp(b.qp);
    ibv_destroy_cq(a.cq);
    ibv_destroy_cq(b.cq);
    return 0;
}

int main(void)
{
    int count;
    struct ibv_device **list;
    MUST(list = ibv_get_device_list(&count));
    MUST(count > 0);
    MUST(context = ibv_open_device(list[count - 1]));
    MUST(pd = ibv_alloc_pd(context));
    EXPECT(ibv_query_gid(context, 1, 0, &path.grh.dgid), 0);
    struct ibv_mr *mr;
    MUST(mr = ibv_reg_mr(pd, memory, sizeof memory,
                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));

    struct ibv_device_attr_ex device;
    EXPECT(ibv_query_device_ex(context, NULL, &device), 0);
    EXPECT(device.packet_pacing_caps.qp_rate_limit_min, 1);
    EXPECT(device.packet_pacing_caps.qp_rate_limit_max, 400000000);
    uint32_t types = device.packet_pacing_caps.supported_qpts;
    EXPECT(ibv_is_qpt_supported(types, IBV_QPT_RC), 1);
    EXPECT(ibv_is_qpt_supported(types, IBV_QPT_UD), 1);
    EXPECT(ibv_is_qpt_supported(types, IBV_QPT_XRC_RECV), 0);
    if (refusals())
        return 1;

    struct ibv_ah_attr to = path;
    to.static_rate = IBV_RATE_2_5_GBPS;
    struct ibv_ah *ah;
    MUST(ah = ibv_create_ah(pd, &to));
    enum ibv_qp_type all[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};
    for (int i = 0; i < 3; i++) {
        struct end a, b;
        if (make(&a, all[i]) || make(&b, all[i]))
            return 1;
        connect_to(&a, &b, 0);
        connect_to(&b, &a, 0);
        EXPECT(limit(a.qp, LIMIT_KBPS, 0, 0, 0), 0);
        if (keeps_to_it(&a, &b, mr, all[i] == IBV_QPT_UD ? ah : NULL))
            return 1;
    }
    return wrong;
}
