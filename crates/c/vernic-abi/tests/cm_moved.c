/* Queue pairs that the program gives to ids itself, by the field `qp`, and takes away again. */
#include "connections.h"

static struct ibv_qp *make(struct rdma_cm_id *of)
{
    struct ibv_cq *cq = ibv_create_cq(of->verbs, 16, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .cap = {8, 8, 1, 1, 64}, .qp_type = IBV_QPT_RC};
    struct ibv_qp *qp = ibv_create_qp(of->pd, &init);
    EXPECT(cq && qp, 1);
    return qp;
}

static void discard(struct ibv_qp *qp)
{
    struct ibv_cq *cq = qp->send_cq;
    EXPECT(ibv_destroy_qp(qp), 0);
    EXPECT(ibv_destroy_cq(cq), 0);
}

static int state(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    EXPECT(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
    return attr.qp_state;
}

static void to_init(struct rdma_cm_id *id, struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};
    int mask = 0;
    EXPECT(rdma_init_qp_attr(id, &attr, &mask), 0);
    EXPECT(ibv_modify_qp(qp, &attr, mask), 0);
}

/* A byte from one to the other. */
static void one_byte(struct ibv_qp *from, struct ibv_qp *to)
{
    struct ibv_recv_wr receive = {.wr_id = 1}, *bad_receive;
    struct ibv_send_wr send = {.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad_send;
    EXPECT(ibv_post_recv(to, &receive, &bad_receive), 0);
    EXPECT(ibv_post_send(from, &send, &bad_send), 0);
    struct ibv_wc wc;
    int got;
    while (!(got = ibv_poll_cq(from->send_cq, 1, &wc)))
        ;
    EXPECT(got == 1 && wc.status == IBV_WC_SUCCESS, 1);
    while (!(got = ibv_poll_cq(to->recv_cq, 1, &wc)))
        ;
    EXPECT(got == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == 1, 1);
}

/* The queue pair of another id answers a request, and goes its own way afterwards. `gives`: when the
   client gives its own: 0 before it asks, 1 before it is answered. */
static void moved(struct rdma_cm_id *listening, int gives)
{
    int port = ntohs(rdma_get_src_port(listening));
    struct rdma_cm_id *endpoint, *active = client("127.0.0.1", port, RDMA_PS_TCP);
    EXPECT(rdma_create_id(channel, &endpoint, NULL, RDMA_PS_TCP), 0);
    EXPECT(rdma_bind_addr(endpoint, address("127.0.0.1", 0)), 0);
    give_qp(endpoint);
    struct ibv_qp *qp = endpoint->qp, *own = make(active);

    struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7};
    param.qp_num = own->qp_num;
    if (!gives)
        active->qp = own;
    EXPECT(rdma_connect(active, &param), 0);
    if (gives)
        active->qp = own;

    struct rdma_cm_event *event = next(__LINE__, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct rdma_cm_id *passive = event->id;
    passive->qp = qp;
    endpoint->qp = NULL;
    param.qp_num = 0;
    EXPECT(rdma_accept(passive, &param), 0);
    EXPECT(state(qp), IBV_QPS_RTS);
    rdma_ack_cm_event(event);
    skip(__LINE__, RDMA_CM_EVENT_ESTABLISHED, active);
    skip(__LINE__, RDMA_CM_EVENT_ESTABLISHED, passive);
    EXPECT(state(own), IBV_QPS_RTS);
    FAILS(rdma_establish(active), EINVAL);
    one_byte(own, qp);
    /* It was no business of the other id's any more. */
    EXPECT(rdma_destroy_id(endpoint), 0);
    one_byte(qp, own);

    EXPECT(rdma_disconnect(active), 0);
    EXPECT(state(own), IBV_QPS_ERR);
    skip(__LINE__, RDMA_CM_EVENT_DISCONNECTED, passive);
    EXPECT(rdma_disconnect(passive), 0);
    skip(__LINE__, RDMA_CM_EVENT_DISCONNECTED, active);
    EXPECT(state(qp), IBV_QPS_ERR);
    rdma_destroy_qp(passive);
    EXPECT(passive->qp == NULL, 1);
    EXPECT(rdma_destroy_id(passive), 0);
    /* Destroyed, and still there: nobody looks. */
    discard(own);
    EXPECT(rdma_disconnect(active), 0);
    EXPECT(rdma_destroy_id(active), 0);
}

/* Back and forth: only who has it last does something with it. */
static void given_back(struct rdma_cm_id *listening)
{
    int port = ntohs(rdma_get_src_port(listening));
    struct rdma_cm_id *one = client("127.0.0.1", port, RDMA_PS_TCP);
    struct rdma_cm_id *other = client("127.0.0.1", port, RDMA_PS_TCP);
    struct ibv_qp *qp = make(one);
    to_init(one, qp);
    one->qp = qp;
    struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1};
    EXPECT(rdma_connect(one, &param), 0);
    struct rdma_cm_event *event = next(__LINE__, RDMA_CM_EVENT_CONNECT_REQUEST);
    /* Taken away, the refusal does nothing to it. */
    one->qp = NULL;
    struct rdma_cm_id *passive = event->id;
    EXPECT(rdma_reject(passive, NULL, 0), 0);
    rdma_ack_cm_event(event);
    EXPECT(rdma_destroy_id(passive), 0);
    event = next(__LINE__, RDMA_CM_EVENT_REJECTED);
    EXPECT(event->id == one, 1);
    rdma_ack_cm_event(event);
    EXPECT(state(qp), IBV_QPS_INIT);
    other->qp = qp;
    EXPECT(rdma_connect(other, &param), 0);
    event = next(__LINE__, RDMA_CM_EVENT_CONNECT_REQUEST);
    other->qp = NULL;
    one->qp = qp;
    rdma_destroy_qp(one);
    EXPECT(one->qp == NULL, 1);
    passive = event->id;
    EXPECT(rdma_reject(passive, NULL, 0), 0);
    rdma_ack_cm_event(event);
    EXPECT(rdma_destroy_id(passive), 0);
    event = next(__LINE__, RDMA_CM_EVENT_REJECTED);
    rdma_ack_cm_event(event);
    EXPECT(rdma_destroy_id(one), 0);
    EXPECT(rdma_destroy_id(other), 0);
}

/* One of another type is refused where it would be used. */
static void of_another_type(struct rdma_cm_id *listening)
{
    struct rdma_cm_id *id = client("127.0.0.1", ntohs(rdma_get_src_port(listening)), RDMA_PS_TCP);
    struct ibv_cq *cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .cap = {8, 8, 1, 1, 64}, .qp_type = IBV_QPT_UD};
    id->qp = ibv_create_qp(id->pd, &init);
    EXPECT(id->qp != NULL, 1);
    struct rdma_conn_param param = {.responder_resources = 1};
    FAILS(rdma_connect(id, &param), EINVAL);
    discard(id->qp);
    id->qp = NULL;
    EXPECT(rdma_destroy_id(id), 0);
}

int main(void)
{
    channel = rdma_create_event_channel();
    MUST(channel);
    struct rdma_cm_id *listening = listener("127.0.0.1", RDMA_PS_TCP);
    for (int gives = 0; gives <= 1; gives++)
        moved(listening, gives);
    given_back(listening);
    of_another_type(listening);
    EXPECT(rdma_destroy_id(listening), 0);
    rdma_destroy_event_channel(channel);
    return wrong;
}
