/* Threads list, open, import and close devices while others fork. Every child opens a device of its
 * own: no lock that a thread of its parent held may keep it from that. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILDREN = 50, THREADS = 3, PATIENCE_S = 20 };

static atomic_int is_over;
static struct ibv_context *shared;

static void must(int ok, const char *what)
{
    if (!ok) {
        printf("%d: %s failed: %s\n", (int)getpid(), what, strerror(errno));
        exit(1);
    }
}

static struct ibv_context *open_lo(void)
{
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    must(list && count > 0, "list");
    struct ibv_context *context = ibv_open_device(list[count - 1]);
    ibv_free_device_list(list);
    must(context != NULL, "open");
    return context;
}

static void *opens(void *unused)
{
    while (!atomic_load(&is_over))
        must(!ibv_close_device(open_lo()), "close");
    return unused;
}

/* Few of its instructions are not about finding a device. */
static void *imports(void *unused)
{
    while (!atomic_load(&is_over)) {
        struct ibv_context *again = ibv_import_device(dup(shared->cmd_fd));
        must(again && !ibv_close_device(again), "import");
    }
    return unused;
}

int main(void)
{
    shared = open_lo();
    pthread_t threads[THREADS];
    for (int n = 0; n < THREADS; n++)
        must(!pthread_create(&threads[n], NULL, n ? imports : opens, NULL), "thread");
    for (int n = 0; n < CHILDREN; n++) {
        pid_t pid = fork();
        must(pid >= 0, "fork");
        if (pid == 0) {
            alarm(PATIENCE_S);
            must(!ibv_close_device(open_lo()), "close");
            exit(0);
        }
        int status;
        must(waitpid(pid, &status, 0) == pid, "wait");
        must(!(WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM), "child: it hangs;");
        must(status == 0, "child");
    }
    atomic_store(&is_over, 1);
    for (int n = 0; n < THREADS; n++)
        pthread_join(threads[n], NULL);
    must(!ibv_close_device(shared), "close");
    return 0;
}
