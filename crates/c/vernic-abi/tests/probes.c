/* Opens a device twice and looks each time for the most inline data that a queue pair can have, as libfabric and UCX do. */
#include "queue_pair.h"

int main(void)
{
    for (int times = 0; times < 2; times++) {
        struct ibv_context *context = open_lo();
        struct ibv_pd *pd = ibv_alloc_pd(context);
        struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
        unsigned most = 0;
        for (unsigned bit = 1 << 20; bit; bit >>= 1) {
            struct ibv_qp *qp = make_qp(pd, cq, most | bit);
            if (qp) {
                most |= bit;
                must(!ibv_destroy_qp(qp), "destroy");
            } else {
                must(errno == EINVAL, "too much inline data");
            }
        }
        must(most >= 64 && most < 1 << 20, "the most inline data");
        must(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "end");
    }
    return 0;
}
