/*
 * The cost of the calls of libibverbs: one thread posts lists of 8-byte RDMA WRITEs and polls until
 * each list is complete, with both queue pairs in this process.
 *
 *     cc -O2 -o post_poll post_poll.c -libverbs
 *     vernic run -d lo -- ./post_poll [MESSAGES [LIST]]
 *
 * So many messages, so many of them with one doorbell. Prints the nanoseconds that a message took.
 * crates/api/vernic/examples/post_poll.rs does the same through the Rust API.
 */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LEN 8

static void need(int good, const char *what)
{
	if (!good) {
		perror(what);
		exit(1);
	}
}

static unsigned long argument(int argc, char **argv, int place, unsigned long otherwise)
{
	char *end;
	unsigned long number;

	if (place >= argc)
		return otherwise;
	number = strtoul(argv[place], &end, 10);
	if (*end || !number) {
		fprintf(stderr, "%s is not a number above zero; usage: post_poll [MESSAGES [LIST]]\n",
			argv[place]);
		exit(2);
	}
	return number;
}

static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer, const union ibv_gid *gid,
		       int gid_index, enum ibv_mtu mtu)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
	};

	need(!ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
	     "to INIT");
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = mtu;
	attr.dest_qp_num = peer->qp_num;
	attr.rq_psn = 0;
	attr.max_dest_rd_atomic = 1;
	attr.min_rnr_timer = 12;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.dgid = *gid;
	attr.ah_attr.grh.sgid_index = gid_index;
	attr.ah_attr.grh.hop_limit = 64;
	need(!ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				    IBV_QP_MIN_RNR_TIMER),
	     "to RTR");
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = 0;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	need(!ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				    IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC),
	     "to RTS");
}

int main(int argc, char **argv)
{
	unsigned long messages = argument(argc, argv, 1, 100000);
	unsigned long list = argument(argc, argv, 2, 16);
	unsigned long lists = (messages + list - 1) / list;
	static char source[LEN], target[LEN];
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *from, *to;
	struct ibv_qp *qps[2];
	struct ibv_port_attr port;
	union ibv_gid gid;
	int gid_index = 0;
	struct timespec began, ended;
	double ns;

	need(devices && devices[0], "no device");
	need((context = ibv_open_device(devices[0])) != NULL, "ibv_open_device");
	need(!ibv_query_port(context, 1, &port), "ibv_query_port");
	/* The entry with an IPv4 address: zeros, then ffff. */
	for (;; gid_index++) {
		need(gid_index < port.gid_tbl_len, "no GID of IPv4");
		need(!ibv_query_gid(context, 1, gid_index, &gid), "ibv_query_gid");
		if (!gid.global.subnet_prefix && gid.raw[10] == 0xff && gid.raw[11] == 0xff)
			break;
	}
	need((pd = ibv_alloc_pd(context)) != NULL, "ibv_alloc_pd");
	need((cq = ibv_create_cq(context, 2 * list, NULL, NULL, 0)) != NULL, "ibv_create_cq");
	need((from = ibv_reg_mr(pd, source, LEN, 0)) != NULL, "ibv_reg_mr");
	to = ibv_reg_mr(pd, target, LEN, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	need(to != NULL, "ibv_reg_mr");
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr attr = {
			.send_cq = cq,
			.recv_cq = cq,
			.qp_type = IBV_QPT_RC,
			.cap = { .max_send_wr = list, .max_recv_wr = 1, .max_send_sge = 1,
				 .max_recv_sge = 1 },
		};

		need((qps[i] = ibv_create_qp(pd, &attr)) != NULL, "ibv_create_qp");
	}
	connect_to(qps[0], qps[1], &gid, gid_index, port.active_mtu);
	connect_to(qps[1], qps[0], &gid, gid_index, port.active_mtu);

	struct ibv_sge sge = { .addr = (uintptr_t)source, .length = LEN, .lkey = from->lkey };
	struct ibv_send_wr *wrs = calloc(list, sizeof(*wrs)), *bad;

	need(wrs != NULL, "calloc");
	for (unsigned long i = 0; i < list; i++) {
		wrs[i].wr_id = i + 1;
		wrs[i].next = i + 1 < list ? &wrs[i + 1] : NULL;
		wrs[i].sg_list = &sge;
		wrs[i].num_sge = 1;
		wrs[i].opcode = IBV_WR_RDMA_WRITE;
		wrs[i].send_flags = i + 1 < list ? 0 : IBV_SEND_SIGNALED;
		wrs[i].wr.rdma.remote_addr = (uintptr_t)target;
		wrs[i].wr.rdma.rkey = to->rkey;
	}
	clock_gettime(CLOCK_MONOTONIC, &began);
	for (unsigned long i = 0; i < lists; i++) {
		struct ibv_wc wc;
		int count;

		need(!ibv_post_send(qps[0], wrs, &bad), "ibv_post_send");
		while (!(count = ibv_poll_cq(cq, 1, &wc)))
			;
		need(count == 1, "ibv_poll_cq");
		if (wc.status != IBV_WC_SUCCESS) {
			fprintf(stderr, "completion: %s\n", ibv_wc_status_str(wc.status));
			return 1;
		}
	}
	clock_gettime(CLOCK_MONOTONIC, &ended);
	ns = (ended.tv_sec - began.tv_sec) * 1e9 + (ended.tv_nsec - began.tv_nsec);
	printf("%.1f ns per message\n", ns / (double)(lists * list));
	return 0;
}
