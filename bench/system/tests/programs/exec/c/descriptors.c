/* A program closes every descriptor it may have, as those do that go on in the background, and takes their numbers for
 * others; goes through descriptors that it was never given; and has a line of descendants. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 3 << 20, GENERATIONS = 8 };

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
            fprintf(stderr, "byte %d is %d in generation %d\n", i, memory[i], seed);
            _exit(1);
        }
}

/* Nothing of what keeps this memory is among our descriptors. */
static int hidden(void)
{
    DIR *folder = opendir("/proc/self/fd");
    for (struct dirent *entry; (entry = readdir(folder));) {
        char what[256] = "";
        if (readlinkat(dirfd(folder), entry->d_name, what, sizeof what - 1) < 0)
            continue;
        if (strstr(what, "memfd:") || strstr(what, "[userfaultfd]")) {
            fprintf(stderr, "descriptor %s is %s\n", entry->d_name, what);
            return 0;
        }
    }
    closedir(folder);
    return 1;
}

int main(void)
{
    memory = malloc(BYTES);
    fill(0);
    if (!hidden())
        return 1;
    for (int fd = 3; fd < 1024; fd++)
        close(fd);
    char name[] = "descriptors.XXXXXX";
    int file = mkstemp(name);
    unlink(name);
    for (int fd = 10; fd < 200; fd++)
        dup2(file, fd);
    check(0);
    /* Each child forks the next one, and all of them go on. */
    for (int generation = 0; generation < GENERATIONS; generation++) {
        pid_t pid = fork();
        if (pid != 0) {
            fill(100 + generation);
            int status;
            waitpid(pid, &status, 0);
            check(100 + generation);
            if (status != 0)
                _exit(1);
            if (generation > 0)
                _exit(0);
            break;
        }
        check(generation);
        if (!hidden())
            _exit(1);
        fill(generation + 1);
        void *part = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(part, 1, 1 << 20);
        munmap(part, 1 << 20);
        check(generation + 1);
        if (generation == GENERATIONS - 1)
            _exit(0);
    }
    /* Nobody wrote to what took the descriptors' numbers. */
    if (lseek(file, 0, SEEK_END) != 0) {
        fprintf(stderr, "somebody wrote to a file that is ours\n");
        return 1;
    }
    puts("ok");
    return 0;
}
