/* rdma_getaddrinfo: what hints mean, what answers have, and how refusals are told. */
#include <arpa/inet.h>
#include <netdb.h>
#include <infiniband/ib.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>

#include "expect.h"

static struct rdma_addrinfo *res;

static int ask(const char *node, const char *service, const struct rdma_addrinfo *hints)
{
    res = NULL;
    return rdma_getaddrinfo(node, service, hints, &res);
}

/* The address that an answer has, as text with its port. */
static const char *text(struct sockaddr *address)
{
    static char text[80];
    char host[64] = "?";
    if (!address)
        return "none";
    if (address->sa_family == AF_INET) {
        struct sockaddr_in *in = (void *)address;
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
        snprintf(text, sizeof text, "%s:%d", host, ntohs(in->sin_port));
    } else {
        struct sockaddr_in6 *in6 = (void *)address;
        inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof host);
        snprintf(text, sizeof text, "[%s]:%d", host, ntohs(in6->sin6_port));
    }
    return text;
}

static void says(int line, struct sockaddr *address, const char *want)
{
    if (strcmp(text(address), want) != 0) {
        printf("line %d: %s, not %s\n", line, text(address), want);
        wrong = 1;
    }
}

static void free_it(void)
{
    rdma_freeaddrinfo(res);
    res = NULL;
}

int main(void)
{
    struct rdma_addrinfo hints = {0};

    /* Nothing asked, nowhere to answer. */
    FAILS(ask(NULL, NULL, NULL), EINVAL);
    FAILS(rdma_getaddrinfo("127.0.0.1", "1", NULL, NULL), EINVAL);
    rdma_freeaddrinfo(NULL);

    /* Without hints: a connection. */
    MUST(!ask("127.0.0.1", "7471", NULL));
    EXPECT(res->ai_flags, 0);
    EXPECT(res->ai_family, AF_INET);
    EXPECT(res->ai_qp_type, IBV_QPT_RC);
    EXPECT(res->ai_port_space, RDMA_PS_TCP);
    EXPECT(res->ai_dst_len, sizeof(struct sockaddr_in));
    EXPECT(res->ai_src_len, 0);
    EXPECT(res->ai_src_addr == NULL && res->ai_next == NULL, 1);
    says(__LINE__, res->ai_dst_addr, "127.0.0.1:7471");
    free_it();

    /* A port space says the type, a type the port space. */
    hints.ai_port_space = RDMA_PS_UDP;
    MUST(!ask("::1", "7", &hints));
    EXPECT(res->ai_qp_type, IBV_QPT_UD);
    EXPECT(res->ai_port_space, RDMA_PS_UDP);
    EXPECT(res->ai_dst_len, sizeof(struct sockaddr_in6));
    says(__LINE__, res->ai_dst_addr, "[::1]:7");
    free_it();
    hints = (struct rdma_addrinfo){.ai_qp_type = IBV_QPT_UD};
    MUST(!ask("127.0.0.1", "7", &hints));
    EXPECT(res->ai_port_space, RDMA_PS_UDP);
    free_it();
    hints = (struct rdma_addrinfo){.ai_port_space = RDMA_PS_IB, .ai_qp_type = IBV_QPT_XRC_SEND};
    MUST(!ask("127.0.0.1", "7", &hints));
    EXPECT(res->ai_qp_type, IBV_QPT_XRC_SEND);
    EXPECT(res->ai_port_space, RDMA_PS_IB);
    free_it();
    hints = (struct rdma_addrinfo){.ai_port_space = RDMA_PS_IPOIB};
    MUST(!ask("127.0.0.1", "7", &hints));
    EXPECT(res->ai_qp_type, IBV_QPT_UD);
    EXPECT(res->ai_port_space, RDMA_PS_IPOIB);
    free_it();

    /* Passive: the address is the source, the wildcard without a node. */
    hints = (struct rdma_addrinfo){.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP};
    MUST(!ask("127.0.0.1", "7471", &hints));
    EXPECT(res->ai_flags, RAI_PASSIVE);
    EXPECT(res->ai_dst_len, 0);
    says(__LINE__, res->ai_src_addr, "127.0.0.1:7471");
    free_it();
    hints.ai_family = AF_INET6;
    hints.ai_flags |= RAI_FAMILY;
    MUST(!ask(NULL, "7471", &hints));
    EXPECT(res->ai_flags, RAI_PASSIVE);
    says(__LINE__, res->ai_src_addr, "[::]:7471");
    EXPECT(res->ai_family, AF_INET6);
    free_it();

    /* A source of hints goes into the answer: a copy, also of a freed answer. */
    hints = (struct rdma_addrinfo){.ai_flags = RAI_PASSIVE};
    MUST(!ask("127.0.0.5", NULL, &hints));
    struct rdma_addrinfo *source = res;
    hints.ai_flags = 0;
    hints.ai_src_addr = source->ai_src_addr;
    hints.ai_src_len = source->ai_src_len;
    MUST(!ask("127.0.0.1", "9", &hints));
    rdma_freeaddrinfo(source);
    says(__LINE__, res->ai_src_addr, "127.0.0.5:0");
    says(__LINE__, res->ai_dst_addr, "127.0.0.1:9");
    /* Programs replace addresses by some of their own. */
    free(res->ai_src_addr);
    res->ai_src_addr = calloc(1, sizeof(struct sockaddr_in));
    free_it();

    /* Hints alone are copied. */
    struct sockaddr_in there = {.sin_family = AF_INET, .sin_port = htons(3)};
    there.sin_addr.s_addr = htonl(0x7F000002);
    hints = (struct rdma_addrinfo){.ai_dst_addr = (void *)&there, .ai_dst_len = sizeof there};
    hints.ai_port_space = RDMA_PS_TCP;
    MUST(!ask(NULL, NULL, &hints));
    says(__LINE__, res->ai_dst_addr, "127.0.0.2:3");
    EXPECT(res->ai_dst_addr != (void *)&there, 1);
    free_it();
    hints.ai_dst_len = 4000;
    FAILS(ask(NULL, NULL, &hints), EINVAL);
    EXPECT(res == NULL, 1);

    /* Refusals are codes of gai_strerror, as programs print them. */
    hints = (struct rdma_addrinfo){.ai_flags = RAI_NUMERICHOST};
    EXPECT(ask("localhost", "7", &hints), EAI_NONAME);
    EXPECT(ask("127.0.0.1", "no such service", NULL), EAI_SERVICE);
    EXPECT(res == NULL, 1);
    hints = (struct rdma_addrinfo){.ai_flags = RAI_FAMILY, .ai_family = AF_IB};
    MUST(!ask("fe80::2:c903:1", "7", &hints));
    EXPECT(res->ai_family, AF_IB);
    EXPECT(res->ai_dst_len, (int)sizeof(struct sockaddr_ib));
    struct sockaddr_ib *native = (void *)res->ai_dst_addr;
    EXPECT(native->sib_family, AF_IB);
    EXPECT(native->sib_pkey, 0xFFFF);
    EXPECT(native->sib_addr.sib_raw[0], 0xFE);
    EXPECT(native->sib_addr.sib_raw[15], 1);
    /* RDMA_PS_TCP and the port. */
    EXPECT(native->sib_sid == htobe64(0x01060007), 1);
    EXPECT(native->sib_sid_mask == htobe64(~0ULL), 1);
    free_it();
    /* No IPv4 address is a GID. */
    EXPECT(ask("127.0.0.1", "7", &hints) != 0, 1);
    /* There is no subnet administration. */
    hints = (struct rdma_addrinfo){.ai_flags = 1 << 4};
    FAILS(ask(NULL, "7", &hints), EOPNOTSUPP);
    return wrong;
}
