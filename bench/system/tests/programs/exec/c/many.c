/* Many children of one parent, at once: each writes a tenth of its memory and finds all of it right. Argument: how many. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 4096, PART = 10 };

static unsigned char *memory;

static unsigned *word(int page)
{
    return (unsigned *)(memory + (size_t)page * PAGE + page * 64 % PAGE);
}

static int work(int child)
{
    for (int page = child % PART; page < PAGES; page += PART)
        *word(page) = page * 11 + child;
    for (int page = 0; page < PAGES; page++) {
        unsigned right = page % PART == child % PART ? page * 11 + child : page * 7 + 1;
        if (*word(page) != right) {
            fprintf(stderr, "child %d: page %d has %u\n", child, page, *word(page));
            return 1;
        }
    }
    return 0;
}

int main(int count, char **arguments)
{
    alarm(100);
    int children = count > 1 ? atoi(arguments[1]) : 1, failed = 0;
    memory = malloc((size_t)PAGES * PAGE);
    for (int page = 0; page < PAGES; page++)
        *word(page) = page * 7 + 1;
    for (int child = 0; child < children; child++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(work(child));
        failed += pid < 0;
    }
    for (int child = 0; child < children; child++) {
        int status = 1;
        failed += wait(&status) < 0 || status != 0;
    }
    for (int page = 0; page < PAGES; page++)
        failed += *word(page) != (unsigned)(page * 7 + 1);
    puts(failed ? "failed" : "ok");
    return failed != 0;
}
