/* What a careless program does to the library: every call has to answer, none may crash. */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int wrong;

#define EXPECT(what, want)                                                                        \
    do {                                                                                          \
        long got_ = (long)(what);                                                                 \
        if (got_ != (long)(want)) {                                                               \
            printf("line %d: %s is %ld, not %ld\n", __LINE__, #what, got_, (long)(want));         \
            wrong = 1;                                                                            \
        }                                                                                         \
    } while (0)

/* This errno, returned and set: what `perror` prints. */
#define SAYS(what, want)                                                                          \
    do {                                                                                          \
        errno = 0;                                                                                \
        EXPECT(what, want);                                                                       \
        EXPECT(errno, want);                                                                      \
    } while (0)

/* NULL, and this errno. */
#define REFUSED(what, want)                                                                       \
    do {                                                                                          \
        errno = 0;                                                                                \
        if ((what) != NULL) {                                                                     \
            printf("line %d: %s is not NULL\n", __LINE__, #what);                                 \
            wrong = 1;                                                                            \
        }                                                                                         \
        EXPECT(errno, want);                                                                      \
    } while (0)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static struct ibv_qp *make_qp(enum ibv_qp_type type, struct ibv_qp_cap cap)
{
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = cap, .qp_type = type};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    if (qp && memcmp(&init.cap, &cap, sizeof cap) != 0) {
        printf("other sizes were granted than asked for\n");
        wrong = 1;
    }
    return qp;
}

static const struct ibv_qp_cap small = {4, 4, 2, 2, 64};

static void nulls(void)
{
    struct ibv_device_attr device;
    struct ibv_port_attr port;
    union ibv_gid gid;
    SAYS(ibv_query_device(NULL, &device), EINVAL);
    SAYS(ibv_query_device(context, NULL), EINVAL);
    SAYS(ibv_query_port(context, 2, &port), EINVAL);
    SAYS(ibv_query_port(context, 0, &port), EINVAL);
    EXPECT(ibv_query_gid(context, 1, -1, &gid), -1);
    EXPECT(ibv_query_gid(context, 1, 256, &gid), -1);
    EXPECT(ibv_query_gid(context, 1, 255, &gid), 0);
    SAYS(ibv_close_device(NULL), EINVAL);
    SAYS(ibv_dealloc_pd(NULL), EINVAL);
    SAYS(ibv_dereg_mr(NULL), EINVAL);
    SAYS(ibv_destroy_cq(NULL), EINVAL);
    SAYS(ibv_destroy_qp(NULL), EINVAL);
    SAYS(ibv_destroy_srq(NULL), EINVAL);
    SAYS(ibv_destroy_ah(NULL), EINVAL);
    SAYS(ibv_destroy_comp_channel(NULL), EINVAL);
    SAYS(ibv_modify_qp(NULL, NULL, 0), EINVAL);
    SAYS(ibv_query_qp(NULL, NULL, 0, NULL), EINVAL);
    EXPECT(ibv_qp_to_qp_ex(NULL) == NULL, 1);
    EXPECT(ibv_get_device_name(NULL) == NULL, 1);
    struct ibv_device copy = {.name = "copy0"};
    EXPECT(strcmp(ibv_get_device_name(&copy), "copy0"), 0);
    REFUSED(ibv_open_device(NULL), EINVAL);
    REFUSED(ibv_alloc_pd(NULL), EINVAL);
    REFUSED(ibv_create_qp(pd, NULL), EINVAL);
    REFUSED(ibv_create_qp(NULL, NULL), EINVAL);
    REFUSED(ibv_create_srq(pd, NULL), EINVAL);
    REFUSED(ibv_create_ah(pd, NULL), EINVAL);
    REFUSED(ibv_create_comp_channel(NULL), EINVAL);
    REFUSED(ibv_import_device(-1), EBADF);
    REFUSED(ibv_import_device(0), ENODEV);
    REFUSED(ibv_import_pd(context, 12345), EINVAL);
    ibv_free_device_list(NULL);
    ibv_ack_cq_events(NULL, 1);
    ibv_ack_async_event(NULL);
    /* Numbers without a name. */
    EXPECT(ibv_wc_status_str(-1) != NULL && ibv_wc_status_str(1 << 30) != NULL, 1);
    EXPECT(ibv_event_type_str(99) != NULL && ibv_node_type_str(-1) != NULL, 1);
    EXPECT(ibv_rate_to_mbps(1234), -1);
    EXPECT(mult_to_ibv_rate(3), IBV_RATE_MAX);
}

static void limits(void)
{
    struct ibv_device_attr device;
    char buffer[64];
    EXPECT(ibv_query_device(context, &device), 0);
    struct ibv_qp_cap over[] = {
        {device.max_qp_wr + 1, 4, 1, 1, 0}, {4, device.max_qp_wr + 1, 1, 1, 0},
        {4, 4, device.max_sge + 1, 1, 0},   {4, 4, 1, device.max_sge + 1, 0},
        {4, 4, 1, 1, 1 << 20},
    };
    for (unsigned i = 0; i < sizeof over / sizeof *over; i++)
        REFUSED(make_qp(IBV_QPT_RC, over[i]), EINVAL);
    REFUSED(make_qp(IBV_QPT_RAW_PACKET, small), EOPNOTSUPP);
    REFUSED(make_qp((enum ibv_qp_type)77, small), EOPNOTSUPP);
    REFUSED(ibv_create_cq(context, 0, NULL, NULL, 0), EINVAL);
    REFUSED(ibv_create_cq(context, -5, NULL, NULL, 0), EINVAL);
    REFUSED(ibv_create_cq(context, device.max_cqe + 1, NULL, NULL, 0), EINVAL);
    REFUSED(ibv_create_cq(context, 4, NULL, NULL, context->num_comp_vectors), EINVAL);
    REFUSED(ibv_create_cq(context, 4, NULL, NULL, -1), EINVAL);
    REFUSED(ibv_reg_mr(pd, NULL, 64, IBV_ACCESS_LOCAL_WRITE), EFAULT);
    REFUSED(ibv_reg_mr(pd, (void *)-64, 128, 0), EINVAL);
    REFUSED(ibv_reg_mr(pd, buffer, 64, IBV_ACCESS_REMOTE_WRITE), EINVAL);
    REFUSED(ibv_reg_mr(pd, buffer, 64, 1 << 19), EINVAL);
    REFUSED(ibv_alloc_mw(pd, 3), EINVAL);
    struct ibv_ah_attr local = {.port_num = 1, .dlid = 5};
    REFUSED(ibv_create_ah(pd, &local), EINVAL);
    /* Bits that a device may ignore are ignored. */
    struct ibv_mr *mr = ibv_reg_mr(pd, buffer, 64, IBV_ACCESS_RELAXED_ORDERING | 1 << 29);
    EXPECT(mr != NULL, 1);
    EXPECT(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0), -1);
    EXPECT(ibv_rereg_mr(mr, 1 << 10, NULL, NULL, 0, 0), -1);
    EXPECT(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0), -1);
    EXPECT(ibv_dereg_mr(mr), 0);
}

static void busy(void)
{
    struct ibv_qp *qp = make_qp(IBV_QPT_UD, small);
    EXPECT(qp != NULL, 1);
    SAYS(ibv_destroy_cq(cq), EBUSY);
    SAYS(ibv_dealloc_pd(pd), EBUSY);
    /* 239.0.0.9: lo has no route for groups of IPv6. */
    union ibv_gid group = {.raw = {[10] = 0xff, [11] = 0xff, [12] = 239, [15] = 9}};
    union ibv_gid no_group = {.raw = {0xfe, 0x80}};
    SAYS(ibv_attach_mcast(qp, &no_group, 0), EINVAL);
    SAYS(ibv_detach_mcast(qp, &group, 0), EINVAL);
    SAYS(ibv_attach_mcast(qp, NULL, 0), EINVAL);
    EXPECT(ibv_attach_mcast(qp, &group, 0), 0);
    SAYS(ibv_destroy_qp(qp), EBUSY);
    EXPECT(ibv_detach_mcast(qp, &group, 0), 0);
    EXPECT(ibv_destroy_qp(qp), 0);

    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    struct ibv_cq *small = ibv_create_cq(context, 1, NULL, NULL, 0);
    EXPECT(small->cqe, 64); /* Rounded up, and it says so. */
    EXPECT(ibv_resize_cq(small, 1000), 0);
    EXPECT(small->cqe, 1024);
    struct ibv_qp_init_attr of_small = {
        .send_cq = small, .recv_cq = small, .cap = {1, 2, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    struct ibv_qp *failed = ibv_create_qp(pd, &of_small);
    struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
    EXPECT(ibv_modify_qp(failed, &error, IBV_QP_STATE), 0);
    struct ibv_recv_wr flushed = {0}, *bad;
    EXPECT(ibv_post_recv(failed, &flushed, &bad), 0);
    EXPECT(ibv_post_recv(failed, &flushed, &bad), 0);
    SAYS(ibv_resize_cq(small, 1), EINVAL); /* Two wait in it. */
    SAYS(ibv_resize_cq(small, 0), EINVAL);
    EXPECT(small->cqe, 1024);
    EXPECT(ibv_resize_cq(small, 2), 0);
    EXPECT(small->cqe, 2);
    EXPECT(ibv_destroy_qp(failed), 0);
    EXPECT(ibv_destroy_cq(small), 0);
    struct ibv_cq *armed = ibv_create_cq(context, 4, NULL, channel, 0);
    SAYS(ibv_destroy_comp_channel(channel), EBUSY);
    EXPECT(ibv_destroy_cq(armed), 0);
    EXPECT(ibv_destroy_comp_channel(channel), 0);

    struct ibv_srq_init_attr init = {.attr = {4, 1, 0}};
    struct ibv_srq *srq = ibv_create_srq(pd, &init);
    struct ibv_srq_attr attr = {8, 1, 0};
    SAYS(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), EOPNOTSUPP);
    SAYS(ibv_modify_srq(srq, &attr, 1 << 7), EINVAL);
    attr.srq_limit = 5;
    SAYS(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), EINVAL);
    uint32_t number;
    SAYS(ibv_get_srq_num(srq, &number), EOPNOTSUPP);
    SAYS(ibv_dealloc_pd(pd), EBUSY);
    EXPECT(ibv_destroy_srq(srq), 0);

    struct ibv_td_init_attr no_mask = {0};
    struct ibv_td *td = ibv_alloc_td(context, &no_mask);
    struct ibv_parent_domain_init_attr parent = {.pd = pd, .td = td};
    struct ibv_pd *both = ibv_alloc_parent_domain(context, &parent);
    EXPECT(both != NULL, 1);
    SAYS(ibv_dealloc_td(td), EBUSY);
    SAYS(ibv_dealloc_pd(pd), EBUSY);
    EXPECT(ibv_dealloc_pd(both), 0);
    EXPECT(ibv_dealloc_td(td), 0);
}

/* A queue pair that is connected with itself. */
static struct ibv_qp *connect_to_itself(void)
{
    struct ibv_qp *qp = make_qp(IBV_QPT_RC, small);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
    SAYS(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
    EXPECT(qp->state, IBV_QPS_RESET);
    SAYS(ibv_modify_qp(qp, &attr, 1 << 30), EINVAL);
    attr.qp_state = 42;
    SAYS(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1};
    int mask = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS;
    EXPECT(ibv_modify_qp(qp, &attr, mask), 0);
    EXPECT(qp->state, IBV_QPS_INIT);
    union ibv_gid gid;
    int index = 0;
    do
        EXPECT(ibv_query_gid(context, 1, index, &gid), 0);
    while (gid.global.subnet_prefix == 0 && gid.global.interface_id == 0 && ++index < 256);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = 9,
        .dest_qp_num = qp->qp_num,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = index}},
    };
    mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    SAYS(ibv_modify_qp(qp, &attr, mask), EINVAL);
    attr.path_mtu = IBV_MTU_1024;
    attr.min_rnr_timer = 32;
    SAYS(ibv_modify_qp(qp, &attr, mask), EINVAL);
    attr.min_rnr_timer = 12;
    attr.dest_qp_num |= 1 << 24;
    SAYS(ibv_modify_qp(qp, &attr, mask), EINVAL);
    attr.dest_qp_num = qp->qp_num;
    EXPECT(ibv_modify_qp(qp, &attr, mask), 0);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
           IBV_QP_MAX_QP_RD_ATOMIC;
    EXPECT(ibv_modify_qp(qp, &attr, mask), 0);
    EXPECT(qp->state, IBV_QPS_RTS);
    return qp;
}

static struct ibv_wc wait_for_one(void)
{
    struct ibv_wc wc = {.status = IBV_WC_GENERAL_ERR};
    for (long turns = 0; turns < 200000000 && ibv_poll_cq(cq, 1, &wc) == 0; turns++)
        ;
    return wc;
}

static void requests(void)
{
    static char buffer[4096];
    struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_qp *fresh = make_qp(IBV_QPT_RC, small), *qp = connect_to_itself();
    struct ibv_sge sges[3] = {{(uintptr_t)buffer, 8, mr->lkey}, {(uintptr_t)buffer + 8, 8, mr->lkey}};
    struct ibv_recv_wr recv = {.wr_id = 7, .sg_list = sges, .num_sge = 2}, *bad_recv;
    struct ibv_send_wr send = {.wr_id = 9, .sg_list = sges, .num_sge = 1, .opcode = IBV_WR_SEND,
                               .send_flags = IBV_SEND_SIGNALED}, *bad;

    /* Too early. */
    SAYS(ibv_post_send(fresh, &send, &bad), EINVAL);
    EXPECT(bad == &send, 1);
    SAYS(ibv_post_recv(fresh, &recv, &bad_recv), EINVAL);
    EXPECT(bad_recv == &recv, 1);
    EXPECT(ibv_destroy_qp(fresh), 0);

    /* Nothing, and nonsense behind something good: the good one goes. */
    EXPECT(ibv_post_send(qp, NULL, &bad), 0);
    EXPECT(ibv_post_recv(qp, NULL, &bad_recv), 0);
    EXPECT(ibv_post_recv(qp, &recv, &bad_recv), 0);
    struct ibv_send_wr nonsense = send;
    send.next = &nonsense;
    nonsense.opcode = 1234;
    SAYS(ibv_post_send(qp, &send, &bad), EINVAL);
    EXPECT(bad == &nonsense, 1);
    for (int i = 0; i < 2; i++) {
        struct ibv_wc wc = wait_for_one();
        EXPECT(wc.status, IBV_WC_SUCCESS);
        EXPECT(wc.wr_id, wc.opcode & IBV_WC_RECV ? 7 : 9);
        EXPECT(wc.byte_len == 8 || !(wc.opcode & IBV_WC_RECV), 1);
        EXPECT(wc.qp_num, qp->qp_num);
    }
    send.next = NULL;

    nonsense = send;
    nonsense.num_sge = 3;
    SAYS(ibv_post_send(qp, &nonsense, &bad), EINVAL);
    nonsense.num_sge = -1;
    SAYS(ibv_post_send(qp, &nonsense, &bad), EINVAL);
    nonsense.num_sge = 1 << 30;
    SAYS(ibv_post_send(qp, &nonsense, &bad), EINVAL);
    nonsense.num_sge = 1;
    nonsense.sg_list = NULL;
    SAYS(ibv_post_send(qp, &nonsense, &bad), EINVAL);
    nonsense = send;
    nonsense.opcode = IBV_WR_BIND_MW;
    nonsense.bind_mw.mw = NULL;
    SAYS(ibv_post_send(qp, &nonsense, &bad), EINVAL);
    nonsense = send;
    nonsense.send_flags = IBV_SEND_INLINE;
    sges[0].length = 65;
    SAYS(ibv_post_send(qp, &nonsense, &bad), EINVAL);
    sges[0].length = 8;
    nonsense = send;
    nonsense.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    sges[0].length = 4;
    SAYS(ibv_post_send(qp, &nonsense, &bad), EINVAL);
    sges[0].length = 8;

    /* Full queues. */
    struct ibv_recv_wr many[5];
    for (int i = 0; i < 5; i++) {
        many[i] = recv;
        many[i].next = i < 4 ? &many[i + 1] : NULL;
    }
    SAYS(ibv_post_recv(qp, many, &bad_recv), ENOMEM);
    EXPECT(bad_recv == &many[4], 1);

    /* A datagram without address. */
    struct ibv_qp *ud = make_qp(IBV_QPT_UD, small);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 1};
    EXPECT(ibv_modify_qp(ud, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_QKEY), 0);
    attr.qp_state = IBV_QPS_RTR;
    EXPECT(ibv_modify_qp(ud, &attr, IBV_QP_STATE), 0);
    attr.qp_state = IBV_QPS_RTS;
    EXPECT(ibv_modify_qp(ud, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
    send.wr.ud.ah = NULL;
    SAYS(ibv_post_send(ud, &send, &bad), EINVAL);
    EXPECT(ibv_destroy_qp(ud), 0);

    /* A wrong key is the completion's business. */
    sges[0].lkey ^= 0x5a5a;
    EXPECT(ibv_post_send(qp, &send, &bad), 0);
    struct ibv_wc wc = wait_for_one();
    EXPECT(wc.status, IBV_WC_LOC_PROT_ERR);
    EXPECT(wc.vendor_err != 0, 1);
    EXPECT(ibv_poll_cq(cq, 0, NULL), 0);
    EXPECT(ibv_poll_cq(cq, 1, NULL), -EINVAL);
    EXPECT(ibv_poll_cq(cq, -1, &wc), -EINVAL);
    struct ibv_qp_init_attr init;
    EXPECT(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
    EXPECT(attr.qp_state, IBV_QPS_ERR);
    EXPECT(init.cap.max_inline_data, 64);
    EXPECT(ibv_destroy_qp(qp), 0);
    EXPECT(ibv_dereg_mr(mr), 0);
}

/* Requests, entries and completions in packed structs, as those of libiscsi. */
static void packed(void)
{
    static struct __attribute__((packed)) {
        char odd;
        struct ibv_sge sge;
        struct ibv_recv_wr recv[2];
        struct ibv_send_wr send[2];
        struct ibv_wc wc[4];
    } p;
    static char buffer[64];
    struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_qp *qp = connect_to_itself();
    void *sge = (char *)&p + offsetof(__typeof__(p), sge), *recv = (char *)&p + offsetof(__typeof__(p), recv),
         *send = (char *)&p + offsetof(__typeof__(p), send), *wc = (char *)&p + offsetof(__typeof__(p), wc);
    p.sge = (struct ibv_sge){(uintptr_t)buffer, 8, mr->lkey};
    for (int i = 0; i < 2; i++) {
        p.recv[i] = (struct ibv_recv_wr){
            .wr_id = 1 + i, .sg_list = sge, .num_sge = 1, .next = i ? NULL : (void *)((char *)recv + sizeof p.recv[0])};
        p.send[i] = (struct ibv_send_wr){
            .wr_id = 3 + i, .sg_list = sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
            .next = i ? NULL : (void *)((char *)send + sizeof p.send[0])};
    }
    struct ibv_recv_wr *bad_recv;
    struct ibv_send_wr *bad;
    EXPECT(ibv_post_recv(qp, recv, &bad_recv), 0);
    EXPECT(ibv_post_send(qp, send, &bad), 0);
    int all = 0, sum = 0;
    for (long turns = 0; turns < 200000000 && all < 4; turns++) {
        int n = ibv_poll_cq(cq, 4, wc);
        for (int i = 0; i < n; i++) {
            EXPECT(p.wc[i].status, IBV_WC_SUCCESS);
            EXPECT(p.wc[i].qp_num, qp->qp_num);
            sum += p.wc[i].wr_id;
        }
        all += n;
    }
    EXPECT(all, 4);
    EXPECT(sum, 1 + 2 + 3 + 4);
    /* Nonsense is told by its own address. */
    p.send[1].opcode = 1234;
    SAYS(ibv_post_send(qp, send, &bad), EINVAL);
    EXPECT((char *)bad == (char *)send + sizeof p.send[0], 1);
    EXPECT(ibv_destroy_qp(qp), 0);
    EXPECT(ibv_dereg_mr(mr), 0);
}

static void builder(void)
{
    struct ibv_qp *plain = make_qp(IBV_QPT_RC, small);
    EXPECT(ibv_qp_to_qp_ex(plain) == NULL, 1);
    EXPECT(ibv_destroy_qp(plain), 0);
    struct ibv_qp_init_attr_ex init = {
        .send_cq = cq, .recv_cq = cq, .cap = small, .qp_type = IBV_QPT_UD, .pd = pd,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_READ,
    };
    REFUSED(ibv_create_qp_ex(context, &init), EOPNOTSUPP);
    init.qp_type = IBV_QPT_RC;
    init.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_BIND_MW;
    struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
    char data[65] = {0};
    ibv_wr_start(ex);
    ibv_wr_set_sge(ex, 1, 2, 3); /* of no request */
    SAYS(ibv_wr_complete(ex), EINVAL);
    ibv_wr_start(ex);
    ibv_wr_rdma_read(ex, 1, 2); /* not asked for */
    SAYS(ibv_wr_complete(ex), EINVAL);
    ibv_wr_start(ex);
    ibv_wr_send(ex);
    ibv_wr_set_inline_data(ex, data, sizeof data); /* too long */
    SAYS(ibv_wr_complete(ex), EINVAL);
    ibv_wr_start(ex);
    for (int i = 0; i < 5; i++)
        ibv_wr_send(ex); /* too many */
    SAYS(ibv_wr_complete(ex), ENOMEM);
    ibv_wr_start(ex);
    ibv_wr_send(ex);
    ibv_wr_set_sge_list(ex, 2, NULL); /* of nowhere */
    SAYS(ibv_wr_complete(ex), EINVAL);
    ibv_wr_start(ex);
    ibv_wr_send(ex);
    ibv_wr_set_inline_data_list(ex, 2, NULL);
    SAYS(ibv_wr_complete(ex), EINVAL);
    struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1); /* which ibv_bind_mw binds */
    struct ibv_mw_bind_info info = {0};
    ibv_wr_start(ex);
    ibv_wr_bind_mw(ex, mw, mw->rkey + 1, &info);
    SAYS(ibv_wr_complete(ex), EINVAL);
    EXPECT(ibv_dealloc_mw(mw), 0);
    ibv_wr_start(ex);
    ibv_wr_send(ex);
    ibv_wr_abort(ex);
    ibv_wr_start(ex);
    EXPECT(ibv_wr_complete(ex), 0); /* of nothing */
    EXPECT(ibv_destroy_qp(qp), 0);
    init.qp_type = IBV_QPT_UC;
    init.send_ops_flags = IBV_QP_EX_WITH_SEND_WITH_INV; /* which each post would refuse */
    REFUSED(ibv_create_qp_ex(context, &init), EOPNOTSUPP);
    init.comp_mask |= 1 << 20;
    REFUSED(ibv_create_qp_ex(context, &init), EOPNOTSUPP);
}

/* Answers to a datagram that a router has marked as congested. */
static void answers(void)
{
    union ibv_gid gid = {{0}};
    for (int index = 0; gid.raw[12] != 127; index++) /* that of 127.0.0.1 */
        EXPECT(ibv_query_gid(context, 1, index, &gid), 0);
    struct ibv_wc wc = {.wc_flags = IBV_WC_GRH};
    struct ibv_grh v6 = {.version_tclass_flow = htobe32(0x6ab12345), .sgid = gid, .dgid = gid};
    struct ibv_ah_attr attr;
    EXPECT(ibv_init_ah_from_wc(context, 1, &wc, &v6, &attr), 0);
    EXPECT(attr.grh.traffic_class, 0xa8);
    EXPECT(attr.grh.flow_label, 0x12345);
    struct ibv_grh v4 = {0};
    unsigned char header[20] = {0x45, 0x6b, [8] = 64, 17};
    memcpy(header + 12, gid.raw + 12, 4);
    memcpy(header + 16, gid.raw + 12, 4);
    memcpy((char *)&v4 + 20, header, sizeof header);
    EXPECT(ibv_init_ah_from_wc(context, 1, &wc, &v4, &attr), 0);
    EXPECT(attr.grh.traffic_class, 0x68);
}

/* The first bytes of a struct at the very end of memory, as a program has it that was built with a
 * header in which the struct was shorter. */
static void *shorter(const void *whole, size_t bytes)
{
    size_t page = sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || mprotect(pages + page, page, PROT_NONE) != 0)
        exit(1);
    return memcpy(pages + page - bytes, whole, bytes);
}

static void older_headers(void)
{
    struct ibv_xrcd_init_attr private = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
    struct ibv_xrcd *xrcd = ibv_open_xrcd(context, &private);
    EXPECT(xrcd != NULL, 1);
    struct ibv_qp_init_attr_ex target = {
        .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd};
    size_t bytes = offsetof(struct ibv_qp_init_attr_ex, create_flags);
    struct ibv_qp *qp = ibv_create_qp_ex(context, shorter(&target, bytes));
    EXPECT(qp != NULL && ibv_destroy_qp(qp) == 0, 1);

    struct ibv_srq_init_attr_ex init = {
        .attr = {8, 1, 0}, .srq_type = IBV_SRQT_XRC, .pd = pd, .xrcd = xrcd, .cq = cq,
        .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
                     IBV_SRQ_INIT_ATTR_CQ};
    bytes = offsetof(struct ibv_srq_init_attr_ex, tm_cap);
    struct ibv_srq *srq = ibv_create_srq_ex(context, shorter(&init, bytes));
    EXPECT(srq != NULL && ibv_destroy_srq(srq) == 0, 1);
    EXPECT(ibv_close_xrcd(xrcd), 0);

    struct ibv_cq_init_attr_ex queue = {.cqe = 4};
    bytes = offsetof(struct ibv_cq_init_attr_ex, parent_domain);
    struct ibv_cq_ex *made = ibv_create_cq_ex(context, shorter(&queue, bytes));
    EXPECT(made != NULL && ibv_destroy_cq(ibv_cq_ex_to_cq(made)) == 0, 1);

    /* What ibv_create_srq_ex passes on to ibv_create_srq keeps all but the sizes. */
    init.comp_mask = IBV_SRQ_INIT_ATTR_PD;
    srq = ibv_create_srq_ex(context, &init);
    EXPECT(srq != NULL && ibv_destroy_srq(srq) == 0, 1);
    EXPECT(init.comp_mask, IBV_SRQ_INIT_ATTR_PD);
}

/* An imported context owns the descriptor that it was imported by. */
static void imports(void)
{
    int fd = dup(context->cmd_fd);
    struct ibv_context *import = ibv_import_device(fd);
    EXPECT(import != NULL && import != context, 1);
    EXPECT(import->cmd_fd, fd);
    struct ibv_pd *of_import = ibv_import_pd(import, pd->handle);
    EXPECT(of_import != NULL, 1);
    /* Ending an import leaves the region, destroying it does not. */
    static char buffer[64];
    struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_mr *again = ibv_import_mr(of_import, mr->handle);
    EXPECT(again != NULL, 1);
    ibv_unimport_mr(again);
    again = ibv_import_mr(of_import, mr->handle);
    EXPECT(again != NULL && again->lkey == mr->lkey, 1);
    EXPECT(ibv_dereg_mr(again), 0);
    REFUSED(ibv_import_mr(of_import, mr->handle), EINVAL);
    struct ibv_sge sge = {(uintptr_t)buffer, sizeof buffer, mr->lkey};
    struct ibv_send_wr send = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    struct ibv_qp *qp = connect_to_itself();
    EXPECT(ibv_post_send(qp, &send, &bad), 0);
    EXPECT(wait_for_one().status, IBV_WC_LOC_PROT_ERR);
    EXPECT(ibv_destroy_qp(qp), 0);
    ibv_unimport_mr(mr);
    ibv_unimport_pd(of_import);
    EXPECT(ibv_close_device(import), 0);
    EXPECT(fcntl(fd, F_GETFD), -1);
    EXPECT(fcntl(context->cmd_fd, F_GETFD) != -1, 1);
}

int main(void)
{
    int count = -1;
    struct ibv_device **list = ibv_get_device_list(&count);
    if (!list || count < 1) {
        printf("no device\n");
        return 1;
    }
    context = ibv_open_device(list[count - 1]); /* lo */
    ibv_free_device_list(list);
    if (!context) {
        printf("cannot open the device: %s\n", strerror(errno));
        return 1;
    }
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 32, NULL, NULL, 0);
    nulls();
    limits();
    busy();
    requests();
    packed();
    builder();
    answers();
    older_headers();
    imports();
    /* Objects outlive their context. */
    EXPECT(ibv_close_device(context), 0);
    EXPECT(ibv_destroy_cq(cq), 0);
    EXPECT(ibv_dealloc_pd(pd), 0);
    return wrong;
}
