/* Memory of other servers, mapped into a C program.
 *
 *   struct cxloe_error error;
 *   cxloe_region *region = cxloe_map("scratch", NULL, &error);
 *   if (!region) { fprintf(stderr, "%s\n", error.message); return 1; }
 *   strcpy(cxloe_address(region), "hello");
 *   cxloe_flush(region, &error);
 *   cxloe_unmap(region, &error);
 *
 * Build with `cc program.c -lcxloe`, or with libcxloe.a and `-lm -lpthread -ldl`.
 *
 * Functions that return int give 0 when they have done it and -1 when not; then `error` says why. `error` may be NULL.
 * A region may be used by all threads; the calls on one region may be made by any of them, but for cxloe_unmap, after
 * which nobody may use it. */
#ifndef CXLOE_H
#define CXLOE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A mapped region. */
typedef struct cxloe_region cxloe_region;

/* What went wrong, and what to do about it, in words. Ends with a zero; cut off if it is longer. */
struct cxloe_error {
    char message[512];
};

/* How a region is mapped. cxloe_options_init() fills in what is usual. */
struct cxloe_options {
    /* Bytes of it that may be in this machine's memory. */
    uint64_t local;
    /* Whether readers that go through memory in even steps are served ahead. */
    bool prefetch;
    /* The region was never written: its pages are zeros without being fetched. */
    bool fresh;
    /* Milliseconds that memory nodes may be away before an access to their pages ends with SIGBUS. */
    uint32_t lost_wait_ms;
    /* Milliseconds to wait for another agent when this machine's has ended; then the program is aborted. */
    uint32_t agent_wait_ms;
    /* The agent's socket; NULL: what CXLOE_AGENT in the environment says, else where agents usually have it. */
    const char *agent;
};

/* A link of the program's own, for cxloe_map_inline. cxloe_link_init() fills in what is usual. */
struct cxloe_link {
    /* The network interface. */
    const char *interface_name;
    /* The manager's URL, as https://10.0.0.1:7440 or unix:/run/cxloe/gmm.sock. The program shows the certificate, and seals
       its sessions with the key, that `cn-agent join --no-start` has left for this interface; CXLOE_IDENTITY,
       CXLOE_NODE_KEY and CXLOE_DATA_DIR in the environment name others. By a Unix socket it makes a key for the run.
       Without a key it gets no region, unless CXLOE_INSECURE=1 says that frames need not be sealed. */
    const char *manager;
    /* "auto", "xdp", "packet", "pnet" or "udp"; "udp:ADDRESS:PORT" or "udp::PORT" to listen elsewhere than at the
       interface's address and port 63669, which another process may have. */
    const char *backend;
};

/* Counts since the region was mapped. */
struct cxloe_counters {
    uint64_t faults;             /* pages touched that were not there */
    uint64_t zero_fills;         /* of these, never written before */
    uint64_t fetched;            /* pages fetched because somebody waited */
    uint64_t prefetched;         /* pages fetched ahead */
    uint64_t prefetch_hits;      /* of these, wanted afterwards */
    uint64_t evicted;            /* pages that have left memory */
    uint64_t refaulted;          /* of these, wanted again soon */
    uint64_t written_back;       /* pages that had changed */
    uint64_t lines_written_back; /* lines of 64 bytes sent for them */
    uint64_t resident;           /* bytes here at this moment */
};

void cxloe_options_init(struct cxloe_options *options);
void cxloe_link_init(struct cxloe_link *link);

/* Maps a region that the agent of this machine has attached. Everything may touch its memory, the kernel included (for
 * users other than root, if the agent has allow-kernel-faults; else system calls on absent pages fail with EFAULT), and several
 * processes may map one region and share it. `options` may be NULL. NULL when it fails. */
cxloe_region *cxloe_map(const char *region, const struct cxloe_options *options, struct cxloe_error *error);

/* Maps a region that belongs to this program's own interface: faults are served by the thread that has them, over a link
 * of the program's own, by handling SIGBUS. The kernel cannot touch pages that are not there: read(2) into them fails
 * with EFAULT. The program needs CAP_NET_RAW.
 *
 * The handler of SIGBUS runs on a stack of its own, whatever the thread's signal stack is. A handler that the program had
 * installed before is called for every SIGBUS that is not about the region; one that is installed later takes the
 * region's faults away.
 *
 * An interface has one such region at a time in a program; others are refused by name, and may be mapped by cxloe_map.
 *
 * A child of fork() has neither this mapping nor one of cxloe_map: touching it ends the child by SIGSEGV, with a line on
 * standard error. What it needs it maps itself. */
cxloe_region *cxloe_map_inline(const char *region, const struct cxloe_link *link,
                               const struct cxloe_options *options, struct cxloe_error *error);

/* Where it begins, and how many bytes it has. */
void *cxloe_address(const cxloe_region *region);
size_t cxloe_size(const cxloe_region *region);

/* Waits until everything written before is at the memory nodes. */
int cxloe_flush(cxloe_region *region, struct cxloe_error *error);

/* Changes how many bytes may be here. Not for inline mappings. */
int cxloe_set_local(cxloe_region *region, uint64_t local, struct cxloe_error *error);

/* Discards whole pages: they are zeros afterwards. Not for inline mappings. */
int cxloe_discard(cxloe_region *region, size_t offset, size_t bytes, struct cxloe_error *error);

/* What will be done with some bytes, all pages that they touch. Advice: it changes when pages come and go, never what they
 * hold. */
enum cxloe_hint {
    CXLOE_WILL_READ = 0,  /* read soon: fetched ahead, as far as there is room */
    CXLOE_WILL_WRITE = 1, /* written soon: the same, and pages never written are there as zeros */
    CXLOE_COLD = 2,       /* not needed soon: they leave before others */
    CXLOE_PAGE_OUT = 3    /* not needed for long: they leave now */
};
int cxloe_hint(cxloe_region *region, size_t offset, size_t bytes, enum cxloe_hint hint, struct cxloe_error *error);

/* What was counted. */
int cxloe_count(cxloe_region *region, struct cxloe_counters *counters, struct cxloe_error *error);

/* Writes everything back and unmaps the region; it is unmapped also when that fails. */
int cxloe_unmap(cxloe_region *region, struct cxloe_error *error);

#ifdef __cplusplus
}
#endif

#endif
