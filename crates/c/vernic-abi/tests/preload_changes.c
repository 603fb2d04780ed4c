/* Sockets that become others while threads wait for them, change them or close them: see preload.h. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

#include "preload.h"

/* The server's port over RDMA, beside the program's own sockets. */
static int (*rsocket)(int, int, int);
static int (*rbind)(int, const struct sockaddr *, socklen_t);
static int (*rlisten)(int, int);
static int (*rconnect)(int, const struct sockaddr *, socklen_t);
static int (*rfcntl)(int, int, ...);

static int take_port(void)
{
    void *library = dlopen("librdmacm.so.1", RTLD_NOW);
    rsocket = dlsym(library, "rsocket");
    rbind = dlsym(library, "rbind");
    rlisten = dlsym(library, "rlisten");
    rconnect = dlsym(library, "rconnect");
    rfcntl = dlsym(library, "rfcntl");
    int taken = rsocket(AF_INET, SOCK_STREAM, 0);
    EXPECT(rbind(taken, (struct sockaddr *)&server, sizeof server), 0);
    return taken;
}

/* Has nobody answer there by RDMA: as many wait to be accepted as there is room for. */
static void fall_silent(void)
{
    int listener = take_port();
    EXPECT(rlisten(listener, 1), 0);
    for (int one = 0; one < 2; one++)
        EXPECT(rconnect(rsocket(AF_INET, SOCK_STREAM, 0), (struct sockaddr *)&server, sizeof server), 0);
    int waits = rsocket(AF_INET, SOCK_STREAM, 0);
    EXPECT(rfcntl(waits, F_SETFL, O_NONBLOCK), 0);
    FAILS(rconnect(waits, (struct sockaddr *)&server, sizeof server), EINPROGRESS);
}

static void begin(int fd)
{
    FAILS(connect(fd, (struct sockaddr *)&server, sizeof server), EINPROGRESS);
}

/* A thread waits for a set to which another adds a socket that is refused, or not answered, by RDMA. */
static void *waits(void *set)
{
    EXPECT(kept(*(int *)set, LONG_MS), EPOLLOUT);
    return NULL;
}

static void joins(int connects_first)
{
    pthread_t thread;
    struct epoll_event event = {.events = EPOLLOUT};
    int set = epoll_create1(0), fd = fresh(SOCK_NONBLOCK);
    EXPECT(pthread_create(&thread, NULL, waits, &set), 0);
    /* It sleeps by now; if not, nothing is tried. */
    usleep(100 * 1000);
    if (connects_first)
        begin(fd);
    EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    if (!connects_first)
        begin(fd);
    EXPECT(pthread_join(thread, NULL), 0);
    EXPECT(is_over_rdma(fd), 0);
    EXPECT(close(fd) | close(set), 0);
}

static void joins_client(void)
{
    take_port();
    joins(0);
    joins(1);
}

static void silent_client(void)
{
    fall_silent();
    joins(0);
    joins(1);
}

static void two_come(int listener)
{
    for (int turn = 0; turn < 2; turn++)
        EXPECT(close(accept(listener, NULL, NULL)), 0);
}

/* One that is refused by RDMA, a moment later, goes over TCP. */
static void refused_client(void)
{
    int fd = fresh(SOCK_NONBLOCK);
    take_port();
    begin(fd);
    EXPECT(ready(fd, POLLOUT, LONG_MS), POLLOUT);
    EXPECT(is_over_rdma(fd), 0);
    EXPECT(close(fd), 0);
}

/* An address where nobody listens yet. */
static int to_listen(struct sockaddr_in *at)
{
    socklen_t length = sizeof *at;
    int fd = fresh(0);
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    EXPECT(bind(fd, (struct sockaddr *)at, sizeof *at), 0);
    EXPECT(getsockname(fd, (struct sockaddr *)at, &length), 0);
    return fd;
}

/* Closes a set and makes another of the same number, which a thread of the library may take in between, for a moment. */
static void make_anew(int set)
{
    int others[8], count = 0, again;
    EXPECT(close(set), 0);
    while ((again = epoll_create1(0)) != set && count < 8)
        others[count++] = again;
    EXPECT(again, set);
    while (count > 0)
        EXPECT(close(others[--count]), 0);
}

/* A set is closed, and another gets its number: what was in the first does not enter it. */
static void reused_client(void)
{
    struct epoll_event event = {.events = EPOLLOUT};
    int set = epoll_create1(0), fd = fresh(SOCK_NONBLOCK);
    take_port();
    EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    begin(fd);
    make_anew(set);
    EXPECT(ready(fd, POLLOUT, LONG_MS), POLLOUT);
    EXPECT(is_over_rdma(fd), 0);
    EXPECT(kept(set, 0), 0);
    EXPECT(close(fd) | close(set), 0);
    /* The same of one that is refused and asks by RDMA again. */
    struct sockaddr_in at;
    int listener = to_listen(&at);
    set = epoll_create1(0);
    fd = fresh(0);
    EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    make_anew(set);
    FAILS(connect(fd, (struct sockaddr *)&at, sizeof at), ECONNREFUSED);
    EXPECT(listen(listener, 1), 0);
    EXPECT(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    EXPECT(is_over_rdma(fd), 1);
    EXPECT(kept(set, 0), 0);
    EXPECT(close(fd) | close(set) | close(listener), 0);
}

static void one_comes(int listener)
{
    EXPECT(close(accept(listener, NULL, NULL)), 0);
}

/* What is set on a socket that TCP has refused, too, holds for the one over RDMA that it gets in the end. */
static void asked_client(void)
{
    struct sockaddr_in at, own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, seen;
    socklen_t length = sizeof at;
    int one = 1, listener = to_listen(&at), fd = fresh(SOCK_NONBLOCK);
    FAILS(connect(fd, (struct sockaddr *)&at, sizeof at), EINPROGRESS);
    EXPECT(ready(fd, POLLOUT, LONG_MS) & POLLERR, POLLERR);
    EXPECT(is_over_rdma(fd), 0);
    EXPECT(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one), 0);
    EXPECT(bind(fd, (struct sockaddr *)&own, sizeof own), 0);
    EXPECT(getsockname(fd, (struct sockaddr *)&own, &length), 0);
    EXPECT(small(fd, SOL_SOCKET, SO_ERROR), ECONNREFUSED);
    EXPECT(listen(listener, 1), 0);
    FAILS(connect(fd, (struct sockaddr *)&at, sizeof at), EINPROGRESS);
    EXPECT(ready(fd, POLLOUT, LONG_MS), POLLOUT);
    EXPECT(is_over_rdma(fd), 1);
    EXPECT(small(fd, SOL_SOCKET, SO_KEEPALIVE), 1);
    EXPECT(getsockname(fd, (struct sockaddr *)&seen, &length), 0);
    EXPECT(seen.sin_port, own.sin_port);
    EXPECT(close(fd) | close(listener), 0);
}

/* SO_SNDTIMEO bounds each wait for a connection; who waits for one that is being made already is told so. */
static void patient_client(void)
{
    struct timeval limit = {0, 200000};
    int fd = fresh(0);
    time_t begun = time(NULL);
    fall_silent();
    EXPECT(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
    begin(fd);
    FAILS(connect(fd, (struct sockaddr *)&server, sizeof server), EALREADY);
    /* Far less than RDMA is waited for, as the variable says. */
    EXPECT(time(NULL) - begun < 60, 1);
    EXPECT(close(fd), 0);
}

static void nobody_comes(int listener)
{
    (void)listener;
}

/* A thread waits for a connection, and another gives its descriptor's number to a socket for datagrams, which connects at
   once whoever asks it to. */
static void *waits_for_nobody(void *fd)
{
    FAILS(connect(*(int *)fd, (struct sockaddr *)&server, sizeof server), EBADF);
    return NULL;
}

static void taken_client(void)
{
    pthread_t thread;
    struct sockaddr_in own = {.sin_port = 0};
    socklen_t length = sizeof own;
    int fd = fresh(0), other = syscall(SYS_socket, AF_INET, SOCK_DGRAM, 0);
    fall_silent();
    EXPECT(pthread_create(&thread, NULL, waits_for_nobody, &fd), 0);
    /* It has a port when it has asked. */
    while (own.sin_port == 0)
        EXPECT(getsockname(fd, (struct sockaddr *)&own, &length), 0);
    EXPECT(dup2(other, fd), fd);
    EXPECT(pthread_join(thread, NULL), 0);
    FAILS(getpeername(fd, (struct sockaddr *)&own, &length), ENOTCONN);
    EXPECT(close(fd) | close(other), 0);
}

/* One thread closes a socket while another connects it again and again: none closes one of a third. So often, or for so
 * many seconds. */
#define TURNS 2500
#define SECONDS 15
/* Of a loop that does nothing: up to a millisecond. */
#define SPINS 3000000
/* It is in so many sets, which have to know each time. */
#define MANY 50

static int closed, goes_on = 1;
static struct sockaddr_in nowhere;
static pthread_barrier_t start;

static void *connects(void *nothing)
{
    for (;;) {
        pthread_barrier_wait(&start);
        if (!goes_on)
            return nothing;
        while (connect(closed, (struct sockaddr *)&nowhere, sizeof nowhere) != 0 && errno != ENOTSOCK)
            continue;
        pthread_barrier_wait(&start);
    }
}

static void closing_client(void)
{
    pthread_t thread;
    struct epoll_event event = {.events = EPOLLIN};
    int sets[MANY], others[4], file = open("/dev/null", O_RDONLY), taken = to_listen(&nowhere);
    EXPECT(pthread_barrier_init(&start, NULL, 2), 0);
    EXPECT(pthread_create(&thread, NULL, connects, NULL), 0);
    for (int set = 0; set < MANY; set++)
        sets[set] = epoll_create1(0);
    time_t begun = time(NULL);
    for (int turn = 0; turn < TURNS && time(NULL) - begun < SECONDS; turn++) {
        closed = fresh(0);
        int copy = dup(closed);
        for (int set = 0; set < MANY; set++)
            EXPECT(epoll_ctl(sets[set], EPOLL_CTL_ADD, closed, &event), 0);
        pthread_barrier_wait(&start);
        for (int spins = rand() % SPINS; spins > 0; spins--)
            __asm__ volatile("");
        /* What the other thread finds then is a file. */
        EXPECT(dup2(file, copy), copy);
        EXPECT(dup2(file, closed), closed);
        for (int other = 0; other < 4; other++)
            others[other] = fresh(0);
        pthread_barrier_wait(&start);
        for (int other = 0; other < 4; other++) {
            EXPECT(is_over_rdma(others[other]), 1);
            EXPECT(close(others[other]), 0);
        }
        EXPECT(close(copy) | close(closed), 0);
    }
    goes_on = 0;
    pthread_barrier_wait(&start);
    EXPECT(pthread_join(thread, NULL), 0);
    for (int set = 0; set < MANY; set++)
        EXPECT(close(sets[set]), 0);
    EXPECT(close(taken) | close(file), 0);
}

static const struct trial TRIALS[] = {
    {"joins", two_come, joins_client, 's', 0, NULL},
    {"silent", two_come, silent_client, 's', 0, NULL},
    {"refused", one_comes, refused_client, 's', 0, NULL},
    {"reused", one_comes, reused_client, 's', 0, NULL},
    {"asked", nobody_comes, asked_client, 0, 0, NULL},
    {"patient", nobody_comes, patient_client, 's', 0, NULL},
    {"taken", nobody_comes, taken_client, 's', 0, NULL},
    {"closing", nobody_comes, closing_client, 's', 0, NULL},
};

int main(int count, char **arguments)
{
    MUST(count == 2);
    return run(TRIALS, sizeof TRIALS / sizeof *TRIALS, arguments[1]);
}
