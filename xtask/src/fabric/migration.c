/* One end of a connection by LID, with an alternate path by the second ports: `migration SOCKET
 * listen|connect`. The one that connects sends numbered messages as fast as they are answered. The
 * other checks that each comes once and in order. An end that has migrated says so, and waits until
 * the port of the old path is active again. Once both ends are as far, each loads the old path as
 * the alternate one. The sender ends when there is a file `stop` in the folder that it runs in, and
 * the other end with it. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { RECEIVES = 32, BYTES = 4096 };

/* What an end tells the other: its queue pair, and the LID of each port. */
struct end {
    uint32_t qpn;
    uint16_t lids[2];
};

static struct ibv_context *context;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static char *memory;
static struct end own, peer;
static int is_sender, talk;

static void must(int ok, const char *what)
{
    if (!ok) {
        printf("%s failed: %s\n", what, strerror(errno));
        exit(1);
    }
}

static uint64_t now_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000ull + time.tv_nsec / 1000;
}

/* A socket to the other end. */
static int meet(const char *path, int listens)
{
    struct sockaddr_un place = {.sun_family = AF_UNIX};
    snprintf(place.sun_path, sizeof place.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    must(fd >= 0, "socket");
    if (listens) {
        must(!bind(fd, (void *)&place, sizeof place) && !listen(fd, 1), "listen");
        return accept(fd, NULL, NULL);
    }
    while (connect(fd, (void *)&place, sizeof place))
        usleep(10000);
    return fd;
}

static struct ibv_ah_attr to_port(int port)
{
    return (struct ibv_ah_attr){.dlid = peer.lids[port - 1], .port_num = port};
}

static struct ibv_qp_attr query(void)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    errno = ibv_query_qp(qp, &attr, 0, &init);
    must(!errno, "ibv_query_qp");
    return attr;
}

static void load(int port)
{
    struct ibv_qp_attr attr = {.path_mig_state = IBV_MIG_REARM,
                               .alt_ah_attr = to_port(port),
                               .alt_port_num = port,
                               .alt_timeout = 16};
    errno = ibv_modify_qp(qp, &attr, IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE);
    must(!errno, "loading the alternate path");
}

static void post_recv(int n)
{
    struct ibv_sge sge = {(uintptr_t)memory + n * BYTES, BYTES, mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = n, .sg_list = &sge, .num_sge = 1}, *bad;
    errno = ibv_post_recv(qp, &wr, &bad);
    must(!errno, "ibv_post_recv");
}

static void post_send(uint64_t number)
{
    memcpy(memory, &number, sizeof number);
    struct ibv_sge sge = {(uintptr_t)memory, BYTES, mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED},
                       *bad;
    errno = ibv_post_send(qp, &wr, &bad);
    must(!errno, "ibv_post_send");
}

static void connect_qp(struct ibv_pd *pd)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .cap = {1, RECEIVES, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    must((qp = ibv_create_qp(pd, &init)) != NULL, "ibv_create_qp");
    own.qpn = qp->qp_num;
    for (int port = 1; port <= 2; port++) {
        struct ibv_port_attr attr;
        must(!ibv_query_port(context, port, &attr), "ibv_query_port");
        own.lids[port - 1] = attr.lid;
    }
    must(write(talk, &own, sizeof own) == sizeof own, "write");
    must(read(talk, &peer, sizeof peer) == sizeof peer, "read");
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    errno = ibv_modify_qp(qp, &attr,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    must(!errno, "INIT");
    for (int n = 0; n < RECEIVES && !is_sender; n++)
        post_recv(n);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                                .path_mtu = IBV_MTU_2048,
                                .dest_qp_num = peer.qpn,
                                .max_dest_rd_atomic = 1,
                                .min_rnr_timer = 12,
                                .ah_attr = to_port(1)};
    errno = ibv_modify_qp(qp, &attr,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                              IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    must(!errno, "RTR");
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                .timeout = 16,
                                .retry_cnt = 3,
                                .rnr_retry = 7,
                                .max_rd_atomic = 1};
    errno = ibv_modify_qp(qp, &attr,
                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                              IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    must(!errno, "RTS");
}

/* Tells of events, and returns whether one was the migration. */
static int has_migrated(void)
{
    struct pollfd fd = {.fd = context->async_fd, .events = POLLIN};
    int migrated = 0;
    while (poll(&fd, 1, 0) == 1) {
        struct ibv_async_event event;
        must(!ibv_get_async_event(context, &event), "ibv_get_async_event");
        migrated |= event.event_type == IBV_EVENT_PATH_MIG;
        printf("event: %s\n", ibv_event_type_str(event.event_type));
        ibv_ack_async_event(&event);
    }
    if (migrated)
        printf("migrated to port %d\n", query().port_num);
    return migrated;
}

static int is_active(int port)
{
    struct ibv_port_attr attr;
    return !ibv_query_port(context, port, &attr) && attr.state == IBV_PORT_ACTIVE;
}

int main(int count, char **args)
{
    must(count == 3, "SOCKET listen|connect");
    setvbuf(stdout, NULL, _IOLBF, 0);
    is_sender = !strcmp(args[2], "connect");
    struct ibv_device **list = ibv_get_device_list(NULL);
    must(list && list[0], "ibv_get_device_list");
    must((context = ibv_open_device(list[0])) != NULL, "ibv_open_device");
    struct ibv_pd *pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 2 * RECEIVES, NULL, NULL, 0);
    must(pd && cq, "objects");
    memory = calloc(RECEIVES, BYTES);
    must((mr = ibv_reg_mr(pd, memory, RECEIVES * BYTES, IBV_ACCESS_LOCAL_WRITE)) != NULL, "mr");
    talk = meet(args[1], !is_sender);
    connect_qp(pd);
    load(2);

    uint64_t number = 0, last = now_us(), longest = 0;
    int was_armed = 0, told = 0, heard = 0, old_port = 0;
    if (is_sender)
        post_send(number);
    while (!is_sender || access("stop", F_OK)) {
        struct ibv_wc wcs[RECEIVES];
        int got = ibv_poll_cq(cq, RECEIVES, wcs);
        must(got >= 0, "ibv_poll_cq");
        for (int n = 0; n < got; n++) {
            if (wcs[n].status != IBV_WC_SUCCESS) {
                printf("message %lu: %s\n", number, ibv_wc_status_str(wcs[n].status));
                return 1;
            }
            uint64_t at = now_us();
            longest = at - last > longest ? at - last : longest;
            last = at;
            if (is_sender) {
                post_send(++number);
                continue;
            }
            uint64_t came;
            memcpy(&came, memory + wcs[n].wr_id * BYTES, sizeof came);
            if (came != number++) {
                printf("message %lu came, not %lu\n", came, number - 1);
                return 1;
            }
            post_recv(wcs[n].wr_id);
        }
        if (!old_port && has_migrated()) {
            old_port = 3 - query().port_num;
            was_armed = 0;
        }
        /* What LAP and APR are for: either end must have migrated before one loads a path. */
        if (old_port && !told && is_active(old_port))
            must(told = write(talk, "x", 1) == 1, "write");
        struct pollfd fd = {.fd = talk, .events = POLLIN};
        char byte;
        if (!heard && poll(&fd, 1, 0) == 1 && !(heard = read(talk, &byte, 1) == 1))
            break;
        if (told && heard) {
            load(old_port);
            old_port = told = heard = 0;
        }
        if (!was_armed && query().path_mig_state == IBV_MIG_ARMED) {
            was_armed = 1;
            printf("armed on port %d\n", query().port_num);
        }
    }
    printf("%lu messages, at most %lu ms apart\n", number, longest / 1000);
    return 0;
}
