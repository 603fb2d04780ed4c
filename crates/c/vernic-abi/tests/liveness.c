/* A peer's process that is killed, or stopped for 2 s. Usage: liveness kill MILLISECONDS TRAFFIC, or liveness stop.
 *
 * The queue pair of one that is killed is flushed, with an event, whether or not anything was ever sent. One that is
 * stopped goes on and has every byte. */
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "queue_pair.h"

enum { MESSAGES = 8, BYTES = 4096 };

static struct ibv_context *context;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_sge pieces[MESSAGES];
static int is_parent;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static unsigned char byte_at(int message, int at)
{
    return (unsigned char)(message * 31 + at * 7 + (at >> 8));
}

/* The row of 127.0.0.1, or of another address of IPv4. */
static int find_gid(union ibv_gid *gid)
{
    for (int index = 0; !ibv_query_gid(context, 1, index, gid); index++)
        if (gid->raw[10] == 0xff)
            return index;
    must(0, "GID");
    return -1;
}

/* Both processes: a queue pair that is connected to the other's by way of `to_peer`, with receives. */
static void join(int to_peer)
{
    context = open_lo();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 64, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {.send_cq = cq,
                                    .recv_cq = cq,
                                    .cap = {MESSAGES, MESSAGES, 1, 1, 0},
                                    .qp_type = IBV_QPT_RC,
                                    .sq_sig_all = 1};
    qp = ibv_create_qp(pd, &init);
    must(qp != NULL, "queue pair");
    unsigned char *buffer = calloc(MESSAGES, BYTES);
    struct ibv_mr *mr = ibv_reg_mr(pd, buffer, MESSAGES * BYTES, IBV_ACCESS_LOCAL_WRITE);
    must(mr != NULL, "region");
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    errno = ibv_modify_qp(qp, &attr,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    must(!errno, "INIT");
    for (int i = 0; i < MESSAGES; i++) {
        pieces[i] = (struct ibv_sge){(uintptr_t)buffer + (uintptr_t)i * BYTES, BYTES, mr->lkey};
        struct ibv_recv_wr recv = {.wr_id = i, .sg_list = &pieces[i], .num_sge = 1}, *bad;
        must(!ibv_post_recv(qp, &recv, &bad), "receive");
    }
    uint32_t own = qp->qp_num, peer;
    must(write(to_peer, &own, 4) == 4 && read(to_peer, &peer, 4) == 4, "numbers");
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                                .path_mtu = IBV_MTU_1024,
                                .dest_qp_num = peer,
                                .max_dest_rd_atomic = 1,
                                .min_rnr_timer = 12,
                                .ah_attr = {.is_global = 1, .port_num = 1}};
    attr.ah_attr.grh.sgid_index = (uint8_t)find_gid(&attr.ah_attr.grh.dgid);
    errno = ibv_modify_qp(qp, &attr,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                              IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    must(!errno, "RTR");
    /* Given up after 0.54 s. */
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                .timeout = 14,
                                .retry_cnt = 7,
                                .rnr_retry = 7,
                                .max_rd_atomic = 1};
    errno = ibv_modify_qp(qp, &attr,
                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                              IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    must(!errno, "RTS");
    char done = 'd';
    must(write(to_peer, &done, 1) == 1 && read(to_peer, &done, 1) == 1, "connection");
}

static void post_send(int message)
{
    unsigned char *bytes = (unsigned char *)(uintptr_t)pieces[message].addr;
    for (int at = 0; at < BYTES; at++)
        bytes[at] = byte_at(message, at);
    struct ibv_send_wr send = {.sg_list = &pieces[message], .num_sge = 1, .opcode = IBV_WR_SEND};
    struct ibv_send_wr *bad;
    must(!ibv_post_send(qp, &send, &bad), "send");
}

static void wait_for(int completions)
{
    double start = now();
    while (completions) {
        struct ibv_wc wc;
        int count = ibv_poll_cq(cq, 1, &wc);
        must(count >= 0 && now() - start < 40, is_parent ? "poll here" : "poll there");
        must(!count || wc.status == IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
        completions -= count;
    }
}

/* The peer is dead: within 10 s, generous where cores are short. */
static void expect_the_end(void)
{
    must(!fcntl(context->async_fd, F_SETFL, O_NONBLOCK), "descriptor of events");
    int flushed = 0, told = 0;
    double start = now();
    while (!flushed || !told) {
        must(now() - start < 10, flushed ? "waiting for the event" : "waiting for the flush");
        struct ibv_wc wc;
        if (ibv_poll_cq(cq, 1, &wc)) {
            must(wc.status == IBV_WC_WR_FLUSH_ERR, ibv_wc_status_str(wc.status));
            flushed = 1;
        }
        struct ibv_async_event event;
        if (!ibv_get_async_event(context, &event)) {
            must(event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == qp, "event");
            ibv_ack_async_event(&event);
            told = 1;
        }
        usleep(1000);
    }
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    must(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_ERR, "state");
}

int main(int argc, char **argv)
{
    int kills = argc > 1 && !strcmp(argv[1], "kill");
    int traffic = kills && argc > 3 && atoi(argv[3]);
    int ends[2];
    must(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socket pair");
    pid_t child = fork();
    is_parent = child != 0;
    /* A parent that finds something wrong ends; nobody would let a child go on that is stopped. */
    must(is_parent || !prctl(PR_SET_PDEATHSIG, SIGKILL), "end with the parent");
    join(ends[is_parent]);
    if (!is_parent) {
        if (traffic)
            post_send(0);
        if (kills)
            for (;;)
                pause();
        wait_for(MESSAGES);
        for (int i = 0; i < MESSAGES; i++)
            for (int at = 0; at < BYTES; at++)
                must(((unsigned char *)(uintptr_t)pieces[i].addr)[at] == byte_at(i, at), "byte");
        return 0;
    }
    int status;
    if (kills) {
        if (traffic)
            wait_for(1);
        usleep((useconds_t)(argc > 2 ? atoi(argv[2]) : 0) * 1000);
        must(!kill(child, SIGKILL) && waitpid(child, &status, 0) == child, "kill");
        expect_the_end();
        return 0;
    }
    must(!kill(child, SIGSTOP) && waitpid(child, &status, WUNTRACED) == child, "stop");
    for (int i = 0; i < MESSAGES; i++)
        post_send(i);
    double start = now();
    while (now() - start < 2) {
        struct ibv_wc wc;
        must(!ibv_poll_cq(cq, 1, &wc), "completion while the peer is stopped");
        usleep(10000);
    }
    must(!kill(child, SIGCONT), "go on");
    wait_for(MESSAGES);
    must(waitpid(child, &status, 0) == child && !status, "the peer's bytes");
    return 0;
}
