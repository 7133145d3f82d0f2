/* A guest without an operating system that gives every page of its memory a version, and checks the one before.
 *
 * QEMU loads it by the multiboot protocol. Pass N goes through AREA bytes from START on: the words of each page have to be
 * those of pass N - 1, and become those of pass N. After a pass it prints `pass N` on the first serial line; at the first
 * wrong word `wrong page P: WORD, not WORD`, and stops.
 */
#define PORT 0x3f8
#define START 0x1000000u
#ifndef AREA
#define AREA 0x2000000u
#endif
#define PAGE 4096u
#define WORDS (PAGE / 4)

typedef unsigned int u32;

__attribute__((section(".multiboot"), used)) static const u32 header[3] = {0x1badb002, 0, -0x1badb002u};

static unsigned char stack[16384] __attribute__((aligned(16)));

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

/* Word `index` of page `page` after pass `pass`; before the first pass memory is zeros. */
static u32 word(u32 pass, u32 page, u32 index) {
    return pass ? (pass * 2654435761u) ^ (page * 40503u + index) : 0;
}

__attribute__((used)) void guest(void) {
    for (u32 pass = 1;; pass++) {
        for (u32 page = 0; page < AREA / PAGE; page++) {
            volatile u32 *words = (volatile u32 *)(START + page * PAGE);
            /* The first, the last and two in between: each in another line of 64 bytes. */
            static const u32 looked_at[4] = {0, 300, 700, WORDS - 1};
            for (int look = 0; look < 4; look++) {
                u32 index = looked_at[look], expected = word(pass - 1, page, index);
                if (words[index] != expected) {
                    put_text("wrong page ");
                    put_number(page);
                    put_text(": ");
                    put_number(words[index]);
                    put_text(", not ");
                    put_number(expected);
                    put_text("\n");
                    for (;;) __asm__ volatile("cli; hlt");
                }
                words[index] = word(pass, page, index);
            }
        }
        put_text("pass ");
        put_number(pass);
        put_text("\n");
    }
}

__attribute__((naked, used)) void _start(void) {
    __asm__ volatile("mov %0, %%esp\n\tcall guest" : : "i"(stack + sizeof stack));
}
