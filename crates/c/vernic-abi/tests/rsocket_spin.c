/* Programs that only look, again and again, and never wait: on one core, and before all others (SCHED_FIFO), a thread runs
   for as long as it does not let go. Two processes become connected all the same. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "expect.h"

/* Not in every rdma/rsocket.h. */
int repoll_create(int flags);
int repoll_ctl(int set, int op, int socket, struct epoll_event *event);
int repoll_wait(int set, struct epoll_event *events, int room, int timeout_ms);

/* How to look. */
enum { BY_CALL, BY_POLL, BY_SET, WAYS };

static int set_of(int socket, unsigned events)
{
    struct epoll_event event = {.events = events};
    int set = repoll_create(0);
    EXPECT(repoll_ctl(set, EPOLL_CTL_ADD, socket, &event), 0);
    return set;
}

static void look_for(int way, int socket, int events)
{
    struct pollfd one = {socket, events, 0};
    struct epoll_event event;
    if (way == BY_POLL)
        while (rpoll(&one, 1, 0) == 0) {
        }
    if (way == BY_SET) {
        int set = set_of(socket, events);
        while (repoll_wait(set, &event, 1, 0) == 0) {
        }
        EXPECT(rclose(set), 0);
    }
}

static void client(int way, struct sockaddr_in *at)
{
    int fd = rsocket(AF_INET, SOCK_STREAM, 0);
    EXPECT(rfcntl(fd, F_SETFL, O_NONBLOCK), 0);
    FAILS(rconnect(fd, (struct sockaddr *)at, sizeof *at), EINPROGRESS);
    look_for(way, fd, POLLOUT);
    while (rconnect(fd, (struct sockaddr *)at, sizeof *at) != 0 && errno == EALREADY) {
    }
    EXPECT(errno, EISCONN);
    EXPECT(rsend(fd, "x", 1, 0), 1);
    EXPECT(rclose(fd), 0);
}

static void server(int way, int listener)
{
    char came;
    int fd;
    look_for(way, listener, POLLIN);
    do
        fd = raccept(listener, NULL, NULL);
    while (fd < 0 && errno == EAGAIN);
    EXPECT(fd >= 0, 1);
    EXPECT(rrecv(fd, &came, 1, 0), 1);
    EXPECT(rclose(fd), 0);
}

/* On one core, before all that are not as pressing. */
static int press(void)
{
    cpu_set_t all, one;
    struct sched_param priority = {.sched_priority = 10};
    int core = 0;
    MUST(sched_getaffinity(0, sizeof all, &all) == 0);
    while (!CPU_ISSET(core, &all))
        core++;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    MUST(sched_setaffinity(0, sizeof one, &one) == 0);
    return sched_setscheduler(0, SCHED_FIFO, &priority) == 0;
}

int main(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int ports[2], status = -1;
    if (!press()) {
        puts("skipped: this user must not have a process run before others (SCHED_FIFO)");
        return 0;
    }
    MUST(pipe(ports) == 0);
    pid_t child = fork();
    alarm(60);
    if (child == 0) {
        MUST(read(ports[0], &at, sizeof at) == sizeof at);
        for (int way = 0; way < WAYS; way++)
            client(way, &at);
        exit(wrong);
    }
    int listener = rsocket(AF_INET, SOCK_STREAM, 0);
    EXPECT(rbind(listener, (struct sockaddr *)&at, sizeof at) | rlisten(listener, 4), 0);
    EXPECT(rgetsockname(listener, (struct sockaddr *)&at, &length), 0);
    EXPECT(rfcntl(listener, F_SETFL, O_NONBLOCK), 0);
    MUST(write(ports[1], &at, sizeof at) == sizeof at);
    for (int way = 0; way < WAYS; way++)
        server(way, listener);
    MUST(waitpid(child, &status, 0) == child);
    EXPECT(status, 0);
    EXPECT(rclose(listener), 0);
    return wrong;
}
