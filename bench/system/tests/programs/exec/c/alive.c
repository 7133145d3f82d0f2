/* More children alive at a time than a byte can number: each changes a tenth of the memory, and reads all of it. */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "must.h"

enum { PAGES = 256 };

int main(int count, char **arguments)
{
    int children = count > 1 ? atoi(arguments[1]) : 300, go[2];
    volatile int *memory = malloc(PAGES * PAGE);
    size_t step = PAGE / sizeof *memory;
    for (int page = 0; page < PAGES; page++)
        memory[page * step] = page;
    MUST(pipe(go) == 0);
    for (int child = 0; child < children; child++) {
        pid_t pid = fork();
        MUST(pid >= 0);
        if (pid == 0) {
            char none;
            close(go[1]);
            MUST(read(go[0], &none, 1) == 0);
            for (int page = child % 10; page < PAGES; page += 10)
                memory[page * step] = 100000 + child;
            for (int page = 0; page < PAGES; page++)
                MUST(memory[page * step] == (page % 10 == child % 10 ? 100000 + child : page));
            _exit(0);
        }
    }
    close(go[1]);
    for (int child = 0; child < children; child++) {
        int status;
        MUST(wait(&status) > 0 && status == 0);
    }
    for (int page = 0; page < PAGES; page++)
        MUST(memory[page * step] == page);
    puts("ok");
    return 0;
}
