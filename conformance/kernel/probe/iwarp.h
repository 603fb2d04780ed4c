/* Scenarios over iWARP, which has no immediate data, and where a request may be complete before the other
 * end has seen it: what is wrong with it comes back as a Terminate, which an application sees as an event
 * and by what it asks for next. */
#include <poll.h>

/* Every message is written, told of by an empty SEND behind it, changed there, read back, and sent. */
static void iwarp_verify(void)
{
    uint64_t sizes[] = {0, 1, 2, 3, 5, 64, 255, 1400, 1448, 1500, 8900, 9000, 65535, 65536, 65537, 1 << 20, 64 << 20};
    int done = 0;
    start(2 * longest);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes && sizes[i] <= longest; i++, done++) {
        uint64_t size = sizes[i];
        if (!is_client)
            /* siw posts no receive without a place. */
            receive(0, 1), receive(longest, longest);
        meet();
        if (is_client) {
            fill(0, size, i);
            post(remote(IBV_WR_RDMA_WRITE, 0), 0, size);
            good("WRITE");
            post((struct ibv_send_wr){.opcode = IBV_WR_SEND}, 0, 0);
            good("SEND");
            meet();
            if (size) {
                post(remote(IBV_WR_RDMA_READ, 0), longest, size);
                good("READ");
                check("READ", longest, size, ~i);
            }
            post((struct ibv_send_wr){.opcode = IBV_WR_SEND}, 0, size);
            good("SEND");
            meet();
            continue;
        }
        good("receive of nothing");
        check("WRITE", 0, size, i);
        fill(0, size, ~i);
        meet();
        struct ibv_wc wc = good("receive of a SEND");
        if (wc.opcode != IBV_WC_RECV || wc.byte_len != size)
            fail("SEND of %llu: opcode %d, %u bytes", (unsigned long long)size, wc.opcode, wc.byte_len);
        check("SEND", longest, size, i);
        meet();
    }
    printf("%d sizes verified\n", done);
}

/* How long an end waits for an event that tells of what the other did just now, and of what the other is given time for,
 * milliseconds. */
enum { SOON_MS = 1000, LATER_MS = 5000 };

/* The next event of the device. */
static const char *event_name(int patience_ms)
{
    static const char *const names[] = {"CQ_ERR", "QP_FATAL", "QP_REQ_ERR", "QP_ACCESS_ERR"};
    struct pollfd fd = {.fd = context->async_fd, .events = POLLIN};
    struct ibv_async_event event;
    if (poll(&fd, 1, patience_ms) != 1 || ibv_get_async_event(context, &event))
        return "none";
    ibv_ack_async_event(&event);
    return event.event_type < sizeof names / sizeof *names ? names[event.event_type] : "OTHER";
}

/* A completion that may never be. */
static const char *status_soon(void)
{
    struct ibv_wc wc;
    return next_within(&wc, 2) ? status_name(wc.status) : "none";
}

/* What the request that was just posted is refused with, and what becomes of the one that is posted once that is
 * known. */
static void iwarp_client_hears(int patience_ms)
{
    struct ibv_sge sge = part(0, 8);
    struct ibv_send_wr *bad, next_one = remote(IBV_WR_RDMA_WRITE, 0);
    printf("request: %s\n", status_name(next().status));
    printf("event: %s\n", event_name(patience_ms));
    meet();
    next_one.sg_list = &sge;
    next_one.num_sge = 1;
    next_one.send_flags = IBV_SEND_SIGNALED;
    int refused = ibv_post_send(qp, &next_one, &bad);
    printf("behind it: %s\n", refused ? "refused" : status_soon());
}

static void iwarp_refused(struct ibv_send_wr wr)
{
    if (!is_client) {
        receive(0, 16);
        meet();
        printf("receive: %s\n", status_soon());
        printf("event: %s\n", event_name(SOON_MS));
        meet();
        return;
    }
    meet();
    post(wr, 0, 8);
    iwarp_client_hears(SOON_MS);
}

/* A SEND that its receive has no room for. */
static void iwarp_send_long(void)
{
    start(8192);
    if (is_client) {
        meet();
        post((struct ibv_send_wr){.opcode = IBV_WR_SEND}, 0, 17);
        iwarp_client_hears(SOON_MS);
        return;
    }
    receive(0, 16);
    receive(64, 16);
    meet();
    printf("receive: %s\n", status_soon());
    printf("behind it: %s\n", status_soon());
    printf("event: %s\n", event_name(SOON_MS));
    meet();
    for (int i = 16; i < 80; i++)
        if (buffer[i])
            fail("byte %d was written", i);
}

/* A SEND for which there is no receive, however long it waits. */
static void iwarp_no_receive(void)
{
    start(8192);
    meet();
    if (is_client) {
        post((struct ibv_send_wr){.opcode = IBV_WR_SEND}, 0, 8);
        iwarp_client_hears(LATER_MS);
        return;
    }
    printf("event: %s\n", event_name(LATER_MS));
    meet();
}

/* Long WRITEs until the connection is lost: in the middle of one, since there always is one. */
static void iwarp_flood(void)
{
    enum { SIZE = 1 << 18, AHEAD = 8 };
    struct ibv_wc wc;
    start(SIZE);
    if (!is_client)
        receive(0, SIZE);
    meet();
    puts("running");
    fflush(stdout);
    if (!is_client) {
        printf("receive: %s\n", status_name(next().status));
        return;
    }
    for (int posted = 0;; posted++) {
        if (posted >= AHEAD && (wc = next()).status)
            break;
        post(remote(IBV_WR_RDMA_WRITE, 0), 0, SIZE);
    }
    /* The one under way may have a status of its own. */
    for (int left = AHEAD - 1; left; left--)
        wc = next();
    printf("behind it: %s\n", status_name(wc.status));
}

static void iwarp_remote(enum ibv_wr_opcode opcode, uint64_t offset, uint32_t key_change)
{
    start(8192);
    struct ibv_send_wr wr = remote(opcode, offset);
    wr.wr.rdma.rkey ^= key_change;
    iwarp_refused(wr);
    for (uint64_t i = 0; !is_client && i < len; i++)
        if (buffer[i])
            fail("byte %llu was written", (unsigned long long)i);
}

static void iwarp_write_key(void) { iwarp_remote(IBV_WR_RDMA_WRITE, 0, 1); }
static void iwarp_write_bounds(void) { iwarp_remote(IBV_WR_RDMA_WRITE, 8188, 0); }
static void iwarp_read_key(void) { iwarp_remote(IBV_WR_RDMA_READ, 0, 1); }
static void iwarp_read_bounds(void) { iwarp_remote(IBV_WR_RDMA_READ, 8188, 0); }

static void iwarp_write_right(void)
{
    mr_rights &= ~IBV_ACCESS_REMOTE_WRITE;
    iwarp_remote(IBV_WR_RDMA_WRITE, 0, 0);
}

static void iwarp_read_right(void)
{
    mr_rights &= ~IBV_ACCESS_REMOTE_READ;
    iwarp_remote(IBV_WR_RDMA_READ, 0, 0);
}
