/* A process says something about a connection and is gone in the same moment, by `_exit`, as if it
 * had been killed: what it said has to arrive, with its private data. `last_words ROUNDS MESSAGE...`;
 * each round has two new processes. */
#include <arpa/inet.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* After which a process that waits for what was lost is ended. */
enum { PATIENCE_S = 60 };

static const char *said;
static char words[] = "these were my last words";

static void must(int ok, const char *what)
{
    if (ok)
        return;
    printf("%s: %s: %s\n", said, what, strerror(errno));
    fflush(stdout);
    _exit(1);
}

static struct rdma_cm_event *next(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
    struct rdma_cm_event *event;
    must(!rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
    if (event->event != type) {
        printf("%s: %s (%d) instead of %s\n", said, rdma_event_str(event->event), event->status,
               rdma_event_str(type));
        fflush(stdout);
        _exit(1);
    }
    return event;
}

static void must_have_words(struct rdma_cm_event *event)
{
    const void *data = event->param.conn.private_data;
    must(data && event->param.conn.private_data_len >= sizeof words &&
             !memcmp(data, words, sizeof words), "private data");
}

static struct rdma_conn_param with_words(void)
{
    return (struct rdma_conn_param){.private_data = words, .private_data_len = sizeof words,
                                    .retry_count = 7, .rnr_retry_count = 7};
}

static void add_qp(struct rdma_cm_id *id)
{
    struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
    must(!rdma_create_qp(id, NULL, &attr), "rdma_create_qp");
}

static struct sockaddr_in loopback(in_port_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

/* Listens, tells where, and returns the request that comes. */
static struct rdma_cm_id *asked(struct rdma_event_channel *channel, int tell, int hears)
{
    struct rdma_cm_id *id;
    struct sockaddr_in any = loopback(0);
    must(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
    must(!rdma_bind_addr(id, (void *)&any) && !rdma_listen(id, 4), "rdma_listen");
    in_port_t port = rdma_get_src_port(id);
    must(write(tell, &port, sizeof port) == sizeof port, "write");
    struct rdma_cm_event *event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    if (hears)
        must_have_words(event);
    id = event->id;
    rdma_ack_cm_event(event);
    return id;
}

static struct rdma_cm_id *ask(struct rdma_event_channel *channel, int hear)
{
    in_port_t port;
    must(read(hear, &port, sizeof port) == sizeof port, "read");
    struct sockaddr_in there = loopback(port);
    struct rdma_cm_id *id;
    must(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
    must(!rdma_resolve_addr(id, NULL, (void *)&there, 5000), "rdma_resolve_addr");
    rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
    must(!rdma_resolve_route(id, 5000), "rdma_resolve_route");
    rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ROUTE_RESOLVED));
    add_qp(id);
    struct rdma_conn_param param = with_words();
    must(!rdma_connect(id, &param), "rdma_connect");
    return id;
}

static void accept_it(struct rdma_cm_id *id)
{
    struct rdma_conn_param param = with_words();
    add_qp(id);
    must(!rdma_accept(id, &param), "rdma_accept");
}

/* The process that is gone after its words. */
static void speak(int tell, int hear)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    must(channel != NULL, "rdma_create_event_channel");
    if (!strcmp(said, "reject")) {
        must(!rdma_reject(asked(channel, tell, 0), words, sizeof words), "rdma_reject");
    } else if (!strcmp(said, "accept")) {
        accept_it(asked(channel, tell, 0));
    } else {
        struct rdma_cm_id *id = ask(channel, hear);
        if (strcmp(said, "request"))
            next(channel, RDMA_CM_EVENT_ESTABLISHED);
        if (!strcmp(said, "disconnect"))
            must(!rdma_disconnect(id), "rdma_disconnect");
    }
    _exit(0);
}

static void listen_to(int tell, int hear)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    must(channel != NULL, "rdma_create_event_channel");
    if (!strcmp(said, "reject")) {
        ask(channel, hear);
        must_have_words(next(channel, RDMA_CM_EVENT_REJECTED));
    } else if (!strcmp(said, "accept")) {
        ask(channel, hear);
        must_have_words(next(channel, RDMA_CM_EVENT_ESTABLISHED));
    } else {
        struct rdma_cm_id *id = asked(channel, tell, 1);
        if (!strcmp(said, "request"))
            _exit(0);
        accept_it(id);
        rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ESTABLISHED));
        if (!strcmp(said, "disconnect"))
            next(channel, RDMA_CM_EVENT_DISCONNECTED);
    }
    _exit(0);
}

static int is_well(pid_t pid)
{
    int status;
    if (waitpid(pid, &status, 0) == pid && status == 0)
        return 1;
    printf("%s: a process ended with %#x\n", said, status);
    return 0;
}

static int arrives(void)
{
    int to_speaker[2], to_listener[2];
    must(!pipe(to_speaker) && !pipe(to_listener), "pipe");
    pid_t speaker = fork();
    if (!speaker) {
        alarm(PATIENCE_S);
        speak(to_listener[1], to_speaker[0]);
    }
    pid_t listener = fork();
    if (!listener) {
        alarm(PATIENCE_S);
        listen_to(to_speaker[1], to_listener[0]);
    }
    int both = is_well(listener) & is_well(speaker);
    close(to_speaker[0]), close(to_speaker[1]), close(to_listener[0]), close(to_listener[1]);
    return both;
}

int main(int count, char **args)
{
    for (int round = 0; round < atoi(args[1]); round++) {
        for (int i = 2; i < count; i++) {
            said = args[i];
            if (!arrives()) {
                printf("%s: lost in round %d\n", said, round);
                return 1;
            }
        }
    }
    return 0;
}
