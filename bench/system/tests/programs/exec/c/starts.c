/* Programs that start programs: by vfork, by posix_spawn, by the shell, and themselves, while their memory is paged. */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { BYTES = 3 << 20 };

static unsigned char *memory;

static void fill(int seed)
{
    for (int i = 0; i < BYTES; i += 512)
        memory[i] = (i / 512 + seed) % 251;
}

static void check(int seed, const char *when)
{
    for (int i = 0; i < BYTES; i += 512)
        if (memory[i] != (i / 512 + seed) % 251) {
            fprintf(stderr, "%s: byte %d is %d\n", when, i, memory[i]);
            exit(1);
        }
}

static void ended(pid_t pid, int code, const char *what)
{
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != code) {
        fprintf(stderr, "%s ended with %#x\n", what, status);
        exit(1);
    }
}

int main(int count, char **arguments)
{
    memory = malloc(BYTES);
    fill(1);
    check(1, "at first");
    if (count > 1)
        return atoi(arguments[1]); /* started by itself */

    for (int round = 0; round < 2; round++) {
        char *again[] = {arguments[0], "7", NULL};
        pid_t pid = vfork();
        if (pid == 0) {
            execv(arguments[0], again);
            _exit(1);
        }
        fill(round);
        ended(pid, 7, "started by vfork");
        check(round, "after vfork");

        if (posix_spawn(&pid, arguments[0], NULL, NULL, again, environ) != 0)
            pid = -1;
        fill(round + 2);
        ended(pid, 7, "started by posix_spawn");
        check(round + 2, "after posix_spawn");

        pid = fork();
        if (pid == 0) {
            check(round + 2, "in a fork");
            fill(9);
            execv(arguments[0], again);
            _exit(1);
        }
        fill(round + 3);
        ended(pid, 7, "started by fork");
        check(round + 3, "after fork");
    }
    if (system("echo from a shell | sort | tr a-z A-Z") != 0)
        return 1;
    /* Without our environment, and so without remote memory. */
    if (system("env -i /bin/echo alone") != 0)
        return 1;
    check(4, "after all");
    puts("ok");
    return 0;
}
