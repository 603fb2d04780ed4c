/* Threads that wait for events are cancelled, and nothing is lost by it.
 *
 * One thread takes events and acknowledges them, another destroys what they are about as soon as it
 * may: the acknowledgement is the last that the first thread does with the object, and the library,
 * too, must not look at it afterwards. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 5000 };

static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static atomic_int completions, events;

static void must(int ok, const char *what)
{
    if (!ok) {
        printf("%s failed: %s\n", what, strerror(errno));
        exit(1);
    }
}

static void *takes_completions(void *unused)
{
    for (int n = 0; n < ROUNDS; n++) {
        struct ibv_cq *cq;
        void *cq_context;
        must(!ibv_get_cq_event(channel, &cq, &cq_context), "get_cq_event");
        atomic_fetch_add(&completions, 1);
        ibv_ack_cq_events(cq, 1);
    }
    return unused;
}

static void *takes_events(void *unused)
{
    for (int n = 0; n < ROUNDS; n++) {
        struct ibv_async_event event;
        must(!ibv_get_async_event(context, &event), "get_async_event");
        must(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED, "kind of the event");
        atomic_fetch_add(&events, 1);
        ibv_ack_async_event(&event);
    }
    return unused;
}

/* A completion queue with a completion event, and a shared receive queue with a limit event. */
struct objects {
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_srq *srq;
};

static struct objects make(struct ibv_pd *pd)
{
    struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, channel, 0);
    must(cq && !ibv_req_notify_cq(cq, 0), "completion queue");
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    must(qp && !ibv_modify_qp(qp, &attr, IBV_QP_STATE), "queue pair");
    struct ibv_recv_wr recv = {.wr_id = 1}, *bad;
    must(!ibv_post_recv(qp, &recv, &bad), "flushed receive");
    struct ibv_srq_init_attr shared = {.attr = {.max_wr = 1, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(pd, &shared);
    struct ibv_srq_attr limit = {.srq_limit = 1};
    must(srq && !ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), "shared receive queue");
    return (struct objects){cq, qp, srq};
}

static void round_of(struct ibv_pd *pd, int number)
{
    struct objects made = make(pd);
    while (atomic_load(&completions) <= number || atomic_load(&events) <= number)
        ;
    must(!ibv_destroy_srq(made.srq), "destroy_srq");
    must(!ibv_destroy_qp(made.qp), "destroy_qp");
    must(!ibv_destroy_cq(made.cq), "destroy_cq");
}

static atomic_int destroyed;

static void *destroys_srq(void *srq)
{
    must(!ibv_destroy_srq(srq), "destroy_srq");
    atomic_fetch_add(&destroyed, 1);
    return NULL;
}

static void *destroys_cq(void *cq)
{
    must(!ibv_destroy_cq(cq), "destroy_cq");
    atomic_fetch_add(&destroyed, 1);
    return NULL;
}

/* Destroying waits for the acknowledgement of what was taken, however long it takes. */
static void destroying_waits(struct ibv_pd *pd)
{
    struct objects made = make(pd);
    struct ibv_cq *cq;
    void *cq_context;
    struct ibv_async_event event;
    must(!ibv_get_cq_event(channel, &cq, &cq_context) && cq == made.cq, "get_cq_event");
    must(!ibv_get_async_event(context, &event) && event.element.srq == made.srq, "get_async_event");
    must(!ibv_destroy_qp(made.qp), "destroy_qp: nothing of it was taken");
    pthread_t threads[2];
    must(!pthread_create(&threads[0], NULL, destroys_srq, made.srq) &&
             !pthread_create(&threads[1], NULL, destroys_cq, made.cq),
         "threads");
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    must(atomic_load(&destroyed) == 0, "waiting for acknowledgements");
    ibv_ack_async_event(&event);
    ibv_ack_cq_events(cq, 1);
    for (int n = 0; n < 2; n++)
        pthread_join(threads[n], NULL);
}

/* A thread that waits, and is cancelled: at once, or when it sleeps. */
static void cancel(void *(*waits)(void *), useconds_t after_us)
{
    pthread_t thread;
    void *result = NULL;
    must(!pthread_create(&thread, NULL, waits, NULL), "thread");
    usleep(after_us);
    must(!pthread_cancel(thread) && !pthread_join(thread, &result), "cancel");
    must(result == PTHREAD_CANCELED, "cancellation");
}

int main(void)
{
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    must(list && count > 0, "list");
    context = ibv_open_device(list[count - 1]); /* lo */
    ibv_free_device_list(list);
    must(context != NULL, "open");
    channel = ibv_create_comp_channel(context);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    must(channel && pd, "create");
    destroying_waits(pd);
    for (useconds_t after_us = 0; after_us <= 20000; after_us += 5000) {
        cancel(takes_completions, after_us);
        cancel(takes_events, after_us);
    }
    pthread_t threads[2];
    must(!pthread_create(&threads[0], NULL, takes_completions, NULL) &&
             !pthread_create(&threads[1], NULL, takes_events, NULL),
         "threads");
    for (int number = 0; number < ROUNDS; number++)
        round_of(pd, number);
    for (int n = 0; n < 2; n++)
        pthread_join(threads[n], NULL);
    must(!ibv_destroy_comp_channel(channel) && !ibv_dealloc_pd(pd) && !ibv_close_device(context),
         "end");
    return 0;
}
