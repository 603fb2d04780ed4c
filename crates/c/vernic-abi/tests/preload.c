/* Waiting, copies, ends, and peers of every kind: see preload.h. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/time.h>

#include "preload.h"

/* poll, select and epoll on listeners, connections that are being made, and connections. */
static void waiting_client(void)
{
    int error = -1;
    socklen_t length = sizeof error;
    int fd = fresh(SOCK_NONBLOCK);
    FAILS(connect(fd, (struct sockaddr *)&server, sizeof server), EINPROGRESS);
    EXPECT(ready(fd, POLLOUT, LONG_MS), POLLOUT);
    EXPECT(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length), 0);
    EXPECT(error, 0);
    EXPECT(is_over_rdma(fd), 1);
    char to[1];
    FAILS(recv(fd, to, 1, 0), EAGAIN);
    EXPECT(fcntl(fd, F_SETFL, 0), 0);
    for (int turn = 0; turn < 4; turn++) {
        say(fd, "ask");
        hear(fd, "answer");
    }
    EXPECT(close(fd), 0);
}

static void waiting_server(int listener)
{
    int set = epoll_create1(EPOLL_CLOEXEC), edges = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event), 0);
    EXPECT(kept(set, LONG_MS), EPOLLIN);
    EXPECT(ready(listener, POLLIN, 0), POLLIN);
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    EXPECT(fd >= 0, 1);
    EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    FAILS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), EEXIST);
    EXPECT(kept(set, LONG_MS), EPOLLIN);
    EXPECT(kept(set, LONG_MS), EPOLLIN);
    hear(fd, "ask");
    EXPECT(kept(set, 0), 0);
    event.events = EPOLLIN | EPOLLET;
    EXPECT(epoll_ctl(edges, EPOLL_CTL_ADD, fd, &event), 0);
    say(fd, "answer");
    EXPECT(kept(edges, LONG_MS), EPOLLIN);
    EXPECT(kept(edges, 0), 0);
    hear(fd, "ask");
    say(fd, "answer");
    EXPECT(ready(fd, POLLIN, LONG_MS), POLLIN);
    hear(fd, "ask");
    say(fd, "answer");
    fd_set in, out;
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_SET(fd, &in);
    EXPECT(select(fd + 1, &in, &out, NULL, NULL), 1);
    EXPECT(FD_ISSET(fd, &in), 1);
    hear(fd, "ask");
    say(fd, "answer");
    char to[1];
    EXPECT(ready(fd, POLLIN, LONG_MS) & POLLIN, POLLIN);
    EXPECT(recv(fd, to, 1, 0), 0);
    EXPECT(close(fd) | close(set) | close(edges), 0);
}

/* A copy of a descriptor keeps the connection; one that takes the place of another ends that. */
static void copies_client(void)
{
    int fd = to_server(), other = to_server();
    int copy = dup(fd);
    EXPECT(close(fd), 0);
    say(copy, "by dup");
    /* A copy of nothing leaves what is there. */
    FAILS(dup2(fd, copy), EBADF);
    FAILS(dup3(fd, copy, O_CLOEXEC), EBADF);
    EXPECT(dup2(copy, other), other);
    EXPECT(close(copy), 0);
    say(other, "by dup2");
    int last = fcntl(other, F_DUPFD_CLOEXEC, 100);
    EXPECT(last >= 100, 1);
    EXPECT(close(other), 0);
    hear(last, "end");
    EXPECT(close(last), 0);
}

static void copies_server(int listener)
{
    char to[1];
    int fd = accept(listener, NULL, NULL), other = accept(listener, NULL, NULL);
    hear(fd, "by dup");
    EXPECT(recv(other, to, 1, 0), 0);
    hear(fd, "by dup2");
    say(fd, "end");
    EXPECT(recv(fd, to, 1, 0), 0);
    EXPECT(close(fd) | close(other), 0);
}

static void half_client(void)
{
    char to[1];
    int fd = to_server();
    say(fd, "question");
    EXPECT(shutdown(fd, SHUT_WR), 0);
    hear(fd, "answer");
    EXPECT(recv(fd, to, 1, 0), 0);
    EXPECT(close(fd), 0);
}

static void half_server(int listener)
{
    char to[1];
    int fd = accept(listener, NULL, NULL);
    hear(fd, "question");
    EXPECT(recv(fd, to, 1, 0), 0);
    EXPECT(ready(fd, POLLIN | POLLOUT | POLLRDHUP, LONG_MS), POLLIN | POLLOUT | POLLRDHUP);
    say(fd, "answer");
    EXPECT(close(fd), 0);
}

/* The client is killed: who waits for it is told, and who sends to it in the end, too. */
static void killed_client(void)
{
    int fd = to_server();
    say(fd, "here");
    hear(fd, "die");
    kill(getpid(), SIGKILL);
}

static void killed_server(int listener)
{
    char to[1];
    int fd = accept(listener, NULL, NULL);
    hear(fd, "here");
    say(fd, "die");
    long came = recv(fd, to, 1, 0);
    EXPECT(came == 0 || (came < 0 && errno == ECONNRESET), 1);
    while (send(fd, to, 1, MSG_NOSIGNAL) == 1)
        poll(NULL, 0, 1);
    EXPECT(errno == EPIPE || errno == ECONNRESET, 1);
    EXPECT(close(fd), 0);
}

static volatile sig_atomic_t signals;

static void count(int signal)
{
    (void)signal;
    signals++;
}

static void signals_client(void)
{
    char to[1];
    int fd = to_server();
    signal(SIGPIPE, count);
    EXPECT(recv(fd, to, 1, 0), 0);
    EXPECT(shutdown(fd, SHUT_WR), 0);
    FAILS(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
    EXPECT(signals, 0);
    FAILS(send(fd, "x", 1, 0), EPIPE);
    EXPECT(signals, 1);
    FAILS(write(fd, "x", 1), EPIPE);
    EXPECT(signals, 2);
    signal(SIGPIPE, SIG_IGN);
    FAILS(write(fd, "x", 1), EPIPE);
    EXPECT(close(fd), 0);
}

static void signals_server(int listener)
{
    int fd = accept(listener, NULL, NULL);
    EXPECT(close(fd), 0);
}

/* One side has no RDMA. */
static void plain_client(void)
{
    int fd = to_server();
    EXPECT(is_over_rdma(fd), 0);
    say(fd, "question");
    hear(fd, "answer");
    EXPECT(close(fd), 0);
    /* Without waiting, too. */
    fd = fresh(SOCK_NONBLOCK);
    int begun = connect(fd, (struct sockaddr *)&server, sizeof server);
    EXPECT(begun == 0 || errno == EINPROGRESS, 1);
    EXPECT(ready(fd, POLLOUT, LONG_MS), POLLOUT);
    EXPECT(is_over_rdma(fd), 0);
    EXPECT(fcntl(fd, F_SETFL, 0), 0);
    say(fd, "question");
    hear(fd, "answer");
    EXPECT(close(fd), 0);
}

static void plain_server(int listener)
{
    for (int turn = 0; turn < 2; turn++) {
        EXPECT(ready(listener, POLLIN, LONG_MS), POLLIN);
        int fd = accept(listener, NULL, NULL);
        EXPECT(is_over_rdma(fd), 0);
        hear(fd, "question");
        say(fd, "answer");
        EXPECT(close(fd), 0);
    }
}

/* Several threads find at once that a connection will not be over RDMA: one of them has it go over TCP, and none
   is told of an end that is none, or closes what is no longer its. */
#define SETTLED 40

static int settled[4];
static pthread_barrier_t begin, end;

static void *waits(void *way)
{
    for (int turn = 0; turn < SETTLED; turn++) {
        pthread_barrier_wait(&begin);
        if (way == NULL)
            EXPECT(ready(settled[0], POLLOUT, LONG_MS), POLLOUT);
        else
            EXPECT(kept(*(int *)way, LONG_MS), EPOLLOUT);
        pthread_barrier_wait(&end);
    }
    return NULL;
}

/* Has the server's port taken by RDMA, too, so that who asks for it by RDMA is answered a moment later: it may
   be listened on by then. */
static void take_port(void)
{
    void *library = dlopen("librdmacm.so.1", RTLD_NOW);
    int (*rsocket)(int, int, int) = dlsym(library, "rsocket");
    int (*rbind)(int, const struct sockaddr *, socklen_t) = dlsym(library, "rbind");
    EXPECT(rbind(rsocket(AF_INET, SOCK_STREAM, 0), (struct sockaddr *)&server, sizeof server), 0);
}

static void settling_client(void)
{
    pthread_t threads[4];
    struct epoll_event event = {.events = EPOLLOUT};
    take_port();
    EXPECT(pthread_barrier_init(&begin, NULL, 5) == 0 && pthread_barrier_init(&end, NULL, 5) == 0, 1);
    for (int one = 0; one < 4; one++) {
        settled[one] = one < 2 ? -1 : epoll_create1(0);
        EXPECT(pthread_create(&threads[one], NULL, waits, one < 2 ? NULL : &settled[one]) == 0, 1);
    }
    for (int turn = 0; turn < SETTLED; turn++) {
        int others[8], fd = fresh(SOCK_NONBLOCK);
        settled[0] = fd;
        FAILS(connect(fd, (struct sockaddr *)&server, sizeof server), EINPROGRESS);
        for (int one = 2; one < 4; one++)
            EXPECT(epoll_ctl(settled[one], EPOLL_CTL_ADD, fd, &event), 0);
        pthread_barrier_wait(&begin);
        for (int other = 0; other < 8; other++)
            others[other] = fresh(0);
        pthread_barrier_wait(&end);
        EXPECT(is_over_rdma(fd), 0);
        for (int other = 0; other < 8; other++) {
            EXPECT(is_over_rdma(others[other]), 1);
            EXPECT(close(others[other]), 0);
        }
        EXPECT(close(fd), 0);
    }
    for (int one = 0; one < 4; one++)
        EXPECT(pthread_join(threads[one], NULL) == 0, 1);
}

static void say_pipe(int fd)
{
    EXPECT(write(fd, "x", 1), 1);
}

/* A socket goes over TCP while something else in a set has news, with the same data, and says so once. */
static void alike_client(void)
{
    int set = epoll_create1(0), fd = fresh(SOCK_NONBLOCK), pipes[2];
    struct epoll_event other = {.events = EPOLLIN | EPOLLET, .data.u64 = 7};
    struct epoll_event own = {.events = EPOLLIN, .data.u64 = 7}, told = {0};
    take_port();
    FAILS(connect(fd, (struct sockaddr *)&server, sizeof server), EINPROGRESS);
    EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, fd, &own), 0);
    EXPECT(pipe(pipes), 0);
    EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, pipes[0], &other), 0);
    /* By then the answer is there, also on a busy machine, and nobody has looked. */
    sleep(2);
    say_pipe(pipes[1]);
    EXPECT(epoll_wait(set, &told, 1, LONG_MS), 1);
    EXPECT(told.events == EPOLLIN && told.data.u64 == 7, 1);
    EXPECT(is_over_rdma(fd), 0);
    /* It is in the set, as what it is now. */
    own.data.u64 = 8;
    EXPECT(epoll_ctl(set, EPOLL_CTL_MOD, fd, &own), 0);
    say(fd, "is there");
    EXPECT(epoll_wait(set, &told, 1, LONG_MS), 1);
    EXPECT(told.data.u64 == 8, 1);
    hear(fd, "news");
    EXPECT(close(fd), 0);
}

static void alike_server(int listener)
{
    int fd = accept(listener, NULL, NULL);
    hear(fd, "is there");
    say(fd, "news");
    hear_end(fd);
    EXPECT(close(fd), 0);
}

/* What is waited for is changed while the socket goes over TCP. */
static int changing, changed;

static void *changes(void *set)
{
    struct epoll_event event = {.events = EPOLLOUT};
    while (__atomic_load_n(&changed, __ATOMIC_ACQUIRE) == 0)
        EXPECT(epoll_ctl(*(int *)set, EPOLL_CTL_MOD, changing, &event), 0);
    return NULL;
}

static void changing_client(void)
{
    struct epoll_event event = {.events = EPOLLOUT};
    take_port();
    for (int turn = 0; turn < SETTLED; turn++) {
        int set = epoll_create1(0);
        pthread_t threads[2];
        changing = fresh(SOCK_NONBLOCK);
        changed = 0;
        FAILS(connect(changing, (struct sockaddr *)&server, sizeof server), EINPROGRESS);
        EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, changing, &event), 0);
        for (int one = 0; one < 2; one++)
            EXPECT(pthread_create(&threads[one], NULL, changes, &set) == 0, 1);
        EXPECT(kept(set, LONG_MS), EPOLLOUT);
        __atomic_store_n(&changed, 1, __ATOMIC_RELEASE);
        for (int one = 0; one < 2; one++)
            EXPECT(pthread_join(threads[one], NULL) == 0, 1);
        EXPECT(is_over_rdma(changing), 0);
        EXPECT(close(changing) | close(set), 0);
    }
}

static void settling_server(int listener)
{
    for (int turn = 0; turn < SETTLED; turn++)
        EXPECT(close(accept(listener, NULL, NULL)), 0);
}

/* A socket whose port is taken by a program without RDMA keeps what was set, and its place in sets. */
static void taken_client(void)
{
    int one = 1, inline_bytes = 16, set = epoll_create1(0), fd = fresh(SOCK_NONBLOCK);
    struct linger linger = {1, 7}, lingers;
    struct epoll_event event = {.events = EPOLLIN};
    socklen_t length = sizeof lingers;
    EXPECT(setsockopt(fd, SOL_RDMA, RDMA_INLINE, &inline_bytes, sizeof inline_bytes), 0);
    EXPECT(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one), 0);
    EXPECT(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
    EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    FAILS(bind(fd, (struct sockaddr *)&server, sizeof server), EADDRINUSE);
    EXPECT(small(fd, SOL_RDMA, RDMA_INLINE), inline_bytes);
    EXPECT(small(fd, SOL_SOCKET, SO_KEEPALIVE), 1);
    EXPECT(getsockopt(fd, SOL_SOCKET, SO_LINGER, &lingers, &length), 0);
    EXPECT(lingers.l_onoff == 1 && lingers.l_linger == 7, 1);
    EXPECT(fcntl(fd, F_GETFL) & O_NONBLOCK, O_NONBLOCK);

    /* Another port is free; who connects to it is seen by the set. */
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    EXPECT(bind(fd, (struct sockaddr *)&own, sizeof own), 0);
    EXPECT(listen(fd, 4), 0);
    length = sizeof server;
    EXPECT(getsockname(fd, (struct sockaddr *)&own, &length), 0);
    int peer = fresh(0);
    EXPECT(connect(peer, (struct sockaddr *)&own, sizeof own), 0);
    EXPECT(kept(set, LONG_MS), EPOLLIN);
    EXPECT(close(peer) | close(fd), 0);

    EXPECT(close(set), 0);
}

/* Where no socket over RDMA can be made in the place of one whose port is taken, that stays what it is. */
static void poor_client(void)
{
    struct rlimit limit, none;
    EXPECT(getrlimit(RLIMIT_NOFILE, &limit), 0);
    for (int left = 0; left < 12; left++) {
        int fd = fresh(0), lowest = dup(fd);
        EXPECT(close(lowest), 0);
        none = limit;
        none.rlim_cur = lowest + left;
        EXPECT(setrlimit(RLIMIT_NOFILE, &none), 0);
        EXPECT(bind(fd, (struct sockaddr *)&server, sizeof server), -1);
        EXPECT(setrlimit(RLIMIT_NOFILE, &limit), 0);
        EXPECT(is_over_rdma(fd), 1);
        EXPECT(close(fd), 0);
    }
}

/* And the other must not do without it. */
static void refused_client(void)
{
    int fd = fresh(0);
    FAILS(connect(fd, (struct sockaddr *)&server, sizeof server), ECONNREFUSED);
    EXPECT(close(fd), 0);
}

/* Who is refused may ask again on the same socket, and is connected over RDMA if somebody listens by then. */
static int to_listen(struct sockaddr_in *own)
{
    socklen_t length = sizeof *own;
    int fd = fresh(0);
    *own = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    EXPECT(bind(fd, (struct sockaddr *)own, sizeof *own), 0);
    EXPECT(getsockname(fd, (struct sockaddr *)own, &length), 0);
    return fd;
}

static void talk(int fd, int listener)
{
    int one = small(fd, SOL_SOCKET, SO_KEEPALIVE), peer = accept(listener, NULL, NULL);
    EXPECT(one, 1);
    EXPECT(is_over_rdma(fd), 1);
    say(fd, "question");
    hear(peer, "question");
    say(peer, "answer");
    hear(fd, "answer");
    EXPECT(close(fd) | close(peer) | close(listener), 0);
}

static void again_client(void)
{
    struct sockaddr_in at, own, seen;
    socklen_t length = sizeof seen;
    int one = 1, listener = to_listen(&at), fd = to_listen(&own);
    EXPECT(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one), 0);
    for (int turn = 0; turn < 3; turn++)
        FAILS(connect(fd, (struct sockaddr *)&at, sizeof at), ECONNREFUSED);
    EXPECT(listen(listener, 4), 0);
    EXPECT(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    /* It is bound as it was. */
    EXPECT(getsockname(fd, (struct sockaddr *)&seen, &length), 0);
    EXPECT(seen.sin_port, own.sin_port);
    talk(fd, listener);
}

/* The same without waiting; the refusal is told once, by the option or by the next attempt. */
static void later_client(void)
{
    struct sockaddr_in at;
    struct epoll_event event = {.events = EPOLLOUT};
    int one = 1, listener = to_listen(&at), fd = fresh(SOCK_NONBLOCK), set = epoll_create1(0);
    EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    for (int turn = 0; turn < 4; turn++) {
        FAILS(connect(fd, (struct sockaddr *)&at, sizeof at), EINPROGRESS);
        if (turn < 2)
            EXPECT(ready(fd, POLLOUT, LONG_MS) & (POLLOUT | POLLERR | POLLHUP), POLLOUT | POLLERR | POLLHUP);
        else
            EXPECT(kept(set, LONG_MS) & EPOLLERR, EPOLLERR);
        if (turn % 2 == 0)
            EXPECT(small(fd, SOL_SOCKET, SO_ERROR), ECONNREFUSED);
        else
            FAILS(connect(fd, (struct sockaddr *)&at, sizeof at), ECONNREFUSED);
        EXPECT(small(fd, SOL_SOCKET, SO_ERROR), 0);
    }
    EXPECT(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one), 0);
    EXPECT(listen(listener, 4), 0);
    FAILS(connect(fd, (struct sockaddr *)&at, sizeof at), EINPROGRESS);
    EXPECT(kept(set, LONG_MS), EPOLLOUT);
    EXPECT(small(fd, SOL_SOCKET, SO_ERROR), 0);
    EXPECT(close(set), 0);
    EXPECT(fcntl(fd, F_SETFL, 0), 0);
    talk(fd, listener);
}

/* A wait for a connection that a signal cuts short goes on with the next call. */
static void *accepts(void *listener)
{
    for (int turn = 0; turn < 4; turn++)
        EXPECT(close(accept(*(int *)listener, NULL, NULL)), 0);
    return NULL;
}

static void interrupted_client(void)
{
    struct sockaddr_in at;
    struct sigaction action = {.sa_handler = count};
    struct itimerval often = {{0, 50000}, {0, 50000}}, never = {{0, 0}, {0, 0}};
    pthread_t thread;
    int others[3], listener = to_listen(&at), fd = fresh(0);
    /* As many as the backlog leaves room for; who comes then has to wait. */
    EXPECT(listen(listener, 1), 0);
    for (int one = 0; one < 3; one++) {
        others[one] = fresh(SOCK_NONBLOCK);
        FAILS(connect(others[one], (struct sockaddr *)&at, sizeof at), EINPROGRESS);
        if (one < 2)
            EXPECT(ready(others[one], POLLOUT, LONG_MS), POLLOUT);
    }
    EXPECT(sigaction(SIGALRM, &action, NULL) | setitimer(ITIMER_REAL, &often, NULL), 0);
    for (int turn = 0; turn < 3; turn++)
        FAILS(connect(fd, (struct sockaddr *)&at, sizeof at), EINTR);
    EXPECT(setitimer(ITIMER_REAL, &never, NULL), 0);
    alarm(120);
    EXPECT(pthread_create(&thread, NULL, accepts, &listener) == 0, 1);
    EXPECT(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    EXPECT(is_over_rdma(fd), 1);
    EXPECT(pthread_join(thread, NULL) == 0, 1);
    for (int one = 0; one < 3; one++)
        EXPECT(close(others[one]), 0);
    EXPECT(close(fd) | close(listener), 0);
}

/* Where the devices are iWARP's nothing goes over them. */
static void iwarp_client(void)
{
    const char *mode = getenv("VERNIC_RSOCKETS");
    if (strcmp(mode, "only") == 0) {
        FAILS(socket(AF_INET, SOCK_STREAM, 0), EPROTONOSUPPORT);
        return;
    }
    int fd = fresh(0);
    EXPECT(is_over_rdma(fd), 0);
    EXPECT(connect(fd, (struct sockaddr *)&server, sizeof server), 0);
    EXPECT(close(fd), 0);
}

static void refused_server(int listener)
{
    /* Nobody comes; the client is done when it has ended. */
    (void)listener;
}

static const struct trial TRIALS[] = {
    {"waiting", waiting_server, waiting_client, 0, 0, NULL},
    {"copies", copies_server, copies_client, 0, 0, NULL},
    {"half-close", half_server, half_client, 0, 0, NULL},
    {"killed", killed_server, killed_client, 0, SIGKILL, NULL},
    {"signals", signals_server, signals_client, 0, 0, NULL},
    {"plain-server", plain_server, plain_client, 's', 0, NULL},
    {"plain-client", plain_server, plain_client, 'c', 0, NULL},
    {"settling", settling_server, settling_client, 's', 0, NULL},
    {"alike", alike_server, alike_client, 's', 0, NULL},
    {"changing", settling_server, changing_client, 's', 0, NULL},
    {"taken", refused_server, taken_client, 's', 0, NULL},
    {"poor", refused_server, poor_client, 's', 0, NULL},
    {"refused", refused_server, refused_client, 's', 0, NULL},
    {"again", refused_server, again_client, 0, 0, NULL},
    {"interrupted", refused_server, interrupted_client, 0, 0, NULL},
    {"later", refused_server, later_client, 0, 0, NULL},
    {"iwarp", refused_server, iwarp_client, 's', 0, NULL},
};

int main(int count, char **arguments)
{
    MUST(count == 2);
    return run(TRIALS, sizeof TRIALS / sizeof *TRIALS, arguments[1]);
}
