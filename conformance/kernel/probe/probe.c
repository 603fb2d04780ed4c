/* What two RDMA implementations must agree on, byte by byte and status by status.
 *
 * One program for both ends, linked against libibverbs; `probe SCENARIO` is the server, `probe SCENARIO
 * ADDRESS` the client. The two tell each other their queue pairs over TCP, and take turns there. Each
 * prints one line for each finding; `cargo xtask kernel` compares the lines with what the InfiniBand
 * Architecture asks for, whichever end is which implementation. Exit status 1 is a failure of the
 * program's own steps, with a line that says which.
 *
 *   -d DEVICE    RDMA device, else the first
 *   -g INDEX     GID index
 *   -m BYTES     path MTU
 *   -n COUNT     repetitions, where a scenario has such
 *   -x BYTES     the longest message of `verify`
 *   -a ADDRESS   connect by rdma_cm to this address, which is the server's; no -d, -g and -m
 */
#include "ends.h"
#include "iwarp.h"

#include <endian.h>
#include <getopt.h>
#include <poll.h>

/* ---- data ---- */

/* Every message is written, told of by immediate data, changed there, read back, and sent. */
static void verify(void)
{
    uint64_t near = mtu, sizes[] = {0, 1, 2, 3, 5, 64, 255, near - 1, near, near + 1, 2 * near, 3 * near + 2, 65536, 65537, 1 << 20, 64 << 20};
    int done = 0, reliable = service == IBV_QPT_RC;
    /* The upper half is where SENDs go to, and READs return to. */
    start(2 * longest);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t size = sizes[i];
        if (size > longest)
            break;
        if (is_client) {
            struct ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE_WITH_IMM, 0);
            fill(0, size, i);
            wr.imm_data = htonl(i);
            meet();
            post(wr, 0, size);
            good("WRITE");
            meet();
            if (reliable && size) {
                post(remote(IBV_WR_RDMA_READ, 0), longest, size);
                good("READ");
                check("READ", longest, size, ~i);
            }
            wr = (struct ibv_send_wr){.opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl(~i)};
            meet();
            post(wr, 0, size);
            good("SEND");
            meet();
        } else {
            receive(0, 0);
            meet();
            struct ibv_wc wc = good("receive of a WRITE");
            if (wc.opcode != IBV_WC_RECV_RDMA_WITH_IMM || wc.byte_len != size || ntohl(wc.imm_data) != i)
                fail("WRITE of %llu: opcode %d, %u bytes, immediate %x", (unsigned long long)size, wc.opcode, wc.byte_len, ntohl(wc.imm_data));
            check("WRITE", 0, size, i);
            fill(0, size, ~i);
            receive(longest, longest);
            meet();
            meet();
            wc = good("receive of a SEND");
            if (wc.opcode != IBV_WC_RECV || wc.byte_len != size || !(wc.wc_flags & IBV_WC_WITH_IMM) || ntohl(wc.imm_data) != ~i)
                fail("SEND of %llu: opcode %d, %u bytes, immediate %x", (unsigned long long)size, wc.opcode, wc.byte_len, ntohl(wc.imm_data));
            check("SEND", longest, size, i);
            meet();
        }
        done++;
    }
    printf("%d sizes verified\n", done);
}

/* Many requests in flight, data inline among them; the receiver sees every byte in order. */
static void stream(void)
{
    enum { SIZE = 200 };
    start(DEPTH * SIZE);
    if (!is_client)
        for (int i = 0; i < DEPTH; i++)
            receive(i * SIZE, SIZE);
    meet();
    if (is_client) {
        for (int i = 0, free = DEPTH; i < count; i++, free--) {
            struct ibv_send_wr wr = {.opcode = IBV_WR_SEND, .send_flags = i % 2 ? IBV_SEND_INLINE : 0};
            if (!free)
                good("SEND"), free++;
            fill(i % DEPTH * SIZE, SIZE, i);
            post(wr, i % DEPTH * SIZE, SIZE);
        }
        for (int left = count < DEPTH ? count : DEPTH; left; left--)
            good("SEND");
    } else {
        for (int i = 0; i < count; i++) {
            struct ibv_wc wc = good("receive");
            if (wc.byte_len != SIZE)
                fail("message %d has %u bytes", i, wc.byte_len);
            check("SEND", i % DEPTH * SIZE, SIZE, i);
            receive(i % DEPTH * SIZE, SIZE);
        }
    }
    meet();
    printf("%d messages verified\n", count);
}

/* 16 READs in flight: as many as each end says it can. */
static void reads(void)
{
    enum { READS = 16, SIZE = 10000 };
    start(READS * SIZE);
    if (!is_client)
        fill(0, READS * SIZE, 7);
    meet();
    if (is_client) {
        for (int round = 0; round < 20; round++) {
            memset(buffer, 0, READS * SIZE);
            for (int i = 0; i < READS; i++)
                post(remote(IBV_WR_RDMA_READ, i * SIZE), i * SIZE, SIZE);
            for (int i = 0; i < READS; i++)
                good("READ");
            check("READ", 0, READS * SIZE, 7);
        }
    }
    meet();
    printf("reads verified\n");
}

/* Sums and swaps, and what they return. */
static void atomics(void)
{
    start(4096);
    uint64_t *word = (uint64_t *)buffer;
    word[1] = 1ull << 40;
    meet();
    for (int i = 0; is_client && i < count; i++) {
        post(atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 3, 0), 0, 8);
        good("FETCH ADD");
        if (word[0] != (1ull << 40) + 3 * i)
            fail("FETCH ADD %d returns %llx", i, (unsigned long long)word[0]);
        /* Only every second one finds what it compares with. */
        post(atomic(IBV_WR_ATOMIC_CMP_AND_SWP, 16, i % 2 ? 12345 : i / 2, i / 2 + 1), 0, 8);
        good("COMPARE SWAP");
        if (word[0] != (uint64_t)(i + 1) / 2)
            fail("COMPARE SWAP %d returns %llx", i, (unsigned long long)word[0]);
    }
    meet();
    if (!is_client && (word[1] != (1ull << 40) + 3 * count || word[2] != (uint64_t)(count + 1) / 2))
        fail("the words are %llx and %llx", (unsigned long long)word[1], (unsigned long long)word[2]);
    printf("%d atomics of each kind verified\n", count);
}

static void uc_verify(void)
{
    service = IBV_QPT_UC;
    verify();
}

/* ---- datagrams ---- */

static void post_datagram(struct ibv_ah *ah, uint32_t qkey, uint64_t bytes, uint32_t word)
{
    struct ibv_send_wr wr = {.opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl(word)};
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = peer.qpn;
    wr.wr.ud.remote_qkey = qkey;
    post(wr, 0, bytes);
    good("datagram");
}

/* The header before a datagram names both ends; one with a wrong Q_Key is not delivered, nor is one
 * longer than its receive. */
static void datagrams(void)
{
    service = IBV_QPT_UD;
    start(DEPTH * 8192);
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    int is_ipv4 = !memcmp(mine.gid.raw, mapped, sizeof mapped);
    uint64_t sizes[] = {0, 1, 7, 64, mtu - 1, mtu};
    int number = sizeof sizes / sizeof *sizes;
    for (int i = 0; !is_client && i < number; i++)
        receive(i * 8192, GRH + mtu);
    meet();
    if (is_client) {
        struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer.gid, .sgid_index = gid_index, .hop_limit = 64}};
        struct ibv_ah *ah = ibv_create_ah(pd, &attr);
        if (!ah)
            fail("creating an address handle");
        fill(0, mtu, 99);
        post_datagram(ah, QKEY + 1, 8, 4711);
        for (int i = 0; i < number; i++)
            post_datagram(ah, QKEY, sizes[i], i);
    } else {
        for (int i = 0; i < number; i++) {
            struct ibv_wc wc = good("receive");
            if (wc.byte_len != sizes[i] + GRH || ntohl(wc.imm_data) != (uint32_t)i || wc.src_qp != peer.qpn || !(wc.wc_flags & IBV_WC_GRH))
                fail("datagram %d: %u bytes, immediate %u, from %x, flags %x", i, wc.byte_len, ntohl(wc.imm_data), wc.src_qp, wc.wc_flags);
            check("datagram", i * 8192 + GRH, sizes[i], 99);
            uint8_t *grh = buffer + i * 8192;
            if (is_ipv4 ? memcmp(grh + 32, peer.gid.raw + 12, 4) || memcmp(grh + 36, mine.gid.raw + 12, 4)
                        : memcmp(grh + 8, peer.gid.raw, 16) || memcmp(grh + 24, mine.gid.raw, 16))
                fail("the header of datagram %d does not name the two ends", i);
        }
    }
    meet();
    printf("%d datagrams verified\n", number);
}

/* ---- failures: both ends end with what the InfiniBand Architecture says ---- */

/* The client posts one request that must fail, and a WRITE behind it; the server has a receive. */
static void refused(struct ibv_send_wr wr, uint64_t bytes)
{
    if (!is_client) {
        receive(0, 16);
        meet();
        printf("receive: %s\n", status_name(next().status));
        printf("state: %s\n", state_name());
        meet();
        return;
    }
    meet();
    post(wr, 0, bytes);
    post(remote(IBV_WR_RDMA_WRITE, 0), 0, 8);
    printf("request: %s\n", status_name(next().status));
    printf("behind it: %s\n", status_name(next().status));
    printf("state: %s\n", state_name());
    meet();
}

static void refused_remote(enum ibv_wr_opcode opcode, uint64_t offset, uint32_t key_change)
{
    int is_atomic = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
    start(8192);
    struct ibv_send_wr wr = is_atomic ? atomic(opcode, offset, 1, 1) : remote(opcode, offset);
    *(is_atomic ? &wr.wr.atomic.rkey : &wr.wr.rdma.rkey) ^= key_change;
    refused(wr, 8);
    for (uint64_t i = 0; !is_client && i < len; i++)
        if (buffer[i])
            fail("byte %llu was written", (unsigned long long)i);
}

/* Keys that name no region differ from ours in the index, and in the part that owners choose. */
static void write_index(void) { refused_remote(IBV_WR_RDMA_WRITE, 0, 0x7f0000); }
static void write_key(void) { refused_remote(IBV_WR_RDMA_WRITE, 0, 1); }
static void write_bounds(void) { refused_remote(IBV_WR_RDMA_WRITE, 8188, 0); }
static void read_key(void) { refused_remote(IBV_WR_RDMA_READ, 0, 1); }
static void read_bounds(void) { refused_remote(IBV_WR_RDMA_READ, 8188, 0); }
static void atomic_key(void) { refused_remote(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 1); }
static void atomic_bounds(void) { refused_remote(IBV_WR_ATOMIC_CMP_AND_SWP, 8192, 0); }
static void atomic_alignment(void) { refused_remote(IBV_WR_ATOMIC_FETCH_AND_ADD, 4, 0); }

static void without(int rights, enum ibv_wr_opcode opcode)
{
    mr_rights &= ~rights;
    refused_remote(opcode, 0, 0);
}

static void write_right(void) { without(IBV_ACCESS_REMOTE_WRITE, IBV_WR_RDMA_WRITE); }
static void read_right(void) { without(IBV_ACCESS_REMOTE_READ, IBV_WR_RDMA_READ); }
static void atomic_right(void) { without(IBV_ACCESS_REMOTE_ATOMIC, IBV_WR_ATOMIC_FETCH_AND_ADD); }

static void disabled(int rights, enum ibv_wr_opcode opcode)
{
    qp_rights &= ~rights;
    refused_remote(opcode, 0, 0);
}

static void write_disabled(void) { disabled(IBV_ACCESS_REMOTE_WRITE, IBV_WR_RDMA_WRITE); }
static void read_disabled(void) { disabled(IBV_ACCESS_REMOTE_READ, IBV_WR_RDMA_READ); }
static void atomic_disabled(void) { disabled(IBV_ACCESS_REMOTE_ATOMIC, IBV_WR_ATOMIC_FETCH_AND_ADD); }

/* A SEND that its receive has no room for. */
static void send_long(void)
{
    start(8192);
    refused((struct ibv_send_wr){.opcode = IBV_WR_SEND}, 17);
}

/* The same in the second packet. */
static void send_longer(void)
{
    start(16384);
    if (!is_client)
        receive(0, mtu + 1);
    refused((struct ibv_send_wr){.opcode = IBV_WR_SEND}, mtu + 2);
    /* The receive behind it. */
    if (!is_client)
        printf("receive behind it: %s\n", status_name(next().status));
}

/* A local key that names nothing: the request fails before the other end hears of it. */
static void local_key(void)
{
    start(8192);
    meet();
    if (is_client) {
        struct ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, 0), *bad;
        struct ibv_sge sge = part(0, 8);
        sge.lkey ^= 1;
        wr.sg_list = &sge;
        wr.num_sge = 1;
        wr.send_flags = IBV_SEND_SIGNALED;
        errno = ibv_post_send(qp, &wr, &bad);
        printf("request: %s\n", errno ? "LOC_PROT_ERR" : status_name(next().status));
    }
    meet();
    printf("state: %s\n", is_client ? "" : state_name());
}

/* A window that a SEND WITH INVALIDATE closes: what names it afterwards is refused. */
static void invalidate(void)
{
    mr_rights |= IBV_ACCESS_MW_BIND;
    start(8192);
    uint32_t key = 0;
    if (!is_client) {
        struct ibv_mw *window = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
        if (!window)
            fail("allocating a window");
        struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED}, *bad;
        key = wr.bind_mw.rkey = ibv_inc_rkey(window->rkey);
        wr.bind_mw.mw = window;
        wr.bind_mw.bind_info = (struct ibv_mw_bind_info){.mr = mr, .addr = (uintptr_t)buffer, .length = 4096, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
        if ((errno = ibv_post_send(qp, &wr, &bad)))
            fail("posting a bind");
        good("bind");
        receive(4096, 64);
        receive(4096, 64);
        transfer(&key, NULL, sizeof key);
        struct ibv_wc wc = good("receive");
        /* rxe passes on the flag's number inside the kernel. */
        int flags = IBV_WC_WITH_INV | 1 << 2;
        printf("invalidated: %s\n", wc.wc_flags & flags && wc.invalidated_rkey == key ? "the window" : "something else");
        meet();
        printf("receive: %s\n", status_name(next().status));
        meet();
        return;
    }
    transfer(NULL, &key, sizeof key);
    peer.rkey = key;
    post(remote(IBV_WR_RDMA_WRITE, 0), 0, 8);
    printf("before: %s\n", status_name(next().status));
    post((struct ibv_send_wr){.opcode = IBV_WR_SEND_WITH_INV, .invalidate_rkey = key}, 0, 8);
    printf("SEND: %s\n", status_name(next().status));
    meet();
    post(remote(IBV_WR_RDMA_WRITE, 0), 0, 8);
    printf("after: %s\n", status_name(next().status));
    meet();
}

/* A receiver that posts its receives late. */
static void rnr_wait(void)
{
    rnr_timer = 14; /* 1 ms */
    start(4096);
    for (int i = 0; i < 10; i++) {
        if (is_client) {
            post((struct ibv_send_wr){.opcode = IBV_WR_SEND}, 0, 64);
            good("SEND");
        } else {
            usleep(30000);
            receive(0, 64);
            good("receive");
        }
    }
    meet();
    printf("10 messages waited for\n");
}

/* A receiver that never does. */
static void rnr_end(void)
{
    rnr_timer = 14; /* 1 ms */
    rnr_retry = 2;
    start(4096);
    if (is_client) {
        post((struct ibv_send_wr){.opcode = IBV_WR_SEND}, 0, 64);
        printf("request: %s\n", status_name(next().status));
    }
    meet();
    printf("state: %s\n", state_name());
}

/* Nobody answers: the queue pair is in RESET again. */
static void silence(void)
{
    timeout = 10; /* 4.2 ms */
    retry = 2;
    start(4096);
    if (!is_client) {
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
        errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE);
        if (errno)
            fail("Reset");
    }
    meet();
    if (is_client) {
        post(remote(IBV_WR_RDMA_WRITE, 0), 0, 8);
        printf("request: %s\n", status_name(next().status));
    }
    meet();
    printf("state: %s\n", state_name());
}

/* WRITEs until one fails, or SENDs: the other end is killed meanwhile. */
static void flood(int is_send)
{
    timeout = 12; /* 16.8 ms */
    retry = 3;
    start(65536);
    for (int i = 0; !is_client && is_send && i < DEPTH; i++)
        receive(0, 1024);
    meet();
    puts("running");
    fflush(stdout);
    if (!is_client) {
        char end;
        for (struct ibv_wc wc; recv(sock, &end, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;)
            if (is_send && next_within(&wc, 0.01) && !wc.status)
                receive(0, 1024);
        printf("the other end is gone\n");
        return;
    }
    for (int posted = 0;; posted++) {
        struct ibv_wc wc;
        if (posted >= DEPTH / 2 && (wc = next()).status) {
            printf("request: %s\n", status_name(wc.status));
            return;
        }
        post(is_send ? (struct ibv_send_wr){.opcode = IBV_WR_SEND} : remote(IBV_WR_RDMA_WRITE, 0), 0, is_send ? 1024 : 16384);
    }
}

static void flood_write(void) { flood(0); }
static void flood_send(void) { flood(1); }

/* Only a message with a solicited event wakes who waits for such. */
static void solicited(void)
{
    start(4096);
    if (!is_client) {
        struct pollfd fd = {.fd = channel->fd, .events = POLLIN};
        receive(0, 64);
        receive(0, 64);
        if ((errno = ibv_req_notify_cq(cq, 1)))
            fail("asking for solicited events");
        meet();
        printf("plain: %s\n", poll(&fd, 1, 300) ? "woken" : "asleep");
        meet();
        printf("solicited: %s\n", poll(&fd, 1, 1000 * PATIENCE_S) ? "woken" : "asleep");
        meet();
        return;
    }
    post((struct ibv_send_wr){.opcode = IBV_WR_SEND}, 0, 64);
    good("SEND");
    meet();
    meet();
    post((struct ibv_send_wr){.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SOLICITED}, 0, 64);
    good("SEND");
    meet();
    printf("sent\n");
}

/* No scenario, and no device: datagrams to the RoCEv2 port, each an RC SEND whose ICRC is wrong. */
static int forge(void)
{
    static const char packet[] = "\x04\x40\xff\xff\0\0\0\x11\x80\0\0\1" "forgery." "\1\2\3\4";
    struct addrinfo *to, hints = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICHOST};
    if (getaddrinfo(server_name, "4791", &hints, &to))
        fail("reading the address %s", server_name);
    int udp = socket(to->ai_family, SOCK_DGRAM, 0);
    for (int i = 0; i < count; i++, usleep(1000))
        if (sendto(udp, packet, sizeof packet - 1, 0, to->ai_addr, to->ai_addrlen) < 0)
            fail("sending to %s", server_name);
    return 0;
}

static const struct {
    const char *name;
    void (*run)(void);
} scenarios[] = {
    {"verify", verify}, {"uc-verify", uc_verify}, {"stream", stream}, {"reads", reads},
    {"atomics", atomics}, {"datagrams", datagrams}, {"solicited", solicited},
    {"write-index", write_index}, {"write-key", write_key}, {"write-bounds", write_bounds},
    {"write-right", write_right}, {"write-disabled", write_disabled}, {"read-key", read_key},
    {"read-bounds", read_bounds}, {"read-right", read_right}, {"read-disabled", read_disabled},
    {"atomic-key", atomic_key}, {"atomic-bounds", atomic_bounds}, {"atomic-right", atomic_right},
    {"atomic-disabled", atomic_disabled}, {"atomic-alignment", atomic_alignment},
    {"send-long", send_long}, {"send-longer", send_longer}, {"local-key", local_key},
    {"invalidate", invalidate}, {"rnr-wait", rnr_wait}, {"rnr-end", rnr_end},
    {"silence", silence}, {"flood-write", flood_write}, {"flood-send", flood_send},
    {"iwarp-verify", iwarp_verify}, {"iwarp-write-key", iwarp_write_key}, {"iwarp-write-bounds", iwarp_write_bounds},
    {"iwarp-write-right", iwarp_write_right}, {"iwarp-read-key", iwarp_read_key}, {"iwarp-read-bounds", iwarp_read_bounds},
    {"iwarp-read-right", iwarp_read_right}, {"iwarp-send-long", iwarp_send_long}, {"iwarp-no-receive", iwarp_no_receive},
    {"iwarp-flood", iwarp_flood},
};

/* Whatever still refers to an object keeps it: that is no failure of the scenario. */
static void finish(void)
{
    if (cm_address)
        rdma_destroy_qp(id);
    else
        ibv_destroy_qp(qp);
    ibv_dereg_mr(mr);
    ibv_destroy_cq(cq);
    ibv_destroy_comp_channel(channel);
    ibv_dealloc_pd(pd);
    if (!cm_address)
        ibv_close_device(context);
    else if (!rdma_destroy_id(id) && listener)
        rdma_destroy_id(listener);
}

int main(int argc, char **argv)
{
    for (int option; (option = getopt(argc, argv, "a:d:g:m:n:x:")) != -1;)
        switch (option) {
        case 'a': cm_address = optarg; break;
        case 'd': device_name = optarg; break;
        case 'g': gid_index = atoi(optarg); break;
        case 'm': mtu = atoi(optarg); break;
        case 'n': count = atoi(optarg); break;
        case 'x': longest = atoll(optarg); break;
        default: return 2;
        }
    const char *name = optind < argc ? argv[optind] : "";
    is_client = optind + 1 < argc;
    server_name = is_client ? argv[optind + 1] : NULL;
    if (is_client && !strcmp(name, "forge"))
        return forge();
    for (unsigned i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        if (!strcmp(scenarios[i].name, name)) {
            srand(getpid());
            open_device();
            connect_tcp();
            scenarios[i].run();
            finish();
            return 0;
        }
    printf("failed: there is no scenario `%s`\n", name);
    return 2;
}
