/* A child made past fork(3) that never asks for memory, and so only the agent knows. It waits for a file `go`, and then
 * goes through its memory, of which it may be refused what is elsewhere, but given no zeros. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 8 << 20 };

static void say(const char *text)
{
    int length = 0;
    while (text[length] != 0)
        length++;
    if (write(1, text, length) != length)
        _exit(9);
}

int main(void)
{
    alarm(100);
    unsigned char *memory = malloc(BYTES);
    for (int i = 0; i < BYTES; i += 4096)
        memory[i] = i / 4096 % 251 + 1;
    pid_t pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
        say("waiting\n");
        while (access("go", F_OK) != 0)
            usleep(10000);
        for (int i = 0; i < BYTES; i += 4096)
            if (memory[i] != i / 4096 % 251 + 1)
                _exit(3);
        _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS)
        say("refused\n");
    else
        say(WEXITSTATUS(status) == 3 ? "other bytes\n" : "all there\n");
    _exit(0);
}
