/* What the programs that map memory have in common: sizes, and a check that ends the program. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define PAGE 4096ul
#define MIB (1ul << 20)

#define MUST(what)                                                                                                     \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "line %d: not so: %s (errno %d)\n", __LINE__, #what, errno);                               \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
