/* Programs whose threads end by the system call `exit`, each for itself, which ends the process with the last of them.
 * Argument: which way. */
#define _GNU_SOURCE
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 6 << 20, CODE = 7 };

static unsigned char *memory;

static void fill(int seed)
{
    for (int i = 0; i < BYTES; i += 512)
        memory[i] = (i / 512 + seed) % 251;
}

static void check(int seed)
{
    for (int i = 0; i < BYTES; i += 512)
        if (memory[i] != (i / 512 + seed) % 251) {
            fprintf(stderr, "byte %d is %d\n", i, memory[i]);
            _exit(1);
        }
}

static void say(const char *what)
{
    if (write(1, what, strlen(what)) < 0)
        _exit(1);
}

static void leave(int code)
{
    syscall(SYS_exit, code);
}

/* Works on after the first thread has ended. */
static void *work(void *bare)
{
    usleep(600000);
    for (int round = 0; round < 3; round++) {
        fill(round);
        check(round);
    }
    say("worked\n");
    if (bare)
        leave(3);
    return NULL;
}

int main(int count, char **arguments)
{
    const char *way = count > 1 ? arguments[1] : "";
    memory = malloc(BYTES);
    fill(1);
    check(1);
    if (!strcmp(way, "bare"))
        leave(CODE);
    if (!strcmp(way, "strict")) {
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0);
        leave(CODE);
    }
    if (!strcmp(way, "thread") || !strcmp(way, "pthread")) {
        pthread_t other;
        int bare = !strcmp(way, "thread");
        if (pthread_create(&other, NULL, work, bare ? &memory : NULL))
            return 1;
        if (bare)
            leave(CODE);
        pthread_exit(NULL);
    }
    if (!strcmp(way, "child")) {
        pid_t pid = fork();
        if (pid == 0) {
            fill(2);
            leave(CODE);
        }
        int status = 0;
        if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
            return 1;
        check(1);
        return WEXITSTATUS(status);
    }
    return 1;
}
