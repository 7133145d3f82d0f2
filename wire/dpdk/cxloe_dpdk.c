/* The plug-in: DPDK's inline functions behind the few calls of cxloe_dpdk.h. */
#include "cxloe_dpdk.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_flow.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>

/* Descriptors of each ring. */
#define RING 1024
/* Buffers of a queue: both rings full, and bursts in the hands of the program. */
#define BUFFERS (2 * RING + 8 * CXLOE_DPDK_BURST)
#define ETHERNET_HEADER 14
/* An 802.1Q tag. */
#define TAG 4
/* Hashes that devices offer for frames of a protocol that they do not know. */
#define HASHES (RTE_ETH_RSS_ETH | RTE_ETH_RSS_L2_PAYLOAD)

struct cxloe_dpdk_queue {
    uint16_t port, number;
    /* Lcore of whichever thread uses the queue, while it does; LCORE_ID_ANY if there was none left. */
    unsigned int lcore;
    /* Frames received last. */
    uint32_t received;
    /* Frames to be sent; the one lent follows them. */
    uint32_t queued;
    /* Spare buffers for frames to be sent. */
    uint32_t spare;
    uint32_t room;
    int lent;
    struct rte_mbuf *rx[CXLOE_DPDK_BURST];
    struct rte_mbuf *tx[CXLOE_DPDK_BURST];
    struct rte_mbuf *spares[CXLOE_DPDK_BURST];
    struct rte_mempool *pool;
    /* Frames dropped because they came in several pieces. */
    uint64_t pieces;
};

/* Made for the first link of a queue, and kept. */
static struct rte_mempool *pools[RTE_MAX_ETHPORTS][CXLOE_DPDK_QUEUES];

/* Gives the calling thread an lcore, or none, and returns the one that it had. */
static inline unsigned int take_lcore(unsigned int lcore) {
    const unsigned int had = rte_lcore_id();
    RTE_PER_LCORE(_lcore_id) = lcore;
    return had;
}

/* Gives the calling thread the lcore of a queue.
 *
 * A pool keeps a cache for each lcore, and buffers in a cache are for that lcore alone. So each queue has an lcore, and every
 * call that touches the queue's buffers takes it. If threads had lcores of their own, those that have ended, or wait for
 * their turn, would keep all buffers of the pool. The thread keeps the lcore when it leaves the queue to another: without one
 * of these calls it touches no buffer. */
static inline void use_lcore(const struct cxloe_dpdk_queue *queue) { RTE_PER_LCORE(_lcore_id) = queue->lcore; }

/* Drivers take one call for a port at a time, except those that send and receive. A thread that controls a port has no lcore,
 * and so leaves no buffers in a cache. */
static pthread_mutex_t control = PTHREAD_MUTEX_INITIALIZER;
#define ALONE(call)                                        \
    ({                                                     \
        pthread_mutex_lock(&control);                      \
        const unsigned int had = take_lcore(LCORE_ID_ANY); \
        const __typeof__(call) is = call;                  \
        take_lcore(had);                                   \
        pthread_mutex_unlock(&control);                    \
        is;                                                \
    })

__attribute__((format(printf, 3, 4))) static int fail(char *why, size_t room, const char *text, ...) {
    va_list list;
    va_start(list, text);
    vsnprintf(why, room, text, list);
    va_end(list);
    return -1;
}

uint32_t cxloe_dpdk_version(void) { return CXLOE_DPDK_VERSION; }

int cxloe_dpdk_start(int count, char **arguments, char *why, size_t room) {
    if (rte_eal_init(count, arguments) < 0)
        return fail(why, room, "DPDK does not start: %s", rte_strerror(rte_errno));
    return 0;
}

/* Speed of the fastest of several links, which are bits of RTE_ETH_LINK_SPEED. */
static uint32_t fastest(uint32_t capable) {
    static const uint32_t speeds[] = {0,     10,    10,    100,   100,   1000,   2500,   5000,  10000,
                                      20000, 25000, 40000, 50000, 56000, 100000, 200000, 400000};
    for (unsigned int bit = RTE_DIM(speeds) - 1; bit > 0; bit--)
        if (capable & RTE_BIT32(bit)) return speeds[bit];
    return 0;
}

static int describe(uint16_t port, struct cxloe_dpdk_device *found, char *why, size_t room) {
    struct rte_eth_dev_info info;
    struct rte_ether_addr mac;
    struct rte_eth_link link = {0};
    uint16_t mtu = 0;
    if (rte_eth_dev_info_get(port, &info) || rte_eth_macaddr_get(port, &mac) || rte_eth_dev_get_mtu(port, &mtu))
        return fail(why, room, "the device does not describe itself");
    rte_eth_link_get_nowait(port, &link);
    memset(found, 0, sizeof *found);
    memcpy(found->mac, mac.addr_bytes, sizeof found->mac);
    found->mtu = mtu;
    found->speed = link.link_speed == RTE_ETH_SPEED_NUM_UNKNOWN ? 0 : link.link_speed;
    found->fastest = fastest(info.speed_capa);
    found->queues = RTE_MIN(info.max_rx_queues, info.max_tx_queues);
    found->numa = (int16_t)rte_eth_dev_socket_id(port);
    snprintf(found->driver, sizeof found->driver, "%s", info.driver_name ? info.driver_name : "");
    return port;
}

static int find(const char *device, struct cxloe_dpdk_device *found, char *why, size_t room) {
    char name[RTE_ETH_NAME_MAX_LEN];
    size_t length = strcspn(device, ",");
    uint16_t port;
    if (length >= sizeof name) return fail(why, room, "the name of the device is too long");
    memcpy(name, device, length);
    name[length] = 0;
    if (rte_eth_dev_get_port_by_name(name, &port) == 0) return describe(port, found, why, room);
    if (rte_dev_probe(device) < 0)
        return fail(why, room, "no driver of DPDK takes `%s`: %s", device, rte_strerror(rte_errno));
    if (rte_eth_dev_get_port_by_name(name, &port) == 0) return describe(port, found, why, room);
    /* Some drivers give their ports names of their own; of a device that was just probed, the last port is it. */
    uint16_t last = RTE_MAX_ETHPORTS, each;
    RTE_ETH_FOREACH_DEV(each) last = each;
    if (last == RTE_MAX_ETHPORTS) return fail(why, room, "`%s` has no port", device);
    return describe(last, found, why, room);
}

int cxloe_dpdk_find(const char *device, struct cxloe_dpdk_device *found, char *why, size_t room) {
    return ALONE(find(device, found, why, room));
}

static int isolate(uint16_t port, int set, char *why, size_t room) {
    struct rte_flow_error error = {0};
    const int code = rte_flow_isolate(port, set, &error);
    if (code == 0) return 0;
    return fail(why, room, "%s", error.message ? error.message : rte_strerror(-code));
}

int cxloe_dpdk_isolate(uint16_t port, int set, char *why, size_t room) { return ALONE(isolate(port, set, why, room)); }

static int open_port(uint16_t port, uint16_t queues, uint16_t mtu, char *why, size_t room) {
    struct rte_eth_conf conf = {0};
    struct rte_eth_dev_info info;
    uint16_t ring_in = RING, ring_out = RING, has = 0;
    char name[32];
    int code;
    if (queues > CXLOE_DPDK_QUEUES) return fail(why, room, "a port has at most %u queues", CXLOE_DPDK_QUEUES);
    if (rte_eth_dev_info_get(port, &info) || rte_eth_dev_get_mtu(port, &has)) return fail(why, room, "the device is gone");
    if (mtu == 0) mtu = has;
    /* Shared memory carries frames of any length, and says that it does not. */
    const int shared = info.driver_name && !strcmp(info.driver_name, "net_memif");
    conf.rxmode.mtu = shared ? has : mtu;
    /* For a hash of addresses, which a rule asks for. */
    if (queues > 1 && (info.flow_type_rss_offloads & HASHES)) {
        conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
        conf.rx_adv_conf.rss_conf.rss_hf = info.flow_type_rss_offloads & HASHES;
    }
    if ((code = rte_eth_dev_configure(port, queues, queues, &conf)) != 0)
        return fail(why, room, "the device takes no %u queues with an MTU of %u: %s", queues, mtu, rte_strerror(-code));
    if (mtu != has && !shared && (code = rte_eth_dev_set_mtu(port, mtu)) != 0 && code != -ENOTSUP)
        return fail(why, room, "the device takes no MTU of %u: %s", mtu, rte_strerror(-code));
    if ((code = rte_eth_dev_adjust_nb_rx_tx_desc(port, &ring_in, &ring_out)) != 0)
        return fail(why, room, "the device takes no rings of %u frames: %s", RING, rte_strerror(-code));
    const uint32_t frame = RTE_ALIGN((uint32_t)mtu + ETHERNET_HEADER + TAG, 64u);
    const uint32_t bytes = RTE_PKTMBUF_HEADROOM + RTE_MAX(2048u, frame);
    const int socket = rte_eth_dev_socket_id(port);
    for (uint16_t queue = 0; queue < queues; queue++) {
        struct rte_mempool **pool = &pools[port][queue];
        snprintf(name, sizeof name, "cxloe-%u-%u", port, queue);
        if (!*pool) *pool = rte_pktmbuf_pool_create(name, BUFFERS, 256, 0, (uint16_t)bytes, socket);
        if (!*pool) return fail(why, room, "no memory for %u buffers of queue %u: %s", BUFFERS, queue, rte_strerror(rte_errno));
        if ((code = rte_eth_rx_queue_setup(port, queue, ring_in, (unsigned int)socket, NULL, *pool)) != 0 ||
            (code = rte_eth_tx_queue_setup(port, queue, ring_out, (unsigned int)socket, NULL)) != 0)
            return fail(why, room, "queue %u is not set up: %s", queue, rte_strerror(-code));
    }
    rte_eth_stats_reset(port);
    if ((code = rte_eth_dev_start(port)) != 0) return fail(why, room, "the device does not start: %s", rte_strerror(-code));
    return 0;
}

int cxloe_dpdk_open(uint16_t port, uint16_t queues, uint16_t mtu, char *why, size_t room) {
    return ALONE(open_port(port, queues, mtu, why, room));
}

static int clear(uint16_t port) {
    struct rte_flow_error error = {0};
    return rte_flow_flush(port, &error);
}

void cxloe_dpdk_clear(uint16_t port) { (void)ALONE(clear(port)); }

static int close_port(uint16_t port) {
    clear(port);
    return rte_eth_dev_stop(port);
}

void cxloe_dpdk_close(uint16_t port) { (void)ALONE(close_port(port)); }

static int is_up(uint16_t port) {
    struct rte_eth_link link = {0};
    return rte_eth_link_get_nowait(port, &link) == 0 && link.link_status;
}

int cxloe_dpdk_is_up(uint16_t port) { return ALONE(is_up(port)); }

/* Makes the rule by which frames of a pattern have an action. */
static int create(uint16_t port, const struct rte_flow_item *pattern, const struct rte_flow_action *action, char *why,
                  size_t room) {
    const struct rte_flow_attr attributes = {.ingress = 1};
    const struct rte_flow_action actions[] = {*action, {.type = RTE_FLOW_ACTION_TYPE_END}};
    struct rte_flow_error error = {0};
    if (rte_flow_create(port, &attributes, pattern, actions, &error)) return 0;
    return fail(why, room, "%s", error.message ? error.message : rte_strerror(rte_errno));
}

static int rule(uint16_t port, const struct cxloe_dpdk_rule *wanted, char *why, size_t room) {
    struct rte_flow_item_eth header = {0}, mask = {0};
    struct rte_flow_item_vlan tag = {0}, tag_mask = {0};
    memcpy(header.hdr.dst_addr.addr_bytes, wanted->destination, sizeof wanted->destination);
    memcpy(mask.hdr.dst_addr.addr_bytes, wanted->destination_mask, sizeof wanted->destination_mask);
    memcpy(header.hdr.src_addr.addr_bytes, wanted->source, sizeof wanted->source);
    memcpy(mask.hdr.src_addr.addr_bytes, wanted->source_mask, sizeof wanted->source_mask);
    const int tagged = wanted->ethertype && wanted->tagged;
    if (tagged) {
        /* The EtherType of a tagged frame is behind the tag. */
        tag.hdr.eth_proto = rte_cpu_to_be_16(wanted->ethertype);
        tag_mask.hdr.eth_proto = UINT16_MAX;
    } else if (wanted->ethertype) {
        header.hdr.ether_type = rte_cpu_to_be_16(wanted->ethertype);
        mask.hdr.ether_type = UINT16_MAX;
    }
    const struct rte_flow_action_queue queue = {.index = wanted->queue};
    const struct rte_flow_item end = {.type = RTE_FLOW_ITEM_TYPE_END};
    const struct rte_flow_item behind = {.type = RTE_FLOW_ITEM_TYPE_VLAN, .spec = &tag, .mask = &tag_mask};
    const struct rte_flow_item pattern[] = {
        {.type = RTE_FLOW_ITEM_TYPE_ETH, .spec = &header, .mask = &mask},
        tagged ? behind : end,
        end,
    };
    const struct rte_flow_action action = {.type = RTE_FLOW_ACTION_TYPE_QUEUE, .conf = &queue};
    return create(port, pattern, &action, why, room);
}

int cxloe_dpdk_rule(uint16_t port, const struct cxloe_dpdk_rule *wanted, char *why, size_t room) {
    return ALONE(rule(port, wanted, why, room));
}

static int hash(uint16_t port, char *why, size_t room) {
    /* All queues of the port, as drivers that hash addresses take no list of queues with a header. */
    const struct rte_flow_action_rss source = {.types = RTE_ETH_RSS_ETH | RTE_ETH_RSS_L2_SRC_ONLY};
    const struct rte_flow_item pattern[] = {{.type = RTE_FLOW_ITEM_TYPE_ETH}, {.type = RTE_FLOW_ITEM_TYPE_END}};
    const struct rte_flow_action action = {.type = RTE_FLOW_ACTION_TYPE_RSS, .conf = &source};
    return create(port, pattern, &action, why, room);
}

int cxloe_dpdk_hash(uint16_t port, char *why, size_t room) { return ALONE(hash(port, why, room)); }

static int accept_address(uint16_t port, const uint8_t *address, char *why, size_t room) {
    struct rte_ether_addr mac;
    memcpy(mac.addr_bytes, address, sizeof mac.addr_bytes);
    if (rte_eth_dev_mac_addr_add(port, &mac, 0) == 0) return 0;
    const int code = rte_eth_promiscuous_enable(port);
    if (code == 0) return 0;
    return fail(why, room, "the device accepts frames for its own address only: %s", rte_strerror(-code));
}

int cxloe_dpdk_accept(uint16_t port, const uint8_t *address, char *why, size_t room) {
    return ALONE(accept_address(port, address, why, room));
}

static int statistics(uint16_t port, char *names, size_t room) {
    int written = 0;
    size_t used = 0;
    const int most = rte_eth_xstats_get_names(port, NULL, 0);
    struct rte_eth_xstat_name *all = most > 0 ? calloc((size_t)most, sizeof *all) : NULL;
    const int count = all ? rte_eth_xstats_get_names(port, all, (unsigned int)most) : 0;
    names[0] = 0;
    for (; written < RTE_MIN(count, most); written++) {
        const size_t length = strnlen(all[written].name, sizeof all[written].name);
        if (used + length + 2 > room) break;
        memcpy(names + used, all[written].name, length);
        used += length;
        names[used++] = '\n';
        names[used] = 0;
    }
    free(all);
    return written;
}

int cxloe_dpdk_statistics(uint16_t port, char *names, size_t room) { return ALONE(statistics(port, names, room)); }

static int statistic(uint16_t port, uint32_t place, uint64_t *value, char *why, size_t room) {
    const uint64_t id = place;
    if (rte_eth_xstats_get_by_id(port, &id, value, 1) == 1) return 0;
    return fail(why, room, "the device does not tell its statistic %u", place);
}

int cxloe_dpdk_statistic(uint16_t port, uint32_t place, uint64_t *value, char *why, size_t room) {
    return ALONE(statistic(port, place, value, why, room));
}

/* Returns an lcore that no thread and no queue has, or LCORE_ID_ANY. DPDK gives one to the thread that registers. */
static unsigned int new_lcore(void) {
    const unsigned int had = take_lcore(LCORE_ID_ANY);
    rte_thread_register();
    return take_lcore(had);
}

struct cxloe_dpdk_queue *cxloe_dpdk_queue(uint16_t port, uint16_t number) {
    struct cxloe_dpdk_queue *queue = calloc(1, sizeof *queue);
    if (!queue) return NULL;
    queue->port = port;
    queue->number = number;
    queue->lcore = new_lcore();
    queue->pool = pools[port][number];
    queue->room = rte_pktmbuf_data_room_size(queue->pool) - RTE_PKTMBUF_HEADROOM;
    return queue;
}

/* Releases the frames received last; the thread has the queue's lcore. */
static inline void release(struct cxloe_dpdk_queue *queue) {
    if (queue->received == 0) return;
    rte_pktmbuf_free_bulk(queue->rx, queue->received);
    queue->received = 0;
}

void cxloe_dpdk_free(struct cxloe_dpdk_queue *queue) {
    use_lcore(queue);
    release(queue);
    /* The buffer that is lent is the last one of the spares. */
    rte_pktmbuf_free_bulk(queue->tx, queue->queued);
    rte_pktmbuf_free_bulk(queue->spares, queue->spare);
    /* The pool is kept, and its next queue may have another lcore. */
    rte_mempool_cache_flush(NULL, queue->pool);
    /* Ends the lcore, which this thread has then no more. */
    rte_thread_unregister();
    free(queue);
}

void cxloe_dpdk_count(struct cxloe_dpdk_queue *queue, struct cxloe_dpdk_counters *counters) {
    struct rte_eth_stats stats = {0};
    if (queue->number == 0) (void)ALONE(rte_eth_stats_get(queue->port, &stats));
    counters->rx_missed = stats.imissed;
    counters->rx_dropped = stats.rx_nombuf + stats.ierrors + queue->pieces;
    counters->tx_errors = stats.oerrors;
}

uint32_t cxloe_dpdk_receive(struct cxloe_dpdk_queue *queue, struct cxloe_dpdk_frame *frames, uint32_t most) {
    use_lcore(queue);
    release(queue);
    most = RTE_MIN(most, CXLOE_DPDK_BURST);
    const uint16_t count = rte_eth_rx_burst(queue->port, queue->number, queue->rx, (uint16_t)most);
    uint32_t whole = 0;
    for (uint16_t i = 0; i < count; i++) {
        struct rte_mbuf *mbuf = queue->rx[i];
        if (unlikely(mbuf->nb_segs != 1)) {
            queue->pieces++;
            rte_pktmbuf_free(mbuf);
            continue;
        }
        queue->rx[whole] = mbuf;
        frames[whole].bytes = rte_pktmbuf_mtod(mbuf, uint8_t *);
        frames[whole].length = mbuf->data_len;
        whole++;
    }
    queue->received = whole;
    return whole;
}

int cxloe_dpdk_waiting(struct cxloe_dpdk_queue *queue) { return rte_eth_rx_queue_count(queue->port, queue->number); }

uint8_t *cxloe_dpdk_slot(struct cxloe_dpdk_queue *queue, uint32_t length) {
    if (length > queue->room || queue->queued == CXLOE_DPDK_BURST) return NULL;
    if (unlikely(queue->spare == 0)) {
        use_lcore(queue);
        if (rte_pktmbuf_alloc_bulk(queue->pool, queue->spares, CXLOE_DPDK_BURST) != 0) return NULL;
        queue->spare = CXLOE_DPDK_BURST;
    }
    struct rte_mbuf *mbuf = queue->spares[queue->spare - 1];
    mbuf->data_len = (uint16_t)length;
    mbuf->pkt_len = length;
    queue->lent = 1;
    return rte_pktmbuf_mtod(mbuf, uint8_t *);
}

void cxloe_dpdk_commit(struct cxloe_dpdk_queue *queue) {
    if (!queue->lent) return;
    queue->lent = 0;
    queue->tx[queue->queued++] = queue->spares[--queue->spare];
    if (queue->queued == CXLOE_DPDK_BURST) cxloe_dpdk_flush(queue);
}

uint32_t cxloe_dpdk_flush(struct cxloe_dpdk_queue *queue) {
    if (queue->queued == 0) return 0;
    use_lcore(queue);
    const uint16_t sent = rte_eth_tx_burst(queue->port, queue->number, queue->tx, (uint16_t)queue->queued);
    queue->queued -= sent;
    if (unlikely(queue->queued)) memmove(queue->tx, queue->tx + sent, queue->queued * sizeof queue->tx[0]);
    return queue->queued;
}
