/* Opens a plug-in with RTLD_DEEPBIND, by each way there is, and exchanges memory with it. Argument: the plug-in's name. It
 * lies in a folder that this program's run path names. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BYTES = 3 << 20 };

int shared_name = 5;

static void *symbol(void *plugin, const char *name)
{
    void *found = dlsym(plugin, name);
    if (!found) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return found;
}

static void fill(unsigned char *memory, int seed)
{
    for (int i = 0; i < BYTES; i += 512)
        memory[i] = (i / 512 + seed) % 251;
}

static void check(const unsigned char *memory, int seed, const char *when)
{
    for (int i = 0; i < BYTES; i += 512)
        if (memory[i] != (i / 512 + seed) % 251) {
            fprintf(stderr, "%s: byte %d is %d\n", when, i, memory[i]);
            exit(1);
        }
}

static void exchange(void *plugin)
{
    void (*release)(void *) = symbol(plugin, "plugin_free");
    void *(*grow)(void *, size_t) = symbol(plugin, "plugin_grow");
    void *(*allocate)(size_t) = symbol(plugin, "plugin_allocate");
    void *(*map)(size_t) = symbol(plugin, "plugin_map");
    int (*unmap)(void *, size_t) = symbol(plugin, "plugin_unmap");
    int (*freed_at_start)(void) = symbol(plugin, "plugin_freed_at_start");
    if (!freed_at_start())
        exit(1);
    for (int bytes = 1; bytes < BYTES; bytes *= 3) {
        release(malloc(bytes));
        release(strdup("memory that the C library asks for"));
        free(allocate(bytes));
        free(grow(malloc(bytes), 2 * bytes));
    }
    unsigned char *memory = malloc(BYTES);
    fill(memory, 1);
    unsigned char *theirs = allocate(BYTES);
    fill(theirs, 2);
    memory = grow(memory, BYTES + 4096);
    check(memory, 1, "after realloc in the plug-in");
    check(theirs, 2, "the plug-in's own");
    unsigned char *mapped = map(BYTES);
    fill(mapped, 3);
    check(theirs, 2, "beside a mapping");
    check(mapped, 3, "mapped in the plug-in");
    if (munmap(mapped, BYTES))
        exit(1);
    mapped = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(mapped, 4);
    if (unmap(mapped, BYTES))
        exit(1);
    release(memory);
    free(theirs);
}

static void *opened(void *plugin)
{
    if (!plugin) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return plugin;
}

int main(int count, char **arguments)
{
    const char *name = count > 1 ? arguments[1] : "";
    int flags = RTLD_NOW | RTLD_DEEPBIND;
    void *plugin = opened(dlopen(name, flags));
    exchange(plugin);
    int *(*theirs)(void) = symbol(plugin, "plugin_shared_name");
    printf("shared name %d\n", *theirs());
    if (dlclose(plugin) || dlopen(name, flags | RTLD_NOLOAD)) {
        fprintf(stderr, "the plug-in stays\n");
        return 1;
    }
    plugin = opened(dlmopen(LM_ID_BASE, name, RTLD_LAZY | RTLD_DEEPBIND));
    exchange(plugin);
    dlclose(plugin);

    /* With a C library of its own: what it allocates, it frees. */
    plugin = opened(dlmopen(LM_ID_NEWLM, name, flags));
    void (*release)(void *) = symbol(plugin, "plugin_free");
    void *(*allocate)(size_t) = symbol(plugin, "plugin_allocate");
    release(allocate(BYTES));
    dlclose(plugin);

    /* By the C library's own handle. */
    void *library = opened(dlopen("libc.so.6", RTLD_LAZY));
    release = symbol(library, "free");
    release(strdup("memory that the C library asks for"));
    release(malloc(BYTES));
    allocate = symbol(library, "malloc");
    free(allocate(BYTES));
    if (symbol(library, "strlen") != symbol(RTLD_DEFAULT, "strlen") || dlsym(library, "no_such_name"))
        return 1;

    /* Still an error of the dynamic linker's own. */
    if (dlopen("no-such-plugin", flags) || !strstr(dlerror(), "no-such-plugin")) {
        fprintf(stderr, "a plug-in that is not there\n");
        return 1;
    }
    puts("ok");
    return 0;
}
