/* A line's frames there and back over AF_XDP in copy mode: 60 bytes out, 89 back, both ends spin. Needs libxdp and libbpf.
 *
 *   xdplat serve INTERFACE CPU
 *   xdplat ask INTERFACE CPU MAC COUNT */
#include "probe.h"
#include <linux/if_link.h>
#include <xdp/xsk.h>

#define FRAMES 1024
#define SIZE 2048

struct xdp {
    struct xsk_umem *umem;
    struct xsk_socket *socket;
    struct xsk_ring_prod fill, send;
    struct xsk_ring_cons done, receive;
    uint8_t *memory;
    uint32_t next;
};

static struct xdp xdp_open(const char *interface) {
    static struct xdp x;
    x.memory = mmap(NULL, FRAMES * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (x.memory == MAP_FAILED) die("mmap");
    struct xsk_umem_config areas = {
        .fill_size = FRAMES / 2, .comp_size = FRAMES / 2, .frame_size = SIZE, .frame_headroom = 0};
    if (xsk_umem__create(&x.umem, x.memory, FRAMES * SIZE, &x.fill, &x.done, &areas)) die("xsk_umem__create");
    struct xsk_socket_config how = {
        .rx_size = FRAMES / 2, .tx_size = FRAMES / 2, .xdp_flags = XDP_FLAGS_SKB_MODE, .bind_flags = XDP_COPY};
    if (xsk_socket__create(&x.socket, interface, 0, x.umem, &x.receive, &x.send, &how)) die("xsk_socket__create");
    /* The lower half of the frames receives, the upper half sends. */
    uint32_t at;
    if (xsk_ring_prod__reserve(&x.fill, FRAMES / 2, &at) != FRAMES / 2) die("the fill ring");
    for (uint32_t i = 0; i < FRAMES / 2; i++) *xsk_ring_prod__fill_addr(&x.fill, at + i) = (uint64_t)i * SIZE;
    xsk_ring_prod__submit(&x.fill, FRAMES / 2);
    return x;
}

/* A frame to be filled and sent. */
static uint8_t *xdp_room(struct xdp *x, uint64_t *address) {
    uint32_t at;
    unsigned ended = xsk_ring_cons__peek(&x->done, FRAMES / 2, &at);
    if (ended) xsk_ring_cons__release(&x->done, ended);
    *address = (uint64_t)(FRAMES / 2 + x->next++ % (FRAMES / 2)) * SIZE;
    return x->memory + *address;
}

static void xdp_send(struct xdp *x, uint64_t address, uint32_t length) {
    uint32_t at;
    while (xsk_ring_prod__reserve(&x->send, 1, &at) != 1) sendto(xsk_socket__fd(x->socket), NULL, 0, MSG_DONTWAIT, NULL, 0);
    struct xdp_desc *slot = xsk_ring_prod__tx_desc(&x->send, at);
    slot->addr = address;
    slot->len = length;
    slot->options = 0;
    xsk_ring_prod__submit(&x->send, 1);
    sendto(xsk_socket__fd(x->socket), NULL, 0, MSG_DONTWAIT, NULL, 0);
}

static uint8_t *xdp_look(struct xdp *x, uint64_t *address, uint32_t *length) {
    uint32_t at;
    if (!xsk_ring_cons__peek(&x->receive, 1, &at)) return NULL;
    const struct xdp_desc *slot = xsk_ring_cons__rx_desc(&x->receive, at);
    *address = slot->addr;
    *length = slot->len;
    return xsk_umem__get_data(x->memory, slot->addr);
}

static void xdp_next(struct xdp *x, uint64_t address) {
    uint32_t at;
    xsk_ring_cons__release(&x->receive, 1);
    while (xsk_ring_prod__reserve(&x->fill, 1, &at) != 1) {
    }
    *xsk_ring_prod__fill_addr(&x->fill, at) = address & ~(uint64_t)(SIZE - 1);
    xsk_ring_prod__submit(&x->fill, 1);
}

static int is_ours(const uint8_t *frame, uint32_t length) {
    return length >= sizeof(struct head) && ((const struct head *)frame)->type == htons(PROBE_TYPE);
}

static void serve(struct xdp *x) {
    puts("serving");
    fflush(stdout);
    for (;;) {
        uint64_t from, to;
        uint32_t length;
        uint8_t *frame = xdp_look(x, &from, &length);
        if (!frame) continue;
        if (is_ours(frame, length)) {
            struct head *in = (void *)frame, *out = (void *)xdp_room(x, &to);
            memset(out, 0, 89);
            memcpy(out->to, in->from, 6);
            memcpy(out->from, in->to, 6);
            out->type = in->type;
            out->number = in->number;
            xdp_next(x, from);
            xdp_send(x, to, 89);
        } else {
            xdp_next(x, from);
        }
    }
}

static void ask(struct xdp *x, const char *interface, const char *peer, size_t count) {
    size_t warm = count / 20 + 16;
    struct times t = times_for(count);
    uint8_t from[6], to[6];
    own_mac(interface, from);
    read_mac(peer, to);
    for (uint32_t number = 1; number <= count + warm; number++) {
        uint64_t start = now_ns(), sent = 0, address;
        int answered = 0;
        uint32_t length;
        while (!answered) {
            if (!sent || now_ns() - sent > PROBE_RETRY_NS) {
                if (sent) start = 0;
                struct head *out = (void *)xdp_room(x, &address);
                memset(out, 0, 60);
                memcpy(out->to, to, 6);
                memcpy(out->from, from, 6);
                out->type = htons(PROBE_TYPE);
                out->number = htonl(number);
                sent = now_ns();
                xdp_send(x, address, 60);
            }
            uint8_t *frame = xdp_look(x, &address, &length);
            if (!frame) continue;
            answered = is_ours(frame, length) && ((struct head *)frame)->number == htonl(number);
            xdp_next(x, address);
        }
        if (start && number > warm) times_add(&t, now_ns() - start);
    }
    times_say("xdp_echo64", &t);
}

int main(int count, char **words) {
    int serves = count == 4 && !strcmp(words[1], "serve"), asks = count == 6 && !strcmp(words[1], "ask");
    if (!serves && !asks) {
        fprintf(stderr, "usage: xdplat serve INTERFACE CPU | ask INTERFACE CPU MAC COUNT\n");
        return 2;
    }
    run_on(words[3]);
    struct xdp x = xdp_open(words[2]);
    if (serves) serve(&x);
    ask(&x, words[2], words[4], strtoul(words[5], NULL, 10));
    xsk_socket__delete(x.socket);
    xsk_umem__delete(x.umem);
    return 0;
}
