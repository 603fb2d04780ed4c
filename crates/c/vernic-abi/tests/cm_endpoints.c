/* Endpoints: what they show, and what their queue pairs are made with. */
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdlib.h>
#include <unistd.h>

#include "expect.h"

static struct ibv_qp_init_attr init = {.cap = {4, 4, 1, 1, 16}, .sq_sig_all = 1};

/* A passive one shows the protection domain that it was given, and its requests' queue pairs are in it. */
static int domains(void)
{
    struct rdma_addrinfo *res, *to, hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP};
    struct rdma_cm_id *first, *listener, *active, *id;
    struct rdma_event_channel *channel = rdma_create_event_channel();
    char service[8];
    MUST(!rdma_getaddrinfo("127.0.0.1", NULL, &hints, &res));
    MUST(!rdma_create_ep(&first, res, NULL, NULL));
    struct ibv_pd *usual = first->pd, *own = ibv_alloc_pd(first->verbs);
    MUST(usual != NULL && own != NULL);
    MUST(!rdma_create_ep(&listener, res, own, &init));
    EXPECT(listener->pd == own, 1);
    MUST(!rdma_listen(listener, 1));

    snprintf(service, sizeof service, "%d", ntohs(rdma_get_src_port(listener)));
    hints.ai_flags = 0;
    MUST(!rdma_getaddrinfo("127.0.0.1", service, &hints, &to));
    MUST(!rdma_create_ep(&active, to, NULL, &init));
    EXPECT(active->pd == usual && active->qp->pd == usual, 1);
    MUST(!rdma_migrate_id(active, channel) && !rdma_connect(active, NULL));
    MUST(!rdma_get_request(listener, &id));
    EXPECT(id->pd == own && id->qp->pd == own, 1);

    rdma_destroy_ep(id);
    rdma_destroy_ep(active);
    rdma_destroy_ep(listener);
    rdma_destroy_ep(first);
    rdma_destroy_event_channel(channel);
    EXPECT(ibv_dealloc_pd(own), 0);
    rdma_freeaddrinfo(to);
    rdma_freeaddrinfo(res);
    return 0;
}

/* What an id has it keeps: its channel, if it is synchronous, and its completion queues. */
static int kept(void)
{
    struct rdma_addrinfo *res, hints = {.ai_port_space = RDMA_PS_TCP};
    struct rdma_cm_id *id;
    MUST(!rdma_getaddrinfo("127.0.0.1", "7", &hints, &res));
    MUST(!rdma_create_ep(&id, res, NULL, NULL));
    struct rdma_event_channel *channel = id->channel;
    FAILS(rdma_migrate_id(id, NULL), EINVAL);
    EXPECT(id->channel == channel, 1);
    struct ibv_cq *own = ibv_create_cq(id->verbs, 8, NULL, NULL, 0);
    struct ibv_cq *other = ibv_create_cq(id->verbs, 8, NULL, NULL, 0);
    MUST(own != NULL && other != NULL);
    struct ibv_qp_init_attr attr = {.send_cq = other, .recv_cq = other, .cap = {4, 4, 1, 1, 0}};
    id->send_cq = id->recv_cq = own;
    attr.qp_type = IBV_QPT_RC;
    FAILS(rdma_create_qp(id, NULL, &attr), EINVAL);
    EXPECT(id->send_cq == own && id->recv_cq == own, 1);
    attr.send_cq = NULL;
    attr.recv_cq = own;
    EXPECT(rdma_create_qp(id, NULL, &attr), 0);
    EXPECT(attr.send_cq == own && id->qp->send_cq == own && id->qp->recv_cq == own, 1);
    /* Its own go with its queue pair. */
    rdma_destroy_ep(id);
    EXPECT(ibv_destroy_cq(other), 0);
    rdma_freeaddrinfo(res);
    return 0;
}

int main(void)
{
    alarm(60); /* nothing here takes long */
    MUST(!domains());
    MUST(!kept());
    return wrong;
}
