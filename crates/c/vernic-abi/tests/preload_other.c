/* A librdmacm.so.1 that speaks of connections as rdma-core's does: every socket has a peer, if only the one that it
   asked; one that was refused has an error and has not hung up. All else is that of the library behind it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

int rgetpeername(int number, struct sockaddr *address, socklen_t *length)
{
    int (*next)(int, struct sockaddr *, socklen_t *) = dlsym(RTLD_NEXT, "rgetpeername");
    if (next(number, address, length) != 0)
        memset(address, 0, *length);
    return 0;
}

int rpoll(struct pollfd *entries, nfds_t count, int timeout_ms)
{
    int (*next)(struct pollfd *, nfds_t, int) = dlsym(RTLD_NEXT, "rpoll");
    int ready = next(entries, count, timeout_ms);
    for (nfds_t one = 0; one < count; one++)
        if (entries[one].revents & POLLERR)
            entries[one].revents &= entries[one].events | POLLERR;
    return ready;
}
