/* Parent and child change all pages after a fork, for which together the region has no room. The child ends, with what it
 * says of it, and the parent goes on with its memory as it was. With "both", the region grows, and both come to their end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 20 << 20 };

static unsigned char *memory;

static void fill(int seed)
{
    for (int i = 0; i < BYTES; i += 1024)
        memory[i] = (i / 1024 * 5 + seed) % 251 + 1;
}

static void check(int seed)
{
    for (int i = 0; i < BYTES; i += 1024)
        if (memory[i] != (i / 1024 * 5 + seed) % 251 + 1) {
            fprintf(stderr, "byte %d is %d\n", i, memory[i]);
            exit(1);
        }
}

int main(int count, char **arguments)
{
    int both = count > 1 && strcmp(arguments[1], "both") == 0;

    alarm(110);
    memory = malloc(BYTES);
    fill(1);
    check(1);
    pid_t pid = fork();
    if (pid == 0) {
        fill(2);
        check(2);
        _exit(0); /* there was room */
    }
    if (both) {
        fill(4);
        check(4);
        fill(1);
    }
    int status;
    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != (both ? 0 : 75)) {
        fprintf(stderr, "the child ended with %#x\n", status);
        return 1;
    }
    check(1);
    fill(3);
    check(3);
    puts("ok");
    return 0;
}
