/* A line's frames there and back: 60 bytes out, 89 back, over packet sockets. Receive ring, plain send, both ends spin.
 *
 *   rawlat serve INTERFACE CPU
 *   rawlat ask INTERFACE CPU MAC COUNT */
#include "probe.h"

int main(int count, char **words) {
    if (count == 4 && !strcmp(words[1], "serve")) {
        run_on(words[3]);
        ring_serve(words[2], 1, 89);
    }
    if (count == 6 && !strcmp(words[1], "ask")) {
        run_on(words[3]);
        words[3] = words[2];
        ring_ask("echo64", words + 3, 1, 89, NULL);
        return 0;
    }
    fprintf(stderr, "usage: rawlat serve INTERFACE CPU | ask INTERFACE CPU MAC COUNT\n");
    return 2;
}
