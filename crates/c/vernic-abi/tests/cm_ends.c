/* A program that ends without a word, or is killed: its peer learns that their connection is over. */
#include <arpa/inet.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "expect.h"

enum { PATIENCE_MS = 10000 };

static struct ibv_qp_init_attr init = {.cap = {4, 4, 1, 1, 16}, .sq_sig_all = 1};

static int connect_and_end(int from, int killed)
{
    in_port_t port;
    MUST(read(from, &port, sizeof port) == sizeof port);
    char service[8];
    snprintf(service, sizeof service, "%d", ntohs(port));
    struct rdma_addrinfo *res, hints = {.ai_port_space = RDMA_PS_TCP};
    struct rdma_cm_id *id;
    MUST(!rdma_getaddrinfo("127.0.0.1", service, &hints, &res));
    MUST(!rdma_create_ep(&id, res, NULL, &init));
    MUST(!rdma_connect(id, NULL));
    while (killed)
        pause();
    exit(0);
}

static int peer_of(int killed)
{
    int pipes[2], status;
    MUST(!pipe(pipes));
    pid_t pid = fork();
    if (pid == 0)
        return connect_and_end(pipes[0], killed);
    struct rdma_addrinfo *res, hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP};
    struct rdma_cm_id *listener, *id;
    MUST(!rdma_getaddrinfo("127.0.0.1", NULL, &hints, &res));
    MUST(!rdma_create_ep(&listener, res, NULL, &init) && !rdma_listen(listener, 1));
    in_port_t port = rdma_get_src_port(listener);
    MUST(write(pipes[1], &port, sizeof port) == sizeof port);
    MUST(!rdma_get_request(listener, &id) && !rdma_accept(id, NULL));
    if (killed)
        EXPECT(kill(pid, SIGKILL), 0);
    EXPECT(waitpid(pid, &status, 0), pid);
    EXPECT(status, killed ? SIGKILL : 0);
    struct pollfd one = {.fd = id->channel->fd, .events = POLLIN};
    EXPECT(poll(&one, 1, PATIENCE_MS), 1);
    struct rdma_cm_event *event;
    MUST(!rdma_get_cm_event(id->channel, &event));
    EXPECT(event->event, RDMA_CM_EVENT_DISCONNECTED);
    rdma_ack_cm_event(event);
    EXPECT(rdma_disconnect(id), 0);
    rdma_destroy_ep(id);
    rdma_destroy_ep(listener);
    rdma_freeaddrinfo(res);
    return 0;
}

int main(void)
{
    alarm(60); /* nothing here takes long */
    MUST(!peer_of(0));
    MUST(!peer_of(1));
    return wrong;
}
