/* Which device an id shows that is bound to a loopback address: none, unless that of `lo` is all there is. */
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <string.h>

#include "expect.h"

int main(void)
{
    int devices = 0;
    struct ibv_device **list = ibv_get_device_list(&devices);
    MUST(list && devices > 0);
    char first[64];
    snprintf(first, sizeof first, "%s", ibv_get_device_name(list[0]));
    ibv_free_device_list(list);
    struct sockaddr_in loopback = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct rdma_cm_id *id;
    MUST(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
    EXPECT(rdma_bind_addr(id, (struct sockaddr *)&loopback), 0);
    int is_shown = id->verbs != NULL && id->pd != NULL;
    /* A queue pair is of one device, and its id shows it. */
    struct ibv_qp_init_attr attr = {.cap = {.max_send_wr = 1, .max_recv_wr = 1}, .qp_type = IBV_QPT_RC};
    EXPECT(rdma_create_qp(id, NULL, &attr), 0);
    EXPECT(id->verbs != NULL && id->qp != NULL && id->qp->context == id->verbs && id->pd != NULL, 1);
    EXPECT(is_shown, devices == 1 && !strcmp(first, ibv_get_device_name(id->verbs->device)));
    rdma_destroy_qp(id);
    EXPECT(rdma_destroy_id(id), 0);
    /* With a peer there is no doubt. */
    loopback.sin_port = htons(7);
    MUST(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
    EXPECT(rdma_resolve_addr(id, NULL, (struct sockaddr *)&loopback, 1000), 0);
    EXPECT(id->verbs != NULL && id->pd != NULL, 1);
    EXPECT(rdma_destroy_id(id), 0);
    return wrong;
}
