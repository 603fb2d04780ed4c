/* An iWARP device: what it says of itself and refuses, and a connection on it. */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "expect.h"

enum { PATIENCE_MS = 10000, BYTES = 8192 };

static struct rdma_event_channel *channel;

/* NULL, and this errno. */
#define REFUSED(what, want)                                                                       \
    do {                                                                                          \
        errno = 0;                                                                                \
        EXPECT((what) == NULL, 1);                                                                \
        EXPECT(errno, want);                                                                      \
    } while (0)

static void device(void)
{
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    EXPECT(count, 1);
    EXPECT(strncmp(ibv_get_device_name(list[0]), "viw", 3), 0);
    EXPECT(list[0]->node_type, IBV_NODE_RNIC);
    EXPECT(list[0]->transport_type, IBV_TRANSPORT_IWARP);
    struct ibv_context *context = ibv_open_device(list[0]);
    ibv_free_device_list(list);

    struct ibv_device_attr attr;
    EXPECT(ibv_query_device(context, &attr), 0);
    EXPECT(attr.atomic_cap, IBV_ATOMIC_NONE);
    EXPECT(attr.max_ah | attr.max_mcast_grp | (attr.device_cap_flags & IBV_DEVICE_XRC), 0);
    struct ibv_port_attr port;
    EXPECT(ibv_query_port(context, 1, &port), 0);
    EXPECT(port.link_layer, IBV_LINK_LAYER_ETHERNET);
    EXPECT(port.gid_tbl_len, 1);
    EXPECT(port.port_cap_flags & IBV_PORT_IP_BASED_GIDS, 0);
    union ibv_gid gid;
    EXPECT(ibv_query_gid(context, 1, 0, &gid), 0);
    /* The MAC, or what stands for it, and zeros. */
    EXPECT(gid.raw[0] | gid.raw[5], gid.raw[5]);
    EXPECT(gid.raw[5] != 0 && !gid.global.interface_id, 1);
    FAILS(ibv_query_gid(context, 1, 1, &gid), EINVAL);

    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = {4, 4, 1, 1, 0}};
    for (int type = IBV_QPT_UC; type <= IBV_QPT_UD; type++) {
        init.qp_type = type;
        REFUSED(ibv_create_qp(pd, &init), EOPNOTSUPP);
    }
    struct ibv_ah_attr ah = {.is_global = 1, .port_num = 1};
    REFUSED(ibv_create_ah(pd, &ah), EOPNOTSUPP);
    struct ibv_xrcd_init_attr xrcd = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
                                      .fd = -1, .oflags = 0100};
    REFUSED(ibv_open_xrcd(context, &xrcd), EOPNOTSUPP);

    /* Connections alone bring a queue pair to RTS. */
    init.qp_type = IBV_QPT_RC;
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    EXPECT(qp != NULL, 1);
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    EXPECT(ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
    to.qp_state = IBV_QPS_RTS;
    EXPECT(ibv_modify_qp(qp, &to, IBV_QP_STATE), EINVAL);
    EXPECT(qp->state, IBV_QPS_INIT);
    EXPECT(ibv_attach_mcast(qp, &gid, 0) != 0, 1);
    EXPECT(ibv_destroy_qp(qp) | ibv_destroy_cq(cq) | ibv_dealloc_pd(pd), 0);
    EXPECT(ibv_close_device(context), 0);
}

static struct rdma_cm_event *next(int line, enum rdma_cm_event_type kind)
{
    struct rdma_cm_event *event = NULL;
    struct pollfd one = {.fd = channel->fd, .events = POLLIN};
    if (poll(&one, 1, PATIENCE_MS) != 1 || rdma_get_cm_event(channel, &event) ||
        event->event != kind) {
        printf("line %d: %s instead of %s\n", line, event ? rdma_event_str(event->event) : "none",
               rdma_event_str(kind));
        exit(1);
    }
    return event;
}

static void skip(int line, enum rdma_cm_event_type kind, struct rdma_cm_id *id)
{
    struct rdma_cm_event *event = next(line, kind);
    if (event->id != id || event->status != 0) {
        printf("line %d: of another id, or with status %d\n", line, event->status);
        wrong = 1;
    }
    rdma_ack_cm_event(event);
}

static struct ibv_wc complete(int line, struct ibv_cq *cq)
{
    struct ibv_wc wc = {.status = -1};
    for (int turns = 0; turns < PATIENCE_MS * 100; turns++) {
        if (ibv_poll_cq(cq, 1, &wc))
            return wc;
        if (turns > 1000)
            usleep(10);
    }
    printf("line %d: nothing completes\n", line);
    exit(1);
}

static void give_qp(struct rdma_cm_id *id, struct ibv_srq *srq)
{
    struct ibv_qp_init_attr init = {.cap = {8, 8, 4, 1, 64}, .sq_sig_all = 1, .srq = srq,
                                    .qp_type = IBV_QPT_RC};
    EXPECT(rdma_create_qp(id, NULL, &init), 0);
}

/* SEND into a shared queue, WRITE, READ into several pieces, a window that is invalidated. */
static void use(struct rdma_cm_id *from, struct rdma_cm_id *to, struct ibv_srq *srq)
{
    static char sent[BYTES], received[BYTES];
    for (int n = 0; n < BYTES; n++)
        sent[n] = (char)(n * 7 + 1);
    int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
              IBV_ACCESS_MW_BIND;
    struct ibv_mr *from_mr = ibv_reg_mr(from->pd, sent, BYTES, all);
    struct ibv_mr *to_mr = ibv_reg_mr(to->pd, received, BYTES, all);
    struct ibv_sge at_from = {(uintptr_t)sent, BYTES, from_mr->lkey};
    struct ibv_sge at_to = {(uintptr_t)received, BYTES, to_mr->lkey};
    struct ibv_recv_wr recv = {.wr_id = 5, .sg_list = &at_to, .num_sge = 1}, *bad_recv;
    EXPECT(ibv_post_srq_recv(srq, &recv, &bad_recv), 0);
    struct ibv_send_wr send = {.wr_id = 6, .sg_list = &at_from, .num_sge = 1, .opcode = IBV_WR_SEND};
    struct ibv_send_wr *bad;
    EXPECT(ibv_post_send(from->qp, &send, &bad), 0);
    struct ibv_wc wc = complete(__LINE__, to->recv_cq);
    EXPECT(wc.status == IBV_WC_SUCCESS && wc.wr_id == 5 && wc.byte_len == BYTES, 1);
    EXPECT(wc.qp_num, to->qp->qp_num);
    EXPECT(complete(__LINE__, from->send_cq).status, IBV_WC_SUCCESS);
    EXPECT(memcmp(sent, received, BYTES), 0);

    memset(received, 0, BYTES);
    struct ibv_sge pieces[3] = {{(uintptr_t)received, 1000, to_mr->lkey},
                                {(uintptr_t)received + 1000, 24, to_mr->lkey},
                                {(uintptr_t)received + 1024, BYTES - 1024, to_mr->lkey}};
    struct ibv_send_wr read = {.sg_list = pieces, .num_sge = 3, .opcode = IBV_WR_RDMA_READ,
                               .wr.rdma = {(uintptr_t)sent, from_mr->rkey}};
    EXPECT(ibv_post_send(to->qp, &read, &bad), 0);
    EXPECT(complete(__LINE__, to->send_cq).status, IBV_WC_SUCCESS);
    EXPECT(memcmp(sent, received, BYTES), 0);

    /* What iWARP has no message for. */
    send.opcode = IBV_WR_SEND_WITH_IMM;
    EXPECT(ibv_post_send(from->qp, &send, &bad) != 0, 1);
    send.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    send.wr.rdma.remote_addr = (uintptr_t)received;
    send.wr.rdma.rkey = to_mr->rkey;
    EXPECT(ibv_post_send(from->qp, &send, &bad) != 0, 1);

    memset(received, 0, BYTES);
    struct ibv_mw *window = ibv_alloc_mw(to->pd, IBV_MW_TYPE_2);
    EXPECT(window != NULL, 1);
    uint32_t key = ibv_inc_rkey(window->rkey);
    struct ibv_send_wr bind = {.opcode = IBV_WR_BIND_MW,
                               .bind_mw = {window, key, {to_mr, (uintptr_t)received, BYTES,
                                                         IBV_ACCESS_REMOTE_WRITE}}};
    EXPECT(ibv_post_send(to->qp, &bind, &bad), 0);
    EXPECT(complete(__LINE__, to->send_cq).status, IBV_WC_SUCCESS);
    send.opcode = IBV_WR_RDMA_WRITE;
    send.wr.rdma.rkey = key;
    EXPECT(ibv_post_send(from->qp, &send, &bad), 0);
    EXPECT(complete(__LINE__, from->send_cq).status, IBV_WC_SUCCESS);
    EXPECT(ibv_post_srq_recv(srq, &recv, &bad_recv), 0);
    struct ibv_send_wr last = {.opcode = IBV_WR_SEND_WITH_INV, .invalidate_rkey = key};
    EXPECT(ibv_post_send(from->qp, &last, &bad), 0);
    EXPECT(complete(__LINE__, from->send_cq).status, IBV_WC_SUCCESS);
    wc = complete(__LINE__, to->recv_cq);
    EXPECT(wc.status == IBV_WC_SUCCESS && wc.wc_flags == IBV_WC_WITH_INV, 1);
    EXPECT(wc.invalidated_rkey, key);
    EXPECT(memcmp(sent, received, BYTES), 0);
    EXPECT(ibv_dealloc_mw(window) | ibv_dereg_mr(from_mr) | ibv_dereg_mr(to_mr), 0);
}

static void connection(void)
{
    struct sockaddr_in home = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct rdma_cm_id *listening, *active, *passive;
    EXPECT(rdma_create_id(channel, &listening, &channel, RDMA_PS_TCP), 0);
    EXPECT(rdma_bind_addr(listening, (struct sockaddr *)&home), 0);
    EXPECT(rdma_listen(listening, 8), 0);
    home.sin_port = rdma_get_src_port(listening);
    EXPECT(rdma_create_id(channel, &active, NULL, RDMA_PS_TCP), 0);
    EXPECT(rdma_resolve_addr(active, NULL, (struct sockaddr *)&home, 1000), 0);
    skip(__LINE__, RDMA_CM_EVENT_ADDR_RESOLVED, active);
    EXPECT(rdma_resolve_route(active, 1000), 0);
    skip(__LINE__, RDMA_CM_EVENT_ROUTE_RESOLVED, active);
    EXPECT(active->route.num_paths, 0);
    EXPECT(active->verbs->device->transport_type, IBV_TRANSPORT_IWARP);
    give_qp(active, NULL);
    EXPECT(active->qp->state, IBV_QPS_INIT);
    struct rdma_conn_param param = {.private_data = "hello", .private_data_len = 5,
                                    .responder_resources = 3, .initiator_depth = 2};
    EXPECT(rdma_connect(active, &param), 0);

    struct rdma_cm_event *event = next(__LINE__, RDMA_CM_EVENT_CONNECT_REQUEST);
    passive = event->id;
    struct rdma_conn_param *conn = &event->param.conn;
    EXPECT(event->listen_id == listening && passive->context == &channel, 1);
    EXPECT(passive->verbs == active->verbs && passive->qp_type == IBV_QPT_RC, 1);
    EXPECT(conn->private_data_len, 5);
    EXPECT(memcmp(conn->private_data, "hello", 5), 0);
    EXPECT(conn->responder_resources, 2);
    EXPECT(conn->initiator_depth, 3);
    struct ibv_srq_init_attr queue = {.attr = {.max_wr = 8, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(passive->pd, &queue);
    give_qp(passive, srq);
    EXPECT(rdma_accept(passive, NULL), 0);
    EXPECT(passive->qp->state, IBV_QPS_RTS);
    EXPECT(rdma_ack_cm_event(event), 0);
    skip(__LINE__, RDMA_CM_EVENT_ESTABLISHED, active);
    EXPECT(active->qp->state, IBV_QPS_RTS);
    skip(__LINE__, RDMA_CM_EVENT_ESTABLISHED, passive);
    use(active, passive, srq);

    /* In a child of fork the connection is the parent's, which goes on with it. */
    pid_t child = fork();
    if (!child)
        _exit(rdma_disconnect(active) == -1 ? 0 : 1);
    int status;
    EXPECT(waitpid(child, &status, 0) == child && status == 0, 1);
    use(active, passive, srq);

    struct ibv_recv_wr recv = {.wr_id = 9}, *bad;
    EXPECT(ibv_post_recv(active->qp, &recv, &bad), 0);
    EXPECT(rdma_disconnect(passive), 0);
    event = next(__LINE__, RDMA_CM_EVENT_DISCONNECTED);
    struct rdma_cm_id *first = event->id;
    EXPECT(rdma_ack_cm_event(event), 0);
    skip(__LINE__, RDMA_CM_EVENT_DISCONNECTED, first == active ? passive : active);
    struct ibv_wc wc = complete(__LINE__, active->recv_cq);
    EXPECT(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 9, 1);
    EXPECT(rdma_disconnect(active), 0);
    rdma_destroy_qp(active);
    rdma_destroy_qp(passive);
    EXPECT(ibv_destroy_srq(srq), 0);
    EXPECT(rdma_destroy_id(active) | rdma_destroy_id(passive) | rdma_destroy_id(listening), 0);
    struct pollfd one = {.fd = channel->fd, .events = POLLIN};
    EXPECT(poll(&one, 1, 0), 0);
}

int main(void)
{
    device();
    channel = rdma_create_event_channel();
    MUST(channel);
    connection();
    struct rdma_cm_id *id;
    struct sockaddr_in home = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    EXPECT(rdma_create_id(channel, &id, NULL, RDMA_PS_UDP), 0);
    FAILS(rdma_bind_addr(id, (struct sockaddr *)&home), EOPNOTSUPP);
    EXPECT(rdma_destroy_id(id), 0);
    rdma_destroy_event_channel(channel);
    return wrong;
}
