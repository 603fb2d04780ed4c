/* Asks the family of RDMA for the devices, by each way to send; prints ok, or says what is wrong. */
#include <linux/netlink.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define NLDEV_GET (5 << 10 | 1)
#define CHECK(what) do { if (!(what)) { perror(#what); return 1; } } while (0)

/* Takes the list of devices: one entry that begins with index 7, then the end. */
static int take(int fd, unsigned seq)
{
	char buf[8192];
	struct pollfd poll_fd = { .fd = fd, .events = POLLIN };
	CHECK(poll(&poll_fd, 1, 10000) == 1);
	ssize_t len = recv(fd, buf, sizeof(buf), 0);
	CHECK(len > (ssize_t)sizeof(struct nlmsghdr));
	struct nlmsghdr *head = (struct nlmsghdr *)buf;
	CHECK(head->nlmsg_len == len && head->nlmsg_seq == seq && head->nlmsg_type == NLDEV_GET);
	CHECK(head->nlmsg_flags & NLM_F_MULTI);
	struct nlattr *attr = (struct nlattr *)(head + 1);
	CHECK(attr->nla_type == 1 && *(unsigned *)(attr + 1) == 7);
	len = recv(fd, buf, sizeof(buf), MSG_DONTWAIT);
	CHECK(len == sizeof(*head) + 4 && head->nlmsg_type == NLMSG_DONE && head->nlmsg_seq == seq);
	return 0;
}

int main(void)
{
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 20);
	CHECK(fd >= 0);
	struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };
	struct nlmsghdr head = {
		.nlmsg_len = sizeof(head), .nlmsg_type = NLDEV_GET,
		.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP, .nlmsg_seq = 1,
	};
	CHECK(sendto(fd, &head, sizeof(head), 0, (struct sockaddr *)&kernel, sizeof(kernel)) == sizeof(head));
	if (take(fd, 1))
		return 1;
	head.nlmsg_seq = 2;
	CHECK(send(fd, &head, sizeof(head), 0) == sizeof(head));
	if (take(fd, 2))
		return 1;
	head.nlmsg_seq = 3;
	struct iovec pieces[3] = { { &head, 4 }, { NULL, 0 }, { (char *)&head + 4, sizeof(head) - 4 } };
	struct msghdr message = {
		.msg_name = &kernel, .msg_namelen = sizeof(kernel), .msg_iov = pieces, .msg_iovlen = 3,
	};
	CHECK(sendmsg(fd, &message, 0) == sizeof(head));
	if (take(fd, 3))
		return 1;
	/* A device that is not there, and no request at all. */
	struct { struct nlmsghdr head; struct nlattr attr; unsigned index; } one = {
		{ sizeof(one), NLDEV_GET, NLM_F_REQUEST | NLM_F_ACK, 4, 0 }, { 8, 1 }, 99,
	};
	CHECK(send(fd, &one, sizeof(one), 0) == sizeof(one));
	struct { struct nlmsghdr head; int error; char rest[64]; } answer;
	CHECK(recv(fd, &answer, sizeof(answer), 0) > 0);
	CHECK(answer.head.nlmsg_type == NLMSG_ERROR && answer.error == -19);
	CHECK(send(fd, &one, 5, 0) == -1);
	/* What goes elsewhere is as it was. */
	int plain = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
	CHECK(plain >= 0 && close(plain) == 0 && close(fd) == 0);
	CHECK(send(fd, &head, sizeof(head), 0) == -1);
	puts("ok");
	return 0;
}
