/* Connections and processes that fork: see preload.h. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/time.h>

#include "preload.h"

/* The server accepts, and its child serves. */
static void forked_client(void)
{
    int fd = to_server();
    say(fd, "question");
    EXPECT(is_over_rdma(fd), 1);
    hear(fd, "answer");
    EXPECT(close(fd), 0);
}

static void forked_server(int listener)
{
    int status = -1, fd = accept(listener, NULL, NULL);
    pid_t child = fork();
    if (child == 0) {
        hear(fd, "question");
        EXPECT(is_over_rdma(fd), 1);
        say(fd, "answer");
        exit(wrong);
    }
    EXPECT(close(fd), 0);
    EXPECT(waitpid(child, &status, 0), child);
    EXPECT(status, 0);
}

/* One child at a time has a connection go over to RDMA. One that is killed in the middle of that, and whoever has the turn
   for ever, keep nobody from it. In a folder of this trial's own, since all processes share the turn. */
static int heard[2];

static int has_own_turn(void)
{
    return pipe(heard) == 0 && unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("tmpfs", "/dev/shm", "tmpfs", 0, NULL) == 0;
}

static int turns_left(void)
{
    int count = -1;
    sem_t *turn = sem_open("/rsocket_fork", O_CREAT | O_RDWR, 0660, 1);
    EXPECT(sem_getvalue(turn, &count), 0);
    EXPECT(sem_close(turn), 0);
    return count;
}

static void dying_client(void)
{
    char ready[4];
    int fd = to_server();
    /* Beside the library, which would go over to RDMA now. */
    EXPECT(syscall(SYS_recvfrom, fd, ready, sizeof ready, MSG_PEEK | MSG_WAITALL, NULL, NULL), sizeof ready);
    EXPECT(write(heard[1], ready, 1), 1);
    forked_client();
    EXPECT(close(fd), 0);
}

static void dying_server(int listener)
{
    char none;
    int fd = accept(listener, NULL, NULL);
    pid_t child = fork();
    if (child == 0)
        exit(recv(fd, &none, 1, 0) >= 0);
    EXPECT(read(heard[0], &none, 1), 1);
    EXPECT(turns_left(), 0);
    EXPECT(kill(child, SIGKILL) | (waitpid(child, NULL, 0) != child), 0);
    forked_server(listener);
    EXPECT(turns_left(), 1);
    EXPECT(close(fd), 0);
}

static void taken_turn_server(int listener)
{
    sem_t *turn = sem_open("/rsocket_fork", O_CREAT | O_RDWR, 0660, 1);
    EXPECT(sem_wait(turn), 0);
    forked_server(listener);
    /* It is still the other's. */
    EXPECT(turns_left(), 0);
}

/* The first use is of several threads at once, on both sides: one of them has the connection go over to RDMA. */
#define USERS 4

static int used;
static pthread_barrier_t begin;

static void *says(void *text)
{
    pthread_barrier_wait(&begin);
    say(used, text);
    return NULL;
}

static void *hears(void *text)
{
    pthread_barrier_wait(&begin);
    hear(used, text);
    return NULL;
}

static void use(int fd, void *(*way)(void *))
{
    pthread_t threads[USERS];
    used = fd;
    EXPECT(pthread_barrier_init(&begin, NULL, USERS) == 0, 1);
    for (int one = 0; one < USERS; one++)
        EXPECT(pthread_create(&threads[one], NULL, way, "x") == 0, 1);
    for (int one = 0; one < USERS; one++)
        EXPECT(pthread_join(threads[one], NULL) == 0, 1);
    EXPECT(is_over_rdma(fd), 1);
}

static void together_client(void)
{
    for (int turn = 0; turn < 5; turn++) {
        int fd = to_server();
        use(fd, hears);
        EXPECT(close(fd), 0);
    }
}

static void together_server(int listener)
{
    for (int turn = 0; turn < 5; turn++) {
        int fd = accept(listener, NULL, NULL);
        use(fd, says);
        hear_end(fd);
        EXPECT(close(fd), 0);
    }
}

/* A connection stays with the process that made it: its child is refused, and does not wait for ever. */
static void stays_client(void)
{
    int fd = to_server();
    hear(fd, "mine");
    EXPECT(close(fd), 0);
}

static void stays_server(int listener)
{
    int status = -1, fd = accept(listener, NULL, NULL);
    pid_t child = fork();
    if (child == 0) {
        char to[1];
        EXPECT(send(fd, "x", 1, MSG_NOSIGNAL), -1);
        EXPECT(recv(fd, to, 1, 0), -1);
        _exit(wrong);
    }
    EXPECT(waitpid(child, &status, 0), child);
    EXPECT(status, 0);
    say(fd, "mine");
    EXPECT(close(fd), 0);
}

/* A signal cuts the wait for a connection short, which goes on, and goes over to RDMA as any other. */
#define BACKLOG 4

static int has_pipe(void)
{
    return pipe(heard) == 0;
}

static void count(int signal)
{
    (void)signal;
}

static void cut_client(void)
{
    struct sigaction action = {.sa_handler = count};
    struct itimerval often = {{0, 50000}, {0, 50000}}, never = {{0, 0}, {0, 0}};
    int others[BACKLOG + 1], fd = fresh(0);
    for (int one = 0; one <= BACKLOG; one++)
        others[one] = to_server();
    EXPECT(sigaction(SIGALRM, &action, NULL) | setitimer(ITIMER_REAL, &often, NULL), 0);
    FAILS(connect(fd, (struct sockaddr *)&server, sizeof server), EINTR);
    EXPECT(setitimer(ITIMER_REAL, &never, NULL), 0);
    alarm(120);
    EXPECT(write(heard[1], "x", 1), 1);
    hear(fd, "answer");
    EXPECT(is_over_rdma(fd), 1);
    for (int one = 0; one <= BACKLOG; one++)
        EXPECT(close(others[one]), 0);
    EXPECT(close(fd), 0);
}

static void cut_server(int listener)
{
    char none;
    EXPECT(read(heard[0], &none, 1), 1);
    for (int one = 0; one <= BACKLOG; one++)
        EXPECT(close(accept(listener, NULL, NULL)), 0);
    int fd = accept(listener, NULL, NULL);
    say(fd, "answer");
    hear_end(fd);
    EXPECT(close(fd), 0);
}

static const struct trial TRIALS[] = {
    {"forked", forked_server, forked_client, 0, 0, NULL},
    {"stays", stays_server, stays_client, 0, 0, NULL},
    {"dying", dying_server, dying_client, 0, 0, has_own_turn},
    {"taken-turn", taken_turn_server, forked_client, 0, 0, has_own_turn},
    {"cut", cut_server, cut_client, 0, 0, has_pipe},
    {"together", together_server, together_client, 0, 0, NULL},
};

int main(int count, char **arguments)
{
    MUST(count == 2);
    return run(TRIALS, sizeof TRIALS / sizeof *TRIALS, arguments[1]);
}
