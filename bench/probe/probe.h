/* What the probes have in common: a clock, a list of times, raw Ethernet over a receive ring.
 * They share nothing with the programs that they are held against. */
#ifndef PROBE_H
#define PROBE_H
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* An experimental EtherType next to the one that is measured, so that neither sees the other's frames. */
#define PROBE_TYPE 0x88B6
/* A lost frame is asked for again after this. */
#define PROBE_RETRY_NS 2000000ull

static inline void die(const char *what) {
    perror(what);
    exit(1);
}

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static inline void run_on(const char *cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(atoi(cpu), &set);
    if (sched_setaffinity(0, sizeof set, &set)) die("sched_setaffinity");
}

struct times {
    uint32_t *ns;
    size_t count, room;
};

static inline struct times times_for(size_t room) {
    struct times t = {calloc(room ? room : 1, sizeof(uint32_t)), 0, room};
    if (!t.ns) die("calloc");
    return t;
}

static inline void times_add(struct times *t, uint64_t ns) {
    if (t->count < t->room) t->ns[t->count++] = ns > UINT32_MAX ? UINT32_MAX : (uint32_t)ns;
}

static inline int times_order(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* One line: name, number of samples, median and 99th percentile in nanoseconds. */
static inline void times_say(const char *name, struct times *t) {
    if (!t->count) return;
    qsort(t->ns, t->count, sizeof *t->ns, times_order);
    printf("%s %zu %u %u\n", name, t->count, t->ns[t->count / 2], t->ns[t->count * 99 / 100]);
    fflush(stdout);
}

/* Frames: destination, source, type, then a number and where the payload begins. */
struct head {
    uint8_t to[6], from[6];
    uint16_t type;
    uint32_t number;
    uint16_t part;
} __attribute__((packed));

static inline void read_mac(const char *text, uint8_t mac[6]) {
    unsigned b[6];
    if (sscanf(text, "%x:%x:%x:%x:%x:%x", b, b + 1, b + 2, b + 3, b + 4, b + 5) != 6) {
        fprintf(stderr, "%s is no MAC address\n", text);
        exit(2);
    }
    for (int i = 0; i < 6; i++) mac[i] = (uint8_t)b[i];
}

static inline void own_mac(const char *interface, uint8_t mac[6]) {
    struct ifreq request = {0};
    int s = socket(AF_INET, SOCK_DGRAM, 0);
    strncpy(request.ifr_name, interface, IFNAMSIZ - 1);
    if (s < 0 || ioctl(s, SIOCGIFHWADDR, &request)) die(interface);
    memcpy(mac, request.ifr_hwaddr.sa_data, 6);
    close(s);
}

#define RING_FRAME 2048
#define RING_FRAMES 512

struct ring {
    int socket;
    uint8_t *memory;
    unsigned at;
};

static inline struct ring ring_open(const char *interface) {
    struct ring r = {socket(AF_PACKET, SOCK_RAW, htons(PROBE_TYPE)), NULL, 0};
    if (r.socket < 0) die("a raw socket");
    int version = TPACKET_V2, yes = 1;
    if (setsockopt(r.socket, SOL_PACKET, PACKET_VERSION, &version, sizeof version)) die("PACKET_VERSION");
    setsockopt(r.socket, SOL_PACKET, PACKET_QDISC_BYPASS, &yes, sizeof yes);
    struct tpacket_req size = {.tp_block_size = RING_FRAME * 8,
                               .tp_block_nr = RING_FRAMES / 8,
                               .tp_frame_size = RING_FRAME,
                               .tp_frame_nr = RING_FRAMES};
    if (setsockopt(r.socket, SOL_PACKET, PACKET_RX_RING, &size, sizeof size)) die("PACKET_RX_RING");
    r.memory = mmap(NULL, RING_FRAME * RING_FRAMES, PROT_READ | PROT_WRITE, MAP_SHARED, r.socket, 0);
    if (r.memory == MAP_FAILED) die("mapping the ring");
    struct sockaddr_ll at = {.sll_family = AF_PACKET,
                             .sll_protocol = htons(PROBE_TYPE),
                             .sll_ifindex = (int)if_nametoindex(interface)};
    if (!at.sll_ifindex || bind(r.socket, (struct sockaddr *)&at, sizeof at)) die(interface);
    return r;
}

/* The next frame, if one is there; it stays until ring_next. */
static inline uint8_t *ring_look(struct ring *r, unsigned *length) {
    struct tpacket2_hdr *slot = (void *)(r->memory + r->at * RING_FRAME);
    if (!(__atomic_load_n(&slot->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER)) return NULL;
    *length = slot->tp_snaplen;
    return (uint8_t *)slot + slot->tp_mac;
}

static inline void ring_next(struct ring *r) {
    struct tpacket2_hdr *slot = (void *)(r->memory + r->at * RING_FRAME);
    __atomic_store_n(&slot->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
    r->at = (r->at + 1) % RING_FRAMES;
}

/* Answers each request with `parts` frames of `length` bytes, for ever. */
static inline void ring_serve(const char *interface, unsigned parts, unsigned length) {
    struct ring r = ring_open(interface);
    static uint8_t answer[RING_FRAME];
    struct head *out = (void *)answer;
    memset(answer, 0xA5, sizeof answer);
    puts("serving");
    fflush(stdout);
    for (;;) {
        unsigned seen;
        uint8_t *frame = ring_look(&r, &seen);
        if (!frame) continue;
        struct head *in = (void *)frame;
        memcpy(out->to, in->from, 6);
        memcpy(out->from, in->to, 6);
        out->type = htons(PROBE_TYPE);
        out->number = in->number;
        ring_next(&r);
        for (unsigned part = 0; part < parts; part++) {
            out->part = htons((uint16_t)part);
            while (send(r.socket, answer, length, 0) < 0)
                if (errno != ENOBUFS && errno != EAGAIN) die("send");
        }
    }
}

/* Asks `count` times and waits for all parts of each answer, whose payload goes into `page` if there is one. */
static inline void ring_ask(const char *name, char **words, unsigned parts, unsigned length, uint8_t *page) {
    struct ring r = ring_open(words[0]);
    uint8_t request[60] = {0};
    struct head *out = (void *)request;
    own_mac(words[0], out->from);
    read_mac(words[1], out->to);
    out->type = htons(PROBE_TYPE);
    size_t count = strtoul(words[2], NULL, 10), warm = count / 20 + 16;
    struct times t = times_for(count);
    unsigned payload = length - (unsigned)sizeof(struct head);
    uint64_t whole = (1ull << parts) - 1;
    for (uint32_t number = 1; number <= count + warm; number++) {
        out->number = htonl(number);
        uint64_t start = now_ns(), sent = start, have = 0;
        if (send(r.socket, request, sizeof request, 0) < 0) die("send");
        while (have != whole) {
            unsigned seen;
            uint8_t *frame = ring_look(&r, &seen);
            if (!frame) {
                if (now_ns() - sent > PROBE_RETRY_NS) {
                    /* Its time would be that of the loss: it does not count. */
                    start = 0;
                    sent = now_ns();
                    if (send(r.socket, request, sizeof request, 0) < 0) die("send");
                }
                continue;
            }
            struct head *in = (void *)frame;
            unsigned part = ntohs(in->part);
            if (in->number == out->number && part < parts && seen >= length) {
                if (page) memcpy(page + part * payload, frame + sizeof *in, payload);
                have |= 1ull << part;
            }
            ring_next(&r);
        }
        uint64_t took = now_ns() - start;
        if (page) __asm__ volatile("" : : "r"(page) : "memory");
        if (start && number > warm) times_add(&t, took);
    }
    times_say(name, &t);
}

#endif
