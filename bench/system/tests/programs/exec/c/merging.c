/* Memory that pages in and out is never merged with equal pages: not when the process is started so, nor when it asks for it. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SET_MEMORY_MERGE 67
#define BYTES ((size_t)4 << 20)

static void fail(const char *what)
{
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

/* Whether the kernel may merge pages of the mapping that holds an address. */
static int is_mergeable(const void *address)
{
    char line[1024];
    int in = 0, found = -1;
    FILE *file = fopen("/proc/self/smaps", "r");
    if (file == NULL)
        fail("smaps");
    while (fgets(line, sizeof line, file) != NULL) {
        unsigned long start, end;
        char rights[5];
        if (sscanf(line, "%lx-%lx %4s", &start, &end, rights) == 3)
            in = start <= (unsigned long)address && (unsigned long)address < end;
        else if (in && strncmp(line, "VmFlags:", 8) == 0)
            found = strstr(line, " mg") != NULL;
    }
    fclose(file);
    if (found < 0)
        fail("the mapping is not in smaps");
    return found;
}

int main(int count, char **arguments)
{
    static char local[4096 * 16];
    char *mapped = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *heap = malloc(BYTES);
    if (mapped == MAP_FAILED || heap == NULL)
        fail("memory");
    memset(mapped, 7, BYTES);
    memset(heap, 7, BYTES);
    if (count > 1 && strcmp(arguments[1], "inherited") == 0 && !is_mergeable(local))
        fail("the process was not started with merging");
    if (prctl(SET_MEMORY_MERGE, 1, 0, 0, 0) == 0 || errno != EINVAL)
        fail("prctl");
    if (syscall(SYS_prctl, SET_MEMORY_MERGE, 1, 0, 0, 0) == 0 || errno != EINVAL)
        fail("the bare system call prctl");
    if (madvise(mapped, BYTES, MADV_MERGEABLE) != 0)
        fail("madvise");
    if (is_mergeable(mapped) || is_mergeable(heap))
        fail("pages may be merged");
    puts("ok");
    return 0;
}
