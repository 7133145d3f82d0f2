/* Memory that is changed by bare system calls, past the C library's functions, as allocators, MPI libraries and language
   runtimes do. Each part has memory that is away when it is changed, and prints how many pages are wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE 4096ul
#define BYTES ((size_t)8 << 20)
#define DONTUNMAP 4

static volatile sig_atomic_t own_signals;

static void fail(const char *what)
{
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

static char *mapped(int byte)
{
    char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        fail("mmap");
    memset(memory, byte, BYTES);
    return memory;
}

/* Has everything else leave this machine. */
static void evict(void)
{
    static char *other;
    if (other == NULL)
        other = mapped(1);
    for (int round = 2; round < 4; round++)
        memset(other, round, BYTES);
}

static void check(const char *part, const char *memory, size_t bytes, int byte)
{
    size_t wrong = 0;
    for (size_t at = 0; at < bytes; at += PAGE)
        wrong += memory[at] != byte || memory[at + PAGE - 1] != byte;
    if (wrong != 0) {
        printf("%s: %zu of %zu pages are wrong\n", part, wrong, bytes / PAGE);
        exit(1);
    }
}

/* Checks now, and again after the memory was written and has been away. */
static void check_twice(const char *part, char *memory, size_t bytes, int byte)
{
    check(part, memory, bytes, byte);
    memset(memory, byte + 1, bytes);
    evict();
    check(part, memory, bytes, byte + 1);
}

static void on_signal(int signal)
{
    (void)signal;
    own_signals++;
}

static char *away(int byte)
{
    char *memory = mapped(byte);
    evict();
    return memory;
}

static void advice(void)
{
    char *memory = away(7);
    if (syscall(SYS_madvise, memory, BYTES, MADV_DONTNEED) != 0)
        fail("madvise");
    check_twice("madvise", memory, BYTES, 0);
    memset(memory, 7, BYTES);
    evict();
    struct iovec ranges[2] = { { memory, BYTES / 2 }, { memory + BYTES / 2, BYTES / 2 } };
    int self = syscall(SYS_pidfd_open, getpid(), 0);
    if (syscall(SYS_process_madvise, self, ranges, 2ul, MADV_DONTNEED, 0) != (long)BYTES)
        fail("process_madvise");
    check_twice("process_madvise", memory, BYTES, 0);
    errno = 0;
    if (syscall(SYS_madvise, memory, PAGE, 4711) != -1 || errno != EINVAL)
        fail("advice that does not exist");
    close(self);
    munmap(memory, BYTES);
}

static void moves(void)
{
    char *memory = away(7);
    char *moved = (char *)syscall(SYS_mremap, memory, BYTES, 2 * BYTES, MREMAP_MAYMOVE, 0);
    if (moved == MAP_FAILED)
        fail("mremap that grows");
    check("mremap that grows", moved, BYTES, 7);
    check_twice("what mremap adds", moved + BYTES, BYTES, 0);
    evict();
    char *place = (char *)syscall(SYS_mmap, 0, 2 * BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *fixed = (char *)syscall(SYS_mremap, moved, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    if (fixed != place)
        fail("mremap to a fixed place");
    check_twice("mremap to a fixed place", fixed, BYTES, 7);
    char *left = away(9);
    char *copy = (char *)syscall(SYS_mremap, left, BYTES, BYTES, MREMAP_MAYMOVE | DONTUNMAP, 0);
    if (copy == MAP_FAILED)
        fail("mremap that leaves the mapping");
    check_twice("mremap that leaves the mapping", copy, BYTES, 9);
    check_twice("what mremap leaves", left, BYTES, 0);
}

static void replaced(void)
{
    char *memory = away(7);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if ((char *)syscall(SYS_mmap, memory, BYTES, PROT_READ | PROT_WRITE, flags, -1, 0) != memory)
        fail("mmap over it");
    check_twice("mmap over it", memory, BYTES, 0);
    int segment = shmget(IPC_PRIVATE, BYTES, 0600);
    char *shared = (char *)syscall(SYS_shmat, segment, memory, SHM_REMAP);
    shmctl(segment, IPC_RMID, NULL);
    if (shared != MAP_FAILED || errno != EINVAL)
        fail("shmat over it");
    check_twice("shmat over it", memory, BYTES, 1);
}

static void given_back(void)
{
    /* More than there is, if none of it were given back. */
    for (int round = 0; round < 24; round++) {
        char *memory = mapped(round);
        if (syscall(SYS_munmap, memory, BYTES) != 0)
            fail("munmap");
    }
    char *memory = away(7);
    syscall(SYS_munmap, memory, BYTES);
    memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        fail("mmap after munmap");
    check_twice("mmap after munmap", memory, BYTES, 0);
}

static void rights(void)
{
    char *memory = away(7);
    if (syscall(SYS_mprotect, memory, BYTES, PROT_READ) != 0)
        fail("mprotect");
    check("mprotect", memory, BYTES, 7);
    if (syscall(SYS_mprotect, memory, BYTES, PROT_READ | PROT_WRITE) != 0)
        fail("mprotect");
    check_twice("mprotect", memory, BYTES, 7);
}

#ifdef __x86_64__
/* Leaves all registers as they are that the call has no use for. */
static long barest(long call, long first, long second, long third)
{
    long done;
    __asm__ volatile("syscall" : "=a"(done) : "a"(call), "D"(first), "S"(second), "d"(third) : "rcx", "r11", "memory");
    return done;
}

static void registers(void)
{
    for (int round = 0; round < 4; round++) {
        char *memory = away(7);
        madvise(memory + BYTES / 2, BYTES / 2, MADV_DONTNEED);
        if (barest(SYS_madvise, (long)memory, BYTES / 2, MADV_DONTNEED) != 0)
            fail("madvise by the instruction");
        check_twice("madvise by the instruction", memory, BYTES, 0);
        if (barest(SYS_munmap, (long)memory, BYTES, 0) != 0)
            fail("munmap by the instruction");
    }
}
#else
static void registers(void)
{
}
#endif

static void *blocked(void *unused)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    advice();
    return unused;
}

static void signals(void)
{
    struct sigaction action = { .sa_handler = on_signal }, before;
    if (sigaction(SIGSYS, &action, &before) != 0 || before.sa_handler != SIG_DFL)
        fail("sigaction");
    advice();
    raise(SIGSYS);
    if (own_signals != 1)
        fail("the program's own handler");
    if (signal(SIGSYS, SIG_IGN) != on_signal)
        fail("signal");
    raise(SIGSYS);
    if (own_signals != 1)
        fail("the signal is ignored");
    pthread_t thread;
    if (pthread_create(&thread, NULL, blocked, NULL) != 0 || pthread_join(thread, NULL) != 0)
        fail("a thread");
}

int main(void)
{
    advice();
    moves();
    replaced();
    given_back();
    rights();
    registers();
    signals();
    pid_t child = fork();
    if (child == 0) {
        advice();
        given_back();
        _exit(0);
    }
    int status;
    while (child > 0 && syscall(SYS_wait4, child, &status, 0, NULL) < 0 && errno == EINTR)
        ;
    if (child < 0 || status != 0)
        fail("a child");
    puts("ok");
    return 0;
}
