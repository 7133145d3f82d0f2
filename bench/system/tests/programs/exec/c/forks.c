/* Parent, child and grandchild each change the same blocks and have to find their own changes, and those of before the
 * fork, and nobody else's. Arguments: rounds, and how many threads allocate meanwhile. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 1024, BYTES = 4000 };

static unsigned char *blocks[BLOCKS];
static volatile int stop;

static int of(int seed, int block)
{
    return (seed * 31 + block) & 0xff;
}

static void fill(int seed)
{
    for (int i = 0; i < BLOCKS; i++)
        memset(blocks[i], of(seed, i), BYTES);
}

static void check(int seed, int code)
{
    for (int i = 0; i < BLOCKS; i++)
        for (int j = 0; j < BYTES; j += 57)
            if (blocks[i][j] != of(seed, i)) {
                fprintf(stderr, "process %d: block %d byte %d is %d and not %d (check %d)\n", getpid(), i, j,
                        blocks[i][j], of(seed, i), code);
                _exit(code);
            }
}

static void wait_for(pid_t pid, int code)
{
    int status;
    if (waitpid(pid, &status, 0) != pid || status != 0) {
        fprintf(stderr, "process %d: child %d ended with %#x\n", getpid(), pid, status);
        _exit(code);
    }
}

static void *allocate(void *seed)
{
    unsigned state = (unsigned)(size_t)seed;
    unsigned char *mine[64] = {0};
    while (!stop) {
        state = state * 1103515245 + 12345;
        unsigned at = state >> 16 & 63;
        if (mine[at] && *mine[at] != at)
            abort();
        free(mine[at]);
        mine[at] = malloc(1 + (state >> 8) % 20000);
        *mine[at] = at;
    }
    for (int i = 0; i < 64; i++)
        free(mine[i]);
    return NULL;
}

static void grandchild(int seed)
{
    check(seed, 10);
    fill(seed + 1);
    unsigned char *large = malloc(3 << 20);
    memset(large, 1, 3 << 20);
    free(large);
    check(seed + 1, 11);
    _exit(0);
}

static void child(int seed)
{
    check(seed, 20);
    fill(seed + 50);
    pid_t pid = fork();
    if (pid == 0)
        grandchild(seed + 50);
    check(seed + 50, 21);
    fill(seed + 60);
    wait_for(pid, 22);
    check(seed + 60, 23);
    _exit(0);
}

int main(int count, char **arguments)
{
    int rounds = count > 1 ? atoi(arguments[1]) : 1, threads = count > 2 ? atoi(arguments[2]) : 0;
    pthread_t thread[8];
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = malloc(BYTES);
    for (int i = 0; i < threads && i < 8; i++)
        pthread_create(&thread[i], NULL, allocate, (void *)(size_t)(i + 1));
    fill(0);
    for (int round = 0; round < rounds; round++) {
        pid_t pid = fork();
        if (pid == 0)
            child(round);
        fill(round + 1);
        check(round + 1, 30);
        wait_for(pid, 31);
        check(round + 1, 32);
    }
    stop = 1;
    for (int i = 0; i < threads && i < 8; i++)
        pthread_join(thread[i], NULL);
    puts("ok");
    return 0;
}
