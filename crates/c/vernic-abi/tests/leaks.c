/* Devices are closed while objects of every kind are left: their threads and sockets go, calls on what
 * is left fail, threads that wait are told, and destroying still works. */
#include <dirent.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "queue_pair.h"

enum { ROUNDS = 20 };

/* Entries of a folder of /proc/self, the one that looking takes not counted. */
static int entries(const char *path)
{
    int count = 0;
    DIR *folder = opendir(path);
    must(folder != NULL, path);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

struct objects {
    struct ibv_context *context;
    struct ibv_comp_channel *channel;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    struct ibv_mw *mw;
    struct ibv_cq *cq;
    struct ibv_srq *srq;
    struct ibv_qp *qp;
    struct ibv_ah *ah;
    struct ibv_dm *dm;
    struct ibv_xrcd *xrcd;
    char buffer[64];
};

/* The row of 127.0.0.1. */
static int find_gid(struct ibv_context *context, union ibv_gid *gid)
{
    const unsigned char wanted[16] = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1};
    for (int index = 0; !ibv_query_gid(context, 1, index, gid); index++)
        if (!memcmp(gid->raw, wanted, sizeof(wanted)))
            return index;
    must(0, "GID of 127.0.0.1");
    return -1;
}

/* One of each, the queue pair connected to itself, with a receive waiting. */
static void make(struct objects *o)
{
    struct ibv_context *context = o->context = open_lo();
    o->channel = ibv_create_comp_channel(context);
    o->pd = ibv_alloc_pd(context);
    o->mr = ibv_reg_mr(o->pd, o->buffer, sizeof(o->buffer),
                       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    o->mw = ibv_alloc_mw(o->pd, IBV_MW_TYPE_1);
    o->cq = ibv_create_cq(context, 8, NULL, o->channel, 0);
    struct ibv_srq_init_attr shared = {.attr = {.max_wr = 1, .max_sge = 1}};
    o->srq = ibv_create_srq(o->pd, &shared);
    struct ibv_qp_init_attr init = {
        .send_cq = o->cq, .recv_cq = o->cq, .cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    o->qp = ibv_create_qp(o->pd, &init);
    struct ibv_alloc_dm_attr dm = {.length = 64};
    o->dm = ibv_alloc_dm(context, &dm);
    struct ibv_xrcd_init_attr xrcd = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = 0100};
    o->xrcd = ibv_open_xrcd(context, &xrcd);
    struct ibv_ah_attr av = {.is_global = 1, .port_num = 1};
    av.grh.sgid_index = find_gid(context, &av.grh.dgid);
    o->ah = ibv_create_ah(o->pd, &av);
    must(o->channel && o->pd && o->mr && o->mw && o->cq && o->srq && o->qp && o->ah && o->dm &&
             o->xrcd,
         "objects");
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    errno = ibv_modify_qp(o->qp, &attr,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    must(!errno, "INIT");
    struct ibv_recv_wr recv = {.wr_id = 7}, *bad;
    must(!ibv_post_recv(o->qp, &recv, &bad), "receive");
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024,
                                .dest_qp_num = o->qp->qp_num, .max_dest_rd_atomic = 1,
                                .ah_attr = av};
    errno = ibv_modify_qp(o->qp, &attr,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                              IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    must(!errno, "RTR");
}

/* What is left is of no use. */
static void calls_fail(struct objects *o)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    struct ibv_qp_init_attr init = {.send_cq = o->cq, .recv_cq = o->cq,
                                    .cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    struct ibv_srq_init_attr shared = {.attr = {.max_wr = 1, .max_sge = 1}};
    struct ibv_wc wc;
    must(ibv_modify_qp(o->qp, &attr, IBV_QP_STATE) == EIO, "EIO of modify_qp");
    must(ibv_query_qp(o->qp, &attr, IBV_QP_STATE, &init) == EIO, "EIO of query_qp");
    must(!ibv_create_qp(o->pd, &init) && errno == EIO, "EIO of create_qp");
    must(!ibv_create_srq(o->pd, &shared) && errno == EIO, "EIO of create_srq");
    must(!ibv_reg_mr(o->pd, o->buffer, 8, 0) && errno == EIO, "EIO of reg_mr");
    must(!ibv_alloc_pd(o->context) && errno == EINVAL, "EINVAL of alloc_pd");
    must(ibv_resize_cq(o->cq, 16) == EIO, "EIO of resize_cq");
    must(ibv_req_notify_cq(o->cq, 0) == EIO, "EIO of req_notify_cq");
    must(ibv_poll_cq(o->cq, 1, &wc) == 1 && wc.wr_id == 7, "flushed receive");
    must(wc.status == IBV_WC_WR_FLUSH_ERR, "status of the flushed receive");
    must(ibv_poll_cq(o->cq, 1, &wc) == -EIO, "-EIO of poll_cq");
    must(ibv_dealloc_pd(o->pd) == EBUSY, "EBUSY of dealloc_pd");
}

static void destroy(struct objects *o)
{
    must(!ibv_destroy_qp(o->qp), "destroy_qp");
    must(!ibv_destroy_srq(o->srq), "destroy_srq");
    must(!ibv_destroy_cq(o->cq), "destroy_cq");
    must(!ibv_destroy_comp_channel(o->channel), "destroy_comp_channel");
    must(!ibv_destroy_ah(o->ah), "destroy_ah");
    must(!ibv_dealloc_mw(o->mw), "dealloc_mw");
    must(!ibv_dereg_mr(o->mr), "dereg_mr");
    must(!ibv_free_dm(o->dm), "free_dm");
    must(!ibv_close_xrcd(o->xrcd), "close_xrcd");
    must(!ibv_dealloc_pd(o->pd), "dealloc_pd");
}

static void *waits_for_completions(void *o)
{
    struct ibv_cq *cq;
    void *cq_context;
    must(ibv_get_cq_event(((struct objects *)o)->channel, &cq, &cq_context) && errno == EIO,
         "EIO of get_cq_event");
    return NULL;
}

static void *waits_for_events(void *o)
{
    struct ibv_async_event event;
    must(ibv_get_async_event(((struct objects *)o)->context, &event) == -1,
         "failure of get_async_event");
    return NULL;
}

int main(void)
{
    /* The first time the log, the list and such are set up. */
    static struct objects left[ROUNDS];
    make(&left[0]);
    must(!ibv_close_device(left[0].context), "close_device");
    destroy(&left[0]);

    int fds = entries("/proc/self/fd"), threads = entries("/proc/self/task");
    for (int n = 0; n < ROUNDS; n++) {
        make(&left[n]);
        must(!ibv_close_device(left[n].context), "close_device");
        must(ibv_close_device(left[n].context) == EINVAL, "EINVAL of closing twice");
    }
    must(entries("/proc/self/task") == threads, "ending every thread");
    /* Objects' own: of each channel, of the memory of each device, and of its events. */
    must(entries("/proc/self/fd") <= fds + 3 * ROUNDS, "closing every socket");
    for (int n = 0; n < ROUNDS; n++) {
        calls_fail(&left[n]);
        destroy(&left[n]);
    }
    must(entries("/proc/self/fd") == fds, "closing every descriptor");

    /* A device that is open twice stays open until both are closed. */
    make(&left[0]);
    struct ibv_context *second = ibv_import_device(dup(left[0].context->cmd_fd));
    must(second && !ibv_close_device(left[0].context), "import and close_device");
    struct ibv_port_attr port;
    must(!ibv_query_port(second, 1, &port) && port.state == IBV_PORT_ACTIVE, "port");
    must(!ibv_resize_cq(left[0].cq, 16), "use of what the first made");
    must(!ibv_close_device(second) && ibv_resize_cq(left[0].cq, 16) == EIO, "close_device");
    destroy(&left[0]);

    /* Threads that wait are told. */
    make(&left[0]);
    pthread_t waiting[2];
    must(!pthread_create(&waiting[0], NULL, waits_for_completions, &left[0]) &&
             !pthread_create(&waiting[1], NULL, waits_for_events, &left[0]),
         "threads");
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    must(!ibv_close_device(left[0].context), "close_device");
    for (int n = 0; n < 2; n++)
        pthread_join(waiting[n], NULL);
    destroy(&left[0]);
    must(entries("/proc/self/fd") == fds && entries("/proc/self/task") == threads, "cleaning up");
    return 0;
}
