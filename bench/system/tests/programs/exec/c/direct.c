/* What writes into pages past the page table is refused, and what only looks like it is not. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static void expect(const char *what, long got, int error)
{
    int was = errno;
    if (error ? got != -1 || was != error : got < 0) {
        fprintf(stderr, "%s: %ld, %s\n", what, got, strerror(was));
        exit(1);
    }
}

int main(void)
{
    int file = open("direct.file", O_RDWR | O_CREAT, 0600);
    expect("a plain file", file, 0);
    for (int round = 0; round < 3; round++) {
        expect("open to read and write", open("direct.file", O_RDWR | O_DIRECT), EINVAL);
        expect("open to read", openat(AT_FDCWD, "direct.file", O_RDONLY | O_DIRECT), EINVAL);
    }
    int written = open("direct.file", O_WRONLY | O_DIRECT);
    expect("open to write", written, 0);
    expect("set on a file that is only written", fcntl(written, F_SETFL, O_DIRECT | O_APPEND), 0);
    expect("set", fcntl(file, F_SETFL, O_DIRECT), EINVAL);
    expect("set other flags", fcntl(file, F_SETFL, O_APPEND), 0);
    int pipes[2];
    expect("a pipe", pipe(pipes), 0);
    expect("packets", fcntl(pipes[0], F_SETFL, O_DIRECT), 0);

    struct open_how how = {.flags = O_RDWR | O_DIRECT};
    expect("openat2", syscall(SYS_openat2, AT_FDCWD, "direct.file", &how, sizeof how), ENOSYS);
    how.flags = O_RDWR;
    expect("openat2 of plain files", syscall(SYS_openat2, AT_FDCWD, "direct.file", &how, sizeof how), 0);

    struct io_uring_params parameters = {0};
    expect("io_uring", syscall(SYS_io_uring_setup, 8, &parameters), EPERM);
    char *bytes = malloc(2);
    struct iovec one = {bytes, 1}, two = {bytes + 1, 1};
    expect("another process", process_vm_writev(getpid(), &one, 1, &two, 1, 0), EPERM);
    expect("reading another process", process_vm_readv(getpid(), &one, 1, &two, 1, 0), 0);
    puts("ok");
    return 0;
}
