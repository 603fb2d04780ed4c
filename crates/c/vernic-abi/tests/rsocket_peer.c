/* A peer of a stream in another program: `server` sends back what comes until the end, `client PORT` sends bytes,
   ends its direction, and expects them back. Reads late, so that the other side has to wait. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <rdma/rsocket.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "expect.h"

#define MANY 1000000
#define PIECE 9999

static char sent[MANY], back[MANY + 1];

static struct sockaddr_in home(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static int serve(void)
{
    struct sockaddr_in address = home(0);
    socklen_t length = sizeof address;
    int listener = rsocket(AF_INET, SOCK_STREAM, 0);
    MUST(rbind(listener, (struct sockaddr *)&address, sizeof address) == 0);
    MUST(rlisten(listener, 1) == 0);
    MUST(rgetsockname(listener, (struct sockaddr *)&address, &length) == 0);
    printf("listens at port %d\n", ntohs(address.sin_port));
    fflush(stdout);
    int peer = raccept(listener, NULL, NULL);
    MUST(peer >= 0);
    /* The writer fills its buffers meanwhile, and has to wait. */
    usleep(200000);
    char piece[PIECE];
    ssize_t came;
    while ((came = rrecv(peer, piece, sizeof piece, 0)) > 0)
        MUST(rsend(peer, piece, came, 0) == came);
    EXPECT(came, 0);
    EXPECT(rshutdown(peer, SHUT_WR), 0);
    EXPECT(rclose(peer), 0);
    EXPECT(rclose(listener), 0);
    return wrong;
}

static int ask(int port)
{
    struct sockaddr_in address = home(port);
    int peer = rsocket(AF_INET, SOCK_STREAM, 0);
    MUST(rconnect(peer, (struct sockaddr *)&address, sizeof address) == 0);
    for (int at = 0; at < MANY; at++)
        sent[at] = at % 251;
    /* The peer keeps what it does not get rid of, or this would wait for ever. */
    MUST(rsend(peer, sent, MANY, 0) == MANY);
    EXPECT(rshutdown(peer, SHUT_WR), 0);
    size_t got = 0;
    ssize_t came;
    while ((came = rrecv(peer, back + got, sizeof back - got, 0)) > 0)
        got += came;
    EXPECT(came, 0);
    EXPECT(got, MANY);
    EXPECT(memcmp(sent, back, MANY), 0);
    EXPECT(rclose(peer), 0);
    return wrong;
}

int main(int count, char **words)
{
    return count == 1 ? serve() : ask(atoi(words[1]));
}
