/* Threads make pairs of queue pairs on one completion queue, post WRITEs and READs, and destroy the
 * queue pairs with requests in flight, while another thread polls that queue all the time; a signal
 * arrives every millisecond. The program's argument is how often each thread does it. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#define THREADS 4
#define REQUESTS 8
#define BYTES 20000

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static union ibv_gid gid;
static int gid_index;
static int rounds = 100;
static atomic_int stop;
static atomic_int completed;
static volatile sig_atomic_t interrupted;

static void must(int ok, const char *what)
{
    if (!ok) {
        printf("%s failed: %s\n", what, strerror(errno));
        exit(1);
    }
}

static void on_alarm(int signal)
{
    (void)signal;
    interrupted = 1;
}

static struct ibv_qp *make(void)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .cap = {REQUESTS, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    must(qp != NULL, "create_qp");
    return qp;
}

static void connect_to(struct ibv_qp *qp, uint32_t peer)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .port_num = 1, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer,
        .qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
        .max_dest_rd_atomic = 4, .max_rd_atomic = 4, .min_rnr_timer = 12, .timeout = 14,
        .retry_cnt = 7, .rnr_retry = 7,
        .ah_attr = {.is_global = 1, .port_num = 1,
                    .grh = {.dgid = gid, .sgid_index = gid_index}}};
    errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX |
                                         IBV_QP_ACCESS_FLAGS);
    must(!errno, "Init");
    attr.qp_state = IBV_QPS_RTR;
    errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                                         IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    must(!errno, "RTR");
    attr.qp_state = IBV_QPS_RTS;
    errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                         IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                         IBV_QP_MAX_QP_RD_ATOMIC);
    must(!errno, "RTS");
}

static void *poll_all(void *unused)
{
    while (!stop) {
        struct ibv_wc wc[4];
        int count = ibv_poll_cq(cq, 4, wc);
        must(count >= 0, "poll");
        completed += count;
    }
    return unused;
}

static void *make_and_destroy(void *unused)
{
    char *buffer = calloc(2, BYTES);
    struct ibv_mr *mr = ibv_reg_mr(pd, buffer, 2 * BYTES,
                                   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
                                       IBV_ACCESS_REMOTE_WRITE);
    must(mr != NULL, "reg_mr");
    for (int round = 0; round < rounds; round++) {
        struct ibv_qp *a = make(), *b = make();
        connect_to(a, b->qp_num);
        connect_to(b, a->qp_num);
        struct ibv_sge sge = {(uintptr_t)buffer, BYTES, mr->lkey};
        struct ibv_send_wr send = {.sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED},
                           *bad;
        send.wr.rdma.remote_addr = (uintptr_t)buffer + BYTES;
        send.wr.rdma.rkey = mr->rkey;
        int before = completed;
        for (int n = 0; n < REQUESTS; n++) {
            send.opcode = n % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
            errno = ibv_post_send(a, &send, &bad);
            must(!errno, "post_send");
        }
        /* Every other time some have completed, whosever they were. */
        while (round % 2 == 0 && completed == before)
            sched_yield();
        errno = ibv_destroy_qp(round % 4 < 2 ? a : b);
        must(!errno, "destroy_qp");
        errno = ibv_destroy_qp(round % 4 < 2 ? b : a);
        must(!errno, "destroy_qp of its peer");
    }
    errno = ibv_dereg_mr(mr);
    must(!errno, "dereg_mr");
    free(buffer);
    return unused;
}

int main(int count, char **arguments)
{
    if (count > 1)
        rounds = atoi(arguments[1]);
    struct ibv_device **list = ibv_get_device_list(&count);
    must(list && count > 0, "list");
    context = ibv_open_device(list[count - 1]);
    ibv_free_device_list(list);
    must(context != NULL, "open");
    struct ibv_gid_entry rows[16];
    must(ibv_query_gid_table(context, rows, 16, 0) > 0, "GID table");
    gid = rows[0].gid;
    gid_index = rows[0].gid_index;
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 2 * THREADS * REQUESTS, NULL, NULL, 0);
    must(pd && cq, "create");

    struct sigaction action = {.sa_handler = on_alarm};
    struct itimerval each = {{0, 1000}, {0, 1000}}, none = {{0, 0}, {0, 0}};
    must(!sigaction(SIGALRM, &action, NULL) && !setitimer(ITIMER_REAL, &each, NULL), "timer");
    pthread_t poller, makers[THREADS];
    must(!pthread_create(&poller, NULL, poll_all, NULL), "thread");
    for (int i = 0; i < THREADS; i++)
        must(!pthread_create(&makers[i], NULL, make_and_destroy, NULL), "thread");
    for (int i = 0; i < THREADS; i++)
        pthread_join(makers[i], NULL);
    stop = 1;
    pthread_join(poller, NULL);
    must(!setitimer(ITIMER_REAL, &none, NULL), "timer");
    must(interrupted && completed > 0, "signals and completions");
    must(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0,
         "destroy");
    return 0;
}
