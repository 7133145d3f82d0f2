/* A thread ends while it holds robust locks in pages that are away. Others get them, with EOWNERDEAD; those that wait in
 * the meantime as well. The thread comes to its end by a return, by pthread_exit, and by being cancelled. */
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "must.h"

enum { LOCKS = 8, CHURN = 24 };

struct place {
    pthread_mutex_t lock;
    char rest[4 * PAGE - sizeof(pthread_mutex_t)];
};

static struct place *places;
static unsigned char *churned;
static int held[2], go[2];

static void *hold(void *how)
{
    char byte = 1;
    for (int i = 0; i < LOCKS; i++)
        MUST(pthread_mutex_lock(&places[i].lock) == 0);
    MUST(write(held[1], &byte, 1) == 1);
    MUST(read(go[0], &byte, 1) == 1);
    if (*(int *)how == 1)
        pthread_exit(NULL);
    if (*(int *)how == 2)
        for (;;)
            pause();
    return NULL;
}

static int locked_in_time(pthread_mutex_t *lock)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 30;
    return pthread_mutex_timedlock(lock, &end);
}

static void *wait_for(void *lock)
{
    static int got;
    got = locked_in_time(lock);
    return &got;
}

int main(void)
{
    pthread_mutexattr_t robust;
    MUST(pthread_mutexattr_init(&robust) == 0 && pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST) == 0);
    MUST((places = aligned_alloc(PAGE, LOCKS * sizeof *places)) && (churned = malloc(CHURN * MIB)));
    MUST(pipe(held) == 0 && pipe(go) == 0);
    for (int how = 0; how < 3; how++) {
        pthread_t holder, waiter;
        char byte = 0;
        void *got;
        for (int i = 0; i < LOCKS; i++)
            MUST(pthread_mutex_init(&places[i].lock, &robust) == 0);
        MUST(pthread_create(&holder, NULL, hold, &how) == 0);
        MUST(read(held[0], &byte, 1) == 1);
        MUST(pthread_create(&waiter, NULL, wait_for, &places[0].lock) == 0);
        for (int round = 0; round < 3; round++)
            memset(churned, round, CHURN * MIB);
        MUST(write(go[1], &byte, 1) == 1);
        if (how == 2)
            MUST(pthread_cancel(holder) == 0);
        MUST(pthread_join(holder, NULL) == 0);
        MUST(pthread_join(waiter, &got) == 0 && *(int *)got == EOWNERDEAD);
        for (int i = 1; i < LOCKS; i++) {
            MUST(locked_in_time(&places[i].lock) == EOWNERDEAD);
            MUST(pthread_mutex_consistent(&places[i].lock) == 0 && pthread_mutex_unlock(&places[i].lock) == 0);
        }
    }
    puts("ok");
    return 0;
}
