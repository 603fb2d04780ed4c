/* Ids without a peer: what they show, what is refused, how events come and go. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <infiniband/sa.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "expect.h"

/* Since rdma-core 58; the header may be older. */
extern int rdma_write_cm_event(struct rdma_cm_id *id, int event, int status, uint64_t arg);
extern int rdma_resolve_addrinfo(struct rdma_cm_id *id, const char *node, const char *service,
                                 const struct rdma_addrinfo *hints);
extern int rdma_query_addrinfo(struct rdma_cm_id *id, struct rdma_addrinfo **info);
enum { ADDRINFO_RESOLVED = 16, ADDRINFO_ERROR = 17, USER_EVENT = 18, FLAG_RAI_SA = 16 };

static struct rdma_event_channel *channel;

static struct sockaddr *address(const char *host, int port)
{
    static struct sockaddr_in6 in6;
    static struct sockaddr_in in;
    if (strchr(host, ':')) {
        in6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port)};
        inet_pton(AF_INET6, host, &in6.sin6_addr);
        return (struct sockaddr *)&in6;
    }
    in = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, host, &in.sin_addr);
    return (struct sockaddr *)&in;
}

static struct rdma_cm_id *make(struct rdma_event_channel *where, enum rdma_port_space ps)
{
    struct rdma_cm_id *id = NULL;
    EXPECT(rdma_create_id(where, &id, &wrong, ps), 0);
    return id;
}

/* Takes the next event, which has to be this one, and acknowledges it. */
static void next_is(enum rdma_cm_event_type kind, struct rdma_cm_id *id)
{
    struct rdma_cm_event *event = NULL;
    EXPECT(rdma_get_cm_event(channel, &event), 0);
    EXPECT(event->event, kind);
    EXPECT(event->status, 0);
    EXPECT(event->id == id && event->listen_id == NULL, 1);
    EXPECT(rdma_ack_cm_event(event), 0);
}

static int is_readable(struct rdma_event_channel *of)
{
    struct pollfd one = {.fd = of->fd, .events = POLLIN};
    return poll(&one, 1, 0);
}

static void nulls(void)
{
    struct rdma_cm_id *id = make(channel, RDMA_PS_TCP);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};
    struct rdma_cm_event *event;
    int mask;
    FAILS(rdma_create_id(channel, NULL, NULL, RDMA_PS_TCP), EINVAL);
    FAILS(rdma_destroy_id(NULL), EINVAL);
    FAILS(rdma_bind_addr(NULL, address("127.0.0.1", 0)), EINVAL);
    FAILS(rdma_bind_addr(id, NULL), EINVAL);
    FAILS(rdma_resolve_addr(NULL, NULL, address("127.0.0.1", 1), 10), EINVAL);
    FAILS(rdma_resolve_addr(id, NULL, NULL, 10), EINVAL);
    FAILS(rdma_resolve_route(NULL, 10), EINVAL);
    FAILS(rdma_listen(NULL, 1), EINVAL);
    FAILS(rdma_connect(NULL, NULL), EINVAL);
    FAILS(rdma_accept(NULL, NULL), EINVAL);
    FAILS(rdma_reject(NULL, NULL, 0), EINVAL);
    FAILS(rdma_establish(NULL), EINVAL);
    FAILS(rdma_notify(NULL, IBV_EVENT_COMM_EST), EINVAL);
    FAILS(rdma_disconnect(NULL), EINVAL);
    FAILS(rdma_migrate_id(NULL, channel), EINVAL);
    FAILS(rdma_set_option(NULL, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &mask, 1), EINVAL);
    FAILS(rdma_create_qp(NULL, NULL, NULL), EINVAL);
    FAILS(rdma_create_qp(id, NULL, NULL), EINVAL);
    FAILS(rdma_create_qp_ex(id, NULL), EINVAL);
    FAILS(rdma_create_srq(id, NULL, NULL), EINVAL);
    FAILS(rdma_create_srq_ex(id, NULL), EINVAL);
    FAILS(rdma_init_qp_attr(NULL, &attr, &mask), EINVAL);
    FAILS(rdma_init_qp_attr(id, NULL, &mask), EINVAL);
    FAILS(rdma_init_qp_attr(id, &attr, NULL), EINVAL);
    FAILS(rdma_join_multicast(NULL, NULL, NULL), EINVAL);
    FAILS(rdma_join_multicast_ex(id, NULL, NULL), EINVAL);
    FAILS(rdma_leave_multicast(id, NULL), EINVAL);
    FAILS(rdma_get_cm_event(NULL, &event), EINVAL);
    FAILS(rdma_get_cm_event(channel, NULL), EINVAL);
    FAILS(rdma_ack_cm_event(NULL), EINVAL);
    FAILS(rdma_get_request(NULL, &id), EINVAL);
    FAILS(rdma_create_ep(&id, NULL, NULL, NULL), EINVAL);
    EXPECT(id == NULL, 1);
    rdma_destroy_event_channel(NULL);
    rdma_destroy_qp(NULL);
    rdma_destroy_srq(NULL);
    rdma_destroy_ep(NULL);
    rdma_free_devices(NULL);
    EXPECT(rdma_get_src_port(NULL) | rdma_get_dst_port(NULL), 0);
    EXPECT(strcmp(rdma_event_str(RDMA_CM_EVENT_ESTABLISHED), "RDMA_CM_EVENT_ESTABLISHED"), 0);
    EXPECT(rdma_event_str((enum rdma_cm_event_type)999) != NULL, 1);
}

/* Too early, wrong kind, unknown. */
static void wrong_states(void)
{
    struct rdma_conn_param param = {.qp_num = 5};
    struct ibv_qp_init_attr init = {.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};
    struct rdma_cm_id *id = make(channel, RDMA_PS_TCP), *other = NULL;
    int one = 1, mask;
    FAILS(rdma_create_id(channel, &other, NULL, (enum rdma_port_space)77), EINVAL);
    EXPECT(other == NULL, 1);
    FAILS(rdma_resolve_route(id, 10), EINVAL);
    FAILS(rdma_connect(id, &param), EINVAL);
    FAILS(rdma_accept(id, &param), EINVAL);
    FAILS(rdma_reject(id, NULL, 0), EINVAL);
    FAILS(rdma_disconnect(id), EINVAL);
    FAILS(rdma_establish(id), EINVAL);
    FAILS(rdma_notify(id, IBV_EVENT_COMM_EST), EINVAL);
    FAILS(rdma_notify(id, IBV_EVENT_CQ_ERR), EINVAL);
    FAILS(rdma_create_qp(id, NULL, &init), EINVAL);
    FAILS(rdma_init_qp_attr(id, &attr, &mask), EINVAL);
    FAILS(rdma_get_request(id, &other), EINVAL);
    EXPECT(other == NULL, 1);
    FAILS(rdma_leave_multicast(id, address("239.1.1.1", 0)), EADDRNOTAVAIL);
    FAILS(rdma_set_option(id, RDMA_OPTION_ID, 99, &one, 4), ENOSYS);
    FAILS(rdma_set_option(id, 7, 0, &one, 4), ENOSYS);
    FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &one, 4), EINVAL);
    FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, NULL, 1), EINVAL);
    FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, 1), EINVAL);
    FAILS(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &one, 4), EINVAL);
    /* A path, of an id that has not resolved its address. */
    struct ibv_path_data path = {.flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY};
    FAILS(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path, sizeof path), EINVAL);
    FAILS(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, NULL, sizeof path), EINVAL);
    EXPECT(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &one, 1), 0);
    EXPECT(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, 4), 0);
    EXPECT(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, 4), 0);
    EXPECT(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &one, 1), 0);
    struct ibv_ece ece = {.vendor_id = 0};
    FAILS(rdma_set_local_ece(id, &ece), EINVAL);
    ece = (struct ibv_ece){.vendor_id = 0x15b3, .options = 3};
    FAILS(rdma_set_local_ece(id, &ece), EOPNOTSUPP);
    EXPECT(rdma_get_remote_ece(id, &ece), 0);
    EXPECT(ece.vendor_id | ece.options | ece.comp_mask, 0);
    FAILS(rdma_get_remote_ece(id, NULL), EINVAL);
    /* Addresses that are nobody's, and that are no addresses. */
    struct sockaddr none = {.sa_family = AF_UNIX}, ib = {.sa_family = 27};
    FAILS(rdma_bind_addr(id, address("198.51.100.7", 0)), EADDRNOTAVAIL);
    FAILS(rdma_bind_addr(id, &none), EINVAL);
    FAILS(rdma_bind_addr(id, &ib), EAFNOSUPPORT);
    EXPECT(rdma_destroy_id(id), 0);
}

/* Binding decides device and domain; ports are free, taken, shared. */
static void bound(void)
{
    struct rdma_cm_id *id = make(channel, RDMA_PS_TCP), *second = make(channel, RDMA_PS_TCP);
    EXPECT(id->channel == channel && id->context == &wrong && id->ps == RDMA_PS_TCP, 1);
    EXPECT(id->qp_type, IBV_QPT_RC);
    EXPECT(id->verbs == NULL && id->pd == NULL && id->qp == NULL && id->event == NULL, 1);
    EXPECT(rdma_get_src_port(id), 0);
    EXPECT(rdma_bind_addr(id, address("127.0.0.1", 0)), 0);
    EXPECT(rdma_get_src_port(id) != 0, 1);
    EXPECT(id->verbs != NULL && id->pd != NULL && id->pd->context == id->verbs, 1);
    EXPECT(id->port_num, 1);
    EXPECT(rdma_get_local_addr(id)->sa_family, AF_INET);
    EXPECT(id->route.addr.addr.ibaddr.sgid.raw[12] == 127, 1);
    EXPECT(id->route.num_paths, 0);
    FAILS(rdma_bind_addr(id, address("127.0.0.1", 0)), EINVAL);
    int port = ntohs(rdma_get_src_port(id));
    FAILS(rdma_bind_addr(second, address("127.0.0.1", port)), EADDRINUSE);
    /* A wildcard has an error of its own, as in the kernel. */
    FAILS(rdma_bind_addr(second, address("0.0.0.0", port)), EADDRNOTAVAIL);
    EXPECT(rdma_bind_addr(second, address("::1", port)), 0);
    EXPECT(second->verbs == id->verbs && second->pd == id->pd, 1);
    EXPECT(rdma_get_local_addr(second)->sa_family, AF_INET6);
    /* Another port space has ports of its own; a wildcard has no device. */
    struct rdma_cm_id *third = make(channel, RDMA_PS_UDP);
    EXPECT(third->qp_type, IBV_QPT_UD);
    EXPECT(rdma_bind_addr(third, address("0.0.0.0", port)), 0);
    EXPECT(third->verbs == NULL, 1);
    EXPECT(ntohs(rdma_get_src_port(third)), port);
    EXPECT(rdma_destroy_id(third), 0);
    EXPECT(rdma_destroy_id(second), 0);
    /* What belongs to the ids is not the program's to end. */
    struct ibv_context *verbs = id->verbs;
    EXPECT(ibv_dealloc_pd(id->pd), 0);
    EXPECT(ibv_close_device(verbs), 0);
    struct ibv_mr *mr = rdma_reg_msgs(id, &port, sizeof port);
    EXPECT(mr != NULL, 1);
    EXPECT(rdma_dereg_mr(mr), 0);
    EXPECT(rdma_destroy_id(id), 0);
    struct ibv_port_attr attr;
    EXPECT(ibv_query_port(verbs, 1, &attr), 0);
}

/* To an address and its route; what a program reads of them. */
static void resolved(const char *host, int bytes)
{
    struct rdma_cm_id *id = make(channel, RDMA_PS_TCP);
    EXPECT(rdma_resolve_addr(id, NULL, address(host, 7471), 1000), 0);
    next_is(RDMA_CM_EVENT_ADDR_RESOLVED, id);
    EXPECT(id->verbs != NULL && id->pd != NULL && id->port_num == 1, 1);
    EXPECT(ntohs(rdma_get_dst_port(id)), 7471);
    EXPECT(rdma_get_src_port(id) != 0, 1);
    EXPECT(memcmp(rdma_get_peer_addr(id), address(host, 7471), bytes), 0);
    EXPECT(rdma_resolve_route(id, 1000), 0);
    next_is(RDMA_CM_EVENT_ROUTE_RESOLVED, id);
    EXPECT(id->route.num_paths, 1);
    struct ibv_sa_path_rec *path = id->route.path_rec;
    EXPECT(path->numb_path == 1 && path->reversible == 1, 1);
    EXPECT(path->pkey, 0xFFFF);
    EXPECT(path->mtu >= IBV_MTU_1024 && path->mtu <= IBV_MTU_4096, 1);
    EXPECT(path->hop_limit > 1, 1);
    EXPECT(memcmp(&path->dgid, &id->route.addr.addr.ibaddr.dgid, 16), 0);
    EXPECT(memcmp(&path->sgid, &id->route.addr.addr.ibaddr.sgid, 16), 0);
    FAILS(rdma_resolve_route(id, 1000), EINVAL);
    EXPECT(rdma_destroy_id(id), 0);
}

/* A queue pair with everything of its own, with some, with what does not fit. */
static void queue_pairs(void)
{
    struct rdma_cm_id *id = make(channel, RDMA_PS_TCP);
    EXPECT(rdma_bind_addr(id, address("127.0.0.1", 0)), 0);
    struct ibv_qp_init_attr init = {.cap = {4, 6, 1, 2, 16}, .qp_type = IBV_QPT_RC};
    EXPECT(rdma_create_qp(id, NULL, &init), 0);
    EXPECT(id->qp != NULL && id->qp->state == IBV_QPS_INIT && id->qp->pd == id->pd, 1);
    EXPECT(id->send_cq != NULL && id->recv_cq != NULL && id->send_cq != id->recv_cq, 1);
    EXPECT(id->send_cq_channel != NULL && id->recv_cq_channel != NULL, 1);
    EXPECT(id->send_cq->channel == id->send_cq_channel && id->send_cq->cq_context == id, 1);
    EXPECT(init.send_cq == id->send_cq && init.recv_cq == id->recv_cq, 1);
    EXPECT(init.cap.max_recv_wr >= 6 && init.cap.max_recv_sge >= 2, 1);
    FAILS(rdma_create_qp(id, NULL, &init), EINVAL);
    char byte = 1;
    struct ibv_mr *mr = rdma_reg_msgs(id, &byte, 1);
    EXPECT(rdma_post_recv(id, NULL, &byte, 1, mr), 0);
    rdma_destroy_qp(id);
    EXPECT(rdma_dereg_mr(mr), 0);
    EXPECT(id->qp == NULL && id->send_cq == NULL && id->recv_cq == NULL, 1);
    EXPECT(id->send_cq_channel == NULL && id->recv_cq_channel == NULL, 1);
    /* What the program gives is used, and stays the program's. */
    struct ibv_pd *pd = ibv_alloc_pd(id->verbs);
    struct ibv_cq *cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0);
    init = (struct ibv_qp_init_attr){.send_cq = cq, .cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    EXPECT(rdma_create_qp(id, pd, &init), 0);
    EXPECT(id->pd == pd && id->qp->pd == pd && id->qp->send_cq == cq, 1);
    EXPECT(id->send_cq == NULL && id->recv_cq != NULL, 1);
    /* Ended by the verb: the id knows. */
    EXPECT(ibv_destroy_qp(id->qp), 0);
    id->qp = NULL;
    init.recv_cq = NULL;
    EXPECT(rdma_create_qp(id, pd, &init), 0);
    rdma_destroy_qp(id);
    EXPECT(ibv_destroy_cq(cq), 0);
    EXPECT(ibv_dealloc_pd(pd), 0);
    /* Of another context. */
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    struct ibv_context *other = NULL;
    for (int n = 0; n < count; n++)
        if (strcmp(ibv_get_device_name(list[n]), ibv_get_device_name(id->verbs->device)) == 0)
            other = ibv_open_device(list[n]);
    ibv_free_device_list(list);
    pd = ibv_alloc_pd(other);
    init = (struct ibv_qp_init_attr){.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    FAILS(rdma_create_qp(id, pd, &init), EINVAL);
    EXPECT(id->qp == NULL && id->send_cq == NULL && id->recv_cq == NULL, 1);
    EXPECT(ibv_dealloc_pd(pd), 0);
    EXPECT(ibv_close_device(other), 0);
    init.qp_type = IBV_QPT_UD;
    FAILS(rdma_create_qp(id, NULL, &init), EINVAL);
    EXPECT(id->qp == NULL && id->send_cq == NULL, 1);
    EXPECT(rdma_destroy_id(id), 0);
    /* For datagrams it is ready at once. */
    id = make(channel, RDMA_PS_UDP);
    EXPECT(rdma_bind_addr(id, address("127.0.0.1", 0)), 0);
    init = (struct ibv_qp_init_attr){.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_UD};
    EXPECT(rdma_create_qp(id, NULL, &init), 0);
    EXPECT(id->qp->state, IBV_QPS_RTS);
    struct ibv_qp_attr attr;
    EXPECT(ibv_query_qp(id->qp, &attr, IBV_QP_QKEY, &init), 0);
    EXPECT(attr.qkey, RDMA_UDP_QKEY);
    rdma_destroy_qp(id);
    EXPECT(rdma_destroy_id(id), 0);
}

static void shared_queues(void)
{
    struct rdma_cm_id *id = make(channel, RDMA_PS_TCP);
    struct ibv_srq_init_attr attr = {.attr = {.max_wr = 8, .max_sge = 1}};
    EXPECT(rdma_bind_addr(id, address("127.0.0.1", 0)), 0);
    EXPECT(rdma_create_srq(id, NULL, &attr), 0);
    EXPECT(id->srq != NULL && attr.attr.max_wr >= 8, 1);
    FAILS(rdma_create_srq(id, NULL, &attr), EINVAL);
    struct ibv_qp_init_attr init = {.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    EXPECT(rdma_create_qp(id, NULL, &init), 0);
    EXPECT(id->qp->srq == id->srq && init.srq == id->srq, 1);
    rdma_destroy_qp(id);
    rdma_destroy_srq(id);
    EXPECT(id->srq == NULL, 1);
    struct ibv_srq_init_attr_ex extended = {.attr = {.max_wr = 8, .max_sge = 1}};
    FAILS(rdma_create_srq_ex(id, &extended), EINVAL);
    extended.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
    extended.srq_type = IBV_SRQT_XRC;
    EXPECT(rdma_create_srq_ex(id, &extended), 0);
    EXPECT(id->srq != NULL && id->recv_cq != NULL, 1);
    uint32_t number;
    EXPECT(ibv_get_srq_num(id->srq, &number), 0);
    rdma_destroy_srq(id);
    EXPECT(id->srq == NULL && id->recv_cq == NULL, 1);
    EXPECT(rdma_destroy_id(id), 0);
}

/* An id whose calls wait has a channel of its own, and its last event. */
static void synchronous(void)
{
    struct rdma_cm_id *id = make(NULL, RDMA_PS_TCP);
    EXPECT(id->channel != NULL && id->channel->fd >= 0, 1);
    EXPECT(rdma_resolve_addr(id, NULL, address("127.0.0.1", 7), 1000), 0);
    EXPECT(id->event != NULL && id->event->event == RDMA_CM_EVENT_ADDR_RESOLVED, 1);
    EXPECT(id->verbs != NULL, 1);
    EXPECT(rdma_resolve_route(id, 1000), 0);
    EXPECT(id->event != NULL && id->event->event == RDMA_CM_EVENT_ROUTE_RESOLVED, 1);
    EXPECT(id->route.num_paths, 1);
    EXPECT(rdma_destroy_id(id), 0);
    /* To a channel and back. */
    id = make(NULL, RDMA_PS_TCP);
    EXPECT(rdma_migrate_id(id, channel), 0);
    EXPECT(id->channel == channel, 1);
    EXPECT(rdma_resolve_addr(id, NULL, address("127.0.0.1", 7), 1000), 0);
    EXPECT(id->event == NULL, 1);
    next_is(RDMA_CM_EVENT_ADDR_RESOLVED, id);
    EXPECT(rdma_migrate_id(id, NULL), 0);
    EXPECT(id->channel != channel, 1);
    EXPECT(rdma_resolve_route(id, 1000), 0);
    EXPECT(rdma_destroy_id(id), 0);
    /* An endpoint in one call, and one that cannot be. */
    struct rdma_addrinfo *res = NULL, hints = {.ai_port_space = RDMA_PS_TCP};
    struct ibv_qp_init_attr init = {.cap = {2, 2, 1, 1, 0}};
    EXPECT(rdma_getaddrinfo("127.0.0.1", "7", &hints, &res), 0);
    EXPECT(rdma_create_ep(&id, res, NULL, &init), 0);
    EXPECT(id->qp != NULL && id->route.num_paths == 1 && init.qp_type == IBV_QPT_RC, 1);
    rdma_destroy_ep(id);
    rdma_freeaddrinfo(res);
    hints.ai_flags = RAI_PASSIVE;
    EXPECT(rdma_getaddrinfo("198.51.100.7", "7", &hints, &res), 0);
    FAILS(rdma_create_ep(&id, res, NULL, &init), EADDRNOTAVAIL);
    EXPECT(id == NULL, 1);
    rdma_freeaddrinfo(res);
}

/* The channel's descriptor tells; ids take what they have not told along. */
static void channels(void)
{
    struct rdma_event_channel *second = rdma_create_event_channel();
    struct rdma_cm_id *id = make(channel, RDMA_PS_TCP);
    struct rdma_cm_event *event = NULL;
    EXPECT(is_readable(channel), 0);
    EXPECT(rdma_resolve_addr(id, NULL, address("127.0.0.1", 7), 1000), 0);
    EXPECT(is_readable(channel), 1);
    EXPECT(rdma_migrate_id(id, second), 0);
    EXPECT(is_readable(channel), 0);
    EXPECT(is_readable(second), 1);
    EXPECT(rdma_get_cm_event(second, &event), 0);
    EXPECT(event->event == RDMA_CM_EVENT_ADDR_RESOLVED && event->id == id, 1);
    EXPECT(rdma_ack_cm_event(event), 0);
    EXPECT(fcntl(second->fd, F_SETFL, O_NONBLOCK), 0);
    FAILS(rdma_get_cm_event(second, &event), EAGAIN);
    EXPECT(rdma_resolve_route(id, 1000), 0);
    EXPECT(is_readable(second), 1);
    EXPECT(rdma_destroy_id(id), 0);
    EXPECT(is_readable(second), 0);
    FAILS(rdma_get_cm_event(second, &event), EAGAIN);
    rdma_destroy_event_channel(second);
}

static void *acks(void *event)
{
    usleep(20000);
    rdma_ack_cm_event(event);
    return NULL;
}

/* Destruction waits for the last acknowledgement. */
static void waits_for_acks(void)
{
    struct rdma_cm_id *id = make(channel, RDMA_PS_TCP);
    struct rdma_cm_event *event = NULL;
    pthread_t thread;
    EXPECT(rdma_resolve_addr(id, NULL, address("127.0.0.1", 7), 1000), 0);
    EXPECT(rdma_get_cm_event(channel, &event), 0);
    EXPECT(pthread_create(&thread, NULL, acks, event), 0);
    EXPECT(rdma_destroy_id(id), 0);
    EXPECT(pthread_join(thread, NULL), 0);
}

static void *waits(void *channel)
{
    struct rdma_cm_event *event;
    rdma_get_cm_event(channel, &event);
    return NULL;
}

/* A thread that waits may be cancelled; the channel is as before. */
static void cancelled(void)
{
    pthread_t thread;
    void *result = NULL;
    EXPECT(pthread_create(&thread, NULL, waits, channel), 0);
    usleep(20000);
    EXPECT(pthread_cancel(thread), 0);
    EXPECT(pthread_join(thread, &result), 0);
    EXPECT(result == PTHREAD_CANCELED, 1);
    struct rdma_cm_id *id = make(channel, RDMA_PS_TCP);
    EXPECT(rdma_resolve_addr(id, NULL, address("127.0.0.1", 7), 1000), 0);
    next_is(RDMA_CM_EVENT_ADDR_RESOLVED, id);
    EXPECT(rdma_destroy_id(id), 0);
}

/* A thread that waits on a channel which is destroyed waits for ever, as it would for a kernel, and so does
 * one that comes a moment late. */
static void destroyed_while_waiting(void)
{
    pthread_t thread, late;
    void *result = NULL;
    struct rdma_event_channel *gone = rdma_create_event_channel();
    struct rdma_cm_id *id_of_gone;
    struct rdma_cm_id *id = make(gone, RDMA_PS_TCP);
    EXPECT(pthread_create(&thread, NULL, waits, gone), 0);
    usleep(20000);
    rdma_destroy_event_channel(gone);
    EXPECT(rdma_write_cm_event(id, USER_EVENT, 0, 0), 0);
    usleep(20000);
    EXPECT(pthread_create(&late, NULL, waits, gone), 0);
    usleep(20000);
    EXPECT(pthread_tryjoin_np(thread, &result), EBUSY);
    EXPECT(pthread_tryjoin_np(late, &result), EBUSY);
    EXPECT(pthread_cancel(thread) || pthread_cancel(late), 0);
    EXPECT(pthread_join(thread, &result), 0);
    EXPECT(result == PTHREAD_CANCELED, 1);
    EXPECT(pthread_join(late, &result), 0);
    EXPECT(result == PTHREAD_CANCELED, 1);
    FAILS(rdma_create_id(gone, &id_of_gone, NULL, RDMA_PS_TCP), EBADF);
    rdma_destroy_event_channel(gone);
    EXPECT(rdma_destroy_id(id), 0);
}

static pthread_t waiting;

static void on_signal(int signal)
{
    (void)signal;
}

/* Sends a signal to who waits, and then an event. */
static void *disturbs(void *id)
{
    usleep(20000);
    pthread_kill(waiting, SIGUSR1);
    usleep(20000);
    rdma_resolve_addr(id, NULL, address("127.0.0.1", 7), 1000);
    return NULL;
}

/* Whether a signal ends the wait is for its handler to say. */
static void interrupted(int flags)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = flags};
    struct rdma_cm_id *id = make(channel, RDMA_PS_TCP);
    struct rdma_cm_event *event = NULL;
    pthread_t thread;
    waiting = pthread_self();
    EXPECT(sigaction(SIGUSR1, &action, NULL), 0);
    EXPECT(pthread_create(&thread, NULL, disturbs, id), 0);
    if (flags != SA_RESTART)
        FAILS(rdma_get_cm_event(channel, &event), EINTR);
    next_is(RDMA_CM_EVENT_ADDR_RESOLVED, id);
    EXPECT(pthread_join(thread, NULL), 0);
    EXPECT(rdma_destroy_id(id), 0);
}

/* Events that the program writes, and addresses that it looks for by an event. */
static void written(void)
{
    struct rdma_cm_id *id = make(channel, RDMA_PS_TCP);
    struct rdma_cm_event *event = NULL;
    struct rdma_addrinfo *info = NULL, hints = {.ai_flags = FLAG_RAI_SA};
    uint64_t arg = 0x55667788AABBCCDD;
    EXPECT(rdma_write_cm_event(id, USER_EVENT, -5, arg), 0);
    EXPECT(rdma_get_cm_event(channel, &event), 0);
    EXPECT(event->id == id && (int)event->event == USER_EVENT && event->status == -5, 1);
    EXPECT(memcmp(&event->param, &arg, sizeof arg), 0);
    EXPECT(rdma_ack_cm_event(event), 0);
    FAILS(rdma_write_cm_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0), EINVAL);
    FAILS(rdma_write_cm_event(NULL, USER_EVENT, 0, 0), EINVAL);
    FAILS(rdma_query_addrinfo(id, &info), ENODATA);
    EXPECT(info == NULL, 1);
    FAILS(rdma_resolve_addrinfo(id, NULL, NULL, NULL), EINVAL);
    FAILS(rdma_resolve_addrinfo(id, NULL, "1", &hints), EOPNOTSUPP);
    EXPECT(rdma_resolve_addrinfo(id, "127.0.0.1", "7471", NULL), 0);
    next_is((enum rdma_cm_event_type)ADDRINFO_RESOLVED, id);
    for (int n = 0; n < 2; n++) {
        EXPECT(rdma_query_addrinfo(id, &info), 0);
        EXPECT(memcmp(info->ai_dst_addr, address("127.0.0.1", 7471), info->ai_dst_len), 0);
        EXPECT(info->ai_port_space == RDMA_PS_TCP && info->ai_dst_len == 16, 1);
        rdma_freeaddrinfo(info);
    }
    hints.ai_flags = RAI_NUMERICHOST;
    EXPECT(rdma_resolve_addrinfo(id, "no address", "7471", &hints), 0);
    EXPECT(rdma_get_cm_event(channel, &event), 0);
    EXPECT((int)event->event == ADDRINFO_ERROR && event->status == -EADDRNOTAVAIL, 1);
    EXPECT(rdma_ack_cm_event(event), 0);
    EXPECT(rdma_destroy_id(id), 0);
    id = make(NULL, RDMA_PS_TCP);
    EXPECT(rdma_resolve_addrinfo(id, "::1", "7471", NULL), 0);
    EXPECT(rdma_query_addrinfo(id, &info), 0);
    EXPECT(info->ai_family, AF_INET6);
    rdma_freeaddrinfo(info);
    EXPECT(rdma_destroy_id(id), 0);
}

static void devices(void)
{
    int count = -1, found = 0;
    struct rdma_cm_id *id = make(channel, RDMA_PS_TCP);
    EXPECT(rdma_bind_addr(id, address("127.0.0.1", 0)), 0);
    struct ibv_context **list = rdma_get_devices(&count);
    EXPECT(list != NULL && count > 0 && list[count] == NULL, 1);
    for (int n = 0; n < count; n++)
        found += list[n] == id->verbs;
    EXPECT(found, 1);
    rdma_free_devices(list);
    EXPECT(rdma_destroy_id(id), 0);
}

/* A child starts anew, and cannot use what its parent made. */
static void forked(void)
{
    struct rdma_cm_id *id = make(channel, RDMA_PS_TCP);
    struct rdma_cm_event *event;
    EXPECT(rdma_bind_addr(id, address("127.0.0.1", 0)), 0);
    struct ibv_context *parents = id->verbs;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        wrong = 0;
        alarm(20);
        FAILS(rdma_listen(id, 1), EIO);
        FAILS(rdma_get_cm_event(channel, &event), EIO);
        struct ibv_qp_init_attr init = {.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
        FAILS(rdma_create_qp(id, NULL, &init), EIO);
        EXPECT(rdma_destroy_id(id), 0);
        rdma_destroy_event_channel(channel);
        channel = rdma_create_event_channel();
        EXPECT(channel != NULL, 1);
        resolved("127.0.0.1", sizeof(struct sockaddr_in));
        id = make(channel, RDMA_PS_TCP);
        EXPECT(rdma_bind_addr(id, address("127.0.0.1", 0)), 0);
        EXPECT(id->verbs != NULL && id->verbs != parents, 1);
        EXPECT(rdma_create_qp(id, NULL, &init), 0);
        rdma_destroy_qp(id);
        EXPECT(rdma_destroy_id(id), 0);
        fflush(stdout);
        _exit(wrong);
    }
    int status = -1;
    EXPECT(waitpid(pid, &status, 0), pid);
    EXPECT(status, 0);
    EXPECT(rdma_destroy_id(id), 0);
}

int main(void)
{
    channel = rdma_create_event_channel();
    MUST(channel != NULL);
    nulls();
    wrong_states();
    bound();
    resolved("127.0.0.1", sizeof(struct sockaddr_in));
    resolved("::1", sizeof(struct sockaddr_in6));
    queue_pairs();
    shared_queues();
    synchronous();
    channels();
    waits_for_acks();
    cancelled();
    destroyed_while_waiting();
    interrupted(0);
    interrupted(SA_RESTART);
    written();
    devices();
    forked();
    rdma_destroy_event_channel(channel);
    return wrong;
}
