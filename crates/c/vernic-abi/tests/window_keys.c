/* Binds of type 2 windows under the key that they have already, and one that is refused. */
#include "queue_pair.h"

static struct ibv_cq *cq;
static struct ibv_qp *qp;

/* Posts one request and gives the status of its completion. */
static int run(struct ibv_send_wr *request)
{
    struct ibv_send_wr *bad;
    struct ibv_wc wc;
    int found;
    request->send_flags = IBV_SEND_SIGNALED;
    errno = ibv_post_send(qp, request, &bad);
    must(!errno, "post");
    while ((found = ibv_poll_cq(cq, 1, &wc)) == 0)
        ;
    must(found == 1, "poll");
    return wc.status;
}

static int bind_to(struct ibv_mw *mw, struct ibv_mr *mr, uint32_t key)
{
    struct ibv_send_wr request = {.opcode = IBV_WR_BIND_MW};
    request.bind_mw.mw = mw;
    request.bind_mw.rkey = key;
    request.bind_mw.bind_info.mr = mr;
    request.bind_mw.bind_info.addr = (uintptr_t)mr->addr;
    request.bind_mw.bind_info.length = mr->length;
    request.bind_mw.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_WRITE;
    return run(&request);
}

int main(void)
{
    static char bytes[4096];
    struct ibv_context *context = open_lo();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 4, NULL, NULL, 0);
    qp = make_qp(pd, cq, 0);
    must(qp != NULL, "queue pair");
    int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    struct ibv_mr *mr = ibv_reg_mr(pd, bytes, sizeof bytes, rights | IBV_ACCESS_MW_BIND);
    struct ibv_mr *plain = ibv_reg_mr(pd, bytes, sizeof bytes, rights);
    struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    must(mr && plain && mw, "memory");
    struct ibv_ah_attr path = {.is_global = 1, .port_num = 1, .grh.hop_limit = 64};
    errno = ibv_query_gid(context, 1, 0, &path.grh.dgid);
    must(!errno, "GID");
    bring_up(qp, &path);

    must(bind_to(mw, mr, mw->rkey) == IBV_WC_SUCCESS, "the first bind with the allocated key");
    struct ibv_send_wr invalidate = {.opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = mw->rkey};
    must(run(&invalidate) == IBV_WC_SUCCESS, "invalidate");
    must(bind_to(mw, mr, mw->rkey) == IBV_WC_SUCCESS, "a later bind with the key of the last");
    must(run(&invalidate) == IBV_WC_SUCCESS, "invalidate again");
    must(bind_to(mw, mr, ibv_inc_rkey(mw->rkey)) == IBV_WC_SUCCESS, "a bind with the next key");
    invalidate.invalidate_rkey = ibv_inc_rkey(mw->rkey);
    must(run(&invalidate) == IBV_WC_SUCCESS, "invalidate the next key");
    must(bind_to(mw, plain, mw->rkey) == IBV_WC_MW_BIND_ERR, "a bind without the right");
    return 0;
}
