/* Management datagrams between two hosts of a fabric: h1 at port 1 of a switch, h2 at port 2. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <infiniband/umad.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "expect.h"

enum { GET = 1, SET = 2, TABLE = 0x12, RESP = 0x80, LID = 1, DIRECTED = 0x81, ADMIN = 3 };
enum { NODE_INFO = 0x11, SWITCH_INFO = 0x12, PORT_INFO = 0x15, FORWARDING = 0x19 };
enum { DATA = 64, GSI_QKEY = 0x80010000, MAD = 256, SECONDS = 60 * 1000 };

static int manager, directed;
static uint8_t buffer[64 + 400000];

static uint8_t *mad_of(void *umad)
{
    return umad_get_mad(umad);
}

static void header(uint8_t *mad, int class, int version, int method, int attribute, uint32_t tid)
{
    memset(mad, 0, MAD);
    mad[0] = 1;
    mad[1] = class;
    mad[2] = version;
    mad[3] = method;
    uint32_t low = htonl(tid);
    memcpy(mad + 12, &low, 4);
    mad[16] = attribute >> 8;
    mad[17] = attribute;
}

/* Asks the node at the end of a path of ports, and leaves the answer in the buffer: its status, or what
 * the datagram comes back with. */
static int ask(int method, int attribute, uint32_t modifier, const char *path, const uint8_t *data)
{
    static uint32_t tid = 1;
    uint8_t *mad = mad_of(buffer);
    header(mad, DIRECTED, 1, method, attribute, tid++);
    mad[7] = strlen(path);
    for (unsigned hop = 0; path[hop]; hop++)
        mad[129 + hop] = path[hop] - '0';
    modifier = htonl(modifier);
    memcpy(mad + 20, &modifier, 4);
    memset(mad + 32, 0xff, 4);
    if (data)
        memcpy(mad + DATA, data, 64);
    umad_set_addr(buffer, 0xffff, 0, 0, 0);
    umad_set_grh(buffer, NULL);
    EXPECT(umad_send(manager, directed, buffer, MAD, 200, 2), 0);
    int length = MAD;
    EXPECT(umad_recv(manager, buffer, &length, SECONDS), directed);
    if (umad_status(buffer)) {
        EXPECT(length, 24);
        return umad_status(buffer);
    }
    EXPECT(length, MAD);
    EXPECT(mad[3], GET | RESP);
    return (mad[4] & 0x7f) << 8 | mad[5];
}

/* Sets LID and state of a port, with all else as it is. */
static void set_port(const char *path, int port, int lid, int state)
{
    uint8_t info[64];
    EXPECT(ask(GET, PORT_INFO, port, path, NULL), 0);
    memcpy(info, mad_of(buffer) + DATA, 64);
    if (lid) {
        info[16] = info[18] = 0;
        info[17] = lid;
        info[19] = 1;
    }
    info[32] = (info[32] & 0xf0) | state;
    info[33] &= 0x0f;
    EXPECT(ask(SET, PORT_INFO, port, path, info), 0);
}

/* LIDs 1 and 2 for the hosts, 3 for the switch; all ports active. */
static void bring_up(void)
{
    uint8_t data[64];
    EXPECT(ask(GET, SWITCH_INFO, 0, "1", NULL), 0);
    memcpy(data, mad_of(buffer) + DATA, 64);
    data[6] = 0;
    data[7] = 3;
    EXPECT(ask(SET, SWITCH_INFO, 0, "1", data), 0);
    memset(data, 0xff, 64);
    data[1] = 1;
    data[2] = 2;
    data[3] = 0;
    EXPECT(ask(SET, FORWARDING, 0, "1", data), 0);
    set_port("1", 0, 3, 0);
    for (int state = 3; state <= 4; state++) {
        set_port("", 1, 1, state);
        set_port("1", 1, 0, state);
        set_port("1", 2, 0, state);
        set_port("12", 1, 2, state);
    }
}

static void check_devices(void)
{
    char names[4][UMAD_CA_NAME_LEN];
    umad_ca_t ca;
    umad_port_t port;
    EXPECT(umad_get_cas_names(names, 4), 1);
    EXPECT(strcmp(names[0], "vernic_ib0"), 0);
    EXPECT(umad_get_ca(NULL, &ca), 0);
    EXPECT(ca.numports == 1 && ca.node_type == 1 && ca.ports[0] == NULL, 1);
    EXPECT(strcmp(ca.ports[1]->link_layer, "InfiniBand"), 0);
    EXPECT(ca.ports[1]->base_lid, 0);
    EXPECT(ca.ports[1]->state, 2);
    EXPECT(ca.ports[1]->phys_state, 5);
    EXPECT(ca.ports[1]->rate, 40);
    EXPECT(ca.ports[1]->pkeys_size > 1 && ca.ports[1]->pkeys[0] == 0xffff, 1);
    EXPECT(ca.ports[1]->gid_prefix == htobe64(0xfe80000000000000), 1);
    __be64 guids[2];
    EXPECT(umad_get_ca_portguids("vernic_ib0", guids, 2), 2);
    EXPECT(guids[1] == ca.ports[1]->port_guid && guids[1] != 0, 1);
    EXPECT(umad_release_ca(&ca), 0);
    EXPECT(umad_get_port("vernic_ib0", 2, &port), -ENODEV);
    EXPECT(umad_get_port("vernic0", 1, &port), -ENODEV);
    EXPECT(umad_open_port("vernic_ib0", 2), -ENODEV);
}

static void check_agents(int port)
{
    long methods[16 / sizeof(long)] = {1 << GET};
    uint8_t oui[3] = {0, 0x14, 5};
    int first = umad_register(port, 0x32, 1, 0, methods);
    EXPECT(first >= 0 && first < UMAD_CA_MAX_AGENTS, 1);
    EXPECT(umad_register_oui(port, 0x32, 0, oui, methods), -EPERM);
    oui[2] = 6;
    int second = umad_register_oui(port, 0x32, 1, oui, methods);
    EXPECT(second >= 0 && second != first, 1);
    EXPECT(umad_register_oui(port, 3, 0, oui, methods), -EINVAL);
    EXPECT(umad_register(port, 0x60, 1, 0, NULL), -EPERM);
    struct umad_reg_attr attr = {.mgmt_class = 4, .mgmt_class_version = 1, .flags = 2};
    uint32_t third = 99;
    EXPECT(umad_register2(port, &attr, &third), EINVAL);
    EXPECT(attr.flags, UMAD_USER_RMPP);
    EXPECT(umad_register2(port, &attr, &third), 0);
    EXPECT(third < UMAD_CA_MAX_AGENTS && third != (uint32_t)second, 1);
    EXPECT(umad_unregister(port, third), 0);
    EXPECT(umad_unregister(port, third), -EINVAL);
    EXPECT(umad_unregister(port, first), 0);
    EXPECT(umad_unregister(port, second), 0);
    EXPECT(umad_unregister(port, -1), -EINVAL);
}

/* A table of 300,000 bytes, asked for and sent. */
static int check_transfer(int asks, int serves)
{
    enum { HEADERS = 56, BYTES = HEADERS + 300000 };
    long methods[16 / sizeof(long)] = {1 << TABLE};
    int client = umad_register(asks, ADMIN, 2, 1, NULL);
    int server = umad_register(serves, ADMIN, 2, 1, methods);
    EXPECT(client >= 0 && server >= 0, 1);
    uint8_t *mad = mad_of(buffer);
    header(mad, ADMIN, 2, TABLE, 0x11, 77);
    umad_set_addr(buffer, 2, 1, 0, GSI_QKEY);
    EXPECT(umad_send(asks, client, buffer, MAD, SECONDS, 0), 0);
    /* A second one of the same number comes back. */
    EXPECT(umad_send(asks, client, buffer, MAD, SECONDS, 0), 0);
    int length = MAD;
    EXPECT(umad_recv(asks, buffer, &length, SECONDS), client);
    EXPECT(umad_status(buffer), EINVAL);

    EXPECT(umad_poll(serves, SECONDS), 0);
    length = MAD;
    EXPECT(umad_recv(serves, buffer, &length, 0), server);
    ib_mad_addr_t *from = umad_get_mad_addr(buffer);
    EXPECT(ntohs(from->lid), 1);
    EXPECT(ntohl(from->qpn), 1);
    EXPECT(from->grh_present, 0);
    EXPECT(mad[15], 77);
    mad[3] |= RESP;
    mad[26] = 1;
    for (int at = HEADERS; at < BYTES; at++)
        mad[at] = at * 7 >> 3;
    umad_set_addr_net(buffer, from->lid, from->qpn, from->sl, htonl(GSI_QKEY));
    EXPECT(umad_send(serves, server, buffer, BYTES, 0, 3), 0);

    memset(buffer, 0, sizeof buffer);
    length = MAD;
    EXPECT(umad_recv(asks, buffer, &length, SECONDS), -ENOSPC);
    EXPECT(length, BYTES);
    EXPECT(umad_poll(asks, 0), 0);
    struct pollfd readable = {.fd = umad_get_fd(asks), .events = POLLIN};
    EXPECT(poll(&readable, 1, 0), 1);
    length = sizeof buffer - 64;
    EXPECT(umad_recv(asks, buffer, &length, 0), client);
    EXPECT(length, BYTES);
    EXPECT(poll(&readable, 1, 0), 0);
    EXPECT(((struct ib_user_mad *)buffer)->length, 64 + BYTES);
    EXPECT(mad[3], TABLE | RESP);
    for (int at = HEADERS; at < BYTES; at++)
        MUST(mad[at] == (uint8_t)(at * 7 >> 3));
    EXPECT(umad_poll(serves, 0), -ETIMEDOUT);
    return 0;
}

static void *wait_for_ever(void *unused)
{
    static uint8_t own[64 + MAD];
    int length = MAD;
    umad_recv(manager, own, &length, -1);
    return unused;
}

/* A thread that waits is cancelled, and others go on. */
static void check_waiting(void)
{
    pthread_t thread;
    void *result;
    int length = MAD;
    EXPECT(umad_recv(manager, buffer, &length, 0), -EWOULDBLOCK);
    EXPECT(umad_recv(manager, buffer, &length, 20), -ETIMEDOUT);
    EXPECT(umad_poll(manager, 20), -ETIMEDOUT);
    EXPECT(pthread_create(&thread, NULL, wait_for_ever, NULL), 0);
    usleep(20 * 1000);
    EXPECT(pthread_cancel(thread), 0);
    EXPECT(pthread_join(thread, &result), 0);
    EXPECT(result == PTHREAD_CANCELED, 1);
    EXPECT(ask(GET, NODE_INFO, 0, "1", NULL), 0);
}

static uint32_t capabilities(void)
{
    umad_port_t port;
    EXPECT(umad_get_port(NULL, 0, &port), 0);
    uint32_t mask = ntohl(port.capmask);
    umad_release_port(&port);
    return mask;
}

/* The port has a subnet manager for as long as the file is open. */
static int check_issm(void)
{
    enum { IS_SM = 2 };
    char path[256];
    EXPECT(umad_get_issm_path(NULL, 1, path, 8), -ENAMETOOLONG);
    EXPECT(umad_get_issm_path("vernic_ib0", 1, path, sizeof path), 0);
    EXPECT(capabilities() & IS_SM, 0);
    int file = open(path, O_NONBLOCK);
    MUST(file >= 0);
    for (int turn = 0; turn < 5000 && !(capabilities() & IS_SM); turn++)
        usleep(1000);
    EXPECT(capabilities() & IS_SM, IS_SM);
    close(file);
    for (int turn = 0; turn < 5000 && capabilities() & IS_SM; turn++)
        usleep(1000);
    EXPECT(capabilities() & IS_SM, 0);
    return 0;
}

int main(void)
{
    EXPECT(umad_init(), 0);
    check_devices();
    manager = umad_open_port("vernic_ib0", 1);
    MUST(manager >= 0);
    EXPECT(umad_get_fd(manager), manager);
    directed = umad_register(manager, DIRECTED, 1, 0, NULL);
    EXPECT(directed, 0);
    EXPECT(umad_register(manager, LID, 1, 0, NULL), 1);

    EXPECT(ask(GET, NODE_INFO, 0, "", NULL), 0);
    EXPECT(mad_of(buffer)[DATA + 2], 1);
    EXPECT(ask(GET, NODE_INFO, 0, "1", NULL), 0);
    EXPECT(mad_of(buffer)[DATA + 2], 2);
    EXPECT(ask(GET, NODE_INFO, 0, "19", NULL), ETIMEDOUT);
    EXPECT(ask(GET, 0x77, 0, "1", NULL), 0x0c);
    struct pollfd polled = {.fd = umad_get_fd(manager), .events = POLLIN};
    EXPECT(poll(&polled, 1, 0), 0);

    bring_up();
    umad_port_t port;
    EXPECT(umad_get_port(NULL, 0, &port), 0);
    EXPECT(port.base_lid, 1);
    EXPECT(port.sm_lid, 1);
    EXPECT(port.state, 4);
    EXPECT(umad_release_port(&port), 0);
    check_agents(manager);
    check_waiting();
    if (check_issm())
        return 1;

    setenv("VERNIC_HOST", "h2", 1);
    int second = umad_open_port(NULL, 0);
    MUST(second >= 0 && second != manager);
    if (check_transfer(manager, second))
        return 1;
    EXPECT(umad_close_port(second), 0);
    EXPECT(umad_close_port(second), -EINVAL);
    EXPECT(umad_send(second, 0, buffer, MAD, 0, 0), -EINVAL);
    EXPECT(umad_poll(second, 0), -EINVAL);
    EXPECT(umad_close_port(manager), 0);
    setenv("VERNIC_HOST", "h9", 1);
    EXPECT(umad_open_port(NULL, 0), -ENODEV);
    setenv("VERNIC_FABRIC", "nowhere", 1);
    EXPECT(umad_open_port(NULL, 0), -ENODEV);
    return wrong;
}
