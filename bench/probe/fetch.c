/* A page's frames: 60 bytes out, three back with 4096 bytes between them, which are put together in a page.
 *
 *   fetch serve INTERFACE CPU
 *   fetch ask INTERFACE CPU MAC COUNT */
#include "probe.h"

#define PARTS 3
#define PAYLOAD 1366
#define LENGTH (sizeof(struct head) + PAYLOAD)

int main(int count, char **words) {
    static uint8_t page[PARTS * PAYLOAD];
    if (count == 4 && !strcmp(words[1], "serve")) {
        run_on(words[3]);
        ring_serve(words[2], PARTS, LENGTH);
    }
    if (count == 6 && !strcmp(words[1], "ask")) {
        run_on(words[3]);
        words[3] = words[2];
        ring_ask("fetch4k", words + 3, PARTS, LENGTH, page);
        return 0;
    }
    fprintf(stderr, "usage: fetch serve INTERFACE CPU | ask INTERFACE CPU MAC COUNT\n");
    return 2;
}
