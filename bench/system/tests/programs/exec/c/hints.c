/* What a program says of its memory by madvise: pages leave and come when it says so, and hold what they held. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define PAGE 4096
#define PAGES 2048

static unsigned char *memory;

/* Pages that are in this machine, as the kernel sees them. */
static size_t here(void)
{
    unsigned char in[PAGES];
    size_t count = 0;
    if (mincore(memory, PAGES * PAGE, in) != 0) {
        perror("mincore");
        exit(1);
    }
    for (size_t page = 0; page < PAGES; page++)
        count += in[page] & 1;
    return count;
}

static void advise(int advice)
{
    if (madvise(memory, PAGES * PAGE, advice) != 0) {
        perror("madvise");
        exit(1);
    }
}

/* Gives advice and waits until it is followed, for a minute at most. It may be forgotten where it does not fit: it is given
 * again now and then. */
static void until(size_t wanted, int advice, const char *what)
{
    struct timespec moment = {.tv_nsec = 5000000};
    for (int look = 0; look < 12000; look++) {
        if (look % 20 == 0)
            advise(advice);
        if (here() == wanted)
            return;
        nanosleep(&moment, NULL);
    }
    fprintf(stderr, "%s: %zu pages are here\n", what, here());
    exit(1);
}

static void check(unsigned add)
{
    for (size_t page = 0; page < PAGES; page++)
        for (size_t at = 0; at < PAGE; at += 64)
            if (memory[page * PAGE + at] != (unsigned char)(page * 7 + at / 64 + add)) {
                fprintf(stderr, "page %zu, byte %zu: %u\n", page, at, memory[page * PAGE + at]);
                exit(1);
            }
}

int main(void)
{
    memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    for (size_t page = 0; page < PAGES; page++)
        for (size_t at = 0; at < PAGE; at += 64)
            memory[page * PAGE + at] = page * 7 + at / 64;
    if (here() != PAGES)
        return 1;
    until(0, MADV_PAGEOUT, "paged out");
    until(PAGES, MADV_WILLNEED, "will be needed");
    check(0);
    /* There is room: cold pages stay. */
    advise(MADV_COLD);
    check(0);
    advise(MADV_DONTNEED);
    for (size_t at = 0; at < PAGES * PAGE; at += 64)
        if (memory[at] != 0)
            return 1;
    puts("ok");
    return 0;
}
