/* What a program of MPI does: messages of many sizes, many at once, collective operations, one-sided ones. Every result is
 * looked at. It runs in as many processes as it is given. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define LARGEST (8 << 20)
#define AT_ONCE 1000
#define BLOCK (1 << 14)

static int own, ranks;

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "rank %d, line %d: not so: %s\n", own, __LINE__, #what);                                   \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                                              \
        }                                                                                                              \
    } while (0)

static void *room(size_t bytes)
{
    void *at = calloc(1, bytes);
    CHECK(at);
    return at;
}

/* Around the ring of ranks: sizes of the eager protocol and of rendezvous. */
static void messages(int to, int from)
{
    unsigned char *out = room(LARGEST), *in = room(LARGEST);
    for (int len = 1; len <= LARGEST; len = 3 * len + 1)
        for (int round = 0; round < 3; round++) {
            for (int i = 0; i < len; i++)
                out[i] = (unsigned char)(7 * i + own + round);
            MPI_Sendrecv(out, len, MPI_BYTE, to, round, in, len, MPI_BYTE, from, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            for (int i = 0; i < len; i++)
                CHECK(in[i] == (unsigned char)(7 * i + from + round));
        }
    free(out);
    free(in);
}

static void many_at_once(int to, int from)
{
    static int out[AT_ONCE], in[AT_ONCE];
    static MPI_Request requests[2 * AT_ONCE];
    for (int i = 0; i < AT_ONCE; i++) {
        out[i] = 31 * i + own;
        MPI_Irecv(in + i, 1, MPI_INT, from, i, MPI_COMM_WORLD, requests + i);
        MPI_Isend(out + i, 1, MPI_INT, to, i, MPI_COMM_WORLD, requests + AT_ONCE + i);
    }
    MPI_Waitall(2 * AT_ONCE, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < AT_ONCE; i++)
        CHECK(in[i] == 31 * i + from);
}

static void collectives(void)
{
    for (long i = 0; i < 100; i++) {
        long mine = own + i, sum;
        MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        CHECK(sum == ranks * i + ranks * (ranks - 1L) / 2);
    }
    int *out = room(sizeof *out * BLOCK * ranks), *in = room(sizeof *in * BLOCK * ranks);
    for (int i = 0; i < BLOCK * ranks; i++)
        out[i] = own * 1000003 + i;
    MPI_Alltoall(out, BLOCK, MPI_INT, in, BLOCK, MPI_INT, MPI_COMM_WORLD);
    for (int rank = 0; rank < ranks; rank++)
        for (int i = 0; i < BLOCK; i++)
            CHECK(in[rank * BLOCK + i] == rank * 1000003 + own * BLOCK + i);
    free(out);
    free(in);
}

static void one_sided(int to, int from)
{
    enum { SUM, COUNT, PUT, WORDS = 64 };
    long *words, one = 1, mine = own + 1, before;
    MPI_Win window;
    MPI_Win_allocate(WORDS * sizeof *words, sizeof *words, MPI_INFO_NULL, MPI_COMM_WORLD, &words, &window);
    for (int i = 0; i < WORDS; i++)
        words[i] = 0;
    MPI_Win_fence(0, window);
    for (int i = 0; i < 50; i++)
        MPI_Accumulate(&mine, 1, MPI_LONG, 0, SUM, 1, MPI_LONG, MPI_SUM, window);
    MPI_Put(&mine, 1, MPI_LONG, to, PUT, 1, MPI_LONG, window);
    MPI_Win_fence(0, window);
    CHECK(own || words[SUM] == 50L * ranks * (ranks + 1) / 2);
    CHECK(words[PUT] == from + 1);
    MPI_Win_lock_all(0, window);
    for (int i = 0; i < 100; i++) {
        MPI_Fetch_and_op(&one, &before, MPI_LONG, 0, COUNT, MPI_SUM, window);
        MPI_Win_flush(0, window);
        CHECK(before >= i && before < 100L * ranks);
    }
    MPI_Win_unlock_all(window);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, own, 0, window);
    CHECK(own || words[COUNT] == 100L * ranks);
    MPI_Win_unlock(own, window);
    MPI_Win_free(&window);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &own);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int to = (own + 1) % ranks, from = (own + ranks - 1) % ranks;
    messages(to, from);
    many_at_once(to, from);
    collectives();
    one_sided(to, from);
    MPI_Barrier(MPI_COMM_WORLD);
    if (!own)
        printf("all was right in %d ranks\n", ranks);
    MPI_Finalize();
    return 0;
}
