/* model file|tree SEED OPERATIONS MOUNT...
 *
 * Applies random operations to a file system through its mounts, one after the other, and to a
 * model of it in memory; ends with 1 at the first difference and shows the operations before it. It is
 * in C because a million operations, including mmap, must be cheap next to the file system's work.
 */
#include "model.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HISTORY 60
#define LINE 320

const char *mounts[MOUNTS_MAX];
int mount_count;

static uint64_t state;
static char history[HISTORY][LINE];
static uint64_t begun;

/* splitmix64 */
uint64_t random_bits(void) {
    uint64_t z = (state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

uint64_t below(uint64_t bound) { return random_bits() % bound; }

int one_in(uint64_t chances) { return below(chances) == 0; }

void begin(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(history[begun++ % HISTORY], LINE, format, arguments);
    va_end(arguments);
}

void fail(const char *format, ...) {
    int error = errno;
    uint64_t first = begun > HISTORY ? begun - HISTORY : 0;
    for (uint64_t at = first; at < begun; at++) {
        printf("%8llu %s\n", (unsigned long long)at, history[at % HISTORY]);
    }
    printf("WRONG: ");
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf(" (errno: %s)\n", strerror(error));
    exit(1);
}

void expect(long result, int error, const char *what) {
    int got = result < 0 ? errno : 0;
    if (got != error) {
        fail("%s: expected %s, got %s", what, strerror(error), strerror(got));
    }
}

int main(int count, char **arguments) {
    if (count < 5 || count - 4 > MOUNTS_MAX) {
        fprintf(stderr, "usage: model file|tree SEED OPERATIONS MOUNT...\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    state = strtoull(arguments[2], NULL, 10);
    uint64_t operations = strtoull(arguments[3], NULL, 10);
    mount_count = count - 4;
    for (int index = 0; index < mount_count; index++) {
        mounts[index] = arguments[4 + index];
    }
    if (strcmp(arguments[1], "file") == 0) {
        run_file(operations);
    } else {
        run_tree(operations);
    }
    printf("%s: %llu operations through %d mounts, seed %s: as the model has it\n", arguments[1],
           (unsigned long long)operations, mount_count, arguments[2]);
    return 0;
}
