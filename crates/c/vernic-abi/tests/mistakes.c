/* Mistakes that people make with verbs, one for each word: what the program itself says of them is
 * only what a program knows, a status or an errno. The log has to say the rest. */
#include <unistd.h>

#include "queue_pair.h"

static char bytes[8192];
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cqs[2];
static struct ibv_qp *qps[2];
static struct ibv_mr *mr;

static struct ibv_qp *create(struct ibv_cq *cq)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    must(qp != NULL, "queue pair");
    return qp;
}

static int modify(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    int error = ibv_modify_qp(qp, attr, mask);
    if (error)
        perror("ibv_modify_qp");
    return error;
}

struct choice {
    enum ibv_mtu mtu[2];
    unsigned rights;
    int rnr_retry;
    int gid_index;
    int timeout;
    uint32_t peer;
};

/* To RTS, as most programs do. */
static int bring(int which, const struct choice *choice)
{
    struct ibv_qp *qp = qps[which];
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = choice->rights};
    if (modify(qp, &attr,
               IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
        return 1;
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = choice->mtu[which],
        .dest_qp_num = choice->peer && !which ? choice->peer : qps[!which]->qp_num,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1,
                    .port_num = 1,
                    .grh = {.hop_limit = 64, .sgid_index = choice->gid_index}}};
    must(!ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid), "GID");
    if (modify(qp, &attr,
               IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
        return 1;
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                .timeout = choice->timeout,
                                .retry_cnt = 4,
                                .rnr_retry = choice->rnr_retry,
                                .max_rd_atomic = 1};
    return modify(qp, &attr,
                  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

static void receive(uint32_t length)
{
    struct ibv_sge sge = {(uintptr_t)bytes + 4096, length, mr->lkey};
    struct ibv_recv_wr request = {.sg_list = &sge, .num_sge = 1}, *bad;
    must(!ibv_post_recv(qps[1], &request, &bad), "post a receive");
}

static int post(enum ibv_wr_opcode opcode, struct ibv_sge sge, uint64_t address, uint32_t rkey)
{
    struct ibv_send_wr request = {
        .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED}, *bad;
    request.wr.rdma.remote_addr = address;
    request.wr.rdma.rkey = rkey;
    errno = ibv_post_send(qps[0], &request, &bad);
    if (errno)
        perror("ibv_post_send");
    return errno;
}

/* Says what came of a request within some seconds. */
static void wait_for_it(void)
{
    struct ibv_wc wc;
    for (int tenths = 0; tenths < 35; tenths++) {
        for (int polls = 0; polls < 100; polls++) {
            if (ibv_poll_cq(cqs[0], 1, &wc) == 1) {
                printf("%s\n", ibv_wc_status_str(wc.status));
                return;
            }
            /* The other end is a program that polls, too. */
            (void)!ibv_poll_cq(cqs[1], 1, &wc);
            usleep(1000);
        }
    }
    printf("nothing comes\n");
}

static void send_it(enum ibv_wr_opcode opcode, struct ibv_sge sge, uint64_t address, uint32_t rkey)
{
    if (!post(opcode, sge, address, rkey))
        wait_for_it();
}

/* Sends a datagram with a queue key, the receiver's being 0x1111, into a receive as long as it. */
static void send_datagram(struct ibv_sge sge, uint32_t qkey)
{
    struct ibv_qp *ends[2];
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_init_attr init = {.send_cq = cqs[i],
                                        .recv_cq = cqs[i],
                                        .cap = {4, 4, 1, 1, 0},
                                        .qp_type = IBV_QPT_UD};
        ends[i] = ibv_create_qp(pd, &init);
        must(ends[i] != NULL, "UD queue pair");
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x1111};
        must(!modify(ends[i], &attr,
                     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), "Init");
        attr.qp_state = IBV_QPS_RTR;
        must(!modify(ends[i], &attr, IBV_QP_STATE), "RTR");
        attr.qp_state = IBV_QPS_RTS;
        must(!modify(ends[i], &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), "RTS");
    }
    struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64}};
    must(!ibv_query_gid(context, 1, 0, &to.grh.dgid), "GID");
    struct ibv_send_wr request = {
        .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
    request.wr.ud.ah = ibv_create_ah(pd, &to);
    request.wr.ud.remote_qpn = ends[1]->qp_num;
    request.wr.ud.remote_qkey = qkey;
    struct ibv_recv_wr receive = {.sg_list = &sge, .num_sge = 1}, *bad_receive;
    must(!ibv_post_recv(ends[1], &receive, &bad_receive), "post its receive");
    must(request.wr.ud.ah != NULL, "address handle");
    must(!ibv_post_send(ends[0], &request, &bad), "post a datagram");
    wait_for_it();
    struct ibv_wc wc;
    for (int polls = 0; polls < 300; polls++) {
        must(!ibv_poll_cq(cqs[1], 1, &wc), "no receive");
        usleep(1000);
    }
}

int main(int argc, char **argv)
{
    const char *mistake = argc > 1 ? argv[1] : "";
#define IS(word) (!strcmp(mistake, word))
    context = open_lo();
    pd = ibv_alloc_pd(context);
    unsigned rights = IBV_ACCESS_LOCAL_WRITE;
    if (!IS("rights-of-region"))
        rights |= IBV_ACCESS_REMOTE_WRITE;
    mr = ibv_reg_mr(pd, bytes, sizeof bytes, rights);
    must(mr != NULL, "region");
    for (int i = 0; i < 2; i++) {
        cqs[i] = ibv_create_cq(context, 16, NULL, NULL, 0);
        must(cqs[i] != NULL, "completion queue");
        qps[i] = create(cqs[i]);
    }
    struct choice choice = {.mtu = {IBV_MTU_1024, IBV_MTU_1024},
                            .rights = IBV_ACCESS_REMOTE_WRITE,
                            .rnr_retry = IS("no-receive") ? 2 : 7,
                            .timeout = IS("not-in-rtr") ? 14 : 8,
                            .gid_index = IS("gid-index") ? 77 : 0};
    if (IS("path-mtu"))
        choice.mtu[1] = IBV_MTU_512;
    if (IS("rights-of-queue-pair"))
        choice.rights = 0;
    if (IS("wrong-number"))
        choice.peer = 0x3f0001;
    struct ibv_sge sge = {(uintptr_t)bytes, 2000, mr->lkey};
    if (IS("queue-key") || IS("no-room-for-grh")) {
        send_datagram((struct ibv_sge){(uintptr_t)bytes, 200, mr->lkey},
                      IS("queue-key") ? 0x2222 : 0x1111);
        return 0;
    }
    if (IS("before-rts")) {
        send_it(IBV_WR_SEND, sge, 0, 0);
        return 0;
    }
    if (bring(0, &choice))
        return 0;
    if (!IS("not-in-rtr"))
        bring(1, &choice);
    uint64_t target = (uintptr_t)bytes + 4096;
    if (IS("receive-too-short"))
        receive(100);
    if (IS("path-mtu"))
        receive(4096);
    if (IS("no-receive-for-ever"))
        post(IBV_WR_SEND, sge, 0, 0);
    if (IS("no-receive") || IS("receive-too-short") || IS("path-mtu") ||
        IS("not-in-rtr") || IS("wrong-number"))
        send_it(IBV_WR_SEND, sge, 0, 0);
    if (IS("rkey"))
        send_it(IBV_WR_RDMA_WRITE, sge, target, mr->rkey + 0x1000);
    if (IS("outside"))
        send_it(IBV_WR_RDMA_WRITE, sge, target + 4000, mr->rkey);
    if (IS("rights-of-region") || IS("rights-of-queue-pair") || IS("no-receive-for-ever"))
        send_it(IBV_WR_RDMA_WRITE, sge, target, mr->rkey);
    if (IS("lkey")) {
        sge.lkey += 0x1000;
        send_it(IBV_WR_RDMA_WRITE, sge, target, mr->rkey);
    }
    return 0;
}
