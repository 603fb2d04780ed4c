/* A program in a sandbox that forbids memfd_create ("m" in its argument), eventfd2 ("e"), or both:
 * what it has of RDMA is slower, and works. */
#define _GNU_SOURCE /* memfd_create */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "queue_pair.h"

/* Has the kernel answer a system call with EPERM, as containers do. */
static void forbid(unsigned number)
{
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {.len = sizeof steps / sizeof *steps, .filter = steps};
    must(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
    must(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), "seccomp");
}

static int is_readable(int fd, int milliseconds)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};
    return poll(&one, 1, milliseconds) == 1;
}

/* One message to itself, whose two completions are waited for asleep. */
static void exchange(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_comp_channel *channel)
{
    struct ibv_recv_wr recv = {.wr_id = 2}, *bad_recv;
    struct ibv_send_wr send = {.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad_send;
    struct ibv_wc wc;
    must(!ibv_req_notify_cq(cq, 0), "notify");
    must(!ibv_post_recv(qp, &recv, &bad_recv), "receive");
    must(!ibv_post_send(qp, &send, &bad_send), "send");
    for (int left = 2; left > 0;) {
        struct ibv_cq *told;
        void *context;
        must(is_readable(channel->fd, 20000), "sleep on the channel");
        must(!ibv_get_cq_event(channel, &told, &context) && told == cq, "event");
        ibv_ack_cq_events(cq, 1);
        must(!ibv_req_notify_cq(cq, 0), "notify");
        int found;
        while ((found = ibv_poll_cq(cq, 1, &wc)) > 0) {
            must(wc.status == IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
            left--;
        }
        must(found == 0, "poll");
    }
}

int main(int count, char **names)
{
    must(count == 2, "an argument");
    if (strchr(names[1], 'm')) {
        forbid(SYS_memfd_create);
        must(memfd_create("x", 0) < 0, "the filter");
    }
    if (strchr(names[1], 'e')) {
        forbid(SYS_eventfd2);
        must(eventfd(0, 0) < 0, "the filter");
    }
    struct ibv_context *context = open_lo();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    must(channel != NULL, "channel");
    struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, channel, 0);
    struct ibv_qp *qp = make_qp(pd, cq, 0);
    must(qp != NULL, "queue pair");
    struct ibv_ah_attr path = {.is_global = 1, .port_num = 1, .grh.hop_limit = 64};
    must(!ibv_query_gid(context, 1, 0, &path.grh.dgid), "GID");
    bring_up_to(qp, &path, qp->qp_num);
    for (int times = 0; times < 100; times++)
        exchange(qp, cq, channel);

    /* Events that were all taken are no longer told of. */
    while (is_readable(channel->fd, 0)) {
        struct ibv_cq *told;
        void *of_cq;
        must(!ibv_get_cq_event(channel, &told, &of_cq), "a last event");
        ibv_ack_cq_events(cq, 1);
    }
    must(!is_readable(context->async_fd, 0), "no asynchronous event");
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    must(!ibv_modify_qp(qp, &attr, IBV_QP_STATE), "ERR");

    struct rdma_event_channel *events = rdma_create_event_channel();
    must(events != NULL, "event channel");
    struct rdma_cm_id *id;
    must(!rdma_create_id(events, &id, NULL, RDMA_PS_TCP), "id");
    must(!is_readable(events->fd, 0), "no event yet");
    struct sockaddr_in lo = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    must(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&lo, 2000), "resolve");
    must(is_readable(events->fd, 20000), "an event of the address");
    struct rdma_cm_event *event;
    must(!rdma_get_cm_event(events, &event), "the event");
    must(event->event == RDMA_CM_EVENT_ADDR_RESOLVED, rdma_event_str(event->event));
    must(!rdma_ack_cm_event(event) && !rdma_destroy_id(id), "the end of the id");
    must(!is_readable(events->fd, 0), "no event any more");
    rdma_destroy_event_channel(events);
    must(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq), "destroy");
    must(!ibv_destroy_comp_channel(channel) && !ibv_dealloc_pd(pd), "destroy");
    must(!ibv_close_device(context), "close");
    return 0;
}
