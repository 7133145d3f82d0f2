/* Children made past fork(3): they have their parent's memory as it was, change it for themselves, and come to their end,
 * whether they ask for memory or only touch it. Argument: how they are made. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 6 << 20, STACK = 256 << 10 };

static unsigned char *memory;

static void fill(int seed)
{
    for (int i = 0; i < BYTES; i += 512)
        memory[i] = (i / 512 * 7 + seed) % 251;
}

static void check(int seed, const char *when)
{
    for (int i = 0; i < BYTES; i += 512)
        if (memory[i] != (i / 512 * 7 + seed) % 251) {
            fprintf(stderr, "%s: byte %d is %d\n", when, i, memory[i]);
            _exit(1);
        }
}

static int work(int seed, int allocates)
{
    check(seed, "in a child");
    fill(seed + 100);
    if (allocates) {
        unsigned char *more = malloc(3 << 20);
        memset(more, 5, 3 << 20);
        check(seed + 100, "in a child that has asked for memory");
        free(more);
    }
    check(seed + 100, "in a child that has written");
    return 0;
}

struct task {
    int seed, allocates;
};

static int run(void *task)
{
    struct task *of = task;
    _exit(work(of->seed, of->allocates));
}

static pid_t make(const char *how, struct task *task)
{
    if (!strcmp(how, "clone")) {
        static char stack[STACK] __attribute__((aligned(16)));
        return clone(run, stack + STACK, SIGCHLD, task);
    }
    pid_t pid = -1;
    if (!strcmp(how, "_Fork"))
        pid = _Fork();
    else if (!strcmp(how, "raw"))
        pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    else if (!strcmp(how, "clone3")) {
        struct clone_args arguments = {.exit_signal = SIGCHLD};
        pid = syscall(SYS_clone3, &arguments, sizeof arguments);
    }
    if (pid == 0)
        run(task);
    return pid;
}

int main(int count, char **arguments)
{
    alarm(100);
    memory = malloc(BYTES);
    fill(0);
    check(0, "at first");
    for (int round = 0; round < 4; round++) {
        struct task task = {round, round & 1};
        pid_t pid = make(count > 1 ? arguments[1] : "", &task);
        fill(round + 1);
        check(round + 1, "in the parent, meanwhile");
        int status = 1;
        if (pid <= 0 || waitpid(pid, &status, 0) != pid || status != 0) {
            fprintf(stderr, "round %d: child %d ended with %#x\n", round, pid, status);
            return 1;
        }
        check(round + 1, "in the parent");
    }
    puts("ok");
    return 0;
}
