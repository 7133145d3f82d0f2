/* What is not resident is looked at from outside, as debuggers do: by another process, and through /proc. What comes is
 * right, or an error; never zeros. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 1500 };

static int is_page(const unsigned char *bytes, int page)
{
    for (int at = 0; at < PAGE; at++)
        if (bytes[at] != (page * 31 + 7) % 251)
            return 0;
    return 1;
}

static int look(pid_t whose, unsigned char *memory)
{
    static unsigned char seen[PAGE];
    char name[64];
    snprintf(name, sizeof name, "/proc/%d/mem", whose);
    int file = open(name, O_RDONLY), refused = 0;
    for (int page = 0; page < PAGES; page += 37) {
        struct iovec here = {seen, PAGE}, there = {memory + (size_t)page * PAGE, PAGE};
        memset(seen, 0, PAGE);
        ssize_t count = pread(file, seen, PAGE, (off_t)(size_t)there.iov_base);
        if (count < 0 && errno == EIO)
            refused++;
        else if (count != PAGE || !is_page(seen, page)) {
            fprintf(stderr, "page %d by /proc: %zd (errno %d)\n", page, count, errno);
            return 1;
        }
        memset(seen, 0, PAGE);
        if (process_vm_readv(whose, &here, 1, &there, 1, 0) != PAGE || !is_page(seen, page)) {
            fprintf(stderr, "page %d by process_vm_readv (errno %d)\n", page, errno);
            return 1;
        }
    }
    printf("refused %d\n", refused);
    fflush(stdout);
    return 0;
}

int main(void)
{
    unsigned char *memory = malloc((size_t)PAGES * PAGE);
    for (int page = 0; page < PAGES; page++)
        memset(memory + (size_t)page * PAGE, (page * 31 + 7) % 251, PAGE);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    pid_t own = getpid(), looker = fork();
    if (looker == 0)
        _exit(look(own, memory));
    int status;
    if (waitpid(looker, &status, 0) != looker || status != 0)
        return 1;
    if (look(own, memory) != 0)
        return 1;
    puts("ok");
    return 0;
}
