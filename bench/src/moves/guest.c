/* A guest without an operating system that gives pages of its memory versions, and checks those before.
 *
 * QEMU loads it by the multiboot protocol. The first pass writes version 1 to AREA bytes from START on. Each further pass
 * goes through the first WORKING bytes: the words of a page have to be those of its last version; of WRITTEN_OF pages one
 * gets the pass's number as its version. It also looks at a few pages behind, which keep version 1. After a pass it prints
 * `pass N` on the first serial line; at the first wrong word `wrong page P: WORD, not WORD`, and stops.
 */
#define PORT 0x3f8
#define START 0x1000000u
#ifndef AREA
#define AREA 0x1800000u
#endif
#ifndef WORKING
#define WORKING AREA
#endif
#ifndef WRITTEN_OF
#define WRITTEN_OF 1
#endif
#define BEHIND 8
#define PAGE 4096u
#define WORDS (PAGE / 4)

typedef unsigned int u32;

__attribute__((section(".multiboot"), used)) static const u32 header[3] = {0x1badb002, 0, -0x1badb002u};

static unsigned char stack[16384] __attribute__((aligned(16)));

/* Indices of the words that are looked at: each in another line of 64 bytes. */
static const u32 looked_at[4] = {0, 300, 700, WORDS - 1};

static void put_byte(unsigned char byte) {
    unsigned char ready;
    do {
        __asm__ volatile("inb %1, %0" : "=a"(ready) : "Nd"((unsigned short)(PORT + 5)));
    } while (!(ready & 0x20));
    __asm__ volatile("outb %0, %1" : : "a"(byte), "Nd"((unsigned short)PORT));
}

static void put_text(const char *text) {
    while (*text) put_byte((unsigned char)*text++);
}

static void put_number(u32 number) {
    char digits[11];
    int at = sizeof digits - 1;
    digits[at] = 0;
    do {
        digits[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    put_text(digits + at);
}

/* Word `index` of page `page` in version `version`; version 0 is zeros. */
static u32 word(u32 version, u32 page, u32 index) {
    return version ? (version * 2654435761u) ^ (page * 40503u + index) : 0;
}

static volatile u32 *words_of(u32 page) {
    return (volatile u32 *)(START + page * PAGE);
}

static void check(u32 page, u32 version) {
    for (int look = 0; look < 4; look++) {
        u32 index = looked_at[look], found = words_of(page)[index], expected = word(version, page, index);
        if (found != expected) {
            put_text("wrong page ");
            put_number(page);
            put_text(": ");
            put_number(found);
            put_text(", not ");
            put_number(expected);
            put_text("\n");
            for (;;) __asm__ volatile("cli; hlt");
        }
    }
}

static void give(u32 page, u32 version) {
    for (int look = 0; look < 4; look++) words_of(page)[looked_at[look]] = word(version, page, looked_at[look]);
}

__attribute__((used)) void guest(void) {
    u32 behind = WORKING / PAGE;
    for (u32 pass = 1;; pass++) {
        u32 pages = (pass == 1 ? AREA : WORKING) / PAGE;
        for (u32 page = 0; page < pages; page++) {
            int written = pass == 1 || page % WRITTEN_OF == 0;
            check(page, written ? pass - 1 : 1);
            if (written) give(page, pass);
        }
        for (int look = 0; pass > 1 && look < BEHIND && WORKING < AREA; look++) {
            check(behind, 1);
            behind = behind + 1 < AREA / PAGE ? behind + 1 : WORKING / PAGE;
        }
        put_text("pass ");
        put_number(pass);
        put_text("\n");
    }
}

__attribute__((naked, used)) void _start(void) {
    __asm__ volatile("mov %0, %%esp\n\tcall guest" : : "i"(stack + sizeof stack));
}
