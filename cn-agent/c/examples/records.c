/* Writes a number into every page of a region, more of them than may be in memory, and reads them back.
 *
 *   cc -I include examples/records.c -lcxloe -o records
 *   ./records REGION LOCAL_BYTES                       through the agent of this machine
 *   ./records REGION LOCAL_BYTES INTERFACE MANAGER     over a link of its own, faults served inline */
#include <cxloe.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static int failed(const char *what, const struct cxloe_error *error) {
    fprintf(stderr, "%s: %s\n", what, error->message);
    return 1;
}

int main(int count, char **arguments) {
    struct cxloe_error error;
    struct cxloe_options options;
    struct cxloe_counters counters;
    cxloe_region *region;
    if (count != 3 && count != 5) {
        fprintf(stderr, "usage: %s REGION LOCAL_BYTES [INTERFACE MANAGER]\n", arguments[0]);
        return 2;
    }
    cxloe_options_init(&options);
    options.local = strtoull(arguments[2], NULL, 0);
    if (count == 5) {
        struct cxloe_link link;
        cxloe_link_init(&link);
        link.interface_name = arguments[3];
        link.manager = arguments[4];
        region = cxloe_map_inline(arguments[1], &link, &options, &error);
    } else {
        region = cxloe_map(arguments[1], &options, &error);
    }
    if (!region)
        return failed("map", &error);

    volatile uint64_t *words = cxloe_address(region);
    size_t pages = cxloe_size(region) / 4096;
    for (uint64_t pass = 1; pass <= 2; pass++) {
        for (size_t page = 0; page < pages; page++)
            words[page * 512 + page % 512] = page * 10 + pass;
        for (size_t page = 0; page < pages; page++) {
            uint64_t found = words[page * 512 + page % 512];
            if (found != page * 10 + pass) {
                fprintf(stderr, "page %zu: %" PRIu64 "\n", page, found);
                return 1;
            }
        }
    }
    if (cxloe_flush(region, &error))
        return failed("flush", &error);
    if (cxloe_count(region, &counters, &error))
        return failed("count", &error);
    printf("%zu pages right; %" PRIu64 " faults, %" PRIu64 " evicted, %" PRIu64 " lines written back\n", pages,
           counters.faults, counters.evicted, counters.lines_written_back);
    if (cxloe_unmap(region, &error))
        return failed("unmap", &error);
    return 0;
}
