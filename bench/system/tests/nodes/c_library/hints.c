/* What a program says of a region by cxloe_hint: pages leave and come when it says so, and hold what they held.
 *
 *   ./hints REGION LOCAL_BYTES */
#define _POSIX_C_SOURCE 200809L
#include <cxloe.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PAGE 4096ul
#define WORDS (PAGE / sizeof(uint64_t))

#define MUST(what)                                                                                                     \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "line %d: not so: %s; %s\n", __LINE__, #what, error.message);                              \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static struct cxloe_error error;
static cxloe_region *region;
static volatile uint64_t *words;
static size_t pages;

static struct cxloe_counters counted(void)
{
    struct cxloe_counters counters;
    MUST(cxloe_count(region, &counters, &error) == 0);
    return counters;
}

/* Gives advice, again after two seconds, and waits until so many of the pages are here, a minute at most. */
static struct cxloe_counters until(enum cxloe_hint hint, size_t here)
{
    struct timespec moment = {.tv_nsec = 5000000};
    for (int look = 0; look < 12000; look++) {
        struct cxloe_counters counters;
        if (look % 400 == 0)
            MUST(cxloe_hint(region, 0, pages * PAGE, hint, &error) == 0);
        counters = counted();
        if (counters.resident == here * PAGE)
            return counters;
        nanosleep(&moment, NULL);
    }
    fprintf(stderr, "hint %d: %" PRIu64 " bytes are here\n", (int)hint, counted().resident);
    exit(1);
}

static void check(uint64_t factor)
{
    for (size_t page = 0; page < pages; page++)
        for (size_t word = 0; word < WORDS; word += 8)
            if (words[page * WORDS + word] != factor * (page * WORDS + word)) {
                fprintf(stderr, "page %zu, word %zu\n", page, word);
                exit(1);
            }
}

int main(int count, char **arguments)
{
    struct cxloe_options options;
    struct cxloe_counters before, after;
    if (count != 3)
        return 2;
    cxloe_options_init(&options);
    options.local = strtoull(arguments[2], NULL, 0);
    options.prefetch = false;
    region = cxloe_map(arguments[1], &options, &error);
    MUST(region);
    words = cxloe_address(region);
    /* Room for all of them, and for what is kept free. */
    pages = options.local / PAGE / 2;
    MUST(pages > 0 && pages * PAGE <= cxloe_size(region));
    for (size_t page = 0; page < pages; page++)
        for (size_t word = 0; word < WORDS; word += 8)
            words[page * WORDS + word] = 3 * (page * WORDS + word);
    before = until(CXLOE_PAGE_OUT, 0);
    MUST(before.evicted >= pages && before.written_back >= pages);
    until(CXLOE_WILL_READ, pages);
    check(3);
    after = counted();
    /* Those that left last are still in their buffers. */
    MUST(after.prefetched >= before.prefetched + pages - pages / 8);
    MUST(after.fetched == before.fetched && after.faults == before.faults);
    /* There is room: cold pages stay. */
    MUST(cxloe_hint(region, 0, pages * PAGE, CXLOE_COLD, &error) == 0);
    check(3);
    MUST(counted().fetched == before.fetched);
    MUST(cxloe_discard(region, 0, pages * PAGE, &error) == 0);
    check(0);
    until(CXLOE_PAGE_OUT, 0);
    until(CXLOE_WILL_WRITE, pages);
    check(0);
    /* What makes no sense is refused in words. */
    MUST(cxloe_hint(region, 1, cxloe_size(region), CXLOE_COLD, &error) != 0);
    MUST(strstr(error.message, "at offset 1 go beyond the region"));
    MUST(cxloe_hint(region, 0, PAGE, (enum cxloe_hint)9, &error) != 0 && error.message[0] != 0);
    printf("%zu pages right, %" PRIu64 " ahead of their use\n", pages, after.prefetched);
    MUST(cxloe_unmap(region, &error) == 0);
    return 0;
}
