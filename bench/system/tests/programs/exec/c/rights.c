/* A process gives up its rights, or enters a user namespace, while its memory is paged: all its threads come along, those
 * that nobody but the kernel knows of included. Argument: user or namespace. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 4 << 20, NOBODY = 65534, FILES = 64 };

int capset(void *head, const void *data);

static unsigned char *memory;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void work(int seed)
{
    for (int i = 0; i < BYTES; i += 512)
        memory[i] = (i / 512 * 3 + seed) % 251;
    for (int i = 0; i < BYTES; i += 512)
        if (memory[i] != (i / 512 * 3 + seed) % 251)
            fail("memory");
    free(malloc(2 << 20));
}

/* Every thread's status has a line that begins like this; how many threads. */
static int each_thread(const char *wanted)
{
    int threads = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
        char path[400], line[400];
        int found = 0;
        if (task->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *status = fopen(path, "r");
        while (fgets(line, sizeof line, status) != NULL)
            found |= !strncmp(line, wanted, strlen(wanted));
        fclose(status);
        if (!found) {
            fprintf(stderr, "thread %s has not: %s\n", task->d_name, wanted);
            exit(1);
        }
        threads++;
    }
    closedir(tasks);
    return threads;
}

/* With few descriptors left, the process cannot enter a namespace, and keeps its memory. */
static void try_with_few_descriptors(void)
{
    struct rlimit usual, few;
    int files[FILES], opened = 0;
    if (getrlimit(RLIMIT_NOFILE, &usual) != 0)
        fail("limit");
    few = usual;
    few.rlim_cur = FILES;
    if (setrlimit(RLIMIT_NOFILE, &few) != 0)
        fail("lower limit");
    while ((files[opened] = open("/dev/null", O_RDONLY)) >= 0)
        opened++;
    /* Two are for a pair of sockets, and four for what the helper threads have. */
    for (int left = 0; left < 6; left++) {
        if (unshare(CLONE_NEWUSER) == 0 || errno != EINVAL)
            fail("unshare with few descriptors");
        work(6 + left);
        close(files[--opened]);
    }
    while (opened > 0)
        close(files[--opened]);
    if (setrlimit(RLIMIT_NOFILE, &usual) != 0)
        fail("usual limit");
}

int main(int count, char **arguments)
{
    alarm(100);
    memory = malloc(BYTES);
    work(1);
    if (count > 1 && !strcmp(arguments[1], "user")) {
        if (prctl(PR_SET_KEEPCAPS, 1) != 0 || setgroups(0, NULL) != 0)
            fail("groups");
        if (setresgid(NOBODY, NOBODY, NOBODY) != 0 || setresuid(NOBODY, NOBODY, NOBODY) != 0)
            fail("users");
        if (each_thread("Uid:\t65534\t65534\t65534") < 2)
            fail("threads");
        each_thread("Gid:\t65534\t65534\t65534");
        struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
        struct __user_cap_data_struct none[2] = {{0}};
        if (capset(&head, none) != 0)
            fail("capabilities");
        each_thread("CapPrm:\t0000000000000000");
    } else {
        try_with_few_descriptors();
        if (unshare(CLONE_NEWUSER) != 0)
            fail("unshare");
        each_thread("Uid:\t65534");
    }
    work(2);
    pid_t pid = fork();
    if (pid == 0) {
        work(3);
        _exit(0);
    }
    work(4);
    int status;
    if (waitpid(pid, &status, 0) != pid || status != 0)
        fail("child");
    work(5);
    puts("ok");
    return 0;
}
