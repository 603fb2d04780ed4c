/* A child receives a message and ends at once, without destroying anything. The parent, which opened
 * a device before it forked, sends the message and has to learn that it arrived. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct address {
    union ibv_gid gid;
    uint32_t qpn;
};

struct end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    struct address address;
    int gid_index;
};

static char buffer[64];

static void must(int ok, const char *what)
{
    if (!ok) {
        printf("%d: %s failed: %s\n", (int)getpid(), what, strerror(errno));
        exit(1);
    }
}

static struct ibv_context *open_lo(void)
{
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    must(list && count > 0, "list");
    struct ibv_context *context = ibv_open_device(list[count - 1]);
    ibv_free_device_list(list);
    must(context != NULL, "open");
    return context;
}

static struct end make(void)
{
    struct end e = {.context = open_lo()};
    e.pd = ibv_alloc_pd(e.context);
    e.cq = ibv_create_cq(e.context, 8, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {
        .send_cq = e.cq, .recv_cq = e.cq, .cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    e.qp = ibv_create_qp(e.pd, &init);
    e.mr = ibv_reg_mr(e.pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
    must(e.qp && e.mr, "create");
    struct ibv_gid_entry rows[16];
    must(ibv_query_gid_table(e.context, rows, 16, 0) > 0, "GID table");
    e.gid_index = rows[0].gid_index;
    e.address = (struct address){rows[0].gid, e.qp->qp_num};
    return e;
}

static void connect_to(struct end *e, struct address peer)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .port_num = 1, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer.qpn,
        .max_dest_rd_atomic = 1, .max_rd_atomic = 1, .min_rnr_timer = 12, .timeout = 12,
        .retry_cnt = 3, .rnr_retry = 7,
        .ah_attr = {.is_global = 1, .port_num = 1,
                    .grh = {.dgid = peer.gid, .sgid_index = e->gid_index}}};
    errno = ibv_modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX |
                                            IBV_QP_ACCESS_FLAGS);
    must(!errno, "Init");
    attr.qp_state = IBV_QPS_RTR;
    errno = ibv_modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                                            IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    must(!errno, "RTR");
    attr.qp_state = IBV_QPS_RTS;
    errno = ibv_modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                            IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                            IBV_QP_MAX_QP_RD_ATOMIC);
    must(!errno, "RTS");
}

static void wait_for_one(struct end *e)
{
    struct ibv_wc wc;
    while (ibv_poll_cq(e->cq, 1, &wc) == 0)
        ;
    errno = 0;
    must(wc.status == IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
}

static void child(struct ibv_context *of_parent, struct ibv_cq_ex *parents_cq, int from, int to)
{
    /* What the parent opened is its own. */
    must(ibv_alloc_pd(of_parent) == NULL && errno == EIO, "refusal of the parent's device");
    /* Whoever polls until something comes has to learn that nothing will. */
    struct ibv_wc wc;
    struct ibv_poll_cq_attr poll = {0};
    must(ibv_poll_cq(ibv_cq_ex_to_cq(parents_cq), 1, &wc) == -EIO, "refusal of poll_cq");
    must(ibv_start_poll(parents_cq, &poll) == EIO, "refusal of start_poll");
    must(ibv_req_notify_cq(ibv_cq_ex_to_cq(parents_cq), 0) == EIO, "refusal of req_notify_cq");
    must(ibv_destroy_cq(ibv_cq_ex_to_cq(parents_cq)) == 0, "destruction in the child");
    struct end e = make();
    struct address peer;
    must(read(from, &peer, sizeof peer) == sizeof peer, "read");
    connect_to(&e, peer);
    struct ibv_sge sge = {(uintptr_t)buffer, sizeof buffer, e.mr->lkey};
    struct ibv_recv_wr recv = {.sg_list = &sge, .num_sge = 1}, *bad;
    must(!ibv_post_recv(e.qp, &recv, &bad), "post_recv");
    must(write(to, &e.address, sizeof e.address) == sizeof e.address, "write");
    wait_for_one(&e);
    exit(0);
}

int main(void)
{
    int down[2], up[2];
    struct ibv_context *early = open_lo();
    struct ibv_cq_init_attr_ex init = {.cqe = 4};
    struct ibv_cq_ex *early_cq = ibv_create_cq_ex(early, &init);
    must(early_cq != NULL, "create_cq_ex");
    must(!pipe(down) && !pipe(up), "pipe");
    pid_t pid = fork();
    if (pid == 0)
        child(early, early_cq, down[0], up[1]);
    close(up[1]); /* so that reading ends with the child */
    struct end e = make();
    must(write(down[1], &e.address, sizeof e.address) == sizeof e.address, "write");
    struct address peer;
    must(read(up[0], &peer, sizeof peer) == sizeof peer, "read");
    connect_to(&e, peer);
    struct ibv_sge sge = {(uintptr_t)buffer, sizeof buffer, e.mr->lkey};
    struct ibv_send_wr send = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
                               .send_flags = IBV_SEND_SIGNALED}, *bad;
    must(!ibv_post_send(e.qp, &send, &bad), "post_send");
    wait_for_one(&e);
    int status;
    must(waitpid(pid, &status, 0) == pid && status == 0, "child");
    /* As with hardware, nothing tells a queue pair that is at rest of its peer's end. */
    usleep(100000);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr with;
    must(!ibv_query_qp(e.qp, &attr, IBV_QP_STATE, &with), "query");
    errno = 0;
    must(attr.qp_state == IBV_QPS_RTS, "the state after the peer's end");
    must(ibv_destroy_qp(e.qp) == 0 && ibv_dereg_mr(e.mr) == 0 && ibv_destroy_cq(e.cq) == 0 &&
             ibv_dealloc_pd(e.pd) == 0 && ibv_close_device(e.context) == 0 &&
             ibv_destroy_cq(ibv_cq_ex_to_cq(early_cq)) == 0 && ibv_close_device(early) == 0,
         "destroy");
    return 0;
}
