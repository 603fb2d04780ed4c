/* The two ends of a scenario of probe.c: their TCP connection, one queue pair each, and what it takes to
 * post, to wait and to check. Whatever goes wrong ends the program with a line that says what. */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* Where the server waits, as other programs of verbs do. */
#define PORT 18515
/* Where it listens for connections by address. */
#define CM_PORT "18516"
/* Inline data that every driver of iWARP has room for. */
#define CM_INLINE 64
#define QKEY 0x1ee7c0de
/* No answer within this time is a failure. */
#define PATIENCE_S 20
/* What is added for a message of so many bytes: an emulated machine may take a second for a mebibyte of it. */
#define LONGER_S(bytes) ((int)((bytes) >> 20))
#define DEPTH 64
#define GRH 40
#define RIGHTS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* What one end tells the other. */
struct end {
    uint64_t addr, len;
    uint32_t qpn, psn, rkey, word;
    union ibv_gid gid;
};

static const char *device_name, *server_name, *cm_address;
static int is_client, gid_index, count = 100, sock = -1, mtu = 1024;
static uint64_t longest = 1 << 20, len;
static struct rdma_cm_id *listener, *id;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static uint8_t *buffer;
static struct end mine, peer;
static enum ibv_qp_type service = IBV_QPT_RC;
/* Attributes that scenarios change before they connect. */
static int qp_rights = RIGHTS & ~IBV_ACCESS_LOCAL_WRITE, mr_rights = RIGHTS;
static int rnr_retry = 7, retry = 7, timeout = 14, rnr_timer = 12;

static void fail(const char *what, ...)
{
    va_list words;
    va_start(words, what);
    printf("failed: ");
    vprintf(what, words);
    printf(": %s\n", errno ? strerror(errno) : "no error number");
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* ---- TCP: exchange and turns ---- */

static void transfer(void *out, void *in, size_t size)
{
    if (out && send(sock, out, size, MSG_NOSIGNAL) != (ssize_t)size)
        fail("sending to the other end over TCP");
    if (in && recv(sock, in, size, MSG_WAITALL) != (ssize_t)size)
        fail("the other end is gone");
}

/* Both ends are here. */
static void meet(void)
{
    char word = 'm';
    transfer(&word, NULL, 1);
    transfer(NULL, &word, 1);
}

static void connect_tcp(void)
{
    if (!is_client) {
        int one = 1, waiting = socket(AF_INET, SOCK_STREAM, 0);
        struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(PORT)};
        setsockopt(waiting, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(waiting, (void *)&any, sizeof any) || listen(waiting, 1))
            fail("listening on TCP port %d", PORT);
        sock = accept(waiting, NULL, NULL);
        close(waiting);
    } else {
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT)};
        sock = socket(AF_INET, SOCK_STREAM, 0);
        if (!inet_aton(server_name, &to.sin_addr) || connect(sock, (void *)&to, sizeof to))
            fail("connecting to %s", server_name);
    }
    struct timeval patience = {.tv_sec = 4 * (PATIENCE_S + LONGER_S(longest))};
    setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
}

/* ---- by address ---- */

/* The device is that of the address; the server listens. */
static void open_by_address(void)
{
    struct addrinfo *to, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    if (getaddrinfo(cm_address, CM_PORT, &hints, &to))
        fail("reading the address %s", cm_address);
    if (rdma_create_id(NULL, is_client ? &id : &listener, NULL, RDMA_PS_TCP))
        fail("creating an id");
    if (is_client) {
        if (rdma_resolve_addr(id, NULL, to->ai_addr, 1000 * PATIENCE_S) || rdma_resolve_route(id, 1000 * PATIENCE_S))
            fail("resolving %s", cm_address);
    } else if (rdma_bind_addr(listener, to->ai_addr) || rdma_listen(listener, 1)) {
        fail("listening at %s", cm_address);
    }
    context = is_client ? id->verbs : listener->verbs;
    freeaddrinfo(to);
}

/* ---- verbs ---- */

static void open_device(void)
{
    int devices = 0;
    struct ibv_device **list = NULL;
    if (cm_address)
        open_by_address();
    else
        list = ibv_get_device_list(&devices);
    for (int i = 0; list && i < devices && !context; i++)
        if (!device_name || !strcmp(ibv_get_device_name(list[i]), device_name))
            context = ibv_open_device(list[i]);
    if (!context)
        fail("opening device %s", device_name ? device_name : "(the first)");
    pd = ibv_alloc_pd(context);
    channel = ibv_create_comp_channel(context);
    if (!pd || !channel || !(cq = ibv_create_cq(context, 4 * DEPTH, NULL, channel, 0)))
        fail("creating a completion queue");
}

static struct ibv_qp_init_attr wanted(void)
{
    return (struct ibv_qp_init_attr){
        .send_cq = cq, .recv_cq = cq, .qp_type = service,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1,
                .max_inline_data = cm_address ? CM_INLINE : 256}};
}

/* Of a connection by address the server has none before it is asked for one. */
static void create_qp(void)
{
    struct ibv_qp_init_attr init = wanted();
    if (cm_address && is_client && !rdma_create_qp(id, pd, &init))
        qp = id->qp;
    else if (!cm_address)
        qp = ibv_create_qp(pd, &init);
    if (!qp && (is_client || !cm_address))
        fail("creating a queue pair");
    buffer = aligned_alloc(4096, (len + 4095) / 4096 * 4096);
    memset(buffer, 0, len);
    if (!(mr = ibv_reg_mr(pd, buffer, len, mr_rights)))
        fail("registering %llu bytes", (unsigned long long)len);
}

static void tell(void)
{
    mine.addr = (uintptr_t)buffer;
    mine.len = len;
    mine.qpn = qp ? qp->qp_num : 0;
    mine.psn = rand() & 0xffffff;
    mine.rkey = mr->rkey;
    if (!cm_address && ibv_query_gid(context, 1, gid_index, &mine.gid))
        fail("GID %d", gid_index);
    transfer(&mine, NULL, sizeof mine);
    transfer(NULL, &peer, sizeof peer);
}

static void to_ready(void)
{
    enum ibv_mtu path = mtu >= 4096 ? IBV_MTU_4096 : mtu >= 2048 ? IBV_MTU_2048 : mtu >= 1024 ? IBV_MTU_1024 : mtu >= 512 ? IBV_MTU_512 : IBV_MTU_256;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY, .qp_access_flags = qp_rights};
    int connected = service != IBV_QPT_UD, reliable = service == IBV_QPT_RC;
    errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (connected ? IBV_QP_ACCESS_FLAGS : IBV_QP_QKEY));
    if (errno)
        fail("Init");
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = path;
    attr.dest_qp_num = peer.qpn;
    attr.rq_psn = peer.psn;
    attr.max_dest_rd_atomic = 16;
    attr.min_rnr_timer = rnr_timer;
    attr.ah_attr = (struct ibv_ah_attr){.is_global = 1, .port_num = 1, .grh = {.dgid = peer.gid, .sgid_index = gid_index, .hop_limit = 64}};
    int mask = IBV_QP_STATE;
    if (connected)
        mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (reliable)
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    if ((errno = ibv_modify_qp(qp, &attr, mask)))
        fail("RTR");
    attr.qp_state = IBV_QPS_RTS;
    attr.sq_psn = mine.psn;
    attr.timeout = timeout;
    attr.retry_cnt = retry;
    attr.rnr_retry = rnr_retry;
    attr.max_rd_atomic = 16;
    mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (reliable)
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    if ((errno = ibv_modify_qp(qp, &attr, mask)))
        fail("RTS");
}

/* The same by the connection manager. */
static void connect_by_address(void)
{
    struct rdma_conn_param param = {.responder_resources = 16, .initiator_depth = 16, .retry_count = 7, .rnr_retry_count = 7};
    struct ibv_qp_init_attr init = wanted();
    if (is_client) {
        if (rdma_connect(id, &param))
            fail("connecting to %s", cm_address);
        return;
    }
    if (rdma_get_request(listener, &id))
        fail("waiting for a request");
    if (rdma_create_qp(id, pd, &init))
        fail("creating a queue pair");
    qp = id->qp;
    if (rdma_accept(id, &param))
        fail("accepting a request");
}

/* A queue pair connected to the other end's, and a region of `bytes`. */
static void start(uint64_t bytes)
{
    len = bytes;
    create_qp();
    tell();
    if (cm_address)
        connect_by_address();
    else
        to_ready();
    meet();
}

static const char *status_name(enum ibv_wc_status status)
{
    static const char *const names[] = {
        "SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR",
        "MW_BIND_ERR", "BAD_RESP_ERR", "LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR",
        "REM_OP_ERR", "RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR"};
    return status < sizeof names / sizeof *names ? names[status] : "OTHER";
}

/* The next completion, or 0 after so many seconds. */
static int next_within(struct ibv_wc *wc, double seconds)
{
    for (double end = now() + seconds; now() < end;) {
        int n = ibv_poll_cq(cq, 1, wc);
        if (n < 0)
            fail("polling");
        if (n)
            return 1;
    }
    return 0;
}

static struct ibv_wc next(void)
{
    struct ibv_wc wc;
    int patience = PATIENCE_S + LONGER_S(longest);
    if (!next_within(&wc, patience))
        fail("no completion in %d s", patience);
    return wc;
}

static struct ibv_wc good(const char *what)
{
    struct ibv_wc wc = next();
    if (wc.status)
        fail("%s ended with %s", what, status_name(wc.status));
    return wc;
}

static struct ibv_sge part(uint64_t offset, uint64_t bytes)
{
    return (struct ibv_sge){.addr = (uintptr_t)buffer + offset, .length = bytes, .lkey = mr->lkey};
}

static void post(struct ibv_send_wr wr, uint64_t offset, uint64_t bytes)
{
    struct ibv_sge sge = part(offset, bytes);
    struct ibv_send_wr *bad;
    wr.send_flags |= IBV_SEND_SIGNALED;
    wr.sg_list = &sge;
    wr.num_sge = bytes > 0;
    if ((errno = ibv_post_send(qp, &wr, &bad)))
        fail("posting opcode %d", wr.opcode);
}

static struct ibv_send_wr remote(enum ibv_wr_opcode opcode, uint64_t offset)
{
    struct ibv_send_wr wr = {.opcode = opcode};
    wr.wr.rdma.remote_addr = peer.addr + offset;
    wr.wr.rdma.rkey = peer.rkey;
    return wr;
}

static struct ibv_send_wr atomic(enum ibv_wr_opcode opcode, uint64_t offset, uint64_t compare_add, uint64_t swap)
{
    struct ibv_send_wr wr = {.opcode = opcode};
    wr.wr.atomic.remote_addr = peer.addr + offset;
    wr.wr.atomic.rkey = peer.rkey;
    wr.wr.atomic.compare_add = compare_add;
    wr.wr.atomic.swap = swap;
    return wr;
}

static void receive(uint64_t offset, uint64_t bytes)
{
    struct ibv_sge sge = part(offset, bytes);
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = bytes > 0}, *bad;
    if ((errno = ibv_post_recv(qp, &wr, &bad)))
        fail("posting a receive");
}

/* Bytes that say where they belong. */
static uint8_t letter(uint64_t i, uint32_t seed)
{
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u ^ seed * 0x85ebca6bu;
    return x >> 56;
}

static void fill(uint64_t offset, uint64_t bytes, uint32_t seed)
{
    for (uint64_t i = 0; i < bytes; i++)
        buffer[offset + i] = letter(i, seed);
}

static void check(const char *what, uint64_t offset, uint64_t bytes, uint32_t seed)
{
    for (uint64_t i = 0; i < bytes; i++)
        if (buffer[offset + i] != letter(i, seed)) {
            errno = 0;
            fail("%s of %llu bytes: byte %llu is %02x, sent was %02x", what, (unsigned long long)bytes,
                 (unsigned long long)i, buffer[offset + i], letter(i, seed));
        }
}

static const char *state_name(void)
{
    static const char *const names[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    if (ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) || attr.qp_state > IBV_QPS_ERR)
        fail("asking for the state");
    return names[attr.qp_state];
}
