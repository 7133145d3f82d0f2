/* Maps regions inline where that fails, and right after that where it does not; has a child touch what only its parent has.
 * Arguments: region, local bytes, interface, manager. */
#define _DEFAULT_SOURCE
#include <cxloe.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MUST(what)                                                                                                     \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, error.message);                                      \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

int main(int count, char **arguments)
{
    struct cxloe_error error = {0};
    struct cxloe_options options;
    struct cxloe_link link;
    MUST(count == 5);
    cxloe_options_init(&options);
    options.local = strtoull(arguments[2], NULL, 0);
    cxloe_link_init(&link);
    link.interface_name = arguments[3];
    link.manager = arguments[4];

    /* What fails leaves nothing behind. */
    MUST(!cxloe_map_inline("no-such-region", &link, &options, &error) && strstr(error.message, "no-such-region"));
    cxloe_region *region = cxloe_map_inline(arguments[1], &link, &options, &error);
    MUST(region);

    unsigned char *memory = cxloe_address(region);
    memory[7] = 42;
    MUST(cxloe_flush(region, &error) == 0);

    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(((volatile unsigned char *)memory)[7]);
    int status = 0;
    MUST(child > 0 && waitpid(child, &status, 0) == child);
    MUST(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);

    MUST(memory[7] == 42 && cxloe_unmap(region, &error) == 0);
    region = cxloe_map_inline(arguments[1], &link, &options, &error);
    MUST(region && ((unsigned char *)cxloe_address(region))[7] == 42 && cxloe_unmap(region, &error) == 0);
    puts("ok");
    return 0;
}
