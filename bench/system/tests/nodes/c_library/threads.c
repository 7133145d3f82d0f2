/* Threads with signal stacks of all sizes go through a region whose faults they serve themselves, beside a handler of
 * SIGBUS that was there before: what is not the region's goes to it, as if nobody stood in between.
 *
 *   ./threads REGION LOCAL_BYTES INTERFACE MANAGER */
#define _GNU_SOURCE
#include <cxloe.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51
#endif
/* The kernel takes no smaller one, whatever it needs. */
#ifdef __aarch64__
#define SMALLEST 5120ul
#else
#define SMALLEST 2048ul
#endif
#define PAGE 4096ul
#define WORDS (PAGE / sizeof(uint64_t))
#define ROUNDS 2u
/* More than the handler has stacks: one that is not given back is missed. */
#define HOLES 300
/* What the handler before runs on. */
#define ROOM (64ul << 10)

#define MUST(what)                                                                                                     \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "line %d: not so: %s (errno %d)\n", __LINE__, #what, errno);                               \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static volatile uint64_t *words;
static size_t pages;
static volatile char *hole;

static __thread sigjmp_buf back;
static __thread char *signal_stack;
static __thread unsigned calls;

/* The handler before: on the signal stack of its thread, with the signals blocked that it asked for and no others. */
static void before(int number, siginfo_t *info, void *context)
{
    char here;
    sigset_t now;
    (void)context;
    MUST(number == SIGBUS && info->si_code == BUS_ADRERR && (char *)info->si_addr == hole);
    MUST(&here > signal_stack && &here < signal_stack + ROOM);
    MUST(pthread_sigmask(SIG_BLOCK, NULL, &now) == 0);
    MUST(sigismember(&now, SIGBUS) && sigismember(&now, SIGUSR1) && !sigismember(&now, SIGUSR2));
    calls++;
    siglongjmp(back, 1);
}

/* A thread's part of the region: a word of every page. */
static void add(size_t own)
{
    for (unsigned round = 0; round < ROUNDS; round++)
        for (size_t page = 0; page < pages; page++)
            words[page * WORDS + own]++;
}

/* Memory for a signal stack, above some that cannot be touched. */
static char *guarded(size_t bytes)
{
    char *memory = mmap(NULL, PAGE + (bytes + PAGE - 1) / PAGE * PAGE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(memory != MAP_FAILED && mprotect(memory, PAGE, PROT_NONE) == 0);
    return memory + PAGE;
}

static void *with_none(void *own)
{
    stack_t stack;
    MUST(sigaltstack(NULL, &stack) == 0 && stack.ss_flags == SS_DISABLE);
    add((size_t)own);
    return NULL;
}

static void *with_least(void *own)
{
    size_t least = getauxval(AT_MINSIGSTKSZ);
    stack_t stack = {.ss_size = least > SMALLEST ? least : SMALLEST};
    stack.ss_sp = guarded(stack.ss_size);
    MUST(sigaltstack(&stack, NULL) == 0);
    add((size_t)own);
    stack.ss_flags = SS_DISABLE;
    MUST(sigaltstack(&stack, NULL) == 0);
    return NULL;
}

/* Between faults of the region, accesses that are not its business. */
static void *beside_holes(void *own)
{
    stack_t stack = {.ss_size = ROOM};
    sigset_t now, usual;
    signal_stack = stack.ss_sp = guarded(ROOM);
    MUST(sigaltstack(&stack, NULL) == 0 && pthread_sigmask(SIG_BLOCK, NULL, &usual) == 0);
    for (unsigned i = 0; i < HOLES; i++) {
        /* Every other time the mask is not put back: it is as the handler had it. */
        int saved = i % 2 == 0;
        if (sigsetjmp(back, saved) == 0) {
            (void)*hole;
            MUST(!"a hole can be read");
        }
        MUST(calls == i + 1 && pthread_sigmask(SIG_BLOCK, NULL, &now) == 0);
        MUST(sigismember(&now, SIGBUS) == !saved && sigismember(&now, SIGUSR1) == !saved);
        MUST(!sigismember(&now, SIGUSR2) && pthread_sigmask(SIG_SETMASK, &usual, NULL) == 0);
        words[i % pages * WORDS + WORDS - 1]++;
    }
    add((size_t)own);
    stack.ss_flags = SS_DISABLE;
    MUST(sigaltstack(&stack, NULL) == 0);
    return NULL;
}

int main(int count, char **arguments)
{
    static void *(*const threads[])(void *) = {with_none, with_least, beside_holes, with_least, with_none};
    enum { THREADS = sizeof threads / sizeof *threads };
    struct cxloe_error error;
    struct cxloe_options options;
    struct cxloe_counters counters;
    struct cxloe_link link;
    struct sigaction action = {.sa_sigaction = before, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    pthread_t running[THREADS];
    pthread_attr_t small;
    size_t stack = 32 << 10, least = (size_t)sysconf(_SC_THREAD_STACK_MIN);
    FILE *empty = tmpfile();
    MUST(count == 5 && empty);
    hole = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fileno(empty), 0);
    MUST(hole != MAP_FAILED);
    MUST(sigaddset(&action.sa_mask, SIGUSR1) == 0 && sigaction(SIGBUS, &action, NULL) == 0);

    cxloe_options_init(&options);
    options.local = strtoull(arguments[2], NULL, 0);
    cxloe_link_init(&link);
    link.interface_name = arguments[3];
    link.manager = arguments[4];
    cxloe_region *region = cxloe_map_inline(arguments[1], &link, &options, &error);
    if (!region) {
        fprintf(stderr, "map: %s\n", error.message);
        return 1;
    }
    words = cxloe_address(region);
    pages = cxloe_size(region) / PAGE;

    MUST(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, stack > least ? stack : least) == 0);
    for (size_t own = 0; own < THREADS; own++)
        MUST(pthread_create(&running[own], &small, threads[own], (void *)own) == 0);
    for (size_t own = 0; own < THREADS; own++)
        MUST(pthread_join(running[own], NULL) == 0);
    for (size_t page = 0; page < pages; page++)
        for (size_t own = 0; own < THREADS; own++)
            MUST(words[page * WORDS + own] == ROUNDS);
    for (size_t page = 0; page < pages && page < HOLES; page++)
        MUST(words[page * WORDS + WORDS - 1] == (HOLES - page + pages - 1) / pages);
    MUST(cxloe_count(region, &counters, &error) == 0);
    if (cxloe_unmap(region, &error)) {
        fprintf(stderr, "unmap: %s\n", error.message);
        return 1;
    }
    printf("%d threads, %zu pages, %" PRIu64 " evicted, %d holes\n", THREADS, pages, counters.evicted, HOLES);
    return 0;
}
