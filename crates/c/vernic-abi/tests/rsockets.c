/* Every function of rdma/rsocket.h, between two threads of one process over lo: what it does, and the errno of
   what it refuses. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "expect.h"

#define LONG_MS 20000
#define MANY (1 << 20)

static struct sockaddr_in home(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static struct sockaddr_in name_of(int socket, int (*ask)(int, struct sockaddr *, socklen_t *))
{
    struct sockaddr_in address = {0};
    socklen_t length = sizeof address;
    EXPECT(ask(socket, (struct sockaddr *)&address, &length), 0);
    EXPECT(length, sizeof address);
    return address;
}

static int option_of(int socket, int level, int option)
{
    int value = -1;
    socklen_t length = sizeof value;
    EXPECT(rgetsockopt(socket, level, option, &value, &length), 0);
    return value;
}

/* A listener on a free port, and both ends of a connection. */
static int listening(void)
{
    int listener = rsocket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = home(0);
    int on = 1, maps = 4;
    EXPECT(rsetsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    /* So many buffers of the peer may be mapped. */
    EXPECT(rsetsockopt(listener, SOL_RDMA, RDMA_IOMAPSIZE, &maps, sizeof maps), 0);
    EXPECT(rbind(listener, (struct sockaddr *)&address, sizeof address), 0);
    EXPECT(rlisten(listener, 4), 0);
    return listener;
}

static void connected(int listener, int ends[2])
{
    struct sockaddr_in address = name_of(listener, rgetsockname);
    struct sockaddr_in peer = {0};
    socklen_t length = sizeof peer;
    ends[0] = rsocket(AF_INET, SOCK_STREAM, IPPROTO_TCP);
    EXPECT(rconnect(ends[0], (struct sockaddr *)&address, sizeof address), 0);
    ends[1] = raccept(listener, (struct sockaddr *)&peer, &length);
    EXPECT(ends[1] >= 0, 1);
    struct sockaddr_in own = name_of(ends[0], rgetsockname);
    struct sockaddr_in other = name_of(ends[1], rgetpeername);
    EXPECT(memcmp(&own, &other, sizeof own), 0);
    EXPECT(memcmp(&own, &peer, sizeof own), 0);
}

static void names_and_options(int ends[2])
{
    struct sockaddr_in address = {0};
    socklen_t length = sizeof address;
    int size = 200000;
    EXPECT(option_of(ends[0], SOL_SOCKET, SO_TYPE), SOCK_STREAM);
    EXPECT(option_of(ends[0], SOL_SOCKET, SO_ERROR), 0);
    EXPECT(rsetsockopt(ends[0], IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)), 0);
    EXPECT(option_of(ends[0], IPPROTO_TCP, TCP_NODELAY), 1);
    FAILS(rsetsockopt(ends[0], SOL_SOCKET, 9999, &size, sizeof size), ENOPROTOOPT);
    FAILS(rgetsockopt(ends[0], SOL_SOCKET, 9999, &size, &length), ENOPROTOOPT);
    int fresh = rsocket(AF_INET, SOCK_STREAM, 0);
    EXPECT(rsetsockopt(fresh, SOL_SOCKET, SO_SNDBUF, &size, sizeof size), 0);
    /* As of TCP: the kernel tells twice of what it was told. */
    EXPECT(option_of(fresh, SOL_SOCKET, SO_SNDBUF), 2 * size);
    FAILS(rgetpeername(fresh, (struct sockaddr *)&address, &length), ENOTCONN);
    FAILS(rsend(fresh, "x", 1, 0), ENOTCONN);
    FAILS(rshutdown(fresh, SHUT_RDWR), ENOTCONN);
    EXPECT(rfcntl(fresh, F_SETFL, O_NONBLOCK), 0);
    EXPECT(rfcntl(fresh, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    EXPECT(rclose(fresh), 0);
    FAILS(rclose(fresh), EBADF);
    FAILS(rsend(fresh, "x", 1, 0), EBADF);
    FAILS(rsocket(AF_UNIX, SOCK_STREAM, 0), EAFNOSUPPORT);
}

/* Each way to send to each way to receive. */
static void bytes(int ends[2])
{
    char to[64] = {0};
    struct iovec out[2] = {{"wri", 3}, {"tev", 3}}, in[2] = {{to, 2}, {to + 2, 60}};
    struct msghdr sent = {.msg_iov = out, .msg_iovlen = 2};
    struct msghdr came = {.msg_iov = in, .msg_iovlen = 2};
    EXPECT(rsend(ends[0], "send", 4, 0), 4);
    EXPECT(rrecv(ends[1], to, 2, MSG_PEEK), 2);
    EXPECT(rrecv(ends[1], to, 4, MSG_WAITALL), 4);
    EXPECT(memcmp(to, "send", 4), 0);
    EXPECT(rwrite(ends[0], "write", 5), 5);
    EXPECT(rread(ends[1], to, 5), 5);
    EXPECT(memcmp(to, "write", 5), 0);
    EXPECT(rwritev(ends[0], out, 2), 6);
    EXPECT(rreadv(ends[1], in, 2), 6);
    EXPECT(memcmp(to, "writev", 6), 0);
    EXPECT(rsendmsg(ends[0], &sent, 0), 6);
    EXPECT(rrecvmsg(ends[1], &came, 0), 6);
    EXPECT(memcmp(to, "writev", 6), 0);
    EXPECT(rsendto(ends[0], "sendto", 6, 0, NULL, 0), 6);
    EXPECT(rrecvfrom(ends[1], to, sizeof to, 0, NULL, NULL), 6);
    EXPECT(memcmp(to, "sendto", 6), 0);
    FAILS(rrecv(ends[1], to, 1, MSG_DONTWAIT), EAGAIN);
    FAILS(rsend(ends[0], NULL, 5, 0), EFAULT);
}

static void *reader(void *argument)
{
    int socket = *(int *)argument;
    unsigned char *got = malloc(MANY);
    long wrong_bytes = 0;
    EXPECT(rrecv(socket, got, MANY, MSG_WAITALL), MANY);
    for (int i = 0; i < MANY; i++)
        wrong_bytes += got[i] != (unsigned char)(i * 7);
    EXPECT(wrong_bytes, 0);
    free(got);
    return NULL;
}

static void many_bytes(int ends[2])
{
    unsigned char *sent = malloc(MANY);
    pthread_t thread;
    for (int i = 0; i < MANY; i++)
        sent[i] = i * 7;
    EXPECT(pthread_create(&thread, NULL, reader, &ends[1]), 0);
    EXPECT(rsend(ends[0], sent, MANY, 0), MANY);
    EXPECT(pthread_join(thread, NULL), 0);
    free(sent);
}

static void waiting(int ends[2])
{
    struct pollfd both[2] = {{ends[1], POLLIN, 0}, {ends[0], POLLOUT, 0}};
    char to[4];
    EXPECT(rpoll(both, 1, 0), 0);
    EXPECT(rpoll(both, 2, LONG_MS), 1);
    EXPECT(both[1].revents, POLLOUT);
    EXPECT(rsend(ends[0], "poll", 4, 0), 4);
    EXPECT(rpoll(both, 1, LONG_MS), 1);
    EXPECT(both[0].revents, POLLIN);
    fd_set in, out;
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_SET(ends[1], &in);
    FD_SET(ends[1], &out);
    int most = (ends[0] > ends[1] ? ends[0] : ends[1]) + 1;
    EXPECT(rselect(most, &in, &out, NULL, NULL), 2);
    EXPECT(FD_ISSET(ends[1], &in) && FD_ISSET(ends[1], &out), 1);
    EXPECT(rrecv(ends[1], to, 4, 0), 4);
    FD_ZERO(&in);
    FD_SET(ends[1], &in);
    struct timeval shortly = {0, 1000};
    EXPECT(rselect(most, &in, NULL, NULL, &shortly), 0);
    EXPECT(FD_ISSET(ends[1], &in), 0);
    both[0].fd = 1 << 20;
    EXPECT(rpoll(both, 1, 0), 1);
    EXPECT(both[0].revents, POLLNVAL);
}

static void direct(int ends[2])
{
    static volatile char window[4096];
    char to[1];
    off_t at = riomap(ends[0], (void *)window, sizeof window, PROT_WRITE, 0, 0x10000);
    EXPECT(at, 0x10000);
    /* The peer learns of it before the next data. */
    EXPECT(rsend(ends[0], "m", 1, 0), 1);
    EXPECT(rrecv(ends[1], to, 1, 0), 1);
    EXPECT(riowrite(ends[1], "direct", 6, 0x10000 + 100, 0), 6);
    /* What is sent after it arrives after it. */
    EXPECT(rsend(ends[1], "w", 1, 0), 1);
    EXPECT(rrecv(ends[0], to, 1, 0), 1);
    EXPECT(memcmp((char *)window + 100, "direct", 6), 0);
    EXPECT(riowrite(ends[1], "x", 1, 0x10000 + sizeof window, 0), 0);
    EXPECT(riounmap(ends[0], (void *)window, sizeof window), 0);
    FAILS(riounmap(ends[0], (void *)window, sizeof window), EINVAL);
}

/* Ends its direction, and reads what comes in the other until its end. */
static void ends_of_streams(int ends[2])
{
    char to[16];
    EXPECT(rshutdown(ends[0], SHUT_WR), 0);
    EXPECT(rrecv(ends[1], to, sizeof to, 0), 0);
    EXPECT(rsend(ends[1], "after", 5, 0), 5);
    EXPECT(rrecv(ends[0], to, 5, MSG_WAITALL), 5);
    FAILS(rsend(ends[0], "x", 1, MSG_NOSIGNAL), EPIPE);
    EXPECT(rclose(ends[1]), 0);
    EXPECT(rrecv(ends[0], to, sizeof to, 0), 0);
    EXPECT(rclose(ends[0]), 0);
}

static void without_waiting(int listener)
{
    struct sockaddr_in address = name_of(listener, rgetsockname);
    int ends[2];
    struct pollfd one = {listener, POLLIN, 0};
    EXPECT(rfcntl(listener, F_SETFL, O_NONBLOCK), 0);
    FAILS(raccept(listener, NULL, NULL), EAGAIN);
    ends[0] = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    FAILS(rconnect(ends[0], (struct sockaddr *)&address, sizeof address), EINPROGRESS);
    EXPECT(rpoll(&one, 1, LONG_MS), 1);
    ends[1] = raccept(listener, NULL, NULL);
    EXPECT(ends[1] >= 0, 1);
    one = (struct pollfd){ends[0], POLLOUT, 0};
    EXPECT(rpoll(&one, 1, LONG_MS), 1);
    EXPECT(one.revents, POLLOUT);
    EXPECT(option_of(ends[0], SOL_SOCKET, SO_ERROR), 0);
    FAILS(rconnect(ends[0], (struct sockaddr *)&address, sizeof address), EISCONN);
    EXPECT(rclose(ends[0]), 0);
    EXPECT(rclose(ends[1]), 0);
    /* Nobody listens there. */
    EXPECT(rclose(listener), 0);
    ends[0] = rsocket(AF_INET, SOCK_STREAM, 0);
    FAILS(rconnect(ends[0], (struct sockaddr *)&address, sizeof address), ECONNREFUSED);
    EXPECT(rclose(ends[0]), 0);
}

static void datagrams(void)
{
    int sockets[2];
    struct sockaddr_in address = home(0), from = {0};
    socklen_t length = sizeof from;
    char to[32];
    for (int i = 0; i < 2; i++) {
        sockets[i] = rsocket(AF_INET, SOCK_DGRAM, 0);
        EXPECT(rbind(sockets[i], (struct sockaddr *)&address, sizeof address), 0);
    }
    struct sockaddr_in second = name_of(sockets[1], rgetsockname);
    EXPECT(rsendto(sockets[0], "datagram", 8, 0, (struct sockaddr *)&second, sizeof second), 8);
    EXPECT(rrecvfrom(sockets[1], to, sizeof to, 0, (struct sockaddr *)&from, &length), 8);
    EXPECT(memcmp(to, "datagram", 8), 0);
    struct sockaddr_in first = name_of(sockets[0], rgetsockname);
    EXPECT(from.sin_port, first.sin_port);
    EXPECT(rconnect(sockets[1], (struct sockaddr *)&from, sizeof from), 0);
    EXPECT(rsend(sockets[1], "back", 4, 0), 4);
    EXPECT(rrecv(sockets[0], to, sizeof to, 0), 4);
    EXPECT(rclose(sockets[0]), 0);
    EXPECT(rclose(sockets[1]), 0);
}

int main(void)
{
    int ends[2];
    alarm(120);
    int listener = listening();
    MUST(!wrong);
    connected(listener, ends);
    MUST(!wrong);
    names_and_options(ends);
    bytes(ends);
    many_bytes(ends);
    waiting(ends);
    direct(ends);
    ends_of_streams(ends);
    without_waiting(listener);
    datagrams();
    return wrong;
}
