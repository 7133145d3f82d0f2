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
 * Functions that return int return 0 on success and -1 on failure, with the reason in `error`, which may be NULL. A region
 * may be used by all threads, and each of them may call these functions on it. After cxloe_unmap it must not be used. */
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

/* Reason of a failure, and the remedy, as text. Zero-terminated; truncated if it is longer. */
struct cxloe_error {
    char message[512];
};

/* Options of a mapping. cxloe_options_init() sets the defaults. */
struct cxloe_options {
    /* Limit of resident bytes. */
    uint64_t local;
    /* Whether pages are read ahead for readers in constant strides. */
    bool prefetch;
    /* Whether the region was never written: its pages are zeros without a fetch. */
    bool fresh;
    /* Longest outage of memory nodes in milliseconds, after which an access to their pages raises SIGBUS. */
    uint32_t lost_wait_ms;
    /* Longest wait for a successor of the agent in milliseconds, after which the program is aborted. */
    uint32_t agent_wait_ms;
    /* The agent's socket; NULL: that of the variable CXLOE_AGENT, else the agent's default. */
    const char *agent;
};

/* A link of the program's own, for cxloe_map_inline. cxloe_link_init() sets the defaults. */
struct cxloe_link {
    /* The network interface. */
    const char *interface_name;
    /* The manager's URL, as https://10.0.0.1:7440 or unix:/run/cxloe/gmm.sock. The program presents the certificate, and
       seals its sessions with the key, that `cn-agent join --no-start` has stored for this interface; the variables
       CXLOE_IDENTITY, CXLOE_NODE_KEY and CXLOE_DATA_DIR name others. In a fabric with one pre-shared key for all,
       CXLOE_KEY_FILE names its file. Over a Unix socket it makes a key for the run.
       Without a key it gets no region, unless CXLOE_INSECURE=1 permits unsealed frames. */
    const char *manager;
    /* "auto", "xdp", "packet", "pnet" or "udp"; "udp:ADDRESS:PORT" or "udp::PORT" for a local address other
       than the interface's and port 63669, which another process may use. */
    const char *backend;
};

/* Counts since the region was mapped. */
struct cxloe_counters {
    uint64_t faults;             /* faults on absent pages */
    uint64_t zero_fills;         /* of these, never written before */
    uint64_t fetched;            /* pages fetched for a waiting thread */
    uint64_t prefetched;         /* pages fetched ahead */
    uint64_t prefetch_hits;      /* of these, used afterwards */
    uint64_t evicted;            /* pages evicted */
    uint64_t refaulted;          /* of these, fetched again soon */
    uint64_t written_back;       /* dirty pages written back */
    uint64_t lines_written_back; /* lines of 64 bytes sent for these pages */
    uint64_t resident;           /* bytes resident at present */
};

void cxloe_options_init(struct cxloe_options *options);
void cxloe_link_init(struct cxloe_link *link);

/* Maps a region that the agent of this machine has attached. Threads and system calls may touch its memory (for users
 * other than root only if the agent has allow-kernel-faults; else system calls on absent pages fail with EFAULT), and
 * several processes may map one region and share it. A sealed region is mapped to be read: a write raises SIGSEGV.
 * `options` may be NULL. Returns NULL on failure. */
cxloe_region *cxloe_map(const char *region, const struct cxloe_options *options, struct cxloe_error *error);

/* Maps a region that belongs to this program's own interface: the faulting thread serves its fault itself, over a link
 * of the program's own, by handling SIGBUS. The kernel cannot touch absent pages: read(2) into them fails with EFAULT.
 * The program needs CAP_NET_RAW.
 *
 * The handler of SIGBUS runs on a stack of its own, whatever the thread's signal stack is. A handler that the program had
 * installed before is called for every SIGBUS outside the region; a handler that is installed later would replace this
 * one, and the region's faults would not be served.
 *
 * Up to 16 such regions may be mapped at a time. Regions over one interface share its link, so all name the same link and
 * manager; a region may be mapped or unmapped while threads use the others. As long as one is mapped, another program is
 * refused on that interface.
 *
 * A child of fork() has neither this mapping nor one of cxloe_map: touching it ends the child by SIGSEGV, with a line on
 * standard error. It can map regions itself. */
cxloe_region *cxloe_map_inline(const char *region, const struct cxloe_link *link,
                               const struct cxloe_options *options, struct cxloe_error *error);

/* Address of the first byte, and size in bytes. */
void *cxloe_address(const cxloe_region *region);
size_t cxloe_size(const cxloe_region *region);

/* Waits until all earlier writes are at the memory nodes. */
int cxloe_flush(cxloe_region *region, struct cxloe_error *error);

/* Changes the limit of resident bytes. Not for inline mappings. */
int cxloe_set_local(cxloe_region *region, uint64_t local, struct cxloe_error *error);

/* Discards whole pages: they are zeros afterwards. Not for inline mappings. */
int cxloe_discard(cxloe_region *region, size_t offset, size_t bytes, struct cxloe_error *error);

/* Advice about the future use of all pages that a range touches. It changes when pages are fetched and evicted, never
 * their content. */
enum cxloe_hint {
    CXLOE_WILL_READ = 0,  /* read soon: fetched ahead, as far as there is room */
    CXLOE_WILL_WRITE = 1, /* written soon: the same, and pages never written are installed as zeros */
    CXLOE_COLD = 2,       /* not needed soon: evicted before others */
    CXLOE_PAGE_OUT = 3    /* not needed for long: evicted now */
};
int cxloe_hint(cxloe_region *region, size_t offset, size_t bytes, enum cxloe_hint hint, struct cxloe_error *error);

/* Writes the counts since the region was mapped to `counters`. */
int cxloe_count(cxloe_region *region, struct cxloe_counters *counters, struct cxloe_error *error);

/* Writes all dirty pages back and unmaps the region, which is unmapped also when writing back fails. */
int cxloe_unmap(cxloe_region *region, struct cxloe_error *error);

#ifdef __cplusplus
}
#endif

#endif
