/* A handler of a signal jumps out of a receive that waits; the process ends all the same. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <rdma/rsocket.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "expect.h"

static sigjmp_buf place;

static void jump(int signal)
{
    (void)signal;
    siglongjmp(place, 1);
}

int main(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    struct itimerval soon = {.it_value = {0, 50000}};
    char to[1];
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = rsocket(AF_INET, SOCK_STREAM, 0);
    MUST(rbind(listener, (struct sockaddr *)&address, length) == 0 && rlisten(listener, 1) == 0);
    MUST(rgetsockname(listener, (struct sockaddr *)&address, &length) == 0);
    int client = rsocket(AF_INET, SOCK_STREAM, 0);
    MUST(rconnect(client, (struct sockaddr *)&address, length) == 0);
    int server = raccept(listener, NULL, NULL);
    MUST(server >= 0);
    /* The test, too, ends where the exit does not. */
    signal(SIGALRM, SIG_DFL);
    signal(SIGPROF, jump);
    if (sigsetjmp(place, 1) == 0) {
        /* By time of the processor: in the midst of the calls of this loop, most of which hold locks. */
        MUST(setitimer(ITIMER_PROF, &soon, NULL) == 0);
        for (;;)
            rrecv(server, to, 1, MSG_DONTWAIT);
    }
    alarm(60);
    exit(wrong);
}
