/* A plug-in: what it allocates its program frees, and the other way round. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Set before the plug-in is opened, and of the same name in the program. */
int shared_name = 7;
static int freed_at_start;

__attribute__((constructor)) static void start(void)
{
    free(strdup("the C library takes this memory by the name malloc"));
    freed_at_start = 1;
}

int plugin_freed_at_start(void)
{
    return freed_at_start;
}

int *plugin_shared_name(void)
{
    return &shared_name;
}

void plugin_free(void *block)
{
    free(block);
}

void *plugin_grow(void *block, size_t bytes)
{
    return realloc(block, bytes);
}

void *plugin_allocate(size_t bytes)
{
    return malloc(bytes);
}

void *plugin_map(size_t bytes)
{
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

int plugin_unmap(void *memory, size_t bytes)
{
    return munmap(memory, bytes);
}
