/* Parts of large mappings are unmapped, protected, mapped over, discarded, made longer and shorter. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "must.h"

/* What headers may be too old for; whether the kernel is, says advice for no bytes. */
#define DONTNEED_LOCKED 24
#define GUARD_INSTALL 102
#define GUARD_REMOVE 103

static const int BOTH = PROT_READ | PROT_WRITE, OWN = MAP_PRIVATE | MAP_ANONYMOUS;

static void fill(unsigned char *at, size_t bytes, int seed)
{
    for (size_t page = 0; page < bytes / PAGE; page++)
        memset(at + page * PAGE, (int)(seed + page * 7) & 0xff, PAGE);
}

/* Whether pages are as `fill` made them, where the first one of them was page `from`. */
static int filled(const unsigned char *at, size_t bytes, int seed, size_t from)
{
    for (size_t page = 0; page < bytes / PAGE; page++)
        for (size_t byte = 0; byte < PAGE; byte += 64)
            if (at[page * PAGE + byte] != ((seed + (from + page) * 7) & 0xff))
                return 0;
    return 1;
}

static int zeros(const unsigned char *at, size_t bytes)
{
    for (size_t byte = 0; byte < bytes; byte += 64)
        if (at[byte])
            return 0;
    return 1;
}

static sigjmp_buf back;

static void caught(int signal)
{
    siglongjmp(back, signal);
}

static int faults(volatile unsigned char *at, int write)
{
    if (sigsetjmp(back, 1))
        return 1;
    if (write)
        *at = 1;
    else
        (void)*at;
    return 0;
}

/* Advice that takes content away, of pages most of which have left memory. */
static void gives_up(void)
{
    unsigned char *at = mmap(NULL, 6 * MIB, BOTH, OWN, -1, 0);
    fill(at, 6 * MIB, 7);
    if (madvise(at, 0, DONTNEED_LOCKED) == 0) {
        MUST(madvise(at, MIB, DONTNEED_LOCKED) == 0 && zeros(at, MIB));
        MUST(filled(at + MIB, 5 * MIB, 7, MIB / PAGE));
    }
    if (madvise(at, 0, GUARD_INSTALL) == 0) {
        MUST(madvise(at + MIB, MIB, GUARD_INSTALL) == 0);
        MUST(faults(at + MIB, 0) && faults(at + 2 * MIB - 1, 1) && filled(at + 2 * MIB, 4 * MIB, 7, 2 * MIB / PAGE));
        /* Neither discarding nor eviction takes a guard away. */
        MUST(madvise(at, 3 * MIB, MADV_DONTNEED) == 0 && faults(at + MIB + 5 * PAGE, 1));
        fill(at + 2 * MIB, 4 * MIB, 8);
        MUST(faults(at + MIB, 0) && madvise(at, 2 * MIB, GUARD_REMOVE) == 0 && zeros(at, 2 * MIB));
        MUST(filled(at + 2 * MIB, 4 * MIB, 8, 0));
        /* Nor does somebody who writes page after page up to it. */
        unsigned char *row = mmap(NULL, MIB, BOTH, OWN, -1, 0);
        MUST(madvise(row + MIB / 2, PAGE, GUARD_INSTALL) == 0);
        fill(row, MIB / 2, 9);
        MUST(faults(row + MIB / 2, 1) && filled(row, MIB / 2, 9, 0));
        /* What is mapped there next has none. */
        MUST(madvise(row, MIB, GUARD_INSTALL) == 0 && munmap(row, MIB) == 0);
        unsigned char *next = mmap(NULL, MIB, BOTH, OWN, -1, 0);
        MUST(next == row && zeros(next, MIB));
        MUST(madvise(next, MIB, GUARD_INSTALL) == 0);
        MUST(mmap(next, MIB, BOTH, OWN | MAP_FIXED, -1, 0) == next && zeros(next, MIB) && munmap(next, MIB) == 0);
    }
    MUST(munmap(at, 6 * MIB) == 0);
}

int main(void)
{
    signal(SIGSEGV, caught);
    unsigned char *all = mmap(NULL, 8 * MIB, BOTH, OWN, -1, 0);
    MUST(all != MAP_FAILED && zeros(all, 8 * MIB));
    fill(all, 8 * MIB, 1);

    /* A hole, and what lies around it; what comes there next is zeros. */
    MUST(munmap(all + 2 * MIB, MIB) == 0);
    MUST(faults(all + 2 * MIB, 0) && faults(all + 3 * MIB - 1, 1));
    MUST(filled(all, 2 * MIB, 1, 0) && filled(all + 3 * MIB, 5 * MIB, 1, 3 * MIB / PAGE));
    unsigned char *other = mmap(NULL, MIB, BOTH, OWN, -1, 0);
    MUST(other != MAP_FAILED && zeros(other, MIB));
    fill(other, MIB, 2);

    /* Discarded pages are zeros, whether they were resident or not. */
    MUST(madvise(all + 4 * MIB, MIB, MADV_DONTNEED) == 0 && zeros(all + 4 * MIB, MIB));
    MUST(filled(all + 5 * MIB, 3 * MIB, 1, 5 * MIB / PAGE));
    fill(all + 4 * MIB, MIB, 3);
    MUST(madvise(all + 4 * MIB, MIB / 2, MADV_FREE) == 0 && zeros(all + 4 * MIB, MIB / 2));
    MUST(filled(all + 4 * MIB + MIB / 2, MIB / 2, 3, MIB / 2 / PAGE));

    gives_up();

    /* Protection of parts, while all the rest is evicted. */
    MUST(mprotect(all, MIB, PROT_READ) == 0 && mprotect(all + MIB, MIB / 2, PROT_NONE) == 0);
    unsigned char *pressure = mmap(NULL, 6 * MIB, BOTH, OWN, -1, 0);
    fill(pressure, 6 * MIB, 4);
    MUST(filled(pressure, 6 * MIB, 4, 0) && filled(all, MIB, 1, 0));
    MUST(faults(all, 1) && !faults(all, 0) && faults(all + MIB, 0));
    MUST(mprotect(all, 2 * MIB, BOTH) == 0 && filled(all, 2 * MIB, 1, 0) && !faults(all, 1));

    /* Mapped over: by memory, and by a file, whose place is not given out again as memory. */
    MUST(mmap(all + 5 * MIB, MIB, BOTH, OWN | MAP_FIXED, -1, 0) == all + 5 * MIB && zeros(all + 5 * MIB, MIB));
    MUST(filled(all + 6 * MIB, 2 * MIB, 1, 6 * MIB / PAGE));
    char name[] = "mapped.XXXXXX";
    int file = mkstemp(name);
    MUST(file >= 0 && unlink(name) == 0 && write(file, pressure, MIB) == MIB);
    MUST(mmap(all + 6 * MIB, MIB, BOTH, MAP_SHARED | MAP_FIXED, file, 0) == all + 6 * MIB);
    MUST(filled(all + 6 * MIB, MIB, 4, 0) && filled(all + 7 * MIB, MIB, 1, 7 * MIB / PAGE));
    all[6 * MIB] = 99;
    unsigned char byte;
    MUST(pread(file, &byte, 1, 0) == 1 && byte == 99);
    MUST(munmap(all + 5 * MIB, 3 * MIB) == 0);
    unsigned char *again[8];
    for (int i = 0; i < 8; i++) {
        again[i] = mmap(NULL, MIB, BOTH, OWN, -1, 0);
        MUST(again[i] != MAP_FAILED && zeros(again[i], MIB));
        fill(again[i], MIB, 10 + i);
    }
    MUST(pread(file, &byte, 1, 0) == 1 && byte == 99);
    for (int i = 0; i < 8; i++)
        MUST(filled(again[i], MIB, 10 + i, 0) && munmap(again[i], MIB) == 0);

    /* A file that is mapped over memory stays that file when its mapping is made longer. */
    unsigned char *under = mmap(NULL, MIB, BOTH, OWN, -1, 0);
    MUST(mmap(under, MIB / 2, BOTH, MAP_SHARED | MAP_FIXED, file, 0) == under);
    MUST(mremap(under, MIB, 2 * MIB, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT && under[0] == 99);
    unsigned char *longer = mremap(under, MIB / 2, MIB, MREMAP_MAYMOVE);
    MUST(longer != MAP_FAILED && longer[0] == 99 && filled(longer + PAGE, MIB - PAGE, 4, 1));
    longer[MIB - 1] = 98;
    MUST(pread(file, &byte, 1, MIB - 1) == 1 && byte == 98);
    MUST(munmap(longer, MIB) == 0 && munmap(under, MIB) == 0);

    /* Longer and shorter, where it is and elsewhere. */
    unsigned char *grown = mmap(NULL, MIB, BOTH, OWN, -1, 0);
    fill(grown, MIB, 5);
    MUST(mremap(grown, MIB, MIB / 2, 0) == grown && filled(grown, MIB / 2, 5, 0));
    unsigned char *fence = mmap(NULL, MIB / 2, BOTH, OWN, -1, 0);
    fill(fence, MIB / 2, 6);
    unsigned char *moved = mremap(grown, MIB / 2, 4 * MIB, MREMAP_MAYMOVE);
    MUST(moved != MAP_FAILED && filled(moved, MIB / 2, 5, 0) && zeros(moved + MIB / 2, 4 * MIB - MIB / 2));
    MUST(filled(fence, MIB / 2, 6, 0));
    unsigned char *place = mmap(NULL, MIB, PROT_NONE, OWN, -1, 0);
    MUST(mremap(moved, MIB / 2, MIB / 2, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
    MUST(filled(place, MIB / 2, 5, 0));

    /* Calls that the kernel refuses change nothing. */
    MUST(mremap(place, MIB / 2, MIB / 2, MREMAP_MAYMOVE | MREMAP_FIXED, place + PAGE) == MAP_FAILED && errno == EINVAL);
    MUST(mremap(place, MIB / 2, MIB / 4, MREMAP_FIXED, all) == MAP_FAILED && errno == EINVAL);
    MUST(munmap(place, -PAGE) == -1 && errno == EINVAL && munmap(place, 1ul << 62) == -1 && errno == EINVAL);
    MUST(madvise(place, -PAGE, MADV_DONTNEED) == -1 && errno == EINVAL);
    MUST(filled(place, MIB / 2, 5, 0) && filled(other, MIB, 2, 0));

    /* Blocks of the heap, through all sizes. */
    unsigned char *block = NULL;
    for (size_t bytes = PAGE; bytes <= 4 * MIB; bytes *= 2) {
        block = realloc(block, bytes);
        MUST(block && (bytes == PAGE || filled(block, bytes / 2, 8, 0)));
        fill(block, bytes, 8);
    }
    MUST((block = realloc(block, 3 * PAGE)) && filled(block, 3 * PAGE, 8, 0));
    free(block);
    unsigned char *large = malloc(2 * MIB);
    large[MIB] = 1;
    size_t freed = (size_t)large;
    free(large);
    MUST(faults((unsigned char *)(freed + MIB), 0));
    errno = 0;
    MUST(malloc(1ul << 40) == NULL && errno == ENOMEM);
    MUST(mmap(NULL, 1ul << 40, BOTH, OWN, -1, 0) == MAP_FAILED && errno == ENOMEM);
    void *aligned;
    MUST(posix_memalign(&aligned, 3, 1) == EINVAL && posix_memalign(&aligned, MIB, 10) == 0);
    MUST(((size_t)aligned & (MIB - 1)) == 0);
    free(aligned);

    /* Pages that may not leave cannot be had, and nothing waits for them. */
    MUST(mlock(pressure, MIB) == -1 && errno == EPERM);
    MUST(mlockall(MCL_CURRENT) == -1 && errno == EPERM);
    MUST(filled(pressure, 6 * MIB, 4, 0) && filled(other, MIB, 2, 0));
    puts("ok");
    return 0;
}
