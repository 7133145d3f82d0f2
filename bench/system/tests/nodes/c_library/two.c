/* Maps two regions inline over one interface: threads fault in both at once, the one mapped first is unmapped first and mapped
 * again while threads use the other one, and another program is refused meanwhile.
 * Arguments: region, local bytes, interface, manager, another region, another program that maps the first one. */
#define _POSIX_C_SOURCE 200809L
#include <cxloe.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(what)                                                                                                     \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, error.message);                                      \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { THREADS = 4, ROUNDS = 3, WORDS = 512 };

static struct cxloe_error error;
static struct cxloe_options options;
static struct cxloe_link link_of;

struct work {
    cxloe_region *region;
    uint64_t salt, from, own;
};

static uint64_t value(const struct work *work, uint64_t page, uint64_t version)
{
    return version ? work->salt << 56 ^ page << 20 ^ version : 0;
}

/* Adds ROUNDS versions to its pages: what stands there is the version before. */
static void *add(void *argument)
{
    struct work *work = argument;
    volatile uint64_t *words = cxloe_address(work->region);
    uint64_t pages = cxloe_size(work->region) / 4096;
    for (uint64_t version = work->from; version < work->from + ROUNDS; version++)
        for (uint64_t page = work->own; page < pages; page += THREADS) {
            volatile uint64_t *word = &words[page * WORDS + page % WORDS];
            if (*word != value(work, page, version)) {
                fprintf(stderr, "region %d, page %d\n", (int)work->salt, (int)page);
                exit(1);
            }
            *word = value(work, page, version + 1);
        }
    return NULL;
}

struct crew {
    pthread_t threads[THREADS];
    struct work work[THREADS];
};

static void start(struct crew *crew, cxloe_region *region, uint64_t salt, uint64_t from)
{
    for (int own = 0; own < THREADS; own++) {
        crew->work[own] = (struct work){region, salt, from, (uint64_t)own};
        MUST(pthread_create(&crew->threads[own], NULL, add, &crew->work[own]) == 0);
    }
}

static void finish(struct crew *crew)
{
    for (int own = 0; own < THREADS; own++)
        MUST(pthread_join(crew->threads[own], NULL) == 0);
}

static cxloe_region *map(const char *name)
{
    cxloe_region *region = cxloe_map_inline(name, &link_of, &options, &error);
    MUST(region);
    return region;
}

/* Another program is not this compute node. */
static void refused(const char *program, char **arguments)
{
    char command[1024], said[1024] = {0};
    snprintf(command, sizeof command, "%s %s %s %s %s 2>&1", program, arguments[1], arguments[2], arguments[3], arguments[4]);
    FILE *pipe = popen(command, "r");
    MUST(pipe);
    size_t length = fread(said, 1, sizeof said - 1, pipe);
    (void)length;
    strcpy(error.message, "it is not refused");
    MUST(pclose(pipe) != 0 && strstr(said, "registered by another running daemon"));
}

int main(int count, char **arguments)
{
    struct crew a, b;
    MUST(count == 7);
    const char *first = arguments[1], *second = arguments[5];
    cxloe_options_init(&options);
    options.local = strtoull(arguments[2], NULL, 0);
    cxloe_link_init(&link_of);
    link_of.interface_name = arguments[3];
    link_of.manager = arguments[4];

    cxloe_region *one = map(first);
    start(&a, one, 1, 0);
    cxloe_region *two = map(second);
    start(&b, two, 2, 0);
    finish(&a);
    finish(&b);
    refused(arguments[6], arguments);
    MUST(cxloe_set_local(one, options.local, &error) != 0 && strstr(error.message, "cxloe_options.local"));
    MUST(cxloe_discard(one, 0, 4096, &error) != 0 && strstr(error.message, "MADV_DONTNEED"));

    /* One that fails leaves them alone. */
    start(&b, two, 2, ROUNDS);
    MUST(!cxloe_map_inline("no-such-region", &link_of, &options, &error) && strstr(error.message, "no-such-region"));
    MUST(cxloe_unmap(one, &error) == 0);
    one = map(first);
    start(&a, one, 1, ROUNDS);
    finish(&a);
    finish(&b);
    struct cxloe_counters of_one, of_two;
    MUST(cxloe_count(one, &of_one, &error) == 0 && cxloe_count(two, &of_two, &error) == 0);
    MUST(of_one.resident <= options.local && of_two.resident <= options.local);
    MUST(of_one.evicted > 0 && of_two.evicted > of_one.evicted);

    /* The other order, and nothing is left behind. */
    MUST(cxloe_unmap(two, &error) == 0 && cxloe_unmap(one, &error) == 0);
    two = map(second);
    one = map(first);
    start(&a, one, 1, 2 * ROUNDS);
    start(&b, two, 2, 2 * ROUNDS);
    finish(&a);
    MUST(cxloe_unmap(one, &error) == 0);
    finish(&b);
    MUST(cxloe_unmap(two, &error) == 0);
    puts("ok");
    return 0;
}
