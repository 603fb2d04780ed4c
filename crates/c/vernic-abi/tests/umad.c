/* Devices and ports as programs for management see them, beside what the verbs say. */
#include <arpa/inet.h>
#include <endian.h>
#include <infiniband/umad.h>
#include <infiniband/verbs.h>
#include <stdlib.h>

#include "expect.h"

static void check_port(struct ibv_context *context, const umad_port_t *port)
{
    struct ibv_port_attr attr;
    union ibv_gid gid;
    EXPECT(ibv_query_port(context, 1, &attr), 0);
    EXPECT(ibv_query_gid(context, 1, 0, &gid), 0);
    EXPECT(port->portnum, 1);
    EXPECT(port->state, attr.state);
    EXPECT(port->phys_state, attr.phys_state);
    EXPECT(port->base_lid | port->lmc | port->sm_lid | port->sm_sl, 0);
    EXPECT(port->rate, 40);
    EXPECT(ntohl(port->capmask) & 0x10000, attr.port_cap_flags & 0x10000);
    EXPECT(memcmp(&port->gid_prefix, gid.raw, 8), 0);
    EXPECT(memcmp(&port->port_guid, gid.raw + 8, 8), 0);
    EXPECT(port->pkeys_size, 1);
    EXPECT(port->pkeys && port->pkeys[0] == 0xffff, 1);
    EXPECT(strcmp(port->link_layer, "Ethernet"), 0);
}

static void check_device(struct ibv_device *device)
{
    const char *name = ibv_get_device_name(device);
    struct ibv_context *context = ibv_open_device(device);
    EXPECT(context != NULL, 1);
    umad_ca_t ca;
    EXPECT(umad_get_ca(name, &ca), 0);
    EXPECT(strcmp(ca.ca_name, name), 0);
    EXPECT(ca.node_type, IBV_NODE_CA);
    EXPECT(ca.numports, 1);
    EXPECT(ca.node_guid == ibv_get_device_guid(device) && ca.system_guid == ca.node_guid, 1);
    EXPECT(ca.ports[0] == NULL && ca.ports[1] != NULL && ca.ports[2] == NULL, 1);
    EXPECT(ca.fw_ver[0] && ca.ca_type[0] && ca.hw_ver[0], 1);
    check_port(context, ca.ports[1]);
    __be64 guids[3] = {7, 7, 7};
    EXPECT(umad_get_ca_portguids(name, guids, 1), -ENOMEM);
    EXPECT(umad_get_ca_portguids(name, guids, 3), 2);
    EXPECT(guids[0] == 0 && guids[1] == ca.ports[1]->port_guid && guids[2] == 7, 1);
    EXPECT(umad_release_ca(&ca), 0);
    umad_port_t port;
    EXPECT(umad_get_port(name, 2, &port), -ENODEV);
    for (int number = 0; number <= 1; number++) {
        EXPECT(umad_get_port(name, number, &port), 0);
        EXPECT(strcmp(port.ca_name, name), 0);
        check_port(context, &port);
        EXPECT(umad_release_port(&port), 0);
    }
    EXPECT(umad_open_port(name, 2), -ENODEV);
    int opened = umad_open_port(name, 1);
    EXPECT(opened >= 0, 1);
    EXPECT(umad_close_port(opened), 0);
    EXPECT(ibv_close_device(context), 0);
}

int main(void)
{
    int count;
    struct ibv_device **devices = ibv_get_device_list(&count);
    MUST(devices && count > 0);
    EXPECT(umad_init(), 0);
    char names[32][UMAD_CA_NAME_LEN];
    EXPECT(umad_get_cas_names(names, 32), count);
    EXPECT(umad_get_cas_names(names, 1), 1);
    for (int n = 0; n < count; n++)
        check_device(devices[n]);
    ibv_free_device_list(devices);

    umad_ca_t ca;
    umad_port_t port;
    EXPECT(umad_get_ca(NULL, &ca), 0);
    EXPECT(ca.ca_name[0] != 0 && ca.ports[1] != NULL, 1);
    EXPECT(umad_release_ca(&ca), 0);
    EXPECT(umad_get_ca("no such device", &ca), -ENODEV);
    EXPECT(umad_get_port("no such device", 1, &port), -ENODEV);
    EXPECT(umad_get_ca_portguids("no such device", NULL, 0), -ENODEV);
    EXPECT(umad_get_ca(NULL, NULL), -EINVAL);
    EXPECT(umad_get_port(NULL, 1, NULL), -EINVAL);
    EXPECT(umad_release_ca(NULL), -EINVAL);
    EXPECT(umad_release_port(NULL), -EINVAL);

    struct umad_device_node *list = umad_get_ca_device_list(), *node;
    int listed = 0;
    for (node = list; node; node = node->next)
        listed++;
    EXPECT(listed, count);
    EXPECT(umad_sort_ca_device_list(&list, count + 1), EINVAL);
    EXPECT(umad_sort_ca_device_list(&list, 0), 0);
    for (node = list; node && node->next; node = node->next)
        EXPECT(strcmp(node->ca_name, node->next->ca_name) < 0, 1);
    umad_free_ca_device_list(list);
    umad_free_ca_device_list(NULL);
    EXPECT(umad_done(), 0);
    return wrong;
}
