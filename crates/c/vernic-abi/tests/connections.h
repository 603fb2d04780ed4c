/* What programs about connections share: events that have to come, both ends of a connection, bytes over it. */
#ifndef CONNECTIONS_H
#define CONNECTIONS_H

#include <arpa/inet.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdlib.h>

#include "expect.h"

enum { PATIENCE_MS = 10000, BYTES = 4096 };

static struct rdma_event_channel *channel;

static inline struct sockaddr *address(const char *host, int port)
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

/* The next event of a channel, which has to be of this kind; it is to be acknowledged. */
static inline struct rdma_cm_event *next(int line, enum rdma_cm_event_type kind)
{
    struct rdma_cm_event *event = NULL;
    struct pollfd one = {.fd = channel->fd, .events = POLLIN};
    if (poll(&one, 1, PATIENCE_MS) != 1) {
        printf("line %d: no %s\n", line, rdma_event_str(kind));
        exit(1);
    }
    if (rdma_get_cm_event(channel, &event) || event->event != kind) {
        printf("line %d: %s status %d instead of %s\n", line,
               event ? rdma_event_str(event->event) : strerror(errno), event ? event->status : 0,
               rdma_event_str(kind));
        exit(1);
    }
    return event;
}

/* The same, of which nothing else is of interest. */
static inline void skip(int line, enum rdma_cm_event_type kind, struct rdma_cm_id *id)
{
    struct rdma_cm_event *event = next(line, kind);
    if (event->id != id || event->status != 0) {
        printf("line %d: of another id, or with status %d\n", line, event->status);
        wrong = 1;
    }
    rdma_ack_cm_event(event);
}

static inline struct rdma_cm_id *listener(const char *host, enum rdma_port_space ps)
{
    struct rdma_cm_id *id;
    EXPECT(rdma_create_id(channel, &id, &channel, ps), 0);
    EXPECT(rdma_bind_addr(id, address(host, 0)), 0);
    EXPECT(rdma_listen(id, 8), 0);
    EXPECT(rdma_get_src_port(id) != 0, 1);
    return id;
}

/* A client that has found its way. */
static inline struct rdma_cm_id *client(const char *host, int port, enum rdma_port_space ps)
{
    struct rdma_cm_id *id;
    EXPECT(rdma_create_id(channel, &id, NULL, ps), 0);
    EXPECT(rdma_resolve_addr(id, NULL, address(host, port), 1000), 0);
    skip(__LINE__, RDMA_CM_EVENT_ADDR_RESOLVED, id);
    EXPECT(rdma_resolve_route(id, 1000), 0);
    skip(__LINE__, RDMA_CM_EVENT_ROUTE_RESOLVED, id);
    return id;
}

static inline void give_qp(struct rdma_cm_id *id)
{
    struct ibv_qp_init_attr init = {.cap = {8, 8, 1, 1, 64}, .sq_sig_all = 1};
    init.qp_type = id->qp_type;
    EXPECT(rdma_create_qp(id, NULL, &init), 0);
}

static inline void end(struct rdma_cm_id *id)
{
    if (id->qp)
        rdma_destroy_qp(id);
    EXPECT(rdma_destroy_id(id), 0);
}

/* Bytes over a connection in both directions, and by WRITE and READ. */
static inline void use(struct rdma_cm_id *from, struct rdma_cm_id *to)
{
    static char sent[BYTES], received[BYTES];
    struct ibv_wc wc;
    for (int n = 0; n < BYTES; n++)
        sent[n] = (char)(n * 7 + 1);
    memset(received, 0, sizeof received);
    struct ibv_mr *from_mr = ibv_reg_mr(from->pd, sent, BYTES,
                                        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    struct ibv_mr *to_mr = rdma_reg_write(to, received, BYTES);
    EXPECT(from_mr && to_mr, 1);
    EXPECT(rdma_post_recv(to, (void *)5, received, BYTES, to_mr), 0);
    EXPECT(rdma_post_send(from, (void *)6, sent, BYTES, from_mr, 0), 0);
    EXPECT(rdma_get_recv_comp(to, &wc), 1);
    EXPECT(wc.status == IBV_WC_SUCCESS && wc.wr_id == 5 && wc.byte_len == BYTES, 1);
    EXPECT(rdma_get_send_comp(from, &wc), 1);
    EXPECT(wc.status == IBV_WC_SUCCESS && wc.wr_id == 6, 1);
    EXPECT(memcmp(sent, received, BYTES), 0);
    memset(received, 0, sizeof received);
    EXPECT(rdma_post_write(from, NULL, sent, BYTES, from_mr, 0, (uintptr_t)received, to_mr->rkey), 0);
    EXPECT(rdma_get_send_comp(from, &wc), 1);
    EXPECT(wc.status, IBV_WC_SUCCESS);
    EXPECT(memcmp(sent, received, BYTES), 0);
    memset(received, 0, sizeof received);
    EXPECT(rdma_post_read(to, NULL, received, BYTES, to_mr, 0, (uintptr_t)sent, from_mr->rkey), 0);
    EXPECT(rdma_get_send_comp(to, &wc), 1);
    EXPECT(wc.status, IBV_WC_SUCCESS);
    EXPECT(memcmp(sent, received, BYTES), 0);
    EXPECT(rdma_dereg_mr(from_mr) | rdma_dereg_mr(to_mr), 0);
}

#endif
