/* Takes memory as Java does: addresses are reserved without access, some of them given back to align the rest, parts
 * committed by mapping over them or by another protection, written, and given up again. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>

#include "must.h"

static const int BOTH = PROT_READ | PROT_WRITE, OWN = MAP_PRIVATE | MAP_ANONYMOUS;

static unsigned char *reserve(size_t bytes, size_t align)
{
    unsigned char *whole = mmap(NULL, bytes + align, PROT_NONE, OWN | MAP_NORESERVE, -1, 0);
    MUST(whole != MAP_FAILED);
    unsigned char *start = (unsigned char *)(((size_t)whole + align - 1) & ~(align - 1));
    if (start > whole)
        MUST(munmap(whole, start - whole) == 0);
    if (start + bytes < whole + bytes + align)
        MUST(munmap(start + bytes, whole + align - start) == 0);
    return start;
}

static void mark(unsigned char *at, size_t bytes, int seed)
{
    for (size_t page = 0; page < bytes / PAGE; page++)
        memset(at + page * PAGE, (int)(seed + page * 11) & 0xff, PAGE);
}

static void check(const unsigned char *at, size_t bytes, int seed)
{
    for (size_t page = 0; page < bytes / PAGE; page++)
        for (size_t byte = 0; byte < PAGE; byte += 512)
            MUST(at[page * PAGE + byte] == ((seed + page * 11) & 0xff));
}

static void zeros(const unsigned char *at, size_t bytes)
{
    for (size_t byte = 0; byte < bytes; byte += 512)
        MUST(at[byte] == 0);
}

int main(int count, char **arguments)
{
    size_t heap = (count > 1 ? strtoul(arguments[1], NULL, 10) : 24) * MIB;
    unsigned char *mapped = reserve(heap, 4 * MIB), *protected = reserve(heap / 2, MIB);

    /* Committed by mapping over it, a piece at a time. */
    for (size_t at = 0; at < heap; at += MIB) {
        MUST(mmap(mapped + at, MIB, BOTH, OWN | MAP_FIXED, -1, 0) == mapped + at);
        mark(mapped + at, MIB, (int)(at / MIB));
    }
    /* Committed by its protection. */
    MUST(mprotect(protected, heap / 2, BOTH) == 0);
    zeros(protected, heap / 2);
    mark(protected, heap / 2, 77);
    for (size_t at = 0; at < heap; at += MIB)
        check(mapped + at, MIB, (int)(at / MIB));

    /* Given up, as addresses: what is committed there next is zeros. */
    MUST(mmap(mapped, heap / 2, PROT_NONE, OWN | MAP_FIXED | MAP_NORESERVE, -1, 0) == mapped);
    check(protected, heap / 2, 77);
    MUST(mmap(mapped, MIB, BOTH, OWN | MAP_FIXED, -1, 0) == mapped);
    zeros(mapped, MIB);
    mark(mapped, MIB, 5);

    /* Code may be there as well, and a child has all of it. */
    unsigned char *code = mapped + 2 * MIB;
    MUST(mmap(code, 16 * PAGE, BOTH | PROT_EXEC, OWN | MAP_FIXED, -1, 0) == code);
#if defined(__x86_64__)
    memcpy(code, "\xb8\x2a\x00\x00\x00\xc3", 6);
    MUST(((int (*)(void))(void *)code)() == 42);
#endif
    check(mapped, MIB, 5);
    for (size_t at = heap / 2; at < heap; at += MIB)
        check(mapped + at, MIB, (int)(at / MIB));

    /* More than there is cannot be committed, and no address is lost over that. */
    unsigned char *much = mmap(NULL, heap, PROT_NONE, OWN | MAP_NORESERVE, -1, 0);
    MUST(much != MAP_FAILED && munmap(much, heap) == 0);
    MUST(munmap(mapped, heap) == 0 && munmap(protected, heap / 2) == 0);
    for (int round = 0; round < 50; round++) {
        unsigned char *again = reserve(heap, MIB);
        MUST(mprotect(again, MIB, BOTH) == 0);
        zeros(again, MIB);
        mark(again, MIB, round);
        MUST(munmap(again, heap) == 0);
    }
    /* Arenas of which little is touched count by what is touched: together they are larger than the region. */
    unsigned char *arenas[4];
    for (int each = 0; each < 4; each++) {
        arenas[each] = mmap(NULL, heap, BOTH, OWN | MAP_NORESERVE, -1, 0);
        MUST(arenas[each] != MAP_FAILED);
        mark(arenas[each] + each * MIB, MIB, each);
    }
    for (int each = 0; each < 4; each++) {
        check(arenas[each] + each * MIB, MIB, each);
        zeros(arenas[each] + heap - MIB, MIB);
        MUST(munmap(arenas[each], heap) == 0);
    }
    puts("ok");
    return 0;
}
