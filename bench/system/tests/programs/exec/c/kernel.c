/* The kernel touches the heap too: files are read into it and written from it, through pipes and vectors, and threads
 * wait for words in it. */
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { BYTES = 2 << 20, ROUNDS = 2 };

static unsigned char *one, *two;
static int words;

static void fail(const char *what, int round)
{
    fprintf(stderr, "round %d: %s\n", round, what);
    exit(1);
}

static int is_round(const unsigned char *at, int round)
{
    for (int i = 0; i < BYTES; i += 64)
        if (at[i] != ((i >> 6) * 13 + round) % 255)
            return 0;
    return 1;
}

static void make_round(unsigned char *at, int round)
{
    memset(at, 0, BYTES);
    for (int i = 0; i < BYTES; i += 64)
        at[i] = ((i >> 6) * 13 + round) % 255;
}

static int pipes[2];

static void *feed(void *bytes)
{
    for (size_t done = 0; done < BYTES;) {
        ssize_t more = write(pipes[1], (unsigned char *)bytes + done, BYTES - done);
        if (more <= 0)
            fail("write to a pipe", -1);
        done += more;
    }
    return NULL;
}

static void *wake(void *word)
{
    make_round(two, 99);
    __atomic_store_n((int *)word, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
    return NULL;
}

int main(void)
{
    char name[] = "kernel.XXXXXX";
    int file = mkstemp(name);
    unlink(name);
    one = malloc(BYTES), two = malloc(BYTES);
    for (int round = 0; round < ROUNDS; round++) {
        make_round(one, round);
        if (pwrite(file, one, BYTES, 0) != BYTES)
            fail("write from the heap", round);
        make_round(one, 77);
        if (pread(file, two, BYTES, 0) != BYTES || !is_round(two, round))
            fail("read into the heap", round);
        struct iovec parts[2] = {{two + BYTES / 2, BYTES / 2}, {two, BYTES / 2}};
        if (pwritev(file, parts, 2, 0) != BYTES || pread(file, one, BYTES, 0) != BYTES)
            fail("write parts of the heap", round);
        if (memcmp(one, two + BYTES / 2, BYTES / 2) || memcmp(one + BYTES / 2, two, BYTES / 2))
            fail("other parts than were written", round);

        pthread_t feeder;
        if (pipe(pipes) != 0)
            fail("pipe", round);
        pthread_create(&feeder, NULL, feed, two);
        for (size_t done = 0; done < BYTES;) {
            ssize_t more = read(pipes[0], one + done, BYTES - done);
            if (more <= 0)
                fail("read from a pipe", round);
            done += more;
        }
        pthread_join(feeder, NULL);
        if (!is_round(one, round))
            fail("what came through the pipe", round);
        close(pipes[0]), close(pipes[1]);

        pthread_t waker;
        int *word = calloc(1, 1 << 16);
        pthread_create(&waker, NULL, wake, word);
        while (!__atomic_load_n(word, __ATOMIC_SEQ_CST))
            syscall(SYS_futex, word, FUTEX_WAIT, 0, NULL, NULL, 0);
        pthread_join(waker, NULL);
        words += *word;
        free(word);
    }
    if (words != ROUNDS)
        fail("words", words);
    puts("ok");
    return 0;
}
