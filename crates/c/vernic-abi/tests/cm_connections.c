/* Connections: what both sides see of one, from request to end, in one process and in two. */
#include <fcntl.h>
#include <infiniband/ib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "connections.h"

/* A whole life, with all that parameters say. */
static void whole_life(const char *host)
{
    struct rdma_cm_id *listening = listener(host, RDMA_PS_TCP);
    int port = ntohs(rdma_get_src_port(listening));
    struct rdma_cm_id *active = client(host, port, RDMA_PS_TCP);
    char asks[56], answers[196];
    memset(asks, 'a', sizeof asks);
    memset(answers, 'b', sizeof answers);
    struct rdma_conn_param param = {.private_data = asks, .private_data_len = sizeof asks,
                                    .responder_resources = 3, .initiator_depth = 2,
                                    .retry_count = 6, .rnr_retry_count = 5};
    give_qp(active);
    EXPECT(rdma_connect(active, &param), 0);

    struct rdma_cm_event *event = next(__LINE__, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct rdma_cm_id *passive = event->id;
    struct rdma_conn_param *conn = &event->param.conn;
    EXPECT(event->listen_id == listening && passive != listening && event->status == 0, 1);
    EXPECT(passive->context == &channel && passive->channel == channel, 1);
    EXPECT(passive->verbs == active->verbs && passive->qp_type == IBV_QPT_RC, 1);
    EXPECT(passive->pd != NULL && passive->port_num == 1 && passive->route.num_paths == 1, 1);
    EXPECT(conn->private_data_len, sizeof asks);
    EXPECT(memcmp(conn->private_data, asks, sizeof asks), 0);
    /* The peer's depth is what this side has to keep, and the other way round. */
    EXPECT(conn->responder_resources, 2);
    EXPECT(conn->initiator_depth, 3);
    EXPECT(conn->retry_count, 6);
    EXPECT(conn->rnr_retry_count, 5);
    EXPECT(conn->qp_num, active->qp->qp_num);
    EXPECT(rdma_get_src_port(passive), htons(port));
    EXPECT(rdma_get_dst_port(passive), rdma_get_src_port(active));
    EXPECT(memcmp(&passive->route.addr.addr.ibaddr.dgid, &active->route.addr.addr.ibaddr.sgid, 16), 0);
    give_qp(passive);
    param = (struct rdma_conn_param){.private_data = answers, .private_data_len = sizeof answers,
                                     .responder_resources = 2, .initiator_depth = 3,
                                     .rnr_retry_count = 7};
    EXPECT(rdma_accept(passive, &param), 0);
    EXPECT(passive->qp->state, IBV_QPS_RTS);
    EXPECT(rdma_ack_cm_event(event), 0);

    event = next(__LINE__, RDMA_CM_EVENT_ESTABLISHED);
    EXPECT(event->id == active && event->param.conn.private_data_len == sizeof answers, 1);
    EXPECT(memcmp(event->param.conn.private_data, answers, sizeof answers), 0);
    EXPECT(event->param.conn.qp_num, passive->qp->qp_num);
    EXPECT(active->qp->state, IBV_QPS_RTS);
    EXPECT(rdma_ack_cm_event(event), 0);
    skip(__LINE__, RDMA_CM_EVENT_ESTABLISHED, passive);
    FAILS(rdma_connect(active, &param), EINVAL);
    use(active, passive);
    use(passive, active);

    EXPECT(rdma_disconnect(active), 0);
    EXPECT(active->qp->state, IBV_QPS_ERR);
    skip(__LINE__, RDMA_CM_EVENT_DISCONNECTED, passive);
    EXPECT(rdma_disconnect(passive), 0);
    EXPECT(passive->qp->state, IBV_QPS_ERR);
    skip(__LINE__, RDMA_CM_EVENT_DISCONNECTED, active);
    end(active);
    end(passive);
    end(listening);
}

/* A listener on every address, of both IP versions. */
static void wildcard(void)
{
    struct rdma_cm_id *listening = listener("::", RDMA_PS_TCP);
    int port = ntohs(rdma_get_src_port(listening));
    const char *hosts[] = {"127.0.0.1", "::1"};
    for (int n = 0; n < 2; n++) {
        struct rdma_cm_id *active = client(hosts[n], port, RDMA_PS_TCP);
        give_qp(active);
        EXPECT(rdma_connect(active, NULL), 0);
        struct rdma_cm_event *event = next(__LINE__, RDMA_CM_EVENT_CONNECT_REQUEST);
        struct rdma_cm_id *passive = event->id;
        EXPECT(passive->verbs == active->verbs, 1);
        EXPECT(rdma_get_local_addr(passive)->sa_family, n ? AF_INET6 : AF_INET);
        give_qp(passive);
        EXPECT(rdma_accept(passive, NULL), 0);
        EXPECT(rdma_ack_cm_event(event), 0);
        skip(__LINE__, RDMA_CM_EVENT_ESTABLISHED, active);
        skip(__LINE__, RDMA_CM_EVENT_ESTABLISHED, passive);
        use(active, passive);
        /* Without a word. */
        end(active);
        skip(__LINE__, RDMA_CM_EVENT_DISCONNECTED, passive);
        end(passive);
    }
    end(listening);
}

/* Refusals: by nobody, by the program, for what is wrong. */
static void refused(void)
{
    struct rdma_cm_id *listening = listener("127.0.0.1", RDMA_PS_TCP);
    int port = ntohs(rdma_get_src_port(listening));
    char long_data[200] = "x", why[148];
    memset(why, 'w', sizeof why);
    struct rdma_cm_id *active = client("127.0.0.1", port, RDMA_PS_TCP);
    give_qp(active);
    struct rdma_conn_param param = {.private_data = long_data, .private_data_len = 57};
    FAILS(rdma_connect(active, &param), EINVAL);
    EXPECT(rdma_connect(active, NULL), 0);
    struct rdma_cm_event *event = next(__LINE__, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct rdma_cm_id *passive = event->id;
    FAILS(rdma_accept(passive, NULL), EINVAL);
    param.private_data_len = 197;
    give_qp(passive);
    FAILS(rdma_accept(passive, &param), EINVAL);
    FAILS(rdma_reject(passive, long_data, 149), EINVAL);
    EXPECT(rdma_reject(passive, why, sizeof why), 0);
    EXPECT(rdma_ack_cm_event(event), 0);
    event = next(__LINE__, RDMA_CM_EVENT_REJECTED);
    EXPECT(event->id == active, 1);
    EXPECT(event->status, 28); /* the consumer's own decision */
    EXPECT(event->param.conn.private_data_len, sizeof why);
    EXPECT(memcmp(event->param.conn.private_data, why, sizeof why), 0);
    EXPECT(rdma_ack_cm_event(event), 0);
    EXPECT(active->qp->state, IBV_QPS_ERR);
    end(passive);
    end(active);
    /* A request whose id is destroyed is refused; so is one that nobody takes, or for its option. */
    for (int taken = 0; taken < 3; taken++) {
        active = client("127.0.0.1", port, RDMA_PS_TCP);
        give_qp(active);
        EXPECT(rdma_connect(active, NULL), 0);
        if (taken) {
            event = next(__LINE__, RDMA_CM_EVENT_CONNECT_REQUEST);
            passive = event->id;
            if (taken == 2)
                EXPECT(rdma_reject_ece(passive, why, 4), 0);
            EXPECT(rdma_destroy_id(passive), 0);
            EXPECT(rdma_ack_cm_event(event), 0);
        } else {
            struct pollfd one = {.fd = channel->fd, .events = POLLIN};
            EXPECT(poll(&one, 1, PATIENCE_MS), 1);
            end(listening);
            listening = listener("127.0.0.1", RDMA_PS_TCP);
            port = ntohs(rdma_get_src_port(listening));
        }
        event = next(__LINE__, RDMA_CM_EVENT_REJECTED);
        EXPECT(event->id == active && event->status != 0, 1);
        EXPECT(event->status == 35, taken == 2); /* vendor option not supported */
        EXPECT(rdma_ack_cm_event(event), 0);
        end(active);
    }
    end(listening);
    /* Nobody listens. */
    active = client("127.0.0.1", port, RDMA_PS_TCP);
    give_qp(active);
    EXPECT(rdma_connect(active, NULL), 0);
    event = next(__LINE__, RDMA_CM_EVENT_REJECTED);
    EXPECT(event->id == active, 1);
    EXPECT(event->status, 8); /* no such service */
    EXPECT(rdma_ack_cm_event(event), 0);
    end(active);
}

/* Queue pairs of the program's own, which it brings up with the attributes of the ids. */
static void bring(struct rdma_cm_id *id, struct ibv_qp *qp, enum ibv_qp_state state)
{
    struct ibv_qp_attr attr = {.qp_state = state};
    int mask;
    EXPECT(rdma_init_qp_attr(id, &attr, &mask), 0);
    EXPECT(attr.qp_state, state);
    EXPECT(ibv_modify_qp(qp, &attr, mask), 0);
}

static struct ibv_qp *own_qp(struct rdma_cm_id *id, struct ibv_cq *cq)
{
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = {4, 4, 1, 1, 0}};
    init.qp_type = IBV_QPT_RC;
    struct ibv_qp *qp = ibv_create_qp(id->pd, &init);
    bring(id, qp, IBV_QPS_INIT);
    return qp;
}

static void external(void)
{
    struct rdma_cm_id *listening = listener("127.0.0.1", RDMA_PS_TCP);
    int port = ntohs(rdma_get_src_port(listening));
    struct rdma_cm_id *active = client("127.0.0.1", port, RDMA_PS_TCP);
    struct ibv_cq *cq = ibv_create_cq(active->verbs, 16, NULL, NULL, 0);
    struct ibv_qp *qp = own_qp(active, cq);
    FAILS(rdma_connect(active, NULL), EINVAL);
    struct rdma_conn_param param = {.qp_num = qp->qp_num, .responder_resources = 1,
                                    .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7};
    EXPECT(rdma_connect(active, &param), 0);
    struct rdma_cm_event *event = next(__LINE__, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct rdma_cm_id *passive = event->id;
    EXPECT(event->param.conn.qp_num, qp->qp_num);
    struct ibv_qp *second = own_qp(passive, cq);
    bring(passive, second, IBV_QPS_RTR);
    bring(passive, second, IBV_QPS_RTS);
    param.qp_num = second->qp_num;
    EXPECT(rdma_accept(passive, &param), 0);
    EXPECT(rdma_ack_cm_event(event), 0);
    event = next(__LINE__, RDMA_CM_EVENT_CONNECT_RESPONSE);
    EXPECT(event->id == active && event->param.conn.qp_num == second->qp_num, 1);
    EXPECT(rdma_ack_cm_event(event), 0);
    bring(active, qp, IBV_QPS_RTR);
    bring(active, qp, IBV_QPS_RTS);
    EXPECT(rdma_establish(active), 0);
    skip(__LINE__, RDMA_CM_EVENT_ESTABLISHED, passive);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    EXPECT(ibv_query_qp(qp, &attr, IBV_QP_DEST_QPN, &init), 0);
    EXPECT(attr.dest_qp_num, second->qp_num);
    EXPECT(rdma_disconnect(active), 0);
    skip(__LINE__, RDMA_CM_EVENT_DISCONNECTED, passive);
    EXPECT(rdma_disconnect(passive), 0);
    skip(__LINE__, RDMA_CM_EVENT_DISCONNECTED, active);
    EXPECT(ibv_destroy_qp(qp) | ibv_destroy_qp(second), 0);
    EXPECT(ibv_destroy_cq(cq), 0);
    end(active);
    end(passive);
    end(listening);
}

/* Datagrams: connecting asks for the queue pair of a service. */
static void datagrams(const char *host)
{
    struct rdma_cm_id *listening = listener(host, RDMA_PS_UDP);
    int port = ntohs(rdma_get_src_port(listening));
    struct rdma_cm_id *active = client(host, port, RDMA_PS_UDP);
    struct rdma_conn_param param = {.private_data = "who are you", .private_data_len = 12};
    give_qp(active);
    EXPECT(rdma_connect(active, &param), 0);
    struct rdma_cm_event *event = next(__LINE__, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct rdma_cm_id *passive = event->id;
    EXPECT(passive->qp_type, IBV_QPT_UD);
    EXPECT(event->param.ud.private_data_len, 180);
    EXPECT(strcmp(event->param.ud.private_data, "who are you"), 0);
    give_qp(passive);
    param = (struct rdma_conn_param){.private_data = "me", .private_data_len = 3};
    param.qp_num = passive->qp->qp_num;
    EXPECT(rdma_accept(passive, &param), 0);
    EXPECT(rdma_ack_cm_event(event), 0);
    event = next(__LINE__, RDMA_CM_EVENT_ESTABLISHED);
    struct rdma_ud_param *ud = &event->param.ud;
    EXPECT(event->id == active && ud->qp_num == passive->qp->qp_num, 1);
    EXPECT(ud->qkey, RDMA_UDP_QKEY);
    EXPECT(ud->private_data_len, 136);
    EXPECT(strcmp(ud->private_data, "me"), 0);
    EXPECT(ud->ah_attr.is_global && ud->ah_attr.port_num == 1, 1);

    static char sent[64] = "a datagram", received[40 + 64];
    struct ibv_ah *ah = ibv_create_ah(active->pd, &ud->ah_attr);
    struct ibv_mr *sent_mr = rdma_reg_msgs(active, sent, sizeof sent);
    struct ibv_mr *received_mr = rdma_reg_msgs(passive, received, sizeof received);
    struct ibv_wc wc;
    EXPECT(rdma_post_recv(passive, NULL, received, sizeof received, received_mr), 0);
    EXPECT(rdma_post_ud_send(active, NULL, sent, sizeof sent, sent_mr, 0, ah, ud->qp_num), 0);
    EXPECT(rdma_get_send_comp(active, &wc), 1);
    EXPECT(wc.status, IBV_WC_SUCCESS);
    EXPECT(rdma_get_recv_comp(passive, &wc), 1);
    EXPECT(wc.status == IBV_WC_SUCCESS && wc.src_qp == active->qp->qp_num, 1);
    EXPECT(memcmp(sent, received + 40, sizeof sent), 0);
    EXPECT(rdma_ack_cm_event(event), 0);
    EXPECT(ibv_destroy_ah(ah), 0);
    EXPECT(rdma_dereg_mr(sent_mr) | rdma_dereg_mr(received_mr), 0);
    end(passive);
    end(active);
    /* Refused, and nobody there. */
    for (int listens = 1; listens >= 0; listens--) {
        active = client(host, port, RDMA_PS_UDP);
        give_qp(active);
        EXPECT(rdma_connect(active, NULL), 0);
        if (listens) {
            event = next(__LINE__, RDMA_CM_EVENT_CONNECT_REQUEST);
            passive = event->id;
            EXPECT(rdma_reject(passive, "no", 3), 0);
            EXPECT(rdma_ack_cm_event(event), 0);
            end(passive);
        }
        event = next(__LINE__, RDMA_CM_EVENT_UNREACHABLE);
        EXPECT(event->id == active && event->status != 0, 1);
        EXPECT(rdma_ack_cm_event(event), 0);
        end(active);
        if (listens)
            end(listening);
    }
}

/* Two processes, each call of which waits. */
static int serve(int tell)
{
    struct rdma_addrinfo *res, hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP};
    struct ibv_qp_init_attr init = {.cap = {4, 4, 1, 1, 16}, .sq_sig_all = 1};
    struct rdma_cm_id *listening, *id;
    char byte = 0;
    struct ibv_wc wc;
    MUST(!rdma_getaddrinfo("127.0.0.1", NULL, &hints, &res));
    MUST(!rdma_create_ep(&listening, res, NULL, &init));
    MUST(!rdma_listen(listening, 4));
    uint16_t port = rdma_get_src_port(listening);
    MUST(write(tell, &port, sizeof port) == sizeof port);
    MUST(!rdma_get_request(listening, &id));
    EXPECT(id->event != NULL && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST, 1);
    EXPECT(id->qp != NULL && id->channel != listening->channel, 1);
    struct ibv_mr *mr = rdma_reg_msgs(id, &byte, 1);
    MUST(mr && !rdma_post_recv(id, NULL, &byte, 1, mr));
    MUST(!rdma_accept(id, NULL));
    EXPECT(id->event != NULL && id->event->event == RDMA_CM_EVENT_ESTABLISHED, 1);
    MUST(rdma_get_recv_comp(id, &wc) == 1);
    EXPECT(wc.status == IBV_WC_SUCCESS && byte == 'x', 1);
    MUST(!rdma_post_send(id, NULL, &byte, 1, mr, 0));
    MUST(rdma_get_send_comp(id, &wc) == 1);
    EXPECT(rdma_disconnect(id), 0);
    EXPECT(rdma_dereg_mr(mr), 0);
    rdma_destroy_ep(id);
    /* The second is refused. */
    MUST(!rdma_get_request(listening, &id));
    EXPECT(rdma_reject(id, NULL, 0), 0);
    rdma_destroy_ep(id);
    rdma_destroy_ep(listening);
    rdma_freeaddrinfo(res);
    return wrong;
}

static int synchronous(void)
{
    int pipes[2], status;
    uint16_t port;
    MUST(!pipe(pipes));
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(30);
        status = serve(pipes[1]);
        fflush(stdout);
        _exit(status);
    }
    MUST(read(pipes[0], &port, sizeof port) == sizeof port);
    char service[8], byte = 'x';
    snprintf(service, sizeof service, "%d", ntohs(port));
    struct rdma_addrinfo *res, hints = {.ai_port_space = RDMA_PS_TCP};
    struct ibv_qp_init_attr init = {.cap = {4, 4, 1, 1, 16}, .sq_sig_all = 1};
    struct rdma_cm_id *id;
    struct ibv_wc wc;
    MUST(!rdma_getaddrinfo("127.0.0.1", service, &hints, &res));
    for (int n = 0; n < 2; n++) {
        init.send_cq = init.recv_cq = NULL;
        MUST(!rdma_create_ep(&id, res, NULL, &init));
        if (n == 1) {
            FAILS(rdma_connect(id, NULL), ECONNREFUSED);
            EXPECT(id->event != NULL && id->event->event == RDMA_CM_EVENT_REJECTED, 1);
            rdma_destroy_ep(id);
            break;
        }
        struct ibv_mr *mr = rdma_reg_msgs(id, &byte, 1);
        MUST(mr && !rdma_post_recv(id, NULL, &byte, 1, mr));
        MUST(!rdma_connect(id, NULL));
        MUST(!rdma_post_send(id, NULL, &byte, 1, mr, 0));
        MUST(rdma_get_send_comp(id, &wc) == 1);
        MUST(rdma_get_recv_comp(id, &wc) == 1);
        EXPECT(wc.status, IBV_WC_SUCCESS);
        EXPECT(rdma_disconnect(id), 0);
        EXPECT(rdma_dereg_mr(mr), 0);
        rdma_destroy_ep(id);
    }
    rdma_freeaddrinfo(res);
    EXPECT(waitpid(pid, &status, 0), pid);
    EXPECT(status, 0);
    return 0;
}

/* Groups: joining tells where to send, and receives. */
static void groups(const char *host, const char *group)
{
    struct rdma_cm_id *id;
    struct sockaddr_storage there = {0};
    int context, bytes = strchr(group, ':') ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    memcpy(&there, address(group, 0), bytes);
    EXPECT(rdma_create_id(channel, &id, NULL, RDMA_PS_UDP), 0);
    EXPECT(rdma_bind_addr(id, address(host, 0)), 0);
    give_qp(id);
    EXPECT(rdma_join_multicast(id, (struct sockaddr *)&there, &context), 0);
    struct rdma_cm_event *event = next(__LINE__, RDMA_CM_EVENT_MULTICAST_JOIN);
    struct rdma_ud_param *ud = &event->param.ud;
    EXPECT(event->id == id && ud->private_data == &context && ud->private_data_len == 0, 1);
    EXPECT(ud->qp_num, 0xFFFFFF);
    EXPECT(ud->qkey, RDMA_UDP_QKEY);
    static char sent[32] = "to all", received[40 + 32];
    struct ibv_ah *ah = ibv_create_ah(id->pd, &ud->ah_attr);
    struct ibv_mr *sent_mr = rdma_reg_msgs(id, sent, sizeof sent);
    struct ibv_mr *received_mr = rdma_reg_msgs(id, received, sizeof received);
    struct ibv_wc wc;
    EXPECT(rdma_post_recv(id, NULL, received, sizeof received, received_mr), 0);
    EXPECT(rdma_post_ud_send(id, NULL, sent, sizeof sent, sent_mr, 0, ah, ud->qp_num), 0);
    EXPECT(rdma_get_send_comp(id, &wc), 1);
    EXPECT(rdma_get_recv_comp(id, &wc), 1);
    EXPECT(memcmp(sent, received + 40, sizeof sent), 0);
    FAILS(rdma_join_multicast(id, (struct sockaddr *)&there, NULL), EADDRINUSE);
    EXPECT(rdma_ack_cm_event(event), 0);
    EXPECT(rdma_leave_multicast(id, (struct sockaddr *)&there), 0);
    FAILS(rdma_leave_multicast(id, (struct sockaddr *)&there), EADDRNOTAVAIL);
    /* To send alone. */
    struct rdma_cm_join_mc_attr_ex attr = {.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS};
    attr.addr = (struct sockaddr *)&there;
    attr.comp_mask |= RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
    attr.join_flags = 77;
    FAILS(rdma_join_multicast_ex(id, &attr, NULL), EINVAL);
    attr.join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
    EXPECT(rdma_join_multicast_ex(id, &attr, &context), 0);
    skip(__LINE__, RDMA_CM_EVENT_MULTICAST_JOIN, id);
    EXPECT(ibv_destroy_ah(ah), 0);
    EXPECT(rdma_dereg_mr(sent_mr) | rdma_dereg_mr(received_mr), 0);
    end(id);
}

int main(void)
{
    alarm(120); /* nothing here takes long */
    if (synchronous() != 0)
        return 1;
    channel = rdma_create_event_channel();
    MUST(channel != NULL);
    whole_life("127.0.0.1");
    whole_life("::1");
    wildcard();
    refused();
    external();
    datagrams("127.0.0.1");
    datagrams("::1");
    groups("127.0.0.1", "239.1.2.3");
    rdma_destroy_event_channel(channel);
    return wrong;
}
