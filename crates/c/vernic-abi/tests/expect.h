/* What the programs of these tests share: expectations that say what they got. */
#ifndef EXPECT_H
#define EXPECT_H

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int wrong;

/* A number that has to be another number. */
#define EXPECT(what, want)                                                                        \
    do {                                                                                          \
        long got_ = (long)(what);                                                                 \
        if (got_ != (long)(want)) {                                                               \
            printf("%s:%d: %s is %ld, not %ld\n", __FILE__, __LINE__, #what, got_, (long)(want)); \
            wrong = 1;                                                                            \
        }                                                                                         \
    } while (0)

/* -1, and this errno. */
#define FAILS(what, want)                                                                         \
    do {                                                                                          \
        errno = 0;                                                                                \
        EXPECT(what, -1);                                                                         \
        if (errno != (want)) {                                                                    \
            printf("%s:%d: %s: errno is %d (%s), not %d\n", __FILE__, __LINE__, #what, errno,     \
                   strerror(errno), (want));                                                      \
            wrong = 1;                                                                            \
        }                                                                                         \
    } while (0)

/* Something without which nothing after it makes sense. */
#define MUST(what)                                                                                \
    do {                                                                                          \
        errno = 0;                                                                                \
        if (!(what)) {                                                                            \
            printf("%s:%d: %s failed: %s\n", __FILE__, __LINE__, #what, strerror(errno));         \
            return 1;                                                                             \
        }                                                                                         \
    } while (0)

#endif
