/* What the programs share that know TCP alone, run with librspreload.so before them. The argument of such a program
   names what is tried; the process is the server, its child the client. */
#ifndef PRELOAD_H
#define PRELOAD_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "expect.h"

#define LONG_MS 20000

/* An option that only sockets over RDMA have (rdma/rsocket.h). */
#define SOL_RDMA 0x10000
#define RDMA_INLINE 2

static inline int is_over_rdma(int fd)
{
    int value;
    socklen_t length = sizeof value;
    return getsockopt(fd, SOL_RDMA, RDMA_INLINE, &value, &length) == 0;
}

static struct sockaddr_in server;

static inline int fresh(int flags)
{
    int fd = socket(AF_INET, SOCK_STREAM | flags, 0);
    EXPECT(fd >= 0, 1);
    return fd;
}

static inline int to_server(void)
{
    int fd = fresh(0);
    EXPECT(connect(fd, (struct sockaddr *)&server, sizeof server), 0);
    return fd;
}

static inline void say(int fd, const char *text)
{
    EXPECT(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

static inline void hear(int fd, const char *text)
{
    char came[64] = {0};
    EXPECT(recv(fd, came, strlen(text), MSG_WAITALL), strlen(text));
    EXPECT(strcmp(came, text), 0);
}

static inline void hear_end(int fd)
{
    char none;
    EXPECT(recv(fd, &none, 1, 0), 0);
}

static inline int ready(int fd, int events, int timeout_ms)
{
    struct pollfd one = {fd, events, 0};
    int count = poll(&one, 1, timeout_ms);
    EXPECT(count == (one.revents != 0), 1);
    return one.revents;
}

static inline int kept(int set, int timeout_ms)
{
    struct epoll_event event = {0};
    int count = epoll_wait(set, &event, 1, timeout_ms);
    return count == 1 ? (int)event.events : -count;
}

static inline int small(int fd, int level, int option)
{
    int value = -1;
    socklen_t length = sizeof value;
    EXPECT(getsockopt(fd, level, option, &value, &length), 0);
    return value;
}

struct trial {
    const char *name;
    void (*server)(int);
    void (*client)(void);
    /* Which side has no RDMA: 's' or 'c'. */
    char plain;
    /* How the client ends. */
    int ends;
    /* What is needed first; a user who may not have it tries nothing. */
    int (*prepare)(void);
};

static inline void without_rdma(void)
{
    setenv("VERNIC_RSOCKETS", "off", 1);
}

static inline int run(const struct trial *trials, unsigned count, const char *name)
{
    socklen_t length = sizeof server;
    int ports[2], status = -1;
    const struct trial *trial = trials;
    while (trial < trials + count && strcmp(trial->name, name) != 0)
        trial++;
    MUST(trial < trials + count);
    if (trial->prepare != NULL && !trial->prepare()) {
        puts("skipped: this user may not have what is needed");
        return 0;
    }
    alarm(120);
    MUST(pipe(ports) == 0);
    pid_t child = fork();
    if (child == 0) {
        alarm(120);
        if (trial->plain == 'c')
            without_rdma();
        MUST(read(ports[0], &server, sizeof server) == sizeof server);
        trial->client();
        exit(wrong);
    }
    if (trial->plain == 's')
        without_rdma();
    int listener = fresh(0);
    server.sin_family = AF_INET;
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    MUST(bind(listener, (struct sockaddr *)&server, sizeof server) == 0 && listen(listener, 4) == 0);
    MUST(getsockname(listener, (struct sockaddr *)&server, &length) == 0);
    MUST(write(ports[1], &server, sizeof server) == sizeof server);
    trial->server(listener);
    MUST(waitpid(child, &status, 0) == child);
    EXPECT(status, trial->ends);
    EXPECT(close(listener), 0);
    return wrong;
}

#endif
