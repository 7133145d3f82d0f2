/* Interface between the programs and the plug-in libcxloe_dpdk.so, which carries frames by DPDK.
 *
 * The programs do not depend on DPDK: they load this library when an interface is named dpdk:DEVICE, and check its version
 * first. Every function may be called from any thread, except those of a queue, which one thread at a time uses. A function
 * that fails writes a sentence of at most `room` bytes, with its final zero, to `why`, and returns a negative number.
 *
 * The loader is wire/link/src/dpdk/plugin.rs. Whoever changes this file raises CXLOE_DPDK_VERSION and changes both.
 */
#ifndef CXLOE_DPDK_H
#define CXLOE_DPDK_H

#include <stddef.h>
#include <stdint.h>

#define CXLOE_DPDK_VERSION 4u

/* Most frames of one burst. */
#define CXLOE_DPDK_BURST 32u

/* Most queues of a port. */
#define CXLOE_DPDK_QUEUES 64u

struct cxloe_dpdk_device {
    uint8_t mac[6];
    /* Payload of the longest frame in bytes, without the Ethernet header. */
    uint16_t mtu;
    /* Of the link, in megabits per second; 0 if it is not known, as without a link. */
    uint32_t speed;
    /* Of the fastest link that the device can have; 0 if it is not known. */
    uint32_t fastest;
    /* Queues of each direction that the device has. */
    uint16_t queues;
    /* NUMA node, or a negative number. */
    int16_t numa;
    /* Name of the driver, with a final zero. */
    char driver[32];
};

struct cxloe_dpdk_frame {
    uint8_t *bytes;
    uint32_t length;
};

struct cxloe_dpdk_counters {
    /* Frames that the device dropped because a ring was full. */
    uint64_t rx_missed;
    /* Frames dropped for lack of buffers, and those in several pieces. */
    uint64_t rx_dropped;
    /* Frames that the device did not send. */
    uint64_t tx_errors;
};

/* Frames for one queue: those whose addresses are the rule's in all bits that its masks have. */
struct cxloe_dpdk_rule {
    uint8_t destination[6];
    uint8_t destination_mask[6];
    uint8_t source[6];
    uint8_t source_mask[6];
    /* EtherType of the frames; 0 for any, with a tag or without. */
    uint16_t ethertype;
    uint16_t queue;
    /* For frames with an EtherType: 1 for those with a tag, 0 for those without. */
    uint16_t tagged;
};

struct cxloe_dpdk_queue;

uint32_t cxloe_dpdk_version(void);

/* Starts DPDK with the arguments of its environment abstraction layer. Once in a process. */
int cxloe_dpdk_start(int count, char **arguments, char *why, size_t room);

/* Finds a device, which is probed if it is not there yet: a PCI address, or a virtual device with its arguments. Returns the
 * number of its port. */
int cxloe_dpdk_find(const char *device, struct cxloe_dpdk_device *found, char *why, size_t room);

/* Makes a port that is not open pass the frames of its rules and no others (isolated mode); the kernel gets the others if it
 * has the card too. With `set` 0, frames of no rule come to the port again. Before cxloe_dpdk_open. */
int cxloe_dpdk_isolate(uint16_t port, int set, char *why, size_t room);

/* Configures and starts a port with `queues` queues of each direction. An MTU of 0 leaves the device's. */
int cxloe_dpdk_open(uint16_t port, uint16_t queues, uint16_t mtu, char *why, size_t room);

/* Stops a port, of which no queue is in use any more, and removes its rules; it can be opened again. */
void cxloe_dpdk_close(uint16_t port);

/* Whether frames can pass. */
int cxloe_dpdk_is_up(uint16_t port);

/* Passes frames of an open port to a queue. Those of no rule go to any queue, with most drivers to the first, unless the port
 * is isolated. */
int cxloe_dpdk_rule(uint16_t port, const struct cxloe_dpdk_rule *rule, char *why, size_t room);

/* Spreads the frames of an open port over its queues by a hash of their source addresses. */
int cxloe_dpdk_hash(uint16_t port, char *why, size_t room);

/* Removes all rules of a port, and the hash. */
void cxloe_dpdk_clear(uint16_t port);

/* Accepts frames for a further address, or else for any. */
int cxloe_dpdk_accept(uint16_t port, const uint8_t *address, char *why, size_t room);

/* Writes the names of the device's statistics, a line each, with a final zero to `names`; those without room are left out.
 * Returns the number of names written. */
int cxloe_dpdk_statistics(uint16_t port, char *names, size_t room);

/* Reads a statistic by the place of its name. It may take milliseconds. */
int cxloe_dpdk_statistic(uint16_t port, uint32_t place, uint64_t *value, char *why, size_t room);

/* One queue of each direction of an open port; NULL without memory. */
struct cxloe_dpdk_queue *cxloe_dpdk_queue(uint16_t port, uint16_t number);

/* Gives the buffers of a queue back. */
void cxloe_dpdk_free(struct cxloe_dpdk_queue *queue);

/* Frames lost since the port was opened: those of the queue, and for the first queue also those of the port. */
void cxloe_dpdk_count(struct cxloe_dpdk_queue *queue, struct cxloe_dpdk_counters *counters);

/* Receives up to `most` frames, which stay valid until the next call: it releases them first. */
uint32_t cxloe_dpdk_receive(struct cxloe_dpdk_queue *queue, struct cxloe_dpdk_frame *frames, uint32_t most);

/* Frames that wait in the device's ring to be received; a negative number if its driver does not count them. */
int cxloe_dpdk_waiting(struct cxloe_dpdk_queue *queue);

/* A buffer for a frame of `length` bytes; NULL if none is free. The same one until it is committed. */
uint8_t *cxloe_dpdk_slot(struct cxloe_dpdk_queue *queue, uint32_t length);

/* Queues the buffer lent last; sends what is queued once it fills a burst. */
void cxloe_dpdk_commit(struct cxloe_dpdk_queue *queue);

/* Sends what is queued; returns the number of frames that have not left. */
uint32_t cxloe_dpdk_flush(struct cxloe_dpdk_queue *queue);

#endif
