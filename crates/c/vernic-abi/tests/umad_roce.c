/* Management datagrams on a RoCE device: between two programs of one host, by GID, and of the device itself. */
#include <arpa/inet.h>
#include <infiniband/umad.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "expect.h"

enum { GET = 1, SET = 2, RESP = 0x80, VENDOR = 0x32, PERFORMANCE = 4, UNKNOWN = 9, SUBNET = 1 };
enum { EXTENDED = 0x1d, DATA = 64, GSI_QKEY = 0x80010000, MAD = 256, SECONDS = 30 * 1000, OUI = 0x001405 };

static uint8_t buffer[64 + MAD];
static uint8_t home[16];

static void set_grh(const uint8_t *gid)
{
    struct ib_mad_addr to = {.grh_present = 1, .hop_limit = 64};
    memcpy(to.gid, gid, 16);
    umad_set_grh(buffer, &to);
}

/* Writes a request into the buffer, to queue pair 1 of this GID; NULL for none. */
static uint8_t *request(int class, int method, int attribute, const uint8_t *gid)
{
    static uint32_t tid = 1;
    memset(buffer, 0, sizeof(buffer));
    uint8_t *mad = umad_get_mad(buffer);
    mad[0] = mad[2] = 1;
    mad[1] = class;
    mad[3] = method;
    uint32_t low = htonl(tid++);
    memcpy(mad + 12, &low, 4);
    mad[16] = attribute >> 8;
    mad[17] = attribute;
    if (class >= 0x30) {
        mad[37] = OUI >> 16;
        mad[38] = OUI >> 8 & 0xff;
        mad[39] = OUI & 0xff;
    }
    umad_set_addr(buffer, 0, 1, 0, GSI_QKEY);
    if (gid)
        set_grh(gid);
    else
        umad_set_grh(buffer, NULL);
    return mad;
}

static int receive(int port)
{
    int length = MAD;
    return umad_recv(port, buffer, &length, SECONDS);
}

static int status_of(const uint8_t *mad)
{
    return mad[4] << 8 | mad[5];
}

static int open_port(void)
{
    int port = umad_open_port(NULL, 0);
    EXPECT(port >= 0, 1);
    return port;
}

/* Answers pings until the other program closes the pipe. */
static int server(int ready, int end)
{
    int port = open_port();
    long gets[2] = {1 << GET};
    uint8_t oui[3] = {OUI >> 16, OUI >> 8 & 0xff, OUI & 0xff};
    int agent = umad_register_oui(port, VENDOR, 0, oui, gets);
    MUST(agent >= 0);
    MUST(write(ready, "r", 1) == 1);
    struct pollfd fds[2] = {{.fd = umad_get_fd(port), .events = POLLIN}, {.fd = end, .events = POLLIN}};
    while (poll(fds, 2, SECONDS) > 0 && !fds[1].revents) {
        EXPECT(receive(port), agent);
        uint8_t *mad = umad_get_mad(buffer);
        EXPECT(mad[3], GET);
        struct ib_mad_addr *from = umad_get_mad_addr(buffer);
        EXPECT(from->grh_present, 1);
        EXPECT(memcmp(from->gid, home, 16), 0);
        EXPECT(ntohl(from->qpn), 1);
        EXPECT(from->lid, 0);
        mad[3] = GET | RESP;
        mad[DATA]++;
        EXPECT(umad_send(port, agent, buffer, MAD, 0, 0), 0);
    }
    EXPECT(umad_unregister(port, agent), 0);
    EXPECT(umad_close_port(port), 0);
    return wrong;
}

static void pings(int port)
{
    uint8_t oui[3] = {OUI >> 16, OUI >> 8 & 0xff, OUI & 0xff};
    long gets[2] = {1 << GET};
    EXPECT(umad_register_oui(port, VENDOR, 0, oui, gets), -EPERM);
    int agent = umad_register_oui(port, VENDOR, 0, oui, NULL);
    EXPECT(agent >= 0, 1);
    struct pollfd fd = {.fd = umad_get_fd(port), .events = POLLIN};
    for (int n = 1; n <= 20; n++) {
        EXPECT(poll(&fd, 1, 0), 0);
        uint8_t *mad = request(VENDOR, GET, 0, home);
        uint8_t tid[4];
        memcpy(tid, mad + 12, 4);
        mad[DATA] = n;
        EXPECT(umad_send(port, agent, buffer, MAD, 1000, 3), 0);
        EXPECT(poll(&fd, 1, SECONDS), 1);
        EXPECT(umad_poll(port, SECONDS), 0);
        EXPECT(receive(port), agent);
        EXPECT(umad_status(buffer), 0);
        EXPECT(memcmp(tid, mad + 12, 4), 0);
        EXPECT(mad[DATA], n + 1);
        EXPECT(mad[3], GET | RESP);
    }
    EXPECT(umad_poll(port, 20), -ETIMEDOUT);
    EXPECT(umad_unregister(port, agent), 0);
}

/* The device counts, and says so to whoever asks, by GID and by the LID 0 that it has. */
static void counters(int port)
{
    int agent = umad_register(port, PERFORMANCE, 1, 0, NULL);
    EXPECT(agent >= 0, 1);
    uint64_t before = 0;
    for (int n = 0; n < 2; n++) {
        uint8_t *mad = request(PERFORMANCE, GET, EXTENDED, n ? NULL : home);
        mad[DATA + 1] = 1;
        EXPECT(umad_send(port, agent, buffer, MAD, 3000, 1), 0);
        EXPECT(receive(port), agent);
        EXPECT(umad_status(buffer), 0);
        EXPECT(status_of(mad), 0);
        uint64_t sent = 0;
        for (int at = 24; at < 32; at++)
            sent = sent << 8 | mad[DATA + at];
        EXPECT(sent > before, 1);
        before = sent;
        /* The sums are kept for 100 ms. */
        EXPECT(poll(NULL, 0, 200), 0);
    }
    request(PERFORMANCE, SET, EXTENDED, home);
    EXPECT(umad_send(port, agent, buffer, MAD, 3000, 1), 0);
    EXPECT(receive(port), agent);
    EXPECT(status_of(umad_get_mad(buffer)), 0x8);
    EXPECT(umad_unregister(port, agent), 0);
}

static void refusals(int port)
{
    int agent = umad_register(port, UNKNOWN, 1, 0, NULL);
    EXPECT(agent >= 0, 1);
    request(UNKNOWN, GET, 1, home);
    EXPECT(umad_send(port, agent, buffer, MAD, 3000, 1), 0);
    EXPECT(receive(port), agent);
    EXPECT(status_of(umad_get_mad(buffer)), 0xc);
    /* Nobody is there. */
    uint8_t nowhere[16] = {[10] = 0xff, 0xff, 198, 18, 9, 9};
    request(UNKNOWN, GET, 1, nowhere);
    EXPECT(umad_send(port, agent, buffer, MAD, 30, 1), 0);
    EXPECT(receive(port), agent);
    EXPECT(umad_status(buffer), ETIMEDOUT);
    /* No LIDs, no such GID, no queue pair 0. */
    request(UNKNOWN, GET, 1, NULL);
    umad_set_addr(buffer, 5, 1, 0, GSI_QKEY);
    EXPECT(umad_send(port, agent, buffer, MAD, 30, 0), -EINVAL);
    request(UNKNOWN, GET, 1, home);
    ((struct ib_mad_addr *)umad_get_mad_addr(buffer))->gid_index = 99;
    EXPECT(umad_send(port, agent, buffer, MAD, 30, 0), -EINVAL);
    long gets[2] = {1 << GET};
    EXPECT(umad_register(port, SUBNET, 1, 0, gets), -EPERM);
    int manager = umad_register(port, SUBNET, 1, 0, NULL);
    EXPECT(manager >= 0, 1);
    request(SUBNET, GET, 1, home);
    EXPECT(umad_send(port, manager, buffer, MAD, 30, 0), -EPROTONOSUPPORT);
    EXPECT(umad_unregister(port, agent), 0);
    EXPECT(umad_unregister(port, agent), -EINVAL);
}

int main(void)
{
    umad_port_t shown;
    MUST(umad_get_port(NULL, 0, &shown) == 0);
    memcpy(home, &shown.gid_prefix, 8);
    memcpy(home + 8, &shown.port_guid, 8);
    EXPECT(umad_release_port(&shown), 0);
    int ready[2], end[2];
    MUST(pipe(ready) == 0 && pipe(end) == 0);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        close(end[1]);
        exit(server(ready[1], end[0]));
    }
    close(end[0]);
    char letter;
    MUST(read(ready[0], &letter, 1) == 1);
    int port = open_port();
    pings(port);
    counters(port);
    refusals(port);
    close(end[1]);
    int status;
    EXPECT(waitpid(child, &status, 0), child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0, 1);
    /* What the other program had is free. */
    uint8_t oui[3] = {OUI >> 16, OUI >> 8 & 0xff, OUI & 0xff};
    long gets[2] = {1 << GET};
    EXPECT(umad_register_oui(port, VENDOR, 0, oui, gets) >= 0, 1);
    EXPECT(umad_close_port(port), 0);
    EXPECT(umad_get_fd(port), -EINVAL);
    return wrong;
}
