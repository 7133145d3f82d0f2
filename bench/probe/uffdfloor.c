/* A page fault that a userfaultfd serves from local memory: by the thread that has it (SIGBUS), and by another one that spins.
 *
 *   uffdfloor ask CPU OTHER_CPU COUNT */
#include "probe.h"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>

#define PAGE 4096

static int fault_fd;
static uint8_t source[PAGE] __attribute__((aligned(PAGE)));
static volatile int over;

static void put(uint64_t address) {
    struct uffdio_copy copy = {.dst = address & ~(uint64_t)(PAGE - 1), .src = (uint64_t)source, .len = PAGE};
    if (ioctl(fault_fd, UFFDIO_COPY, &copy) && errno != EEXIST) _exit(3);
}

static void on_bus(int number, siginfo_t *what, void *context) {
    (void)number;
    (void)context;
    put((uint64_t)what->si_addr);
}

static void *serve(void *cpu) {
    run_on(cpu);
    while (!over) {
        struct uffd_msg message;
        if (read(fault_fd, &message, sizeof message) != sizeof message) continue;
        if (message.event == UFFD_EVENT_PAGEFAULT) put(message.arg.pagefault.address);
    }
    return NULL;
}

static void touch(const char *name, uint64_t features, size_t count) {
    fault_fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {.api = UFFD_API, .features = features};
    if (fault_fd < 0 || ioctl(fault_fd, UFFDIO_API, &api)) die("userfaultfd");
    uint8_t *memory = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) die("mmap");
    madvise(memory, count * PAGE, MADV_NOHUGEPAGE);
    struct uffdio_register whole = {.range = {(uint64_t)memory, count * PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (ioctl(fault_fd, UFFDIO_REGISTER, &whole)) die("UFFDIO_REGISTER");
    struct times t = times_for(count);
    /* An odd multiple goes through all pages of a power of two, never to the neighbour. */
    for (size_t i = 0; i < count; i++) {
        volatile uint8_t *page = memory + (i * 2654435761ull % count) * PAGE;
        uint64_t start = now_ns();
        (void)*page;
        if (i >= count / 20) times_add(&t, now_ns() - start);
    }
    times_say(name, &t);
    munmap(memory, count * PAGE);
}

int main(int count, char **words) {
    if (count != 5 || strcmp(words[1], "ask")) {
        fprintf(stderr, "usage: uffdfloor ask CPU OTHER_CPU COUNT\n");
        return 2;
    }
    memset(source, 7, PAGE);
    size_t pages = 64, wanted = strtoul(words[4], NULL, 10);
    while (pages * 2 <= wanted) pages *= 2;
    run_on(words[2]);
    struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
    if (sigaction(SIGBUS, &action, NULL)) die("sigaction");
    touch("uffd_inline_floor4k", UFFD_FEATURE_SIGBUS, pages);
    close(fault_fd);
    pthread_t other;
    fault_fd = -1;
    if (pthread_create(&other, NULL, serve, words[3])) die("a thread");
    touch("uffd_floor4k", 0, pages);
    over = 1;
    pthread_join(other, NULL);
    return 0;
}
