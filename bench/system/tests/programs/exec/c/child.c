/* Started by programs with remote memory, and linked against another C library than they. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void)
{
    char *memory = malloc(8 << 20);
    memset(memory, 42, 8 << 20);
    printf("child %d\n", memory[4 << 20]);
    free(memory);
    return 0;
}
