/* Calls that wait go on after a signal whose handler has SA_RESTART, and end after one whose handler has not. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "expect.h"

static struct sockaddr_in address;
static volatile sig_atomic_t signals;
static int client;

static void count(int signal)
{
    (void)signal;
    signals++;
}

/* Signals from soon on, again and again, until they are counted: one may come before the call sleeps. */
static void alarms(int flags, long us)
{
    struct sigaction action;
    struct itimerval time = {.it_value = {0, us}, .it_interval = {0, us}};
    memset(&action, 0, sizeof action);
    action.sa_handler = count;
    action.sa_flags = flags;
    signals = 0;
    EXPECT(sigaction(SIGALRM, &action, NULL) == 0, 1);
    EXPECT(setitimer(ITIMER_REAL, &time, NULL) == 0, 1);
}

static void none(void)
{
    struct itimerval time = {{0, 0}, {0, 0}};
    EXPECT(setitimer(ITIMER_REAL, &time, NULL) == 0, 1);
}

/* Waits until the other thread, which gets all signals, has been interrupted. */
static void let_it_be_interrupted(void)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    while (signals < 3)
        usleep(1000);
}

/* Then does what that waits for. */
static void *says(void *nothing)
{
    let_it_be_interrupted();
    EXPECT(rsend(client, "x", 1, 0) == 1, 1);
    return nothing;
}

static void *connects(void *nothing)
{
    let_it_be_interrupted();
    EXPECT(rconnect(client, (struct sockaddr *)&address, sizeof address) == 0, 1);
    return nothing;
}

int main(void)
{
    pthread_t thread;
    socklen_t length = sizeof address;
    char to[1];
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = rsocket(AF_INET, SOCK_STREAM, 0);
    EXPECT(rbind(listener, (struct sockaddr *)&address, length) == 0 && rlisten(listener, 1) == 0, 1);
    EXPECT(rgetsockname(listener, (struct sockaddr *)&address, &length) == 0, 1);
    client = rsocket(AF_INET, SOCK_STREAM, 0);

    alarms(0, 50000);
    errno = 0;
    EXPECT(raccept(listener, NULL, NULL) == -1 && errno == EINTR, 1);
    alarms(SA_RESTART, 50000);
    EXPECT(pthread_create(&thread, NULL, connects, NULL) == 0, 1);
    int server = raccept(listener, NULL, NULL);
    EXPECT(server >= 0 && signals >= 3, 1);
    EXPECT(pthread_join(thread, NULL) == 0, 1);

    alarms(SA_RESTART, 50000);
    EXPECT(pthread_create(&thread, NULL, says, NULL) == 0, 1);
    EXPECT(rrecv(server, to, 1, 0) == 1 && signals >= 3, 1);
    EXPECT(pthread_join(thread, NULL) == 0, 1);
    alarms(0, 50000);
    errno = 0;
    EXPECT(rrecv(server, to, 1, 0) == -1 && errno == EINTR, 1);
    /* With a time limit nothing is restarted, as by the system. */
    struct timeval limit = {.tv_sec = 60};
    EXPECT(rsetsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0, 1);
    alarms(SA_RESTART, 50000);
    errno = 0;
    EXPECT(rrecv(server, to, 1, 0) == -1 && errno == EINTR, 1);
    none();
    EXPECT(rclose(server) == 0 && rclose(client) == 0 && rclose(listener) == 0, 1);
    return wrong;
}
